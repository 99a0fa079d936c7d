"""progress: tells the controller that a long pass gets on, so that only silence is a failure."""

from __future__ import annotations

from typing import Any

from hybridengine.rlhf.workers import RankContext


def follow(module: Any, context: RankContext) -> None:
    """From now on every forward pass of the transformers `module` counts as progress of its rank.

    Every pass begins with the embedding of its tokens, also those that leave out the head.
    """
    module.get_input_embeddings().register_forward_hook(lambda *_: context.progress())
