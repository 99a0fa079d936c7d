"""Chrome traces (csrc/base/trace)."""

import json
import os
import threading

import pytest

from hybridengine import _core

pytestmark = pytest.mark.usefixtures("clean_environment")


def spans(path):
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X"]


def start_trace(monkeypatch, path):
    monkeypatch.setenv("HYBRIDENGINE_TRACE", str(path))
    _core.refresh_trace()


def test_spans_nest_and_carry_arguments(monkeypatch, tmp_path):
    path = tmp_path / "trace.json"
    start_trace(monkeypatch, path)
    _core.set_rank(2)
    with _core.TraceSpan("engine", "outer"):
        with _core.TraceSpan("device", "inner") as span:
            span.arg("bucket", 12)
            span.arg("tensor", "a.b")
        with _core.TraceSpan("device", "next"):
            pass
    _core.flush_trace()
    inner, following, outer = spans(path)
    assert [e["name"] for e in (inner, following, outer)] == ["inner", "next", "outer"]
    assert inner["cat"] == "device" and outer["cat"] == "engine"
    assert inner["args"] == {"bucket": 12, "tensor": "a.b"} and outer["args"] == {}
    assert {e["pid"] for e in (inner, following, outer)} == {2}
    assert len({e["tid"] for e in (inner, following, outer)}) == 1
    start = outer["ts"]
    for event in (inner, following):
        assert start <= event["ts"]
        start = event["ts"] + event["dur"]
        assert start <= outer["ts"] + outer["dur"] + 0.001
    names = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "M"]
    assert [(e["pid"], e["args"]["name"]) for e in names] == [(2, "rank 2")]


def test_flush_twice_gives_whole_files(monkeypatch, tmp_path):
    path = tmp_path / "trace.json"
    start_trace(monkeypatch, path)
    _core.flush_trace()
    assert spans(path) == []
    for count in (1, 2):
        with _core.TraceSpan("plan", "p"):
            pass
        _core.flush_trace()
        assert len(spans(path)) == count
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize(
    "name",
    ['quote " slash \\ \\u0041', "line\nfeed\t\x00\x1f\x7f", "ünïcödé 権 🚀", "", "</script>"],
)
def test_names_are_escaped(monkeypatch, tmp_path, name):
    path = tmp_path / "trace.json"
    start_trace(monkeypatch, path)
    with _core.TraceSpan("comm", name) as span:
        span.arg(name, name)
    _core.flush_trace()
    (event,) = spans(path)
    assert event["name"] == name and event["args"] == {name: name}


@pytest.mark.threads
def test_each_rank_has_its_file_and_its_process(monkeypatch, tmp_path):
    start_trace(monkeypatch, tmp_path / "r%r.json")

    def rank(number):
        _core.set_thread_rank(number)
        with _core.TraceSpan("comm", f"of {number}"):
            pass

    for number in (0, 5):
        thread = threading.Thread(target=rank, args=(number,))
        thread.start()
        thread.join()
    _core.flush_trace()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r0.json", "r5.json"]
    (event,) = spans(tmp_path / "r5.json")
    assert (event["pid"], event["name"]) == (5, "of 5")


def test_trace_is_written_at_exit(tmp_path, run_core):
    path = tmp_path / "t%r.json"
    code = "_core.set_rank(4)\nwith _core.TraceSpan('plan', 'x'): pass"
    done = run_core(code, HYBRIDENGINE_TRACE=str(path))
    assert done.returncode == 0 and done.stderr == ""
    assert [e["name"] for e in spans(tmp_path / "t4.json")] == ["x"]


def test_a_forked_child_leaves_the_file_alone(tmp_path, run_core):
    path = tmp_path / "t.json"
    code = """
import os, sys
with _core.TraceSpan('plan', 'parent'): pass
child = os.fork()
if child == 0:
    with _core.TraceSpan('plan', 'child'): pass
    _core.flush_trace()
    sys.exit(0)
os.waitpid(child, 0)
"""
    assert run_core(code, HYBRIDENGINE_TRACE=str(path)).returncode == 0
    assert [e["name"] for e in spans(path)] == ["parent"]


def test_unwritable_trace_is_an_error_when_flushed_and_a_line_at_exit(
    monkeypatch, tmp_path, run_core
):
    path = tmp_path / "missing" / "t.json"
    start_trace(monkeypatch, path)
    with pytest.raises(_core.UsageError, match=r"cannot write the trace .*No such file"):
        _core.flush_trace()
    path.parent.mkdir()
    _core.flush_trace()
    bad = tmp_path / "absent" / "t.json"
    done = run_core("with _core.TraceSpan('plan', 'x'): pass", HYBRIDENGINE_TRACE=str(bad))
    assert done.returncode == 0
    assert done.stderr.startswith("[hybridengine error base] cannot write the trace")


def test_without_the_variable_nothing_is_kept(monkeypatch, tmp_path):
    with _core.TraceSpan("plan", "before"):
        pass
    path = tmp_path / "t.json"
    start_trace(monkeypatch, path)
    _core.flush_trace()
    assert spans(path) == []


@pytest.mark.parametrize("name", ["t%r.json", "t.json"])
def test_two_processes_never_share_a_file(tmp_path, run_core, name):
    """Both speak as rank 0, of different communicators. The one that writes later writes beside;
    what an earlier run left is replaced."""
    path = tmp_path / name.replace("%r", "0")
    path.write_text("of an earlier run")
    os.utime(path, (1, 1))
    inner = "_core.set_rank(0)\nwith _core.TraceSpan('plan', 'inner'): pass"
    code = f"""
import os, subprocess, sys
_core.set_rank(0)
with _core.TraceSpan('plan', 'outer'): pass
inner = "import os; print(os.getpid()); from hybridengine import _core\\n" + {inner!r}
print(subprocess.run([sys.executable, '-c', inner], capture_output=True, text=True).stdout)
"""
    done = run_core(code, HYBRIDENGINE_TRACE=str(tmp_path / name))
    assert done.returncode == 0, done.stderr
    assert [e["name"] for e in spans(path)] == ["inner"]
    (beside,) = set(tmp_path.iterdir()) - {path}
    assert beside.name.startswith(f"{path.stem}.") and beside.suffix == ".json"
    assert int(beside.stem.split(".")[1]) != int(done.stdout)
    assert [e["name"] for e in spans(beside)] == ["outer"]
