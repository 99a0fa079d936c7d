"""Weight: a row of a mapping, and Cut: how tensor parallelism divides it. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridengine._core import UsageError
from hybridengine.layouts.mapping.config import FLAGS, NUMBERS

STAGES = ("layer", "first", "last")


@dataclass(frozen=True)
class Cut:
    """Dim `dim` is `by` equal units, which the tp ranks share out.

    `by` is a number of the config ('heads', 'intermediate', 'vocab', ...) or a plain number.
    Where `shared`, more ranks than units hold the same unit together, as kv heads are.
    """

    dim: int
    by: str | int
    shared: bool = False


def column(by: str | int, *, shared: bool = False) -> Cut:
    """Output features are divided: dim 0 of a weight and of its bias."""
    return Cut(0, by, shared)


def row(by: str | int) -> Cut:
    """Input features are divided: dim 1 of a weight. Its bias is whole on every rank."""
    return Cut(1, by)


@dataclass(frozen=True)
class Weight:
    """The tensors of one template.

    `name` is the checkpoint's name with '*' for numbers; '**' stands for whatever no other row
    names. `shape` gives each dim as a product of numbers of the config; only a spec made from a
    config needs it. `fused` is vLLM's name and the slot in it. `when` is a condition on the config
    ('attention_bias', 'not tie'). `stage` is the pipeline stage that holds it: that of its layer
    (the first '*'), the first or the last.
    """

    name: str
    shape: tuple[str, ...] | None = None
    cut: Cut | None = None
    fused: tuple[str, int] | None = None
    when: str = ""
    stage: str = "layer"

    @property
    def layered(self) -> bool:
        """Whether the tensors lie in numbered layers."""
        return "*" in self.name.replace("**", "") and self.stage == "layer"

    @property
    def by_vocab(self) -> bool:
        return self.cut is not None and self.cut.by == "vocab"


def check_weights(weights: Sequence[Weight]) -> None:
    """Throws UsageError on a row that makes no sense, or that repeats a name or a fused slot."""
    names: set[str] = set()
    slots: set[tuple[str, int]] = set()
    for weight in weights:
        _check_words(weight)
        if weight.name in names:
            raise UsageError(f"the mapping names {weight.name!r} twice. Remove one row.")
        if weight.fused in slots:
            raise UsageError(f"the mapping fills slot {weight.fused!r} twice. Number the slots.")
        names.add(weight.name)
        if weight.fused is not None:
            slots.add(weight.fused)


def _check_words(weight: Weight) -> None:
    for dim in weight.shape or ():
        for factor in dim.split("*"):
            if not factor.isdigit():
                _check_word(weight, "shape", factor, NUMBERS)
    if weight.when:
        _check_word(weight, "when", weight.when.removeprefix("not "), FLAGS)
    if weight.cut is not None and isinstance(weight.cut.by, str):
        _check_word(weight, "cut", weight.cut.by, NUMBERS)
    if weight.cut is not None and isinstance(weight.cut.by, int) and weight.cut.by < 1:
        raise UsageError(f"{weight.name!r} is cut into {weight.cut.by} units. Use 1 or more.")
    _check_word(weight, "stage", weight.stage, STAGES)
    if weight.fused is not None and weight.fused[0].count("*") != weight.name.count("*"):
        raise UsageError(
            f"{weight.name!r} and {weight.fused[0]!r} have different numbers of '*'. "
            "Each '*' of the fused name stands for one of the name."
        )


def _check_word(weight: Weight, field: str, word: str, legal: Sequence[str]) -> None:
    if word not in legal:
        raise UsageError(
            f"{field} of {weight.name!r} says {word!r}, which is no word of a config. "
            f"Use {', '.join(legal)}."
        )
