"""index: every benchmark with its summary and flags, so that help needs none of their imports.

A benchmark is the module of its name: with a record, BENCH (see record.py), which runs on ranks, or
with main(arguments) and a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """`flags` are groups of flags.py beside the shared ones; `defaults` are words for those that
    are not the usual ones."""

    summary: str
    flags: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)


_COLLECTIVE = ("ranks", "sizes", "dtype", "fusion", "rivals", "tensors")
_AUTO = {"--ngpus": "2", "--agg_iters": "auto, what lasts 1 ms"}

INDEX: dict[str, Entry] = {
    "reshard": Entry(
        "a model's weights from one layout to another",
        ("ranks", "dtype", "model", "move", "rivals"),
        {"--ngpus": "as many as the layouts name", "--datatype": "the model's"},
    ),
    "send_recv": Entry(
        "bytes from rank 0 to rank 1",
        ("ranks", "sizes", "dtype", "move", "rivals", "tensors"),
        {"--ngpus": "2"},
    ),
    "put": Entry("a put over one link, and its answer", ("ranks", "sizes"), {"--ngpus": "2"}),
    "all_reduce": Entry(
        "every rank gets the sum of all ranks' arrays",
        (*_COLLECTIVE, "redop", "sweep", "picture"),
        {**_AUTO, "--sweep": "off; there is bucket"},
    ),
    "reduce_scatter": Entry(
        "every rank gets its share of the sum of all ranks' arrays",
        (*_COLLECTIVE, "redop"),
        _AUTO,
    ),
    "all_gather": Entry("every rank gets the arrays of all ranks", _COLLECTIVE, _AUTO),
    "barrier": Entry("all ranks wait for the last", ("ranks", "rivals"), _AUTO),
    "masked_all_reduce": Entry(
        "the mean over the ranks whose score reaches a threshold",
        ("ranks", "sizes", "dtype", "fusion", "redop", "rivals", "mask", "sweep", "picture"),
        {**_AUTO, "--sweep": "off; there is density", "--op": "avg"},
    ),
    "two_step": Entry(
        "gradients to updated weights in the layout for generation",
        ("ranks", "update", "rivals"),
        {"--ngpus": "4"},
    ),
    "pack": Entry("the host loops: copies, casts and sums", ("ranks", "sizes", "only")),
    "scaling": Entry(
        "weak scaling: measured on few ranks, modelled to 512",
        ("ranks", "share", "picture"),
        {**_AUTO, "--ngpus": "4", "--png": "scaling.png"},
    ),
    "planner": Entry("seconds to bind, plan and schedule", ("only",)),
    "loading": Entry(
        "memory of a rank that builds actor, reference and rollout",
        ("ranks", "only"),
        {"--ngpus": "4"},
    ),
    "rollout": Entry("tokens per second of the rollout engine", ("only",)),
    "compare": Entry("two JSON files of rows side by side"),
}
