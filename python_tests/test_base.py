"""Environment, log, trace, errors and small parts of csrc/base."""

import ctypes
import functools
import json
import operator
import os
import subprocess
import sys
import threading

import pytest

from hybridengine import _core

BAD_SECONDS = ["0", "-1", "nan", "inf", "5s", "1e3", "1e9", ","]
LEVELS = ["error", "warn", "info", "debug"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No variable of ours is set, and whatever a test set is forgotten afterwards."""
    for name in list(os.environ):
        if name.startswith("HYBRIDENGINE_"):
            monkeypatch.delenv(name)
    _core.refresh_log()
    _core.refresh_trace()
    _core.set_rank(-1)
    yield
    monkeypatch.undo()
    for name in [row["name"] for row in _core.env_table()]:
        os.environ.pop(name, None)
    _core.refresh_trace()
    _core.refresh_log()
    _core.set_rank(-1)


def run_python(code, **environment):
    """Runs code in a fresh interpreter: for what happens at first use and at exit."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HYBRIDENGINE_")}
    return subprocess.run(
        [sys.executable, "-c", "from hybridengine import _core\n" + code],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


# Errors


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("UsageError", ValueError),
        ("TransportError", RuntimeError),
        ("TimeoutError", TimeoutError),
        ("InternalError", RuntimeError),
    ],
)
def test_errors_have_python_bases_and_full_names(name, base):
    error = getattr(_core, name)
    assert issubclass(error, base)
    assert f"{error.__module__}.{error.__qualname__}" == f"hybridengine._core.{name}"


# Environment


def rows():
    return {row["name"]: row for row in _core.env_table()}


def test_env_table_has_every_field_and_the_defaults():
    table = rows()
    assert {name: row["default"] for name, row in table.items()} == {
        "HYBRIDENGINE_LOG": "warn",
        "HYBRIDENGINE_LOG_SUBSYS": "all",
        "HYBRIDENGINE_TRACE": "",
        "HYBRIDENGINE_DUMP": "",
        "HYBRIDENGINE_CHECK": "0",
        "HYBRIDENGINE_TRANSPORT": "auto",
        "HYBRIDENGINE_TIMEOUT_S": "300",
        "HYBRIDENGINE_ENTER_TIMEOUT_S": "1800",
        "HYBRIDENGINE_TOKEN": "",
    }
    for row in table.values():
        assert list(row) == ["name", "meaning", "default", "value", "legal"]
        assert row["meaning"] and row["legal"]
        assert row["value"] == ("unset" if row["name"] == "HYBRIDENGINE_TOKEN" else "")
    assert _core.env_timeout_s() == 300
    assert _core.env_enter_timeout_s() == 1800
    assert _core.env_transport() == "auto"
    assert _core.env_check() is False
    assert _core.env_dump() == "" and _core.env_token() == ""


def test_env_is_read_at_use(monkeypatch):
    monkeypatch.setenv("HYBRIDENGINE_TIMEOUT_S", "2.5")
    monkeypatch.setenv("HYBRIDENGINE_CHECK", "1")
    monkeypatch.setenv("HYBRIDENGINE_TRANSPORT", "shm")
    assert (_core.env_timeout_s(), _core.env_check(), _core.env_transport()) == (2.5, True, "shm")
    assert rows()["HYBRIDENGINE_TIMEOUT_S"]["value"] == "2.5"
    monkeypatch.setenv("HYBRIDENGINE_TIMEOUT_S", "")  # set to nothing: unset
    assert _core.env_timeout_s() == 300


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("LOG", "verbose", "error, warn, info or debug"),
        ("LOG", "WARN", "error, warn, info or debug"),
        ("LOG_SUBSYS", "comm,net", "all or a comma-separated list of base, layout"),
        ("LOG_SUBSYS", "comm,", "all or a comma-separated list of base, layout"),
        ("CHECK", "yes", "0 or 1"),
        ("CHECK", " 1", "0 or 1"),
        ("TRANSPORT", "shm tcp", "auto or the name of a transport"),
        *[("TIMEOUT_S", bad, "a number of seconds") for bad in BAD_SECONDS],
        ("ENTER_TIMEOUT_S", "0.0001", "a number of seconds"),
        ("ENTER_TIMEOUT_S", "1000001", "a number of seconds"),
    ],
)
def test_bad_values_are_refused_with_the_legal_ones(monkeypatch, name, value, legal):
    monkeypatch.setenv(f"HYBRIDENGINE_{name}", value)
    with pytest.raises(_core.UsageError) as caught:
        _core.check_env()
    text = str(caught.value)
    assert text.startswith(f"HYBRIDENGINE_{name}={value} is not legal. Use {legal}")
    assert rows()[f"HYBRIDENGINE_{name}"]["value"] == value  # the table still prints


