"""describe: a config as commented YAML, and the page docs/config.md, from the table of keys."""

from __future__ import annotations

from typing import Any

from hybridengine.rlhf.config.keys import Entry, either, entries, sections
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
- `${actor.lr}` in a value is the value of that key. Write `\\${` for the characters themselves.
- An unknown key, another type, a value out of bounds and a combination that cannot work are errors
  before anything starts, with key, file and line; the exit code is 2. Names that verl, TRL,
  OpenRLHF and transformers use are answered with ours.
- A run keeps its whole config, which can be passed as FILE again."""


def annotated_yaml(config: Config) -> str:
    """Every key in its section, with a comment that says what it is and accepts.

    `load_config` reads it back to an equal config.
    """
    lines, inside = [], ""
    for entry in entries().values():
        if entry.section != inside:
            lines += _section_heads(inside, entry.section)
            inside = entry.section
        indent = _INDENT * entry.name.count(".")
        leaf = entry.name.rpartition(".")[2]
        lines.append(f"{indent}{leaf}: {one_line(value_at(config, entry.name))}  # {_help(entry)}")
    return "\n".join(lines) + "\n"


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


def value_at(config: Config, name: str) -> Any:
    """The value of the key with this dotted name."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _section_heads(inside: str, section: str) -> list[str]:
    """The lines that open `section` where `inside` is the one before it."""
    heads = []
    parts = section.split(".")
    for depth in range(len(parts)):
        name = ".".join(parts[: depth + 1])
        if not f"{inside}.".startswith(f"{name}."):
            blank = [""] if depth == 0 else []
            heads += [*blank, f"{_INDENT * depth}{parts[depth]}:  # {sections()[name]}"]
    return heads


def _help(entry: Entry) -> str:
    """The line of help with choices and bounds."""
    accepts = either(entry.key.choices) if entry.key.choices else entry.bounds
    return f"{entry.key.help} ({accepts})" if accepts else entry.key.help


def _table(section: str, title: str) -> list[str]:
    """Heading and table of a section; nothing of the sections within it."""
    rows = [entry for entry in entries().values() if entry.section == section]
    if not rows:
        return []
    head = [f"\n## {title}", "", "| key | default | meaning | accepts |", "|---|---|---|---|"]
    return head + [
        f"| `{entry.name}` | `{one_line(entry.default)}` | {entry.key.help} | "
        f"{entry.accepts} |".replace("\n", " ")
        for entry in rows
    ]
