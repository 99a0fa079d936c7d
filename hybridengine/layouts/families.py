"""Families: the kinds of layout that have a name, and the core's rule for each.

A family is a record: its keys with their defaults, its size, and the function that makes the rule
for a spec. A new family is one record in the table at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybridengine import _core
from hybridengine._core import UsageError
from hybridengine.layouts.grammar import MAX_RANKS
from hybridengine.layouts.mapping import get_mapping
from hybridengine.layouts.mapping.config import ModelConfig
from hybridengine.layouts.mapping.mapping import Mapping
from hybridengine.layouts.mapping.rules import Target

# vLLM pads the vocabulary so that a table of any tp has this many rows to share out.
VLLM_VOCAB_MULTIPLE = 64


@dataclass(frozen=True)
class Request:
    """What a family's rule is made from."""

    text: str
    args: dict[str, int]
    ranks: Sequence[int]
    config: ModelConfig | None
    tied: bool
    mapping: Mapping | None
    no_config: str = ""  # as of Spec
    uncut: Sequence[str] = ()  # templates of tensors that every rank holds whole all the same

    def tensor_rules(self, target: Target) -> list[_core.TensorRule]:
        """The rules of the mapping. Without one everything is whole, which needs that no axis
        cuts; otherwise throws UsageError."""
        mapping = self.mapping
        if mapping is None and self.config is not None:
            mapping = get_mapping(self.config.architecture)
        if mapping is not None:
            return mapping.rules(self.config, target)
        if target.tp > 1 or target.pp > 1:
            reason = self.no_config.replace("{layout}", self.text) or (
                "the spec has no config. Make the spec with Spec.from_config() or Spec.from_hf(), "
                "or pass mapping=."
            )
            raise UsageError(f"{self.text} cuts tensors by their meaning, but {reason}")
        return [_core.TensorRule("**", cuts=list(target.after))]

    def rule(
        self,
        axes: Sequence[tuple[str, int]],
        rules: Sequence[_core.TensorRule],
        layers: Sequence[int] = (),
    ) -> _core.LayoutRule:
        mesh = _core.Mesh(list(axes), list(self.ranks))
        return _core.LayoutRule(self.text, mesh, list(rules), list(layers))


@dataclass(frozen=True)
class Family:
    """`defaults` are the keys in order; None has to be given. `positional` is the key that a bare
    first number means, if any. `shown` keys are written even at their default."""

    defaults: dict[str, int | None]
    make: Callable[[Request], _core.LayoutRule]
    size_keys: tuple[str, ...]
    positional: str | None = None
    shown: tuple[str, ...] = ()

    def size(self, args: dict[str, int]) -> int:
        return math.prod(args[key] for key in self.size_keys)

    def complete(self, name: str, given: dict[str, int]) -> dict[str, int]:
        """All keys with their values, in order. Throws UsageError on a key that is unknown or
        missing, and on a value below 1."""
        args: dict[str, int] = {}
        for key, value in given.items():
            if key not in self.defaults:
                keys = ", ".join(self.defaults) or "none"
                raise UsageError(f"{key} is no key of {name}. Its keys: {keys}.")
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{key} of {name} is {value!r}. Use a whole number from 1.")
        for key, default in self.defaults.items():
            complete = given.get(key, default)
            if complete is None:
                raise UsageError(f"{name} needs its number of ranks. Write {name}(2).")
            args[key] = complete
        if self.size(args) > MAX_RANKS:
            raise UsageError(f"{name} has {self.size(args)} ranks. Use at most {MAX_RANKS}.")
        return args

    def format(self, name: str, args: dict[str, int]) -> str:
        parts = [
            str(value) if key == self.positional else f"{key}={value}"
            for key, value in args.items()
            if key == self.positional or key in self.shown or value != self.defaults[key]
        ]
        return f"{name}({','.join(parts)})" if self.defaults else name


def keeps_names(name: str) -> bool:
    """Whether local tensors of this family have the names of the logical ones."""
    return name in FAMILIES and name != "vllm"


def get_family(name: str) -> Family:
    """Throws UsageError that lists the names."""
    if name == "megatron":
        raise UsageError("megatron layouts are not supported yet")
    if name not in FAMILIES:
        raise UsageError(f"{name!r} is no layout. Use {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def vllm_stages(layers: int, pp: int) -> list[int]:
    """Layers per pipeline stage as vLLM splits them: what does not divide goes one by one to the
    stages before the last, backwards, for the last one also has the head."""
    stages = [layers // pp] * pp
    for extra in range(layers % pp):
        stages[-2 - extra] += 1
    return stages


def _make_fsdp2(request: Request) -> _core.LayoutRule:
    args = request.args
    chunk = _core.Cut(0, 1, "chunk")
    rules = [*map(_core.TensorRule, request.uncut), _core.TensorRule("**", cuts=[chunk])]
    if args["tp"] > 1:
        rules = request.tensor_rules(Target(tp=args["tp"], tp_axis=2, after=(chunk,)))
    axes = [("replicas", args["replicas"]), ("n", args["n"]), ("tp", args["tp"])]
    return request.rule(axes, rules)


def _make_replicated(request: Request) -> _core.LayoutRule:
    return request.rule([("n", request.args["n"])], [_core.TensorRule("**")])


def _make_tensor_parallel(request: Request) -> _core.LayoutRule:
    tp = request.args["n"]
    axes = [("replicas", request.args["replicas"]), ("tp", tp)]
    return request.rule(axes, request.tensor_rules(Target(tp=tp, tp_axis=1)))


def _make_hf(request: Request) -> _core.LayoutRule:
    return request.rule([("n", 1)], [_core.TensorRule("**")])


def _make_vllm(request: Request) -> _core.LayoutRule:
    args = request.args
    tp, pp, world = args["tp"], args["pp"], args["tp"] * args["dp"]
    if args["ep"] not in (1, world):
        raise UsageError(
            f"ep {args['ep']} does not fit {request.text}: vLLM spreads experts over all of tp*dp "
            f"or none. Use ep={' or ep='.join(map(str, sorted({1, world})))}."
        )
    layers: list[int] = []
    if pp > 1 and request.config is not None:
        layers = vllm_stages(request.config.layers, pp)
    elif pp > 1 and request.mapping is not None:
        raise UsageError(
            f"{request.text} cuts the layers into stages, but the spec has no config that says how "
            "many there are. Make the spec with Spec.from_config() or Spec.from_hf()."
        )
    target = Target(
        tp=tp,
        tp_axis=3,
        fuse=True,
        vocab_multiple=VLLM_VOCAB_MULTIPLE,
        pp=pp,
        pp_axis=2 if pp > 1 else -1,
        tied=request.tied,
    )
    axes = [("replicas", args["replicas"]), ("dp", args["dp"]), ("pp", pp), ("tp", tp)]
    return request.rule(axes, request.tensor_rules(target), layers)


FAMILIES: dict[str, Family] = {
    "fsdp2": Family(
        {"n": None, "replicas": 1, "tp": 1}, _make_fsdp2, ("replicas", "n", "tp"), positional="n"
    ),
    "replicated": Family({"n": None}, _make_replicated, ("n",), positional="n"),
    "tensor_parallel": Family(
        {"n": None, "replicas": 1}, _make_tensor_parallel, ("replicas", "n"), positional="n"
    ),
    "vllm": Family(
        {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "replicas": 1},
        _make_vllm,
        ("tp", "pp", "dp", "replicas"),
        shown=("tp",),
    ),
    "hf": Family({}, _make_hf, ()),
}
