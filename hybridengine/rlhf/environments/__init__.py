"""Environments: what answers a policy between its responses, and the episodes that come of it.

One of your own has the methods of `Environment`.
"""

from hybridengine.rlhf.environments.calculator import Calculator
from hybridengine.rlhf.environments.episodes import Episode, Exchange, Player, Task
from hybridengine.rlhf.environments.hanoi import TowerOfHanoi
from hybridengine.rlhf.environments.protocol import Environment, Turn
from hybridengine.rlhf.environments.registry import environment

__all__ = [
    "Calculator",
    "Environment",
    "Episode",
    "Exchange",
    "Player",
    "Task",
    "TowerOfHanoi",
    "Turn",
    "environment",
]
