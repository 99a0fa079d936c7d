"""The configure step: what it finds, and what it says in one line when it cannot go on.

Only `cmake` configures here, in a folder of its own and with a PATH that holds just the named
tools, so that the outcome does not depend on what else this machine has.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

_REPOSITORY = Path(__file__).parents[1]
_NEEDED = ("cmake", "ninja", "g++")
# What g++ and configure scripts call themselves.
_TOOLS = ("as", "ld", "sh", "git", "uname", "cat", "rm")


def _find_tool(name: str) -> str | None:
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return shutil.which(name, path=os.pathsep.join(folders))


def _missing() -> list[str]:
    missing = [name for name in _NEEDED if _find_tool(name) is None]
    return missing if importlib.util.find_spec("pybind11") else [*missing, "pybind11"]


if _missing():
    pytest.skip(f"configuring needs {', '.join(_missing())}", allow_module_level=True)


@dataclass
class Outcome:
    ok: bool
    text: str
    facts: str  # the generated header, "" when configuring failed

    def fact(self, name: str) -> str:
        return re.search(rf'{name} = (?:R"\(|")?(.*?)(?:\)?")?;', self.facts)[1]

    def error(self) -> str:
        """The text of the one error; fails when there are several, or when it has several lines."""
        assert not self.ok, self.text
        assert "Traceback" not in self.text
        errors = re.findall(r"^CMake Error.*\n((?: .*\n)+)", self.text, re.MULTILINE)
        assert len(errors) == 1, self.text
        lines = errors[0].strip().splitlines()
        assert len(lines) == 1, self.text
        return lines[0]


class Machine:
    """A machine with few tools: `configure` runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.python = sys.executable
        self.environment: dict[str, str] = {"PATH": str(self.bin), "HOME": str(folder)}
        for name in (*_TOOLS, "ninja", "g++"):
            self.link(name)

    def link(self, name: str) -> None:
        found = _find_tool(name)
        if found is not None:
            (self.bin / name).symlink_to(found)

    def add_program(self, path: Path, script: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def add_python(self) -> Path:
        """Makes a virtual environment the Python that is built for; returns its site-packages."""
        root = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
        self.python = str(root / "bin" / "python")
        return next(root.glob("lib/python*/site-packages"))

    def configure(self, **defines: str) -> Outcome:
        defines = {
            "Python_EXECUTABLE": self.python,
            "pybind11_DIR": _pybind11_folder(),
            "HYBRIDENGINE_CUDA_DEFAULT_ROOT": str(self.folder / "no_cuda"),
            **defines,
        }
        build = self.folder / "build"
        shutil.rmtree(build, ignore_errors=True)
        command = [_find_tool("cmake"), "-S", _REPOSITORY, "-B", build, "-G", "Ninja"]
        command += [f"-D{name}={value}" for name, value in defines.items()]
        done = subprocess.run(
            command, env=self.environment, text=True, capture_output=True, timeout=120
        )
        header = build / "generated" / "build_facts.h"
        facts = header.read_text() if done.returncode == 0 else ""
        return Outcome(done.returncode == 0, done.stdout + done.stderr, facts)


def _pybind11_folder() -> str:
    pybind11 = importlib.import_module("pybind11")
    return pybind11.get_cmake_dir()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_nvcc_auto_builds_for_the_cpu_and_says_why(machine: Machine) -> None:
    """B40 (i): the report says what is off, and why."""
    outcome = machine.configure()
    assert outcome.ok, outcome.text
    assert outcome.text.count("CUDA OFF (no nvcc in PATH") == 1
    assert outcome.fact("kCuda") == "false"
    assert outcome.fact("kCudaReason").startswith("no nvcc in PATH")
    assert outcome.fact("kVersion") in (_REPOSITORY / "pyproject.toml").read_text()
    assert outcome.fact("kNcclReason") != "" and outcome.fact("kRdmaReason") != ""


def test_without_nvcc_on_is_one_error(machine: Machine) -> None:
    error = machine.configure(HYBRIDENGINE_CUDA="ON").error()
    assert error.startswith("HYBRIDENGINE_CUDA=ON, but no nvcc in PATH")
    assert "CUDACXX" in error


@pytest.mark.parametrize("value", ["YES", "1", "ON;OFF", "AUTOMATIC"])
def test_an_unknown_choice_lists_the_choices(machine: Machine, value: str) -> None:
    error = machine.configure(HYBRIDENGINE_CUDA=value).error()
    assert error == f"HYBRIDENGINE_CUDA={value} is not a choice. Use AUTO, ON or OFF."


def test_the_environment_chooses_and_a_define_wins(machine: Machine) -> None:
    machine.environment["HYBRIDENGINE_CUDA"] = "maybe"
    assert "HYBRIDENGINE_CUDA=maybe is not a choice" in machine.configure().error()
    outcome = machine.configure(HYBRIDENGINE_CUDA="off")
    assert outcome.ok and outcome.fact("kCudaReason") == "HYBRIDENGINE_CUDA=OFF"


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
@pytest.mark.parametrize("value", [":/usr/local/cuda", "/opt/cuda:/usr/local/cuda", "cuda"])
def test_a_malformed_folder_is_one_line_naming_the_variable(
    machine: Machine, variable: str, value: str
) -> None:
    """B40 (ii)"""
    machine.environment[variable] = value
    outcome = machine.configure()
    assert outcome.error().startswith(f"{variable} is not the path of one folder: '{value}'.")
    assert sum(variable in line for line in outcome.text.splitlines()) == 1


def test_a_malformed_folder_does_not_matter_when_cuda_is_off(machine: Machine) -> None:
    machine.environment["CUDA_HOME"] = ":/usr/local/cuda"
    assert machine.configure(HYBRIDENGINE_CUDA="OFF").ok


def test_cudacxx_that_names_nothing_is_an_error(machine: Machine) -> None:
    machine.environment["CUDACXX"] = "/nowhere/nvcc"
    assert machine.configure().error().startswith("CUDACXX names no program: '/nowhere/nvcc'.")


@pytest.mark.parametrize("place", ["CUDACXX", "PATH", "CUDA_HOME", "CUDA_PATH", "default"])
def test_nvcc_is_looked_for_everywhere(machine: Machine, place: str) -> None:
    root = machine.folder / "toolkit"
    nvcc = machine.add_program(root / "bin" / "nvcc", "echo stub; exit 1")
    defines = {}
    if place == "PATH":
        machine.environment["PATH"] += f":{nvcc.parent}"
    elif place == "CUDACXX":
        machine.environment[place] = str(nvcc)
    elif place == "default":
        defines["HYBRIDENGINE_CUDA_DEFAULT_ROOT"] = str(root)
    else:
        machine.environment[place] = str(root)
    # The stub cannot compile; that the reason names it proves that it was found.
    error = machine.configure(HYBRIDENGINE_CUDA="ON", **defines).error()
    assert f"{nvcc} does not compile" in error


def test_nccl_header_of_a_python_package_is_found_beside_a_stub_nvcc(machine: Machine) -> None:
    """B40 (iii)"""
    machine.add_program(machine.bin / "nvcc", "echo 'Cuda compilation tools, release 13.0'")
    header = machine.add_python() / "nvidia" / "nccl" / "include" / "nccl.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define NCCL_VERSION_CODE 22703\n")
    outcome = machine.configure()
    assert outcome.ok, outcome.text
    assert outcome.fact("kNcclHeader") == str(header)
    assert outcome.fact("kCudaReason").endswith("nvcc does not compile")


def test_nccl_home_comes_before_the_python_package(machine: Machine) -> None:
    packages = machine.add_python()
    for folder in (machine.folder / "nccl", packages / "nvidia" / "nccl"):
        (folder / "include").mkdir(parents=True)
        (folder / "include" / "nccl.h").touch()
    machine.environment["NCCL_HOME"] = str(machine.folder / "nccl")
    outcome = machine.configure(HYBRIDENGINE_CUDA="OFF")
    assert outcome.fact("kNcclHeader") == str(machine.folder / "nccl" / "include" / "nccl.h")


def test_without_a_compiler_one_line_says_what_to_install(machine: Machine) -> None:
    """B40 (iv)"""
    (machine.bin / "g++").unlink()
    error = machine.configure().error()
    assert error.startswith("no working C++ compiler: CXX is '',")
    assert "apt-get install g++" in error


def test_a_compiler_that_does_not_work_is_named(machine: Machine) -> None:
    machine.environment["CXX"] = str(machine.add_program(machine.folder / "broken", "exit 3"))
    error = machine.configure().error()
    assert f"CXX is '{machine.folder / 'broken'}'" in error
