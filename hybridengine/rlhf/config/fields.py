"""fields: what the config is made of: sections, which are pydantic models, and names that a file of
the user may add to.

A key is described in one place, its `Field`: type, default, bounds, and its line of help, the
description. Whatever shows or checks a config reads that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hybridengine.rlhf.plugins import is_reference


class Section(BaseModel):
    """Keys of one kind. A value of another type or out of bounds is refused when a section is made,
    with pydantic's ValidationError; nothing is converted besides a whole number to a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Named:
    """Marks a text that is one of `names`, or path.py:name for a function of one's own."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def _known(self, value: str) -> str:
        if value not in self.names and not is_reference(value):
            raise PydanticCustomError("literal_error", "not one of the names")
        return value
