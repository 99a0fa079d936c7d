"""Plans of many ranks are small and quick; what lasts says what it is, and can be ended."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from hybridengine import UsageError
from hybridengine.command import patience

pytestmark = pytest.mark.python


def test_what_is_quick_says_nothing_and_what_lasts_says_what_it_is(capsys, monkeypatch):
    assert patience.with_patience("counting", lambda: 3) == 3
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(patience, "_SILENT_S", 0.01)
    released = threading.Event()
    threading.Timer(0.2, released.set).start()
    assert patience.with_patience("counting", lambda: released.wait(10)) is True
    assert capsys.readouterr().err == "counting\n"
    with pytest.raises(UsageError, match="no such thing"):
        patience.with_patience("counting", _refuse)


def _refuse() -> None:
    raise UsageError("no such thing")


def test_ctrl_c_ends_a_plan_under_way():
    code = (
        "import sys; from hybridengine.command import cli, patience; patience._SILENT_S = 0;"
        "sys.exit(cli.run(sys.argv[1:]))"
    )
    line = ["plan", "--model", "llama-3.1-70b", "--src", "fsdp2(512)", "--dst", "vllm(tp=8,dp=64)"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr.readline() == "planning fsdp2(512) -> vllm(tp=8,dp=64)\n"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 2
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "error: interrupted; no rank is left"
