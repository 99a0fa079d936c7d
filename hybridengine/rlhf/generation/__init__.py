"""Generation: rollout engines, and what goes in and comes out of them.

`Engine` is built in. Another engine stands in its place by having the methods of `RolloutEngine`.
"""

from hybridengine.rlhf.generation.engine import Engine
from hybridengine.rlhf.generation.params import Generation, Request, SamplingParams
from hybridengine.rlhf.generation.protocol import RolloutEngine, generate
from hybridengine.rlhf.generation.weights import hollow, load_weights

__all__ = [
    "Engine",
    "Generation",
    "Request",
    "RolloutEngine",
    "SamplingParams",
    "generate",
    "hollow",
    "load_weights",
]
