"""cli: the command `hybridengine`. Results go to stdout, everything else to stderr.

Exit codes: 0; 1 where --verify finds a difference; 2 where the command was called wrongly; 3 where
a rank died, failed or fell silent, or the system refused something; 70 for a bug, with its
traceback; 128 + the number of the signal that ended it, so 130 after Ctrl-C, and 141 where nobody
reads its output any more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hybridengine import _core
from hybridengine._core import TimeoutError as CommTimeoutError
from hybridengine._core import TransportError, UsageError
from hybridengine.command import farewell
from hybridengine.command.command_line import NO_VALUE, Command, CommandLineError, Group, wrong_call
from hybridengine.command.job import RankOutcome, ReshardJob, run_job
from hybridengine.command.patience import with_patience
from hybridengine.command.progress import show_phases
from hybridengine.command.refusals import refusal
from hybridengine.command.signals import ended_by, unwind_on_signals
from hybridengine.command.streams import open_streams, unwritten
from hybridengine.command.visible import visible, wrapped
from hybridengine.launch import run_local
from hybridengine.layouts.planning import Plan, bind_both, plan
from hybridengine.layouts.spec import Spec
from hybridengine.models.models import Model, model_names, resolve
from hybridengine.options import parse_size
from hybridengine.processes.fork_server import end_fork_server
from hybridengine.rlhf import cli as rlhf_cli

DIFFERENT, USAGE, FAILED, BUG, INTERRUPTED = 1, 2, 3, 70, 130
_UNREAD = 128 + signal.SIGPIPE

# Ranks are processes of this host, and a slip of the keyboard should not fill it with them.
_MAX_LOCAL_RANKS = 256

app = typer.Typer(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

ModelOption = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help="a name (see below) or the directory of a HF checkpoint or config.json",
    ),
]
SrcOption = Annotated[
    str, typer.Option(metavar="LAYOUT", help="layout of the source, e.g. 'fsdp2(6)'")
]
DstOption = Annotated[
    str,
    typer.Option(metavar="LAYOUT", help="layout of the destination, e.g. 'vllm(tp=3,dp=2)@0-5'"),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(metavar="TYPE", help="convert floating tensors on the way, e.g. bfloat16"),
]
BucketOption = Annotated[
    str, typer.Option(metavar="SIZE", help="bytes of a bucket: 32M, 512K, 1G or a number")
]
JsonOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="write the numbers to this file; - is stdout"),
]


def main() -> None:
    try:
        open_streams()  # before a file gets the number of one that is closed
        _check_folder()
    except UsageError as error:
        sys.exit(_stop(USAGE, str(error)))
    with unwind_on_signals():
        try:
            code = run(sys.argv[1:])
        except Exception:
            traceback.print_exc()
            code = _stop(BUG, "this is a bug of hybridengine, please report it")
        finally:
            end_fork_server()
            farewell.say()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command line. Raises what is a bug."""
    try:
        code = _run_app(arguments)
        error = unwritten(sys.stdout)
        return code if error is None else _unread(error)
    except CommandLineError as error:
        return _stop(USAGE, wrong_call(error, arguments))
    except UsageError as error:
        return _stop(USAGE, str(error))
    except (TransportError, CommTimeoutError) as error:
        return _stop(FAILED, str(error))
    except KeyboardInterrupt:
        if ended_by() not in (0, signal.SIGINT):
            return 128 + ended_by()
        return _stop(INTERRUPTED, "interrupted; no rank is left")
    except OSError as error:
        return _refused(error)


def _check_folder() -> None:
    """Throws UsageError where the current folder was removed, which torch ends the process for, or
    cannot be entered, which ranks do."""
    try:
        os.getcwd()
        os.stat(os.curdir)
    except OSError as error:
        what = "does not exist any more" if error.errno == errno.ENOENT else "cannot be entered"
        raise UsageError(f"the current folder {what}. Go to another one, by `cd`.") from None


def _run_app(arguments: list[str]) -> int:
    """What the command raised, whatever typer and rich make of it."""
    try:
        code = int(app(arguments, prog_name="hybridengine", standalone_mode=False) or 0)
    except typer.Abort as error:  # an EOFError
        assert error.__cause__ is not None
        raise error.__cause__ from None
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    if code == INTERRUPTED:  # what typer makes of KeyboardInterrupt
        raise KeyboardInterrupt
    return code


def _refused(error: OSError) -> int:
    first = unwritten(sys.stdout)
    if first is not None or isinstance(error, BrokenPipeError):
        return _unread(first or error)
    text = refusal(error)
    if text is None:
        raise error
    _core.log("debug", "base", traceback.format_exc())
    return _stop(FAILED, text)


