"""The command in odd surroundings: streams, folders, descriptors, homes. One line, a documented
exit code, and no traceback for what lies outside of the program."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import odd_surroundings
import pytest
from small_checkpoint import reshard_arguments, write_checkpoint

from hybridengine._core import UsageError
from hybridengine.command import cli, refusals
from hybridengine.processes import socket_folder

pytestmark = pytest.mark.python

_COMMAND = f"{shlex.quote(sys.executable)} -m hybridengine"
_PLAN = "plan --model smollm2-135m --src 'fsdp2(6)' --dst 'vllm(tp=3)'"


def shell(line: str, **options) -> tuple[int, str, str]:
    # Whether Python buffers stdout decides which write fails: not for the machine to say.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("HE", _COMMAND)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (f"HE {_PLAN} >&-", 2, "stdout is closed. Redirect it to a file, or to /dev/null."),
        (f"HE {_PLAN} >/dev/full", 3, "stdout takes no more: No space left on device."),
        (f"PYTHONUNBUFFERED=1 HE {_PLAN} >/dev/full", 3, "stdout or a file: No space left"),
        (f"HE {_PLAN} --json /dev/full", 2, "cannot write /dev/full: No space left on device."),
        ("HE train --print-config >/dev/full", 3, "stdout or a file: No space left on device."),
        ("ulimit -n 12; HE bench send_recv -b 1M -e 1M", 3, "too many open files: `ulimit -n` is"),
        ("ulimit -n 20; HE bench send_recv -b 1M -e 1M -g 6", 3, "too many open files: `ulimit"),
        ("mkdir gone; cd gone; rmdir ../gone; HE info", 2, "the current folder does not exist"),
    ],
)
def test_what_the_surroundings_refuse_is_one_line(tmp_path, line, code, words):
    found, _, errors = shell(line, cwd=tmp_path)
    assert found == code, errors
    assert errors.count("\n") == 1 and errors.startswith("error: ") and words in errors


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"HE {_PLAN} | head -1", 128 + signal.SIGPIPE),
        (f"HE {_PLAN} <&- 2>&-", 0),
        ("HE bench send_recv -b 1M -e 1M -n 2 -w 1 <&- 2>&- >/dev/null", 0),
        (f"LC_ALL=C PYTHONIOENCODING=ascii HE {_PLAN}", 0),
        ("PYTHONIOENCODING=ascii HE train --help", 0),
        (f"PYTHONIOENCODING=ascii HE {_PLAN} >/dev/full 2>/dev/full", 3),
        (f"PYTHONUNBUFFERED=1 HE {_PLAN} >/dev/full 2>/dev/full", 3),
    ],
)
def test_other_streams_are_no_hindrance(line, code):
    assert shell(line) == (code, shell(line)[1], "")


def test_a_folder_that_cannot_be_entered_is_one_line(monkeypatch, capsys):
    """Root may enter every folder."""

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(cli.os, "stat", refuse)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == cli.USAGE
    words = "error: the current folder cannot be entered. Go to another one, by `cd`.\n"
    assert capsys.readouterr().err == words


def test_everything_odd_at_once(tmp_path):
    model = write_checkpoint(tmp_path)
    done = odd_surroundings.run_in(tmp_path, reshard_arguments(model, "fsdp2(2)", "vllm(tp=3)"), 60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_end_of_the_fork_server_is_no_ctrl_c(tmp_path):
    """The caller has the true torch; its server finds another one, and ends."""
    (tmp_path / "torch.py").write_text("import os; os._exit(9)\n")
    code = (
        "import sys, torch; from hybridengine.command import cli\n"
        "if __name__ == '__main__':\n"
        f"    sys.path.insert(0, {str(tmp_path)!r})\n"
        "    sys.exit(cli.run(['bench', 'send_recv', '-b', '1M', '-e', '1M']))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    found, _, errors = shell(f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}")
    assert found == cli.FAILED, errors
    assert errors == (
        "error: ranks cannot start: the process that they are forked from ended (exit code 9). See "
        "what it wrote to stderr.\n"
    )


def test_a_bug_shows_its_traceback_and_has_a_code_of_its_own(tmp_path):
    code = (
        "import hybridengine.layouts.planning as p, hybridengine.command.cli as c, sys\n"
        "def plan(*a, **b): raise {}\n"
        "c.plan = plan\n"
        f"sys.argv[1:] = {shlex.split(_PLAN)!r}\n"
        "c.main()\n"
    )
    for error in ("KeyError('x')", "EOFError()", "OSError('without a number')"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(error)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == cli.BUG == 70, done.stderr
        assert "Traceback" in done.stderr and error.split("(")[0] in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: this is a bug of hybridengine")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "/a/b"), "/a/b: Permission denied. Grant it"),
        (OSError(30, "Read-only file system", b"c"), "c: Read-only file system. Name a place"),
        (FileNotFoundError(2, "No such file or directory", "x"), "x: No such file or directory."),
        (BlockingIOError(11, "Resource temporarily unavailable"), "`ulimit -u`"),
        (OSError(12, "Cannot allocate memory"), "cannot allocate memory. Use fewer ranks"),
    ],
)
def test_words_of_the_system(error, words):
    assert words in refusals.refusal(error)


def test_errors_that_surroundings_do_not_explain_have_no_words():
    assert refusals.refusal(OSError("text")) is None
    assert refusals.refusal(OSError(9, "Bad file descriptor")) is None


def test_sockets_lie_where_their_paths_fit(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    room = 107 - len(str(tmp_path))
    assert socket_folder.socket_parent(room) == str(tmp_path)
    assert socket_folder.socket_parent(room + 1) == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert socket_folder.socket_parent(20) == "/tmp"
    with pytest.raises(UsageError, match=r"/nowhere is too long by .*Set TMPDIR to a folder that"):
        socket_folder.socket_parent(107)
    monkeypatch.setattr(socket_folder, "_SHORT", (str(Path(tmp_path) / "none"),))
    with pytest.raises(UsageError, match=r"/nowhere cannot be written, .*none cannot be written"):
        socket_folder.socket_parent(1)
