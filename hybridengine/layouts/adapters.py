"""adapters: what peft puts around the weights of a model, told by names.

An adapter (lora_A, lora_B, ...) changes what the weights below it mean: these never travel without
it unnoticed. A module that trains as a whole (`modules_to_save`) is there twice, as it was and as
it is; only the latter counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hybridengine._core import UsageError
from hybridengine.layouts.wrappers import SAVED, unwrapped, without_saved
from hybridengine.wording import listed

_BASE = "base_layer"
_ORIGINAL = "original_module"
# How the names of adapters begin in peft, where no base layer beside them tells.
_PREFIXES = (
    "lora_",
    "ia3_",
    "vera_",
    "oft_",
    "boft_",
    "hada_",
    "lokr_",
    "adaption_",
    "trainable_tokens_",
    "fourierft_",
    "vblora_",
    "randlora_",
)


def originals(names: Collection[str]) -> set[str]:
    """Those of `names` that have a trained copy among them."""
    saved = {".".join(without_saved(name.split("."))) for name in names if SAVED in name}
    return {
        name
        for name in names
        if _ORIGINAL in name.split(".") and _without(name, _ORIGINAL) in saved
    }


def check_adapters(
    names: Collection[str], moved: Iterable[str], left: Iterable[str], dst: str
) -> None:
    """Throws UsageError where a name of `left` is an adapter of something in `moved`, which goes to
    the layout `dst`. `names` are all that there are."""
    adapters = _adapters_of(names)
    under = {module for each in moved for module in _modules_around(unwrapped(each))}
    alone = [name for name in left if name in adapters and adapters[name][0] in under]
    if not alone:
        return
    prefix = adapters[alone[0]][1].split("_")[0]
    shown = listed(alone, at_most=2)
    raise UsageError(
        f"adapters have no place in {dst}, and the weights below them would arrive without them: "
        f"{shown}. Merge them first: call model.merge_adapter(), pass "
        f"{{n: p for n, p in model.named_parameters() if '{prefix}_' not in n}} as the model, and "
        "call model.unmerge_adapter() afterwards."
    )


def _adapters_of(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """{name: (module around it, without wrappers; its own first component)} of the adapters among
    `names`."""
    bases = {each.split(f".{_BASE}.")[0] for each in names if f".{_BASE}." in each}
    found = {}
    for name in names:
        parts = name.split(".")
        for at, part in enumerate(parts):
            module = ".".join(parts[:at])
            if part.startswith(_PREFIXES) or (module in bases and part != _BASE):
                found[name] = (unwrapped(module), part)
                break
    return found


def _modules_around(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:at]) for at in range(len(parts))]


def _without(name: str, part: str) -> str:
    return ".".join(each for each in name.split(".") if each != part)
