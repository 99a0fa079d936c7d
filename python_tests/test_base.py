"""Errors, environment and small parts of csrc/base. See test_log.py and test_trace.py."""

import ctypes
import functools
import operator

import pytest

from hybridengine import _core

BAD_SECONDS = ["0", "-1", "nan", "inf", "5s", "1e3", "1e9", ","]

pytestmark = pytest.mark.usefixtures("clean_environment")


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
    assert f"{error.__module__}.{error.__qualname__}" == f"hybridengine.{name}"


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
        "HYBRIDENGINE_ISA": "auto",
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
        ("ISA", "avx2", "auto, x86-64-v2, x86-64-v3, x86-64-v4 or portable"),
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
