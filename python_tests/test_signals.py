"""A command that is ended by signals: once, in order, and in any case."""

import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.python

_HEAD = """
import signal, sys, time
from hybridengine.command import signals
def say(word):
    print(word, flush=True)
"""

_CLEARS_AWAY = (
    _HEAD
    + """
try:
    with signals.unwind_on_signals():
        try:
            say("ready")
            time.sleep(60)
        finally:
            say("clearing")
            time.sleep(0.5)
            say("cleared")
except KeyboardInterrupt:
    sys.exit(128 + signals.ended_by())
"""
)

# A lock of C that is taken twice: no signal interrupts the second time.
_STUCK = (
    _HEAD
    + """
import ctypes
lock, libc = ctypes.create_string_buffer(256), ctypes.CDLL(None)
libc.pthread_mutex_lock(lock)
with signals.unwind_on_signals():
    say("ready")
    libc.pthread_mutex_lock(lock)
"""
)


def start(code: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_the_first_signal_unwinds_and_no_other_interrupts_that(name):
    process = start(_CLEARS_AWAY)
    process.send_signal(signal.Signals[name])
    assert process.stdout.readline() == "clearing\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    assert process.communicate(timeout=10)[0] == "cleared\n"
    assert process.returncode == 128 + signal.Signals[name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_call_that_cannot_be_interrupted_is_not_waited_for(number):
    process = start(_STUCK)
    time.sleep(0.3)  # it says that it is ready before it is stuck
    began = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert time.monotonic() - began < 4


def test_what_is_ignored_stays_ignored():
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    process = start(ignoring + _CLEARS_AWAY)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM


def test_handlers_are_as_before_afterwards():
    from hybridengine.command import signals

    before = [signal.getsignal(number) for number in signals.ENDING]
    with signals.unwind_on_signals():
        assert [signal.getsignal(number) for number in signals.ENDING] != before
    assert [signal.getsignal(number) for number in signals.ENDING] == before
    assert signals.ended_by() == 0
