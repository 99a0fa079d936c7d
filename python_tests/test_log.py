"""Lines on stderr (csrc/base/log)."""

import threading

import pytest

from hybridengine import _core

LEVELS = ["error", "warn", "info", "debug"]

pytestmark = pytest.mark.usefixtures("clean_environment")


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


@pytest.mark.threads
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


@pytest.mark.threads
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


def test_illegal_level_is_an_error_on_refresh_and_one_line_at_first_use(monkeypatch, run_core):
    monkeypatch.setenv("HYBRIDENGINE_LOG", "loud")
    with pytest.raises(_core.UsageError, match="HYBRIDENGINE_LOG=loud"):
        _core.refresh_log()
    done = run_core(
        "_core.log('info','base','a'); _core.log('warn','base','b')", HYBRIDENGINE_LOG="loud"
    )
    assert done.stderr.splitlines() == [
        "[hybridengine error base] HYBRIDENGINE_LOG=loud is not legal. "
        "Use error, warn, info or debug.",
        "[hybridengine warn base] b",
    ]


def test_log_reads_the_environment_at_first_use(run_core):
    done = run_core("_core.log('debug','base','a')", HYBRIDENGINE_LOG="debug")
    assert done.stderr == "[hybridengine debug base] a\n"
