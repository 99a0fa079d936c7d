"""wrappers: modules around a model's own, and the components that they add to names of tensors."""

from __future__ import annotations

from typing import Any

# Components that only wrappers add, and those that a model may well use itself.
_ALWAYS_WRAPPER = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"}
)
_MAYBE_WRAPPER = frozenset({"module"})
_PEFT_PREFIX = "base_model.model."
# In front of the name of an adapter: peft's copy of a module that trains as a whole.
SAVED = "modules_to_save"

# Types of wrappers that leave parameters as they are, and where they keep the module they wrap.
_PLAIN = {"DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
# Where any wrapper keeps it.
INNER = (*_PLAIN.values(), "_fsdp_wrapped_module")


def unwrapped(name: str) -> str:
    """`name` without any component that a wrapper may have added."""
    kept = without_saved(name.removeprefix(_PEFT_PREFIX).split("."))
    return ".".join(
        part for part in kept if part not in _ALWAYS_WRAPPER and part not in _MAYBE_WRAPPER
    )


def inside(module: Any) -> Any:
    """The module in its wrappers, as far as these leave its parameters as they are."""
    while (kind := type(module).__name__) in _PLAIN:
        module = getattr(module, _PLAIN[kind])
    return module


def without_saved(parts: list[str]) -> list[str]:
    """The components of a name without 'modules_to_save' and the adapter's name behind it."""
    if SAVED not in parts[:-1]:
        return parts
    at = parts.index(SAVED)
    return parts[:at] + parts[at + 2 :]