def _unread(error: OSError) -> int:
    """Nobody reads stdout any more, as behind `| head`, or it is full."""
    if isinstance(error, BrokenPipeError):
        return _UNREAD
    return _stop(FAILED, f"stdout takes no more: {error.strerror}. Redirect it to another file.")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar=NO_VALUE, help="print the version")
    ] = False,
) -> None:
    """Moves exactly the weight bytes that each rank lacks, from one sharding to another."""
    if version:
        typer.echo(_core.build_facts()["version"])
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(name="reshard", cls=Command, epilog=f"Models: {', '.join(model_names())}.")
def reshard_command(
    model: ModelOption,
    src: SrcOption,
    dst: DstOption,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            metavar=NO_VALUE,
            help="compare every element with the checkpoint, by its bits",
        ),
    ] = False,
    json_path: JsonOption = None,
    bucket: BucketOption = "32M",
    dtype: DtypeOption = None,
    transport: Annotated[
        str, typer.Option(metavar="NAME", help="auto, or one that `info` lists")
    ] = "auto",
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="seconds without progress after which it fails"),
    ] = None,
) -> None:
    """Reshards a checkpoint between processes of this host, one per rank."""
    from hybridengine.command.explain import render_reshard, reshard_facts

    _core.check_env()
    _check_json_path(json_path)
    found = resolve(model)
    job = ReshardJob(model, src, dst, dtype, _bucket_bytes(bucket), verify)
    made, pairs = with_patience(
        f"planning {src} -> {dst}",
        lambda: _planned(found.spec, src, dst, dtype, job.bucket_bytes),
    )
    _check_weights(found)
    outcomes = _run(job, found, None if transport == "auto" else transport, timeout)
    facts = reshard_facts(job, outcomes, sum(buckets for *_, buckets in pairs))
    if json_path is not None:
        _write_json(json_path, facts)
    if json_path != "-":
        held = {row["rank"]: row["held_bytes"] for row in made.certificate.ranks}
        render_reshard(facts, held, Console())
    if facts["mismatched_elements"]:
        raise typer.Exit(DIFFERENT)


def _planned(
    spec: Spec, src: str, dst: str, dtype: str | None, bucket_bytes: int
) -> tuple[Plan, list[tuple[int, int, int, int]]]:
    made = plan(spec, src, dst, dtype=dtype)
    return made, made.pairs(bucket_bytes)


@app.command(name="plan", cls=Command, epilog=f"Models: {', '.join(model_names())}.")
def plan_command(
    model: ModelOption,
    src: SrcOption,
    dst: DstOption,
    dtype: DtypeOption = None,
    bucket: BucketOption = "32M",
    json_path: JsonOption = None,
) -> None:
    """Says what a reshard would move. Needs no weights, no ranks and no GPU."""
    from hybridengine.command.explain import plan_facts, render_plan

    _check_json_path(json_path)
    spec, bucket_bytes = resolve(model).spec, _bucket_bytes(bucket)

    def facts_of_plan() -> dict[str, Any]:
        source, target = bind_both(spec, src, dst, dtype)
        return plan_facts(model, source, target, plan(spec, source, target), bucket_bytes)

    facts = with_patience(f"planning {src} -> {dst}", facts_of_plan)
    if json_path is not None:
        _write_json(json_path, facts)
    if json_path != "-":
        render_plan(facts, Console())


@app.command(name="info", cls=Command)
def info_command(
    as_json: Annotated[bool, typer.Option("--json", metavar=NO_VALUE, help="print JSON")] = False,
    environment_markdown: Annotated[
        bool,
        typer.Option(
            "--environment-markdown",
            metavar=NO_VALUE,
            help="print docs/environment.md: every variable and its meaning",
        ),
    ] = False,
) -> None:
    """Says what this installation is and can do here."""
    from hybridengine.command import info

    if environment_markdown:
        typer.echo(info.environment_markdown(), nl=False)
        return
    facts = info.collect()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        info.render(facts, Console())


app.command(name="train", cls=Command, epilog=rlhf_cli.EPILOG)(rlhf_cli.train_command)
app.command(name="train-reward", cls=Command, epilog=rlhf_cli.EPILOG)(rlhf_cli.train_reward_command)


@app.command(
    name="bench",
    add_help_option=False,
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
)
def bench_command(context: typer.Context) -> None:
    """Benchmarks, with nccl-tests' flags and table: `hybridengine bench` lists them."""
    from hybridengine._bench.command import main as bench

    _core.check_env()
    raise typer.Exit(bench(context.args))


def _bucket_bytes(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"--bucket: {error}") from None


def _check_weights(model: Model) -> None:
    if model.directory is None:
        with_weights = [name for name in model_names() if resolve(name).directory is not None]
        raise UsageError(
            f"{model.name} has no weights here, only a config. `hybridengine plan` works with it; "
            f"to reshard use {', '.join(with_weights)} or the directory of a checkpoint."
        )


def _run(
    job: ReshardJob, model: Model, transport: str | None, timeout: float | None
) -> list[RankOutcome]:
    """The outcomes of all ranks, 0 to the largest that either side names."""
    src, dst = bind_both(model.spec, job.src, job.dst, job.dtype)
    world = max(*src.ranks, *dst.ranks) + 1
    if world > _MAX_LOCAL_RANKS:
        raise UsageError(
            f"{job.src} -> {job.dst} needs {world} ranks, and each is a process of this host. Use "
            f"at most {_MAX_LOCAL_RANKS}; `hybridengine plan` takes any number."
        )
    with show_phases() as phases:
        phases.enter("weights")
        model.open()
        phases.expect("load", sum(map(src.num_bytes, src.ranks)))
        phases.expect("compare", sum(map(dst.num_bytes, dst.ranks)))
        phases.enter("start")
        return run_local(
            world, run_job, job, transport=transport, timeout=timeout, on_event=phases.on_event
        )


def _check_json_path(path: str | None) -> None:
    """Throws UsageError before the work rather than after it."""
    if path is not None and path != "-" and not Path(path).absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: its folder does not exist. Name another file.")


def _write_json(path: str, facts: dict[str, Any]) -> None:
    text = json.dumps(facts, indent=2) + "\n"
    if path == "-":
        typer.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}. Name another file.") from error


def _stop(code: int, reason: str) -> int:
    """One line on stderr; on a terminal it is red, and broken between words."""
    console = Console(stderr=True)
    line = "error: " + visible(" ".join(reason.split()))
    if console.is_terminal:
        line = wrapped(line, console.width)
    with contextlib.suppress(OSError):  # a stderr that takes nothing
        console.print(Text(line, style="red"), soft_wrap=True)
    unwritten(sys.stderr)
    return code
