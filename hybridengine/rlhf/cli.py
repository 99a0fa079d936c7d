"""cli: the command lines of `hybridengine train` and `train-reward`; command.py does the work.

Importing this imports nothing of the trainer, so that `hybridengine --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from hybridengine import _core
from hybridengine.command.command_line import NO_VALUE

EPILOG = "Every key: docs/config.md, or hybridengine train --print-config."

_Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|KEY=VALUE",
        help="a YAML file first, if any, then keys that override it",
        hidden=True,  # its row would show a type; the usage line has it
    ),
]


_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        metavar=NO_VALUE,
        help="check everything, print the memory of each rank, and stop",
    ),
]


def train_command(
    settings: _Settings = None,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config",
            metavar=NO_VALUE,
            help="print every key with a line of help, and stop",
        ),
    ] = False,
    dry_run: _DryRun = False,
    config_markdown: Annotated[bool, typer.Option("--config-markdown", hidden=True)] = False,
    migrating_markdown: Annotated[bool, typer.Option("--migrating-markdown", hidden=True)] = False,
    metrics_markdown: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Trains a model by PPO and its family; without arguments, a demo.

    The demo takes three minutes on two CPU cores: a tiny model learns sums
    and differences of digits. Its values are taken where neither a FILE nor
    a model nor data are given, and with `preset=demo`. A FILE sets keys over
    the defaults, KEY=VALUE over the file.

    Examples:
      hybridengine train
      hybridengine train run.name=ci seed=0 trainer.time_limit_s=60
      hybridengine train model.path=DIRECTORY data.train_files=train.jsonl
      hybridengine train examples/grpo_smollm2.yaml actor.lr=1e-6
      hybridengine train examples/ppo_math.yaml trainer.ranks=4

    Keys used most:
      model.path                 directory of a HF checkpoint
      data.train_files           files, '\\[a.parquet, b.jsonl]'
      data.gym.name              a generated task instead, e.g. chain_sum
      data.train_batch_size      prompts of a step
      rollout.n                  responses per prompt
      algorithm.advantage        gae, grpo, rloo, reinforce++, remax
      algorithm.kl_coef          weight of the KL to the reference
      reward.functions, reward.function, reward_model.path
      actor.lr, actor.ppo_mini_batch_size, actor.lora.enable
      trainer.ranks, trainer.steps, run.name, run.resume, seed

    A config that cannot work ends with 2 before anything starts, a run that
    failed with 3.
    """
    from hybridengine.rlhf import command

    if config_markdown:
        typer.echo(command.config_markdown(), nl=False)
    elif migrating_markdown:
        typer.echo(command.migrating_markdown(), nl=False)
    elif metrics_markdown:
        typer.echo(command.metrics_markdown(), nl=False)
    elif print_config:
        typer.echo(command.print_config(settings or []), nl=False)
    else:
        _core.check_env()
        raise typer.Exit(command.train(settings or [], dry=dry_run))


def train_reward_command(settings: _Settings = None) -> None:
    """Fits a reward model to pairs of a better and a worse answer.

    The loss is Bradley-Terry's. Keys are those of `hybridengine train`;
    needed are model.path and data.train_files.
    """
    from hybridengine.rlhf import command

    _core.check_env()
    raise typer.Exit(command.train_reward(settings or []))


def not_an_option(option: str, arguments: Sequence[str]) -> str:
    """A sentence about an option that the trainer does not have: keys are no options."""
    from hybridengine.rlhf import command

    command.check_config_modules()
    from hybridengine.rlhf.config.keys import entry_of, similar_keys
    from hybridengine.rlhf.config.meanings import instead_of

    at = next(i for i, each in enumerate(arguments) if each.startswith(option))
    written, equals, value = arguments[at].partition("=")
    following = arguments[at + 1] if at + 1 < len(arguments) else ""
    if not equals and "=" not in following and not following.startswith("-"):
        value = following
    name = written.lstrip("-").replace("-", "_")
    what = f"{written} is no option: keys are written KEY=VALUE, without dashes."
    meant = [name] if entry_of(name) is not None else similar_keys(name)
    if instead_of(name) is not None:
        return f"{what} Leave it out: {instead_of(name)}."
    if not meant:
        return f"{what} `hybridengine train --print-config` lists all keys."
    key = next((key for key in meant if key.startswith("actor.")), meant[0])
    return f"{what} Write {key}={value or 'VALUE'}."
