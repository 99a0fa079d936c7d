"""The choice of the instruction set, and that all of them give the same bits."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hybridengine import _core

_REPOSITORY = Path(__file__).parents[1]
_ALL = ["x86-64-v4", "x86-64-v3", "x86-64-v2"]


def find_tool(name):
    folders = [str(Path(sys.executable).parent), None]
    return next(filter(None, (shutil.which(name, path=folder) for folder in folders)), None)


# The choice


@pytest.mark.parametrize(
    ("wish", "usable", "chosen"),
    [
        ("auto", _ALL, "x86-64-v4"),
        ("auto", _ALL[1:], "x86-64-v3"),
        ("auto", ["portable"], "portable"),
        ("x86-64-v2", _ALL, "x86-64-v2"),
        ("portable", ["portable"], "portable"),
    ],
)
def test_the_best_one_or_the_wish_is_chosen(wish, usable, chosen):
    assert _core.choose_isa(wish, usable) == chosen


def test_a_wish_that_the_cpu_lacks_is_an_error_with_what_it_has():
    with pytest.raises(_core.UsageError) as caught:
        _core.choose_isa("x86-64-v4", _ALL[1:])
    assert str(caught.value) == (
        "HYBRIDENGINE_ISA=x86-64-v4 cannot be used here: this CPU and this build have x86-64-v3, "
        "x86-64-v2. Use one of them, or auto for the best."
    )
    with pytest.raises(_core.UsageError, match=r"no loops for this CPU: it lacks x86-64-v2"):
        _core.choose_isa("auto", [])


def test_usable_ones_match_what_linux_says_of_the_cpu():
    if _core.usable_isas() == ["portable"]:
        pytest.skip("not an x86-64 build: there is one set of loops")
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(flags[1].split())
    needed = {
        "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2"},
        "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
        "x86-64-v2": {"sse4_1", "sse4_2", "ssse3", "popcnt", "cx16"},
    }
    assert _core.usable_isas() == [name for name in _ALL if needed[name] <= flags]


@pytest.mark.parametrize("name", ["auto", *_core.usable_isas()])
def test_the_variable_is_read_when_loops_are_first_needed(run_core, name):
    code = """
import numpy as np
dst = np.zeros(300_000, np.uint8)
_core.copy_strided(np.ones(300_000, np.uint8), dst)
print(dst.all(), _core.isa())
"""
    done = run_core(code, HYBRIDENGINE_ISA=name)
    expected = _core.usable_isas()[0] if name == "auto" else name
    assert (done.returncode, done.stdout.split()) == (0, ["True", expected]), done.stderr


def test_a_copy_with_a_wish_that_cannot_be_met_changes_nothing(run_core):
    missing = "x86-64-v2" if _core.usable_isas() == ["portable"] else "portable"
    code = """
import numpy as np
dst = np.zeros(3, np.uint8)
for wish in (1, 2):
    try:
        _core.copy_strided(np.ones(3, np.uint8), dst)
    except _core.UsageError as error:
        print(dst.any(), error)
"""
    done = run_core(code, HYBRIDENGINE_ISA=missing)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        assert line.startswith(f"False HYBRIDENGINE_ISA={missing} cannot be used here: this CPU")


def test_a_communicator_with_a_wish_that_cannot_be_met_is_refused(run_core):
    missing = "x86-64-v2" if _core.usable_isas() == ["portable"] else "portable"
    code = """
try:
    _core.Communicator("loopback", 0, 1, "group", 1.0, 1.0)
except _core.UsageError as error:
    print(error)
"""
    done = run_core(code, HYBRIDENGINE_ISA=missing)
    assert f"HYBRIDENGINE_ISA={missing} cannot be used here" in done.stdout, done.stderr


# The same bits, NaN included

_DIGESTS = """
import itertools
import sys
import numpy as np
import torch
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FLOATING = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
NUMBERS = FLOATING[:4] + ["int64", "int32", "int16", "int8", "uint8"]
rng = np.random.default_rng(11)

def values(name, count=70_003):
    dtype = getattr(torch, name)
    words = rng.integers(0, 1 << 8 * dtype.itemsize, count, dtype=WORDS[dtype.itemsize])
    tensor = torch.from_numpy(words.view(np.uint8)).view(dtype)
    if dtype.is_floating_point:
        tensor[::7] = torch.randn(len(tensor[::7]), dtype=torch.float64).to(dtype)
        extra = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-40, 5.9e-8, 65520]
        tensor[:9] = torch.tensor(extra, dtype=torch.float64).to(dtype)
        half = torch.arange(1, 4096, dtype=torch.float64) * 2.0**-12 + 1  # halfway for bfloat16
        tensor[100:4195] = half.to(dtype)
    return tensor

