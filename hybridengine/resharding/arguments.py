"""arguments: what a caller of reshard passed on this rank, read and judged, to be compared.

What is wrong with it goes into the statement instead of being raised: the other ranks wait for that
statement, and all of them raise the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import hybridengine.tensors as memory
from hybridengine._core import UsageError
from hybridengine.comm import Communicator, communicator_of, group_communicator
from hybridengine.layouts.families import keeps_names
from hybridengine.layouts.held import Held, Writable, held_by, writable
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.layouts.planning import LayoutLike, as_rule
from hybridengine.options import flag, seconds, size_bytes, text
from hybridengine.resharding.agree import Statement


@dataclass(frozen=True)
class Arguments:
    """Layouts, memory and numbers of this rank. Without meaning where the statement has an
    error."""

    statement: Statement
    bucket_bytes: int = 0
    timeout: float | None = None
    src: Any = None  # Layout | LayoutRule, and so is dst
    dst: Any = None
    held: Held | None = None
    out: Writable | None = None


def read_arguments(
    src: LayoutLike,
    dst: LayoutLike,
    model: Any,
    out: Mapping[str, Any] | None,
    *,
    bucket_bytes: int | str,
    timeout: float | None,
    dtype: Any,
    **flags: bool,
) -> Arguments:
    """All but the timeout must be alike on all ranks. Raises nothing on wrong arguments."""
    named = {"src": _text(src), "dst": _text(dst), "dtype": _dtype_text(dtype)}
    statement = Statement({**named, "bucket_bytes": str(bucket_bytes), "dst_names": None})
    statement.options |= {name: str(value) for name, value in flags.items()}
    try:
        statement.options["bucket_bytes"] = size_bytes("bucket_bytes", bucket_bytes)
        statement.options |= {name: flag(name, value) for name, value in flags.items()}
        limit = seconds("timeout", timeout)
        rules = as_rule(src, "src"), as_rule(dst, "dst")
        texts = {"src": _text(rules[0]), "dst": _text(rules[1])}
        statement.options.update(texts, dst_names=_names_of(rules[1]))
        memory.parse_dtype(named["dtype"])
        targets = None
        if out is not None:
            targets = writable(out)
            statement.out, statement.out_uncut = list(targets.tensors), targets.uncut
        buffers = flags["buffers"]
        held = None if model is None else held_by(model, buffers=buffers)
        if held is not None:
            _state_memory(statement, held)
        size = statement.options["bucket_bytes"]
        return Arguments(statement, size, limit, *rules, held, targets)
    except UsageError as error:
        statement.error = str(error)
        return Arguments(statement)


def _names_of(dst: Layout | LayoutRule) -> str:
    """Whether the local tensors of `dst` have the names of the logical ones: "kept"; "plain" where
    only a model without a config keeps them; "mapped" where they have names of their own."""
    if isinstance(dst, Layout):
        return "mapped"
    if keeps_names(dst.family):
        return "kept"
    return "plain" if dst.mapping is None else "mapped"


def _state_memory(statement: Statement, held: Held) -> None:
    statement.rows, statement.whole = held.rows, held.whole
    statement.plain_module = held.module and not held.whole
    statement.aliases, statement.uncut = held.aliases, held.uncut
    statement.empty = [name for name, tensor in held.tensors.items() if tensor.numel() == 0]
    statement.contiguous = all(tensor.is_contiguous() for tensor in held.tensors.values())
    statement.config = "" if held.config is None else held.config.save()
    statement.no_config = held.no_config


def _dtype_text(dtype: Any) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _text(layout: LayoutLike) -> str:
    return layout.text if isinstance(layout, Layout) else str(layout)


def communicator_for(comm: Communicator | None, transport: str) -> Communicator:
    transport = text("transport", transport)
    if comm is None:
        return group_communicator(None, None if transport == "auto" else transport)
    comm = communicator_of(comm)
    if transport not in ("auto", comm.transport):
        raise UsageError(
            f"transport={transport!r} does not fit comm, which uses {comm.transport!r}. Leave one "
            "of them out."
        )
    return comm
