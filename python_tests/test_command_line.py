"""Words of the command line: help that fits 80 columns, and what a wrong call is told."""

import pytest

from hybridengine.command import cli

pytestmark = pytest.mark.python

# Every option of every command.
OPTIONS = {
    "": ["--version"],
    "reshard": [
        *("--model", "--src", "--dst", "--verify", "--json", "--bucket", "--dtype"),
        *("--transport", "--timeout"),
    ],
    "plan": ["--model", "--src", "--dst", "--dtype", "--bucket", "--json"],
    "info": ["--json", "--environment-markdown"],
    "train": ["--print-config"],
    "train-reward": [],
}


@pytest.mark.parametrize("command", OPTIONS)
def test_help_fits_80_columns_and_cuts_no_name(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    texts = []
    for flag in ("--help", "-h"):
        assert cli.run([*command.split(), flag]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    out = texts[0]
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out and "--no-" not in out
    assert not any(kind in out for kind in ("<bool>", "<str>", "<float>", "<list"))
    words = out.split()
    assert all(option in words for option in [*OPTIONS[command], "--help", "-h"])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plan"], "Missing option '--model'. See hybridengine plan --help."),
        (["reshard", "--model", "x"], "Missing option '--src'. See hybridengine reshard --help."),
        (["fly"], "No such command 'fly'. See hybridengine --help."),
        (
            ["plan", "--model", "gemma-2b", "--src", "hf", "--dst", "hf", "--bucket", "32x"],
            "--bucket: '32x' is no size. Write 33554432, 512K, 32M or 1G.",
        ),
    ],
)
def test_a_wrong_call_names_the_option_and_the_help_of_its_command(arguments, line, capsys):
    assert cli.run(arguments) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


_NO_OPTION = "is no option: keys are written KEY=VALUE, without dashes."


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--lr", "3"], f"--lr {_NO_OPTION} Write actor.lr=3."),
        (["--lr=3"], f"--lr {_NO_OPTION} Write actor.lr=3."),
        (["-lr", "3"], f"-lr {_NO_OPTION} Write actor.lr=3."),
        (["seed=1", "--actor.lr=3"], f"--actor.lr {_NO_OPTION} Write actor.lr=3."),
        (["--learning-rate", "3"], f"--learning-rate {_NO_OPTION} Write actor.lr=3."),
        (["--num_generations", "8"], f"--num_generations {_NO_OPTION} Write rollout.n=8."),
        (["--resume", "seed=1"], f"--resume {_NO_OPTION} Write run.resume=VALUE."),
        (["--nnodes", "3"], f"--nnodes {_NO_OPTION} Leave it out: trainer.ranks counts the ranks"),
        (["--config", "a.yaml"], f"--config {_NO_OPTION} Leave it out: a YAML file goes first"),
        (
            ["--zzz"],
            f"--zzz {_NO_OPTION} `hybridengine train --print-config` lists all keys.",
        ),
    ],
)
@pytest.mark.parametrize("command", ["train", "train-reward"])
def test_an_option_of_another_trainer_is_answered_with_the_key(command, arguments, line, capsys):
    assert cli.run([command, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {line}") and error.count("\n") == 1
