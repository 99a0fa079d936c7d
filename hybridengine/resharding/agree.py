"""agree: how the ranks come to one spec and one plan before the first byte moves.

Each function is collective. What one rank finds wrong, every rank raises, in the same words; where
ranks contradict each other, the error names both and what differs first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from hybridengine._core import UsageError
from hybridengine.agreement import agree, raise_first
from hybridengine.comm import Communicator
from hybridengine.layouts.grammar import format_ranks
from hybridengine.layouts.infer import LocalShapes
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.layouts.mapping.config import ModelConfig
from hybridengine.layouts.names import canonical_names, check_matched
from hybridengine.layouts.spec import Spec

Row = tuple[str, tuple[int, ...], str]


@dataclass
class Statement:
    """What one rank says about a reshard: its arguments, and what it holds."""

    options: dict[str, Any]
    error: str = ""
    rows: list[Row] | None = None  # None: it passed no model
    whole: bool = False  # rows have the shapes of whole tensors
    plain_module: bool = False  # a module none of whose tensors is a DTensor
    aliases: list[tuple[str, str]] | None = None
    empty: list[str] | None = None  # rows without bytes here, so that nothing tells what they share
    uncut: list[str] | None = None  # rows that are whole here although others are sharded
    contiguous: bool = True  # all its tensors: others may read them where they lie
    config: str = ""  # ModelConfig.save()
    no_config: str = ""  # as of Spec
    out: list[str] | None = None  # names of the tensors to write into
    out_uncut: list[str] | None = None


def gather(comm: Communicator, mine: Statement) -> list[Statement]:
    """Every rank's statement. Throws UsageError where one found an error, or where arguments
    differ. Ranks that hold the same have one list of rows."""
    return agree(comm, lambda: vars(mine), _checked)


def _checked(shown: list[Mapping[str, Any]]) -> list[Statement]:
    statements = _statements(shown)
    for rank, each in enumerate(statements):
        for key, value in statements[0].options.items():
            if each.options[key] != value:
                raise UsageError(
                    f"ranks call reshard differently: {key} is {value!r} on rank 0 and "
                    f"{each.options[key]!r} on rank {rank}. Pass the same arguments everywhere."
                )
    raise_first([each.error for each in statements])
    return statements


def _statements(shown: list[Mapping[str, Any]]) -> list[Statement]:
    statements = [Statement(**each) for each in shown]
    read: dict[int, list[Row]] = {}
    for each in statements:
        if each.rows is not None:
            key = id(each.rows)
            if key not in read:
                read[key] = [(name, tuple(shape), dtype) for name, shape, dtype in each.rows]
            each.rows = read[key]
    return statements


def check_roles(statements: list[Statement], src: tuple[int, ...], dst: tuple[int, ...]) -> None:
    """Throws UsageError unless exactly the source ranks passed a model, and all ranks exist."""
    options = statements[0].options
    for side, text, ranks in (("src", options["src"], src), ("dst", options["dst"], dst)):
        if max(ranks) >= len(statements):
            raise UsageError(
                f"{side} {text} has rank {max(ranks)}, but only {len(statements)} ranks take part. "
                "Start more ranks, or use a smaller layout."
            )
    for rank, each in enumerate(statements):
        if each.rows is None and rank in src:
            raise UsageError(
                f"rank {rank} is in src {options['src']} but passed model=None. Pass its tensors."
            )
        if each.rows is not None and rank not in src:
            raise UsageError(
                f"rank {rank} passed a model but src {options['src']} has only {_ranks(src)}. Pass "
                "model=None there, or name the ranks with @."
            )


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(sorted(ranks))}"


def common_spec(statements: list[Statement], rule: LayoutRule, *, partial: bool) -> Spec:
    """The spec behind what the source ranks hold: as whole tensors say, as the config says, or as
    the local shapes add up to."""
    held = {rank: statements[rank] for rank in rule.ranks}
    tied = _tied_names(held)
    untied = {rank: _untied(each, tied) for rank, each in _distinct(held).items()}
    held = {rank: untied[first] for rank, first in _first_alike(held).items()}
    lowest = held[min(held)]
    assert lowest.rows is not None
    config = ModelConfig.load(lowest.config) if lowest.config else None
    expected = Spec.from_architecture(config) if config is not None else None
    if lowest.whole or rule.family in ("replicated", "hf"):
        rows = lowest.rows
        _check_rows_agree(untied)
    elif rule.family == "fsdp2" and rule.arg("tp") == 1:
        _check_sharded(lowest, rule, expected)
        rows = rule.infer_spec(_local_shapes(held)).tensors
    elif expected is not None:
        return expected.with_dtype(lowest.rows[0][2]) if lowest.rows else expected
    else:
        raise UsageError(
            f"the shapes of whole tensors cannot be told from local ones under {rule}. Pass a "
            "layout that is bound to a spec: "
            f"src = LayoutRule.parse({str(rule)!r}).bind(Spec.from_config(model.config))."
        )
    by_config = expected is not None and statements[0].options["dst_names"] == "plain"
    targets = _target_names(statements, expected)
    ties = [] if expected is None else expected.aliases
    known = [*targets, *(alias for alias, _ in ties)]
    names = canonical_names([*(name for name, _, _ in rows), *tied], known)
    rows = [(names[name], shape, dtype) for name, shape, dtype in rows]
    _check_as_configured(rows, rule, expected, summed=not lowest.whole)
    _check_ties(rows, ties)
    aliases = [(names[alias], names.get(name, name)) for alias, name in tied.items()]
    if expected is not None:
        # As Spec.from_config() has them: tensors of empty() are then in place for a rule too.
        places = {name: place for place, (name, _, _) in enumerate(expected.tensors)}
        rows.sort(key=lambda row: places.get(row[0], len(places)))
    if expected is not None and by_config:
        rows = _fused_rows(rows, expected, statements, names, aliases, partial=partial)
    kept = {name for name, _, _ in rows}
    spec = Spec.from_tensors(rows, [each for each in aliases if each[1] in kept], config)
    return Spec(spec.core, config, lowest.no_config)


def _fused_rows(
    rows: list[Row],
    expected: Spec,
    statements: list[Statement],
    names: dict[str, str],
    aliases: list[tuple[str, str]],
    *,
    partial: bool,
) -> list[Row]:
    """Those of `rows` that the config knows. What a fused tensor of the destination lacks, nobody
    would notice: so all of them must be there, or with `partial` are added as if they were, for
    it is selected from the whole."""
    found = {row[0]: row for row in rows}
    known = {alias for alias, _ in aliases}
    wanted = [row for row in expected.tensors if row[0] not in known]
    dtype = rows[0][2] if rows else "float32"
    if partial:
        return [found.get(name, (name, shape, dtype)) for name, shape, _ in wanted]
    written = {canonical: name for name, canonical in names.items()}
    dst = statements[0].options["dst"]
    check_matched(list(found), [name for name, _, _ in wanted], written=written, dst=dst)
    return [row for row in rows if row[0] in {name for name, _, _ in wanted}]


def _check_sharded(statement: Statement, rule: LayoutRule, expected: Spec | None) -> None:
    """Throws UsageError on a module that was never sharded. Where a config tells the shapes of the
    whole, they say more than this does."""
    if statement.plain_module and rule.arg("n") > 1 and expected is None:
        raise UsageError(
            f"no tensor of the module is a DTensor, so each rank holds all of it, which {rule} "
            "would take for chunks. Call fully_shard(model) first, or pass "
            f"src='replicated({rule.size})'. Where plain tensors really are chunks, pass a dict of "
            "them: dict(model.state_dict())."
        )


def _check_as_configured(
    rows: list[Row], rule: LayoutRule, expected: Spec | None, *, summed: bool
) -> None:
    """Throws UsageError where a tensor has another shape than the model's config says. `summed`:
    shapes are what the chunks of all ranks add up to."""
    known = {} if expected is None else {name: shape for name, shape, _ in expected.tensors}
    for name, shape, _ in rows:
        if known.get(name, shape) == shape:
            continue
        if summed and rule.family == "fsdp2":
            raise UsageError(
                f"{name!r} would be {list(shape)} if every rank held a chunk; the config says "
                f"{list(known[name])}, which every rank holds whole. Call fully_shard(model) "
                f"first, or pass src='replicated({rule.size})'."
            )
        raise UsageError(
            f"{name!r} is {list(shape)} in the model; its config says {list(known[name])}. Mend "
            "the config (resize_token_embeddings() keeps both alike), or pass layouts that are "
            "bound to a spec of these shapes."
        )


def _check_ties(rows: list[Row], ties: list[tuple[str, str]]) -> None:
    """Throws UsageError where what the config says is one tensor has come apart."""
    apart = {name for name, _, _ in rows}
    for alias, name in ties:
        if alias in apart and name in apart:
            raise UsageError(
                f"{alias!r} has memory of its own, but the config ties it to {name!r}. Tie them "
                "again: to_empty() and sharding them in units of their own take them apart, "
                "model.tie_weights() joins them. Or set tie_word_embeddings to false."
            )


def _tied_names(held: dict[int, Statement]) -> dict[str, str]:
    """{second name: name} of what is one tensor on every rank that has bytes of it. The name is the
    lowest rank's first, for dicts may come in different orders."""
    groups: list[set[str]] = []
    for each in _distinct(held).values():
        for pair in map(set, each.aliases or []):
            touched = [group for group in groups if group & pair]
            groups = [group for group in groups if not group & pair]
            groups.append(pair.union(*touched))
    order = [name for name, _, _ in held[min(held)].rows or []]
    tied: dict[str, str] = {}
    for group in groups:
        first = min(group, key=lambda n: (order.index(n) if n in order else len(order), n))
        tied |= {name: first for name in sorted(group - {first})}
        _check_tied_everywhere(_distinct(held), group)
    return tied


