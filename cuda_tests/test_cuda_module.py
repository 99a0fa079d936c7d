"""The module `_cuda`: it imports without a driver, and says why there is no device."""

import importlib
import re
import types

import pytest

from hybridengine import _core


@pytest.fixture
def cuda() -> types.ModuleType:
    facts = _core.build_facts()
    if not facts["cuda"]:
        pytest.skip(f"CUDA is off in this build: {facts['cuda_reason']}")
    return importlib.import_module("hybridengine._cuda")


def test_a_count_of_zero_comes_with_a_reason_and_only_then(cuda: types.ModuleType) -> None:
    count, reason = cuda.device_count()
    assert count >= 0
    assert (reason == "") == (count > 0)
    assert len(cuda.device_names()) == count


def test_versions_are_words(cuda: types.ModuleType) -> None:
    assert re.fullmatch(r"\d+\.\d+", cuda.runtime_version())
    driver = cuda.driver_version()
    assert driver == "" or re.fullmatch(r"\d+\.\d+", driver)
    if cuda.device_count()[0] > 0:
        assert driver != ""


def test_every_device_runs_a_kernel_of_this_build(cuda: types.ModuleType) -> None:
    for device in range(cuda.device_count()[0]):
        assert cuda.try_device(device) == ""


@pytest.mark.parametrize("beyond", [0, 7])
def test_a_device_that_does_not_exist_has_a_reason(cuda: types.ModuleType, beyond: int) -> None:
    count, _ = cuda.device_count()
    assert cuda.try_device(count + beyond) != ""
    assert cuda.try_device(-1) != ""
    assert cuda.device_count()[0] == count  # a refused call leaves nothing behind