def test_legal_subsystems_are_those_that_parse(monkeypatch):
    listed = rows()["HYBRIDENGINE_LOG_SUBSYS"]["legal"].split("list of ")[1].split(", ")
    monkeypatch.setenv("HYBRIDENGINE_LOG_SUBSYS", ",".join(listed))
    _core.check_env()
    with pytest.raises(_core.UsageError) as caught:
        _core.log("info", "nothing", "text")
    spelled = str(caught.value).split("Use ")[1].rstrip(".").replace(" or ", ", ").split(", ")
    assert spelled == listed


def test_token_is_never_shown(monkeypatch):
    monkeypatch.setenv("HYBRIDENGINE_TOKEN", "s3cret")
    assert rows()["HYBRIDENGINE_TOKEN"]["value"] == "set"
    assert "s3cret" not in str(_core.env_table())
    assert _core.env_token() == "s3cret"


def test_unknown_names_are_reported_and_build_options_are_not(monkeypatch):
    monkeypatch.setenv("HYBRIDENGINE_TIMEOUT", "3")
    monkeypatch.setenv("HYBRIDENGINE_LOGS", "debug")
    monkeypatch.setenv("HYBRIDENGINE_CUDA", "OFF")
    monkeypatch.setenv("HYBRIDENGINE_LOG", "info")
    assert _core.unknown_env_names() == ["HYBRIDENGINE_LOGS", "HYBRIDENGINE_TIMEOUT"]


# Log


def logged(capfd):
    captured = capfd.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("level", LEVELS)
def test_level_shows_itself_and_those_before(monkeypatch, capfd, level):
    monkeypatch.setenv("HYBRIDENGINE_LOG", level)
    _core.refresh_log()
    for each in LEVELS:
        _core.log(each, "comm", f"text of {each}")
    shown = LEVELS[: LEVELS.index(level) + 1]
    assert logged(capfd) == "".join(f"[hybridengine {e} comm] text of {e}\n" for e in shown)


def test_default_level_is_warn(capfd):
    _core.log("info", "plan", "no")
    _core.log("warn", "plan", "yes")
    assert logged(capfd) == "[hybridengine warn plan] yes\n"


def test_subsystems_narrow_info_and_debug_only(monkeypatch, capfd):
    monkeypatch.setenv("HYBRIDENGINE_LOG", "debug")
    monkeypatch.setenv("HYBRIDENGINE_LOG_SUBSYS", "transport,engine")
    _core.refresh_log()
    for subsystem in ("comm", "transport", "engine"):
        for level in LEVELS:
            _core.log(level, subsystem, "x")
    seen = [tuple(line[1:].split("]")[0].split()[1:]) for line in logged(capfd).splitlines()]
    assert seen == [
        (level, subsystem)
        for subsystem in ("comm", "transport", "engine")
        for level in LEVELS
        if level in ("error", "warn") or subsystem != "comm"
    ]


def test_rank_of_process_and_of_thread(capfd):
    _core.set_rank(3)
    _core.log("warn", "engine", "one")

    def other():
        _core.set_thread_rank(7)
        _core.log("warn", "engine", "two")
        _core.set_thread_rank(-1)
        _core.log("warn", "engine", "three")

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    _core.log("warn", "engine", "four")
    assert [line.split(" warn")[0] for line in logged(capfd).splitlines()] == [
        "[hybridengine rank 3",
        "[hybridengine rank 7",
        "[hybridengine rank 3",
        "[hybridengine rank 3",
    ]


