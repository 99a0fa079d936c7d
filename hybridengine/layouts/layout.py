"""Layout and LayoutRule: who holds what, and the rule that says so for any model.

A rule has no shapes; bound to a spec it gives a layout, in which every rank's local tensors and the
exact place of every piece in them are known. Binding runs in the core.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, replace
from typing import Any

from hybridengine import _core, options
from hybridengine._core import UsageError
from hybridengine.layouts.boxes import Boxes, rows_by_hand
from hybridengine.layouts.families import Family, Request, get_family
from hybridengine.layouts.grammar import check_ranks, format_ranks, parse_call
from hybridengine.layouts.infer import LocalShapes, infer_tensors
from hybridengine.layouts.mapping.mapping import Mapping
from hybridengine.layouts.names import canonical_names, template_of
from hybridengine.layouts.placements import placed_layout
from hybridengine.layouts.spec import Spec
from hybridengine.wording import counted, kind_of


@dataclass(frozen=True, repr=False)
class LayoutRule:
    """How ranks cut tensors, without shapes: 'vllm(tp=3,dp=2)@0-5'.

    Made by the constructors of Layout or by parse(). `args` holds every key of the family in order.
    `ranks` are in mesh order, the last axis fastest. str() gives the shortest text, and parse() of
    it an equal rule (a mapping has no text).
    """

    family: str
    args: tuple[tuple[str, int], ...]
    ranks: tuple[int, ...]
    mapping: Mapping | None = None
    op: str | None = None  # of a partial layout

    @classmethod
    def make(
        cls,
        family: str,
        given: dict[str, int],
        ranks: Iterable[int] | None = None,
        mapping: Mapping | None = None,
    ) -> LayoutRule:
        """Throws UsageError on an unknown family or key, a value below 1 or wrong ranks."""
        if mapping is not None and not isinstance(mapping, Mapping):
            raise UsageError(f"mapping is {kind_of(mapping)}. Make a hybridengine.Mapping.")
        record = get_family(family)
        args = record.complete(family, given)
        size = record.size(args)
        if ranks is not None and not isinstance(ranks, Iterable):
            raise UsageError(f"ranks are {ranks!r}. Use a list of ranks, in the order of the mesh.")
        places = tuple(range(size)) if ranks is None else tuple(ranks)
        check_ranks(places)
        if len(places) != size:
            raise UsageError(
                f"@{format_ranks(places)} names {counted(len(places), 'rank')}, "
                f"{record.format(family, args)} has {size}"
            )
        return cls(family, tuple(args.items()), places, mapping)

    @classmethod
    def parse(cls, text: str, *, mapping: Mapping | None = None) -> LayoutRule:
        """A rule from `name(key=number, ...)[@ranks]`, or `partial(op, rule)`. Throws UsageError
        with what to write."""
        if not isinstance(text, str):
            raise UsageError(f"a layout is {kind_of(text)}. Use a text such as 'vllm(tp=2)'.")
        wrapped = re.fullmatch(r"\s*partial\(\s*(\w+)\s*,(.*)\)\s*", text)
        if wrapped:
            return cls.parse(wrapped[2].strip(), mapping=mapping).partial(wrapped[1])
        call = parse_call(text)
        family = get_family(call.name)
        given = dict(call.keys)
        if call.positional is not None:
            _take_positional(call.name, family, given, call.positional)
        return cls.make(call.name, given, call.ranks, mapping)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def arg(self, key: str) -> int:
        return dict(self.args)[key]

    def bind(self, spec: Spec, *, uncut: Iterable[str] = ()) -> Layout:
        """The layout of `spec` under this rule.

        `uncut` are tensors that fsdp2 leaves whole on every rank, as fully_shard leaves buffers and
        ignored parameters; those whose names differ only in numbers go together.

        Throws UsageError where the model cannot be cut so, with what is possible; where the spec
        tells too little; or where a tensor has no rule.
        """
        if not isinstance(spec, Spec):
            raise UsageError(
                f"spec is {kind_of(spec)}. Make one with Spec.from_config(), Spec.from_hf() or "
                "Spec.from_tensors()."
            )
        request = Request(
            text=str(replace(self, op=None)),
            args=dict(self.args),
            ranks=self.ranks,
            config=spec.config,
            tied=bool(spec.aliases),
            mapping=self.mapping,
            no_config=spec.no_config,
            uncut=sorted(set(map(template_of, uncut))),
        )
        layout = Layout(_core.bind(get_family(self.family).make(request), spec.core), spec)
        return layout if self.op is None else layout.partial(self.op)

    def partial(self, op: str) -> LayoutRule:
        """See Layout.partial()."""
        return replace(self, op=op)

    def infer_spec(self, local_shapes: LocalShapes) -> Spec:
        """The logical tensors behind the local ones of every rank: {rank: [(name, shape, dtype)]}.

        For rules that keep names and cut dim 0 at most: fsdp2 without tp, replicated and hf. Throws
        UsageError for others, and where the ranks contradict each other or the rule.
        """
        return Spec.from_tensors(
            infer_tensors(self.family, dict(self.args), self.ranks, local_shapes)
        )

    def __str__(self) -> str:
        text = get_family(self.family).format(self.family, dict(self.args))
        default = self.ranks == tuple(range(self.size))
        text = text if default else f"{text}@{format_ranks(self.ranks)}"
        return text if self.op is None else f"partial({self.op}, {text})"

    def __repr__(self) -> str:
        mapping = "" if self.mapping is None else f", mapping={self.mapping!r}"
        return f"LayoutRule({str(self)!r}{mapping})"


class Layout:
    """Who holds what: for every rank its local tensors and the pieces of logical tensors in them.

    The static constructors give rules; rule.bind(spec) gives a layout.
    """

    def __init__(self, core: _core.Layout, spec: Spec | None = None) -> None:
        self.core = core
        self.spec = Spec(core.spec) if spec is None else spec

    @staticmethod
    def of(model: Any) -> Layout:
        """The layout that the DTensors of a module, or of a dict of tensors, describe: their mesh
        says which ranks, their placements which parts, on any dim, FSDP2 over tensor parallelism
        and replicas included.

        Ranks are those of the default process group. Tensors that are no DTensors (buffers,
        ignored parameters) are whole on every rank of the mesh. Names are the checkpoint's where
        the model has a config that is mapped. Nothing is communicated, so each rank says what it
        believes; a reshard compares it.

        Throws UsageError where nothing is a DTensor, or where one has a placement that is neither
        Shard nor Replicate.
        """
        from hybridengine.layouts.held import held_by  # torch: not needed to plan

        held = held_by(model)
        known = [] if held.config is None else Spec.from_architecture(held.config).tensors
        names = canonical_names(held.tensors, [name for name, _, _ in known])
        rows = [(names[name], shape, dtype) for name, shape, dtype in held.rows]
        aliases = [(alias, names[name]) for alias, name in held.aliases]
        spec = Spec.from_tensors(rows, aliases, held.config)
        placements = {names[name]: each for name, each in held.placements.items()}
        return Layout(placed_layout(rows, placements, spec.core), spec)

    @staticmethod
    def from_boxes(spec: Spec, boxes: Dict[int, Boxes], *, text: str = "by hand") -> Layout:
        """A layout by hand, for a split that no rule describes.

        `boxes` say which box each rank has of which tensor: {rank: {tensor: (start, size)}}, a
        number per dim. The rank's local tensor has the tensor's name, the shape `size`, and is
        contiguous. Ranks may have the same box; one with {} takes part and has nothing. `text`
        names the layout in messages.

        Throws UsageError on a tensor that the spec lacks, a box outside of it, or elements that no
        rank has.
        """
        core = _core.Layout(options.text("text", text), spec.core, *rows_by_hand(spec, boxes))
        return Layout(core, spec)

    @staticmethod
    def fsdp2(
        n: int,
        *,
        replicas: int = 1,
        tp: int = 1,
        ranks: Iterable[int] | None = None,
        mapping: Mapping | None = None,
    ) -> LayoutRule:
        """FSDP2: dim 0 in chunks over n ranks, the last ones fewer or none; 0-dim tensors whole.

        The mesh is (replicas, n, tp). Where tp > 1 tensor parallelism cuts first and the chunks are
        of what it leaves; the vocabulary must then divide by tp.
        """
        return LayoutRule.make("fsdp2", {"n": n, "replicas": replicas, "tp": tp}, ranks, mapping)

    @staticmethod
    def replicated(
        n: int, *, ranks: Iterable[int] | None = None, mapping: Mapping | None = None
    ) -> LayoutRule:
        """Everything whole on each of n ranks."""
        return LayoutRule.make("replicated", {"n": n}, ranks, mapping)

    @staticmethod
    def tensor_parallel(
        n: int,
        *,
        replicas: int = 1,
        ranks: Iterable[int] | None = None,
        mapping: Mapping | None = None,
    ) -> LayoutRule:
        """Tensor parallelism over n ranks under the checkpoint's names: nothing is fused, and the
        vocabulary is not padded, so it must divide by n. The mesh is (replicas, n)."""
        return LayoutRule.make("tensor_parallel", {"n": n, "replicas": replicas}, ranks, mapping)

    @staticmethod
    def vllm(
        *,
        tp: int = 1,
        pp: int = 1,
        dp: int = 1,
        ep: int = 1,
        replicas: int = 1,
        ranks: Iterable[int] | None = None,
        mapping: Mapping | None = None,
    ) -> LayoutRule:
        """vLLM: qkv and gate_up fused per rank, kv heads shared where tp exceeds them, vocabulary
        padded to a multiple of 64, layers over pp stages. tp is fastest, then pp, dp, replicas."""
        args = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "replicas": replicas}
        return LayoutRule.make("vllm", args, ranks, mapping)

    @staticmethod
    def hf(*, ranks: Iterable[int] | None = None, mapping: Mapping | None = None) -> LayoutRule:
        """The transformers module: everything whole on one rank."""
        return LayoutRule.make("hf", {}, ranks, mapping)

    @property
    def text(self) -> str:
        return self.core.text

    @property
    def ranks(self) -> list[int]:
        """The ranks that take part, ascending; a rank may hold nothing."""
        return self.core.ranks

    def partial(self, op: str) -> Layout:
        """This layout with pieces that are contributions: equal boxes on several ranks are no
        replicas but belong together by `op` (sum, mean, min or max). A source only.

        Throws UsageError on an element type that `op` cannot combine.
        """
        return Layout(self.core.partial(options.text("op", op)), self.spec)

    def locals(self, rank: int) -> list[tuple[str, tuple[int, ...], str]]:
        """(name, shape, dtype) of the tensors that `rank` stores."""
        return self.core.locals(options.whole("rank", rank))

    def pieces(
        self, rank: int
    ) -> list[tuple[str, str, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]]:
        """(tensor, local tensor, box start, box size, offset, strides) of what `rank` holds, the
        last two in elements of the local tensor."""
        return self.core.pieces(options.whole("rank", rank))

    def num_bytes(self, rank: int) -> int:
        return self.core.num_bytes(options.whole("rank", rank))

    def check(self) -> None:
        """Proves that all is covered and nothing is claimed twice. Throws UsageError."""
        self.core.check()

    def to_string(self, rank: int) -> str:
        """A line per local tensor and piece."""
        return self.core.to_string(options.whole("rank", rank))

    def save(self) -> bytes:
        return self.core.save()

    @staticmethod
    def load(blob: bytes) -> Layout:
        """The inverse of save(). Throws UsageError on bytes that are no layout."""
        return Layout(_core.Layout.load(options.blob("a layout to load", blob)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and bool(self.core == other.core)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Layout({self.text!r}, {counted(len(self.spec.tensors), 'tensor')})"


def _take_positional(name: str, family: Family, given: dict[str, int], value: int) -> None:
    if family.positional is None:
        keys: Sequence[str] = tuple(family.defaults)
        mend = f"Its keys: {', '.join(keys)}." if keys else f"Write {name}."
        raise UsageError(f"{name} takes no number without a key: {value}. {mend}")
    if family.positional in given:
        raise UsageError(
            f"{family.positional} of {name} is given twice: {value} and "
            f"{given[family.positional]}. Give it once."
        )
    given[family.positional] = value
