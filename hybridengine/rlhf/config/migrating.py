"""migrating: the page docs/migrating.md, from other_names.yaml."""

from __future__ import annotations

from collections.abc import Iterator

from hybridengine.rlhf.config.meanings import other_names

_HEAD = """# Coming from verl, TRL or OpenRLHF

This page is generated: `hybridengine train --migrating-markdown > docs/migrating.md`.

What you know by another name, and what differs. A key that is not ours is an error that names ours,
before anything starts: `hybridengine train --learning_rate 1e-6` answers with `actor.lr=1e-6`.

Keys are named by their last parts, `optim.lr` for `actor_rollout_ref.actor.optim.lr`. Below
`critic`, `ref` and `reward_model` they are those of `critic`, `reference` and `reward_model`. What
has the same name here and there is left out: the last part of a key is enough to be told its
section. [Config](config.md) has every key."""

_TRAINERS = {"verl": "verl", "trl": "TRL and transformers' Trainer", "openrlhf": "OpenRLHF"}


def migrating_markdown() -> str:
    """One table a trainer, then the names without a counterpart, and values."""
    table = other_names()
    lines = [_HEAD]
    for trainer, title in _TRAINERS.items():
        lines += [f"\n## {title}", "", "| theirs | ours | what differs |", "|---|---|---|"]
        lines += _rows(table.keys, trainer)
    lines += ["\n## What has no counterpart", "", "| theirs | instead |", "|---|---|"]
    lines += [f"| `{name}` | {instead} |" for name, instead in table.absent.items()]
    lines += ["\n## Values", "", "| key | theirs | ours |", "|---|---|---|"]
    lines += [
        f"| `{key}` | {_code(names)} | `{own}` |"
        for key, values in table.values.items()
        for own, names in values.items()
    ]
    return "\n".join(lines) + "\n"


def _rows(keys: dict[str, dict[str, str]], trainer: str) -> Iterator[str]:
    for ours, row in keys.items():
        if trainer in row:
            yield f"| {_code(row[trainer])} | `{ours}` | {row.get('differs', '')} |"


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split())
