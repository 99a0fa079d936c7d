"""unknown: a sentence about a key that the models do not have, with the one that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hybridengine.rlhf.config.keys import (
    RECORD,
    either,
    entries,
    entry_of,
    general,
    records,
    sections,
    similar_keys,
)
from hybridengine.rlhf.config.meanings import instead_of

# More keys of a section than this are not listed in an error.
_MAX_LISTED = 10
_LISTS_ALL = "`hybridengine train --print-config`"


def is_section(name: str) -> bool:
    """Whether it holds keys of its own: a section, or a record. A mapping of records is none: where
    it is empty, there are no records."""
    return general(name) in sections() and name not in records()


def holds_keys(name: str) -> bool:
    """Whether a mapping of this name is read key by key: it is a section, or nothing that we know,
    as `actor_rollout_ref`, whose keys then say what was meant."""
    if is_section(name) or name in records():
        return True
    parts = name.split(".")
    known = any(entry_of(".".join(parts[:end])) for end in range(1, len(parts) + 1))
    return not known and not similar_keys(name) and not _similar_sections(name)


def unknown_key(name: str, place: str) -> str:
    """A sentence about `name`, which is no key."""
    if is_section(name) or name in records():
        keys = _keys_of(name)
        return f"{name} is a section, not a key ({place}). Set its keys, e.g. {keys[0]}."
    section = name.rpartition(".")[0]
    entry = entry_of(section)
    if entry is not None:
        return f"{name} is no key: {section} is {entry.words} ({place}). Set {section} itself."
    return f"{_no_key(name, section)} ({place}). {_mend(name, section)}"


def _keys_of(section: str) -> list[str]:
    """The keys right in `section`, or in any record of it."""
    inside = f"{section}.{RECORD}" if section in records() else general(section)
    keys = [entry.name for entry in entries().values() if entry.section == inside]
    return keys if section in records() else [_with_record(key, section) for key in keys]


def _with_record(key: str, name: str) -> str:
    """`key` of the record that `name` is of, where it is a key of such records."""
    first, _, rest = key.partition(f".{RECORD}.")
    record = name.split(".")[1:2]
    return f"{first}.{record[0]}.{rest}" if rest and record and name.startswith(first) else key


def _no_key(name: str, section: str) -> str:
    if is_section(section):
        return f"{name} is no key of section {section}"
    return f"{name} is no key" + (f": there is no section {section}" if section else "")


def _mend(name: str, section: str) -> str:
    """What to write instead of the key `name`, which `section` does not have."""
    instead = instead_of(name)
    if instead is not None:
        return f"Leave it out: {instead}."
    meant = similar_keys(name) or _similar_sections(name)
    if meant:
        return f"Use {either([_with_record(key, name) for key in meant])}."
    if is_section(section):
        return f"Use {_some_of(_keys_of(section))}."
    return f"Use {_some_of(list(sections()))}." if section else f"{_LISTS_ALL} lists all."


def _some_of(names: Sequence[str]) -> str:
    """ "a, b or c"; of many the first ones, and how many more there are."""
    if len(names) <= _MAX_LISTED:
        return either(names)
    more = len(names) - _MAX_LISTED
    return f"{', '.join(names[:_MAX_LISTED])} or one of {more} more, which {_LISTS_ALL} lists"


def _similar_sections(name: str) -> list[str]:
    """The section as deep as `name` that is spelt much like it, if there is one."""
    as_deep = [section for section in sections() if section.count(".") == name.count(".")]
    return difflib.get_close_matches(name, as_deep, n=1, cutoff=0.75)