def show(what, tensor):
    print(*what, _core.digest_strided(tensor.view(torch.uint8)))

torch.manual_seed(1)
for src, dst in itertools.permutations(FLOATING, 2):
    result = torch.zeros(70_003, dtype=getattr(torch, dst))
    _core.copy_strided(values(src), result)
    show((src, dst), result)
    every = torch.arange(1 << 16).to(torch.uint16).view(torch.uint8)
    if src in FLOATING[2:]:
        source = every.view(getattr(torch, src))
        result = torch.zeros(len(source), dtype=result.dtype)
        _core.copy_strided(source, result)
        show(("every", src, dst), result)
for op, name in itertools.product(["sum", "min", "max"], NUMBERS):
    a, b, c = values(name), values(name), values(name)
    _core.reduce(op, a, b)
    show((op, name), b)
    out = torch.zeros_like(a)
    _core.fold(op, [a, b, c, a], out, 3 if a.dtype.is_floating_point else 1)
    show(("fold", op, name), out)
    wide = a.float() if name in FLOATING[2:4] else a.clone()
    _core.accumulate(op, c, wide)
    show(("accumulate", op, name), wide)
for name in ["uint8", "bfloat16", "float32", "float64"]:
    source = values(name, 301 * 203).view(301, 203)
    result = torch.zeros(203, 301, dtype=source.dtype)
    _core.copy_strided(source.T, result)
    show(("transposed", name), result)
"""


def test_every_instruction_set_gives_the_same_bits(run_core):
    outputs = {}
    for name in _core.usable_isas():
        done = run_core(_DIGESTS, HYBRIDENGINE_ISA=name)
        assert done.returncode == 0, done.stderr
        outputs[name] = done.stdout.splitlines()
        assert len(outputs[name]) > 100
    first = outputs[_core.usable_isas()[0]]
    for name, lines in outputs.items():
        differing = [pair for pair in zip(first, lines, strict=True) if pair[0] != pair[1]]
        assert differing == [], name


@pytest.mark.usefixtures("clean_environment")
def test_float16_instructions_and_rule_agree_on_every_float32_near_a_float16(monkeypatch):
    """All payloads of NaN, all denormals, all halfway cases and their neighbours."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    middles = (halves << 13 & 0x0FFFE000) + (112 << 23) | (halves & 0x8000) << 16
    nans = 0x7F800000 | halves << 7 | (halves & 1) << 31
    tiny = (halves & 0x3FFF) << 14 | (halves >> 14) << 30 & 0x80000000
    words = [middles + 0x1000, middles + 0xFFF, middles + 0x1001, nans, nans + 1, tiny]
    source = np.concatenate(words).astype(np.uint32).view(np.float32)
    results = []
    for name in _core.usable_isas():
        monkeypatch.setenv("HYBRIDENGINE_ISA", name)
        _core.refresh_isa()
        half = np.zeros(source.size, np.float16)
        back = np.zeros(source.size, np.float32)
        _core.copy_strided(source, half)
        _core.copy_strided(half, back)
        results.append((half.view(np.uint16), back.view(np.uint32)))
    for half, back in results[1:]:
        assert (half == results[0][0]).all() and (back == results[0][1]).all()


# The build


def refuse_weak_symbols(tmp_path, code):
    tools = {name: find_tool(name) for name in ("cmake", "g++", "nm")}
    missing = [name for name, path in tools.items() if path is None]
    if missing:
        pytest.skip(f"looking for weak symbols needs {', '.join(missing)}")
    source, built = tmp_path / "loop.cc", tmp_path / "loop.o"
    source.write_text(code)
    subprocess.run([tools["g++"], "-c", source, "-o", built], check=True)
    script = _REPOSITORY / "cmake" / "weak_symbols.cmake"
    command = [tools["cmake"], f"-DNM={tools['nm']}", f"-DOBJECTS={built}", "-P", script]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.static
def test_the_build_refuses_weak_symbols_in_loops(tmp_path):
    done = refuse_weak_symbols(
        tmp_path, "inline int twice(int x) { return 2 * x; }\nauto f = twice;"
    )
    assert done.returncode != 0
    assert "weak symbols in the loops of one instruction set: W _Z5twicei. Give" in done.stderr
    done = refuse_weak_symbols(
        tmp_path, "static int twice(int x) { return 2 * x; }\nauto f = twice;"
    )
    assert done.returncode == 0, done.stderr
