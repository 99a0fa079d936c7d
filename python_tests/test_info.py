"""`info`: facts that can be saved, and a report that says why something is off."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from hybridengine import _core
from hybridengine.command import info

pytestmark = pytest.mark.python


def _facts(**build: Any) -> dict[str, Any]:
    """Facts as `collect` returns them, on a machine without CUDA, but for the values in `build`."""
    return {
        "version": "9.8.7",
        "python": "3.11.0",
        "machine": "Linux 6 x86_64",
        "packages": {"torch": "2.13.0", "vllm": None},
        "build": {
            "commit": "abc",
            "compiler": "GNU 12.2.0",
            "build_type": "Release",
            "sanitize": "",
            "cuda": False,
            "cuda_reason": "no nvcc in PATH",
            "nccl_header": "",
            "nccl_reason": "no nccl.h anywhere",
            "rdma_header": "",
            "rdma_reason": "no infiniband/verbs.h",
            **build,
        },
        "cpu_loops": {"isa": "x86-64-v3", "reason": "usable: x86-64-v3, x86-64-v2"},
        "cuda": {"devices": [], "reason": "no driver", "runtime": "13.0", "driver": ""},
        "transports": [
            {"name": "shm", "summary": "shared memory", "available": True, "reason": ""},
            {"name": "verbs", "summary": "RDMA", "available": False, "reason": "no device [mlx5]"},
        ],
        "environment": [
            {
                "name": "HYBRIDENGINE_LOG",
                "meaning": "log level",
                "default": "warn",
                "value": "debug",
                "legal": "error, warn, info, debug",
            }
        ],
        "unknown_environment": ["HYBRIDENGINE_LGO"],
    }


def _rendered(facts: dict[str, Any]) -> str:
    text = io.StringIO()
    info.render(facts, Console(file=text, width=200))
    return text.getvalue()


def _state(facts: dict[str, Any], what: str) -> tuple[str, str]:
    return next((state, why) for name, state, why in info.build_rows(facts) if name == what)


def test_a_build_without_cuda_says_why() -> None:
    facts = _facts(nccl_header="/x/nccl.h", rdma_header="/y/verbs.h", rdma_reason="found in /y")
    assert _state(facts, "CUDA") == ("off", "no nvcc in PATH")
    assert _state(facts, "NCCL") == ("off", "CUDA is off in this build")
    assert _state(facts, "RDMA") == ("on", "found in /y")


def test_a_build_with_cuda_shows_devices_or_their_absence() -> None:
    facts = _facts(cuda=True, cuda_reason="nvcc 13.0", nccl_header="/x/nccl.h", nccl_reason="in /x")
    assert _state(facts, "CUDA") == ("on", "nvcc 13.0")
    assert _state(facts, "NCCL") == ("on", "in /x")
    assert _state(facts, "CUDA devices") == ("none", "no driver")
    facts["cuda"]["devices"] = ["H200", "H200"]
    assert _state(facts, "CUDA devices")[0] == "H200, H200"


def test_the_report_shows_every_fact_and_leaves_brackets_alone() -> None:
    text = _rendered(_facts())
    for expected in ("9.8.7", "not installed", "no: no device [mlx5]", "debug", "HYBRIDENGINE_LGO"):
        assert expected in text


def test_collected_facts_can_be_saved_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDENGINE_LGO", "debug")
    monkeypatch.setenv("HYBRIDENGINE_CUDA", "OFF")
    facts = info.collect()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["build"] == _core.build_facts()
    assert "HYBRIDENGINE_LGO" in facts["unknown_environment"]
    assert "HYBRIDENGINE_CUDA" not in facts["unknown_environment"]
    text = _rendered(facts)
    for entry in facts["transports"] + facts["environment"]:
        assert entry["name"] in text


def test_a_bad_value_in_the_environment_is_shown_not_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HYBRIDENGINE_TIMEOUT_S", "soon")
    assert "soon" in _rendered(info.collect())


@pytest.mark.usefixtures("clean_environment")
def test_the_instruction_set_is_shown_even_where_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = dict((row[0], row[1:]) for row in info.build_rows(info.collect()))
    assert rows["CPU loops"] == (_core.isa(), f"usable: {', '.join(_core.usable_isas())}")
    monkeypatch.setenv("HYBRIDENGINE_ISA", "x87")
    _core.refresh_isa()
    rows = dict((row[0], row[1:]) for row in info.build_rows(info.collect()))
    assert rows["CPU loops"][0] == "none" and "HYBRIDENGINE_ISA=x87" in rows["CPU loops"][1]


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDENGINE_TOKEN", "correct horse")
    facts = info.collect()
    assert "correct horse" not in json.dumps(facts)
