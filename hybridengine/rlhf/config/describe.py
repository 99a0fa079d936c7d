"""describe: a config as commented YAML, and the page docs/config.md, from the table of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hybridengine.rlhf.config.fields import Section
from hybridengine.rlhf.config.keys import (
    RECORD,
    Entry,
    either,
    entries,
    entry_of,
    general,
    sections,
)
from hybridengine.rlhf.config.presets import PRESETS
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.config.yaml_text import one_line

_INDENT = "  "

_HEAD = """# Config of the trainer

This page is generated: `hybridengine train --config-markdown > docs/config.md`.

```
hybridengine train [FILE] [KEY=VALUE]...
hybridengine train examples/grpo_smollm2.yaml actor.lr=1e-6 trainer.steps=20
hybridengine train --print-config             # every key with its value and a line of help
```

Later wins: defaults, preset, YAML file, overrides. The preset is `none` with a file, and where
`model.path`, `model.config` or `data.train_files` is given; else it is `demo`. `preset=` names one.

- A file has one mapping a section: `actor: {lr: 1e-6}`, or the same over several lines. An override
  names the key with its section: `actor.lr=1e-6`; `'actor={lr: 1e-6}'` sets the keys that it has.
- Values are YAML: `1e-6`, `true`, `null`, `'[a.parquet, b.jsonl]'`, `'{min_terms: 2}'`. Quote
  brackets and braces for the shell. The type of a key decides: `run.name=007` is text. A whole
  number is a number, and one text a list of it: `data.train_files=a.jsonl`. Nothing else is
  converted.
- A mapping is replaced as a whole, `model.config={}` empties it; `model.config.hidden_size=32`
  changes one entry.
- `pools`, `eval_sets`, `environments` hold records, each under a name of your own, NAME below:
  `pools: {judge: {ranks: 1, roles: [reward_model]}}`, or `pools.judge.ranks=2` for a key of one.
- `${actor.lr}` in a value is the value of that key. Write `\\${` for the characters themselves.
- An unknown key, another type, a value out of bounds and a combination that cannot work are errors
  before anything starts, with key, file and line; the exit code is 2. Names that verl, TRL,
  OpenRLHF and transformers use are answered with ours.
- A run keeps its whole config, which can be passed as FILE again."""


def annotated_yaml(config: Config) -> str:
    """Every key in its section, with a comment that says what it is and accepts.

    `load_config` reads it back to an equal config.
    """
    return "\n".join(_lines(config, "")) + "\n"


def config_markdown() -> str:
    """The page about the config: one table a section, then what the presets set."""
    parts = [_HEAD, *_table("", "Outside of sections")]
    for name, help_line in sections().items():
        parts += _table(name, f"{name}: {help_line}")
    for name, values in PRESETS.items():
        if values:
            parts += [f"\n## Preset {name}\n\n```yaml"]
            parts += [f"{key}: {one_line(value)}" for key, value in values.items()]
            parts += ["```"]
    return "\n".join(parts) + "\n"


def _lines(section: Section, prefix: str) -> Iterator[str]:
    """The lines of `section`, whose dotted name with a dot is `prefix`."""
    indent = _INDENT * prefix.count(".")
    for name in type(section).model_fields:
        value, whole = getattr(section, name), prefix + name
        entry = entry_of(whole)
        if entry is not None:
            yield f"{indent}{name}: {one_line(value)}  # {_help(entry)}"
        elif isinstance(value, Section):
            yield from [] if prefix else [""]
            yield f"{indent}{name}:  # {sections()[general(whole)]}"
            yield from _lines(value, whole + ".")
        else:
            yield from _lines_of_records(name, value)


def _lines_of_records(name: str, records: Mapping[str, Section]) -> Iterator[str]:
    yield ""
    yield f"{name}:{'' if records else ' {}'}  # {sections()[f'{name}.{RECORD}']}, by name"
    for own_name, record in records.items():
        yield f"{_INDENT}{one_line(own_name)}:"
        yield from _lines(record, f"{name}.{own_name}.")


def _help(entry: Entry) -> str:
    """The line of help with choices and bounds."""
    files = ("path.py:name",) if entry.takes_files else ()
    accepts = either((*entry.choices, *files)) if entry.choices else entry.bounds
    return f"{entry.help} ({accepts})" if accepts else entry.help


def _table(section: str, title: str) -> list[str]:
    """Heading and table of a section; nothing of the sections within it."""
    rows = [entry for entry in entries().values() if entry.section == section]
    if not rows:
        return []
    head = [f"\n## {title}", "", "| key | default | meaning | accepts |", "|---|---|---|---|"]
    return head + [
        f"| `{entry.name}` | {_default(entry)} | {entry.help} | {entry.accepts} |" for entry in rows
    ]


def _default(entry: Entry) -> str:
    return "must be given" if entry.required else f"`{one_line(entry.default)}`"
