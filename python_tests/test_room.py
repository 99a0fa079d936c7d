"""Plans that the machine cannot hold are refused before they are made; long ones can be ended."""

import signal
import subprocess
import sys
import threading
import time

import pytest
from small_checkpoint import CONFIG

from hybridengine import LayoutRule, Spec, UsageError, _core
from hybridengine.command import cli, patience
from hybridengine.layouts import room
from hybridengine.layouts.planning import bind_both, plan

pytestmark = pytest.mark.python

WHOLE = [
    ("fsdp2(4)", "vllm(tp=3)"),
    ("fsdp2(5)", "replicated(3)@2-4"),
    ("vllm(tp=3)", "fsdp2(7)"),
    ("hf", "hf"),
]


@pytest.mark.parametrize(("src", "dst"), WHOLE)
def test_moves_are_counted_as_they_are_made(src, dst):
    source, target = bind_both(Spec.from_config(CONFIG), src, dst)
    made = _core.make_plan(source.core, target.core)
    assert _core.count_moves(source.core, target.core) == made.num_moves


def test_replicas_share_some_moves_among_them():
    source, target = bind_both(Spec.from_config(CONFIG), "replicated(3)", "vllm(tp=3)@3-5")
    made = _core.make_plan(source.core, target.core)
    counted = _core.count_moves(source.core, target.core)
    assert counted <= made.num_moves <= 1.2 * counted


def test_layouts_that_differ_are_refused_as_by_a_plan():
    source = LayoutRule.parse("fsdp2(2)").bind(Spec.from_tensors([("a", (4,), "float32")]))
    target = LayoutRule.parse("fsdp2(2)").bind(Spec.from_tensors([("b", (4,), "float32")]))
    with pytest.raises(UsageError, match="layouts differ: 'b' is only in"):
        room.check_room(source, target)


def test_a_plan_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    spec = Spec.from_config(CONFIG)
    source, target = bind_both(spec, "fsdp2(4)", "vllm(tp=3)")
    needed = room._BYTES_PER_MOVE * _core.count_moves(source.core, target.core)
    monkeypatch.setattr(room, "available_bytes", lambda: needed)
    assert plan(spec, source, target).num_buckets > 0
    monkeypatch.setattr(room, "available_bytes", lambda: needed - 1)
    monkeypatch.setattr(_core, "make_plan", None)
    with pytest.raises(UsageError, match=r"fsdp2\(4\) to vllm\(tp=3\) has \d+ moves, some"):
        plan(spec, source, target)
    monkeypatch.setattr(room, "available_bytes", lambda: None)
    with pytest.raises(TypeError):  # where nobody knows it is tried
        plan(spec, source, target)


def test_70b_on_512_ranks_a_side_is_answered_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(room, "available_bytes", lambda: 16 << 30)
    began = time.monotonic()
    line = ["plan", "--model", "llama-3.1-70b", "--src", "fsdp2(512)", "--dst", "vllm(tp=8,dp=64)"]
    assert cli.run(line) == 2
    assert time.monotonic() - began < 15
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        "error: a plan from fsdp2(512) to vllm(tp=8,dp=64) has 97,321,728 moves, some 29 GB of "
        "memory; 17 GB are free. Use fewer ranks (a smaller dp, say), or a machine with more "
        "memory."
    )


def test_the_memory_of_a_move_is_not_more_than_estimated():
    code = (
        "import re, sys; from hybridengine import _core; from hybridengine.layouts import room;"
        "from hybridengine.layouts.planning import bind_both;"
        "from hybridengine.models import models;"
        "status = lambda: open('/proc/self/status').read();"
        "most = lambda: 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', status())[1]);"
        "spec = models.resolve('llama-3.1-8b').spec;"
        "s, d = bind_both(spec, 'fsdp2(64)', 'vllm(tp=8,dp=8)'); before = most();"
        "plan = _core.make_plan(s.core, d.core); schedule = _core.make_schedule(plan);"
        "print((most() - before) / plan.num_moves, room._BYTES_PER_MOVE)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    taken, estimated = map(float, done.stdout.split())
    assert estimated / 2 < taken <= estimated


def test_free_memory_is_that_of_the_host_and_of_a_container(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(room, "_CGROUP", tmp_path)
    assert room.available_bytes() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:      5 kB\n")
    assert room.available_bytes() == 5 << 10
    for name, text in {"max": "max", "current": "3000", "stat": "anon 7\ninactive_file 24"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert room.available_bytes() == 5 << 10
    (tmp_path / "memory.max").write_text("4000\n")
    assert room.available_bytes() == 4000 - 3000 + 24


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
    line = ["plan", "--model", "llama-3.1-70b", "--src", "fsdp2(128)", "--dst", "vllm(tp=8,dp=16)"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr.readline() == "planning fsdp2(128) -> vllm(tp=8,dp=16)\n"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 2
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "error: interrupted; no rank is left"