def _check_tied_everywhere(held: dict[int, Statement], group: set[str]) -> None:
    for rank, each in held.items():
        apart = [name for name, _, _ in each.rows or [] if name in group]
        apart = [name for name in apart if name not in (each.empty or [])]
        if len(apart) > 1:
            where = next(
                r for r, e in held.items() if any(group >= set(pair) for pair in e.aliases or [])
            )
            raise UsageError(
                f"ranks hold different models: {apart[1]!r} shares the memory of {apart[0]!r} on "
                f"rank {where} and not on rank {rank}. Tie them on every rank, or on none."
            )


def _first_alike(held: dict[int, Statement]) -> dict[int, int]:
    """For each rank the first that holds the same: most do, and each is looked at once."""
    first: dict[Any, int] = {}
    return {
        rank: first.setdefault((id(each.rows), repr(each.aliases), repr(each.empty)), rank)
        for rank, each in held.items()
    }


def _distinct(held: dict[int, Statement]) -> dict[int, Statement]:
    return {rank: held[rank] for rank in dict.fromkeys(_first_alike(held).values())}


def _untied(statement: Statement, tied: dict[str, str]) -> Statement:
    """Rows under the first names only."""
    rows: dict[str, Row] = {}
    for name, shape, dtype in statement.rows or []:
        first = tied.get(name, name)
        rows.setdefault(first, (first, shape, dtype))
    return replace(statement, rows=list(rows.values()))