def test_every_line_of_a_text_has_the_prefix(capfd):
    _core.log("error", "base", "first\nsecond\n")
    _core.log("error", "base", "")
    prefix = "[hybridengine error base] "
    assert logged(capfd) == f"{prefix}first\n{prefix}second\n{prefix}\n"


def test_lines_of_threads_do_not_mix(capfd):
    def many(letter):
        for _ in range(200):
            _core.log("warn", "device", letter * 300)

    threads = [threading.Thread(target=many, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = logged(capfd).splitlines()
    assert len(lines) == 800
    for line in lines:
        text = line.removeprefix("[hybridengine warn device] ")
        assert len(text) == 300 and len(set(text)) == 1


def test_illegal_level_is_an_error_on_refresh_and_one_line_at_first_use(monkeypatch):
    monkeypatch.setenv("HYBRIDENGINE_LOG", "loud")
    with pytest.raises(_core.UsageError, match="HYBRIDENGINE_LOG=loud"):
        _core.refresh_log()
    done = run_python(
        "_core.log('info','base','a'); _core.log('warn','base','b')", HYBRIDENGINE_LOG="loud"
    )
    assert done.stderr.splitlines() == [
        "[hybridengine error base] HYBRIDENGINE_LOG=loud is not legal. "
        "Use error, warn, info or debug.",
        "[hybridengine warn base] b",
    ]


def test_log_reads_the_environment_at_first_use():
    done = run_python("_core.log('debug','base','a')", HYBRIDENGINE_LOG="debug")
    assert done.stderr == "[hybridengine debug base] a\n"


# Trace


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


def test_trace_is_written_at_exit(tmp_path):
    path = tmp_path / "t%r.json"
    code = "_core.set_rank(4)\nwith _core.TraceSpan('plan', 'x'): pass"
    done = run_python(code, HYBRIDENGINE_TRACE=str(path))
    assert done.returncode == 0 and done.stderr == ""
    assert [e["name"] for e in spans(tmp_path / "t4.json")] == ["x"]


def test_a_forked_child_leaves_the_file_alone(tmp_path):
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
    assert run_python(code, HYBRIDENGINE_TRACE=str(path)).returncode == 0
    assert [e["name"] for e in spans(path)] == ["parent"]


def test_unwritable_trace_is_an_error_when_flushed_and_a_line_at_exit(monkeypatch, tmp_path):
    path = tmp_path / "missing" / "t.json"
    start_trace(monkeypatch, path)
    with pytest.raises(_core.UsageError, match=r"cannot write the trace .*No such file"):
        _core.flush_trace()
    path.parent.mkdir()
    _core.flush_trace()
    bad = tmp_path / "absent" / "t.json"
    done = run_python("with _core.TraceSpan('plan', 'x'): pass", HYBRIDENGINE_TRACE=str(bad))
    assert done.returncode == 0
    assert done.stderr.startswith("[hybridengine error base] cannot write the trace")


def test_without_the_variable_nothing_is_kept(monkeypatch, tmp_path):
    with _core.TraceSpan("plan", "before"):
        pass
    path = tmp_path / "t.json"
    start_trace(monkeypatch, path)
    _core.flush_trace()
    assert spans(path) == []


# Small parts


def test_dtype_table():
    assert _core.dtype_table() == {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
    }


def test_digest_tells_inputs_apart():
    texts = [b"", b"\0", b"\0\0", b"a", b"b", *(bytes(n) for n in (7, 8, 31, 32, 33, 64, 65))]
    base = bytes(range(256)) * 4
    texts += [base, base[:-1], base[1:]]
    texts += [base[:i] + bytes([base[i] ^ 1]) + base[i + 1 :] for i in range(0, 1024, 37)]
    assert len({_core.digest(text) for text in texts}) == len(texts)
    assert _core.digest(base) == _core.digest(bytes(bytearray(base)))


def test_check_signals_raises_what_the_handler_raises():
    seen = []
    # Nothing of this loop runs in the interpreter, so only check_signals can notice the signal.
    steps = [
        ctypes.pythonapi.PyErr_SetInterrupt,
        _core.check_signals,
        functools.partial(seen.append, "went on"),
    ]
    with pytest.raises(KeyboardInterrupt):
        list(map(operator.call, steps))
    assert seen == []
    _core.check_signals()
