"""The installed package: where the core comes from, what it says about its build, how big it is."""

import os
import tomllib
from pathlib import Path

import pytest

import hybridengine
from hybridengine import _core

_SOURCE = Path(__file__).parents[1] / "hybridengine"


def test_the_installed_core_is_tested_not_the_source_folder() -> None:
    if Path(hybridengine.__file__).parent == _SOURCE:
        pytest.skip("the source folder is imported: a core was linked into it, or it is editable")
    assert Path(_core.__file__).parent == Path(hybridengine.__file__).parent


def test_build_facts_are_complete() -> None:
    facts = _core.build_facts()
    project = tomllib.loads((_SOURCE.parent / "pyproject.toml").read_text())["project"]
    assert facts["version"] == project["version"]
    assert facts["compiler"] and facts["build_type"] and facts["commit"]
    assert facts["cuda_reason"] and facts["nccl_reason"] and facts["rdma_reason"]
    assert isinstance(facts["cuda"], bool)


@pytest.mark.threads
def test_the_core_is_built_with_the_sanitizers_that_the_run_asks_for() -> None:
    assert _core.build_facts()["sanitize"] == os.environ.get("HYBRIDENGINE_EXPECT_SANITIZE", "")


@pytest.mark.static
def test_the_core_is_small() -> None:
    assert Path(_core.__file__).stat().st_size < 12 << 20