def uncut_names(spec: Spec, given: Iterable[list[str] | None]) -> list[str]:
    """The tensors of `spec` that the first rank who can tell holds whole."""
    names = next((each for each in given if each is not None), [])
    known = [name for name, _, _ in spec.tensors]
    return list(canonical_names(names, known).values())


def _target_names(statements: list[Statement], expected: Spec | None) -> set[str]:
    """The names that the other side uses, as far as they can be known."""
    names = set() if expected is None else {name for name, _, _ in expected.tensors}
    kind = statements[0].options["dst_names"]
    if kind == "kept" or (kind == "plain" and expected is None):
        names.update(*(each.out or [] for each in statements))
    return names


def _local_shapes(held: dict[int, Statement]) -> LocalShapes:
    return {rank: each.rows or [] for rank, each in held.items()}


def _check_rows_agree(held: dict[int, Statement]) -> None:
    """Throws UsageError naming tensor and both ranks where whole tensors differ. Order is free."""
    first = min(held)
    reference = {name: (shape, dtype) for name, shape, dtype in held[first].rows or []}
    for rank, each in held.items():
        table = {name: (shape, dtype) for name, shape, dtype in each.rows or []}
        for name in [*reference, *table]:
            if table.get(name) != reference.get(name):
                raise UsageError(
                    f"ranks hold different models: {name!r} is {_describe(reference.get(name))} on "
                    f"rank {first} and {_describe(table.get(name))} on rank {rank}."
                )


def _describe(row: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if row is None else f"{list(row[0])} {row[1]}"


@dataclass(frozen=True)
class Part:
    """Something that every rank must have alike: a digest, and a text that shows what differs."""

    name: str
    digest: int
    text: Callable[[], str]


def same_everywhere(comm: Communicator, error: str, parts: list[Part]) -> None:
    """Compares parts over all ranks; a rank with an `error` may lack some.

    Throws UsageError with the first line that differs, or else with the first error.
    """
    mine = {"error": error, "digests": {part.name: part.digest for part in parts}}
    differs = agree(comm, lambda: mine, _first_difference)
    if differs is not None:
        text = next((part.text for part in parts if part.name == differs), lambda: None)
        agree(comm, lambda: {"text": text()}, functools.partial(_raise_difference, differs))


def _first_difference(shown: list[Mapping[str, Any]]) -> str | None:
    """The part that ranks have otherwise. Throws UsageError where there is only an error."""
    for name in dict.fromkeys(name for each in shown for name in each["digests"]):
        if len({each["digests"][name] for each in shown if name in each["digests"]}) > 1:
            return str(name)
    raise_first([each["error"] for each in shown])
    return None


def _raise_difference(name: str, shown: list[Mapping[str, Any]]) -> None:
    texts = {rank: each["text"] for rank, each in enumerate(shown) if each["text"] is not None}
    first = min(texts)
    for rank, other in texts.items():
        lines = zip_longest(texts[first].splitlines(), other.splitlines(), fillvalue="nothing")
        for position, (mine, theirs) in enumerate(lines):
            if mine != theirs:
                raise UsageError(
                    f"ranks disagree about the {name}: the first line that differs is line "
                    f"{position}, {mine!r} on rank {first} and {theirs!r} on rank {rank}. Pass the "
                    "same on every rank."
                )
    raise UsageError(f"ranks disagree about the {name}. Pass the same on every rank.")


def layout_text(layout: Layout) -> str:
    return "".join(layout.to_string(rank) for rank in layout.ranks)
