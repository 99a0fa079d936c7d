"""Benchmarks: what they print, write and return, and that they find one wrong element."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import bench_scenarios
import pytest
import torch
from small_checkpoint import CONFIG, write_config

import hybridengine
from hybridengine import _core
from hybridengine._bench import command, compare, flags, planner, planner_cases, results, send_recv
from hybridengine.launch import run_local
from hybridengine.layouts.spec import Spec

pytestmark = pytest.mark.python

QUICK = ["-n", "2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A directory with shapes only."""
    return write_config(tmp_path_factory.mktemp("model"))


def reshard(model: str, src: str, dst: str, *more: str) -> list[str]:
    return ["reshard", "--model", model, "--src", src, "--dst", dst, *QUICK, *more]


def table_rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if not line.startswith("#")]


def wrong_of_rivals(out: str) -> dict[str, tuple[str, str]]:
    """#wrong of both halves of the last row, by the name of a rival."""
    lines = [line.split() for line in out.splitlines() if "of our time" in line]
    return {words[1]: (words[11], words[15]) for words in lines}


# Sizes that are no multiple of an element, of a bucket or of the number of tensors; and nothing.
SIZES = [
    ["-b", "0", "-e", "9", "-i", "3", "-d", "uint8", "--tensors", "4"],
    ["-b", "1", "-e", "5K", "-f", "17", "-d", "bfloat16", "--tensors", "3"],
    ["-b", "4097", "-e", "4097", "-d", "double", "--bucket", "1K"],
    ["-b", "3M", "-e", "3M", "-d", "f8e4m3", "-m", "2", "-w", "0", "-g", "3"],
]


@pytest.mark.parametrize("arguments", SIZES, ids=" ".join)
def test_odd_sizes_arrive(bench, tmp_path, arguments):
    path = tmp_path / "b.json"
    line = ["send_recv", *arguments, *QUICK, "-c", "2", "--rival", "all", "--json", str(path)]
    code, out, err = bench(*line)
    assert (code, err) == (0, "")
    rows = table_rows(out)
    options = flags.parse("send_recv", "", send_recv.BENCH.flags, arguments)
    assert [int(row[0]) for row in rows] == [
        size - size % getattr(torch, options.dtypes[0]).itemsize for size in options.sizes()
    ]
    assert {len(row) for row in rows} == {13}
    assert {row[8] for row in rows} == {row[12] for row in rows} == {"0"}
    assert wrong_of_rivals(out) == {"gloo_send_recv": ("0", "0")}
    assert out.count("of our time") == len(rows)
    written = json.loads(path.read_text())
    assert {row["rival"] for row in written} <= {None, "memcpy", "gloo_send_recv"}
    assert {row["nwrong"] for row in written} == {0}
    assert "# Out of bounds values : 0 OK" in out


def test_one_altered_element_is_one_wrong_and_fails(capsys, tmp_path):
    path = tmp_path / "b.json"
    arguments = ["-b", "600", "-e", "600", "--tensors", "3", "--json", str(path), *QUICK]
    options = flags.parse("send_recv", "", send_recv.BENCH.flags, arguments)
    assert command.run_bench(bench_scenarios.SPOILED, options, arguments) == command.WRONG == 1
    out = capsys.readouterr().out
    (ours,) = table_rows(out)
    assert (ours[8], ours[12]) == ("0", "1")
    assert "# Out of bounds values : 1 FAILED" in out
    rows = {row["rival"]: row for row in json.loads(path.read_text())}
    assert rows[None]["nwrong"] == rows[None]["in_place"]["nwrong"] == 1
    assert rows["memcpy"]["nwrong"] == rows[None]["out_of_place"]["nwrong"] == 0


def test_what_was_not_written_is_wrong(capsys):
    arguments = ["-b", "600", "-e", "600", "-d", "bfloat16", *QUICK]
    options = flags.parse("send_recv", "", send_recv.BENCH.flags, arguments)
    assert command.run_bench(bench_scenarios.IDLE, options, arguments) == 1
    (ours,) = table_rows(capsys.readouterr().out)
    assert (ours[8], ours[12]) == ("300", "300")


def test_without_rounds_nothing_is_compared(bench):
    code, out, _ = bench("send_recv", "-b", "64", "-e", "64", "-c", "0", *QUICK)
    assert code == 0
    assert all(row[8] == row[12] == "N/A" for row in table_rows(out))


LINES = [
    ("fsdp2(2)", "vllm(tp=3)@2-4", {"memcpy", "gloo_all_gather", "dtensor_full_tensor"}),
    ("fsdp2(3)", "vllm(tp=3)", {"memcpy", "gloo_all_gather", "dtensor_full_tensor"}),
    ("fsdp2(2)@1-2", "hf", {"memcpy", "gloo_all_gather", "dtensor_full_tensor"}),
    ("vllm(tp=3)", "fsdp2(2)", {"memcpy", "gloo_all_gather"}),
    ("replicated(2)", "vllm(tp=1,replicas=2)@1-2", {"memcpy", "gloo_all_gather"}),
    ("hf", "hf", {"gloo_all_gather"}),
]


@pytest.mark.parametrize("memory", ["torch", "ours"])
@pytest.mark.parametrize(("src", "dst", "others"), LINES)
def test_reshard_and_its_rivals_are_right(bench, model, tmp_path, src, dst, others, memory):
    """Ours is one segment: tensors there do not begin where their storage does."""
    path = tmp_path / "b.json"
    line = reshard(model, src, dst, "--rival", "all", "--json", str(path), "--out", memory)
    code, out, err = bench(*line)
    assert (code, err) == (0, "")
    rows = {row["rival"]: row for row in json.loads(path.read_text())}
    assert set(rows) == {None, "rank0_broadcast", *others}
    assert all(row["nwrong"] == 0 for row in rows.values())
    assert rows[None]["received_over_bound"] == 1.0
    assert ("dtensor_full_tensor is left out: the source is" in out) == (
        "dtensor_full_tensor" not in rows
    )


def test_a_wrong_rival_is_found(model, capsys):
    arguments = reshard(model, "fsdp2(2)", "replicated(2)", "--rival", "all")[1:]
    options = flags.parse("reshard", "", bench_scenarios.SPOILED_RIVAL.flags, arguments)
    assert command.run_bench(bench_scenarios.SPOILED_RIVAL, options, arguments) == 1
    out = capsys.readouterr().out
    (ours,) = table_rows(out)
    assert ours[8] == "0"
    assert wrong_of_rivals(out) == {"spoiling": ("1", "0")}


ROW_KEYS = {
    *("schema_version", "bench", "version", "commit", "command", "started", "machine", "env"),
    *("size", "count", "type", "redop", "root", "time_us", "wall_us", "first_us", "algbw"),
    *("busbw", "nwrong", "memcpy_ratio", "rival", "rival_ratio", "out_of_place", "in_place"),
    *("transport", "num_ranks", "bucket_bytes", "out", "case", "src", "dst", "moved_bytes"),
    *("received_over_bound", "buckets", "model", "num_tensors"),
}


def test_json_alone_on_stdout_says_what_where_and_how(bench, model, monkeypatch):
    monkeypatch.delenv("HYBRIDENGINE_EXPECT_SANITIZE", raising=False)  # of the sanitizer's run
    monkeypatch.setenv("HYBRIDENGINE_TOKEN", "secret")
    monkeypatch.setenv("HYBRIDENGINE_TIMEOUT_S", "60")
    monkeypatch.setenv("HOME_ADDRESS", "private")
    line = reshard(model, "fsdp2(2)", "vllm(tp=3)@2-4", "--rival", "rank0_broadcast", "-J", "-")
    code, out, err = bench(*line)
    assert (code, err) == (0, "")
    rows = json.loads(out)
    assert [row["rival"] for row in rows] == ["memcpy", None, "rank0_broadcast"]
    for row in rows:
        assert set(row) == ROW_KEYS
        assert row["schema_version"] == results.SCHEMA_VERSION
        assert row["commit"] == _core.build_facts()["commit"]
        assert row["env"] == {"HYBRIDENGINE_TIMEOUT_S": "60"}
        for half in (row["out_of_place"], row["in_place"]):
            assert half["algbw"] == pytest.approx(row["size"] / half["time_us"] / 1e3)
    ours, rival = rows[1], rows[2]
    assert rival["rival_ratio"] == pytest.approx(rival["wall_us"] / ours["wall_us"])
    assert ours["memcpy_ratio"] == pytest.approx(rows[0]["wall_us"] / ours["wall_us"])
    assert ours["busbw"] == pytest.approx(ours["algbw"])  # nothing is there before


def test_busbw_leaves_out_what_a_rank_holds(bench, model):
    code, out, _ = bench(*reshard(model, "fsdp2(2)", "replicated(2)", "-J", "-"))
    ours = next(row for row in json.loads(out) if row["rival"] is None)
    spec = Spec.from_config(CONFIG)
    assert code == 0
    assert ours["size"] == spec.num_bytes
    held = [hybridengine.Layout.fsdp2(2).bind(spec).num_bytes(rank) for rank in (0, 1)]
    assert ours["moved_bytes"] == sum(held)
    assert ours["busbw"] / ours["algbw"] == pytest.approx(max(held) / spec.num_bytes)


BAD = [
    (["fly"], "'fly' is no benchmark. Use reshard, send_recv"),
    (["send_recv", "--verfy"], "unrecognized arguments: --verfy. See hybridengine bench send_recv"),
    (["send_recv", "--mode", "x"], "unrecognized arguments"),
    (["send_recv", "-o", "sum"], "unrecognized arguments: -o sum"),
    (["send_recv", "stray"], "unrecognized arguments: stray"),
    (["send_recv", "-n", "0"], "'0' is no whole number from 1"),
    (["send_recv", "-n", "1.5"], "'1.5' is no whole number from 1"),
    (["send_recv", "-t", "2"], "invalid choice: '2'"),
    (["send_recv", "-a", "4"], "invalid choice: 4"),
    (["send_recv", "-d", "bf16"], "'bf16' is no type; use int8"),
    (["send_recv", "-b", "32X"], "'32X' is no size"),
    (["send_recv", "-b", "-1"], "-b"),
    (["send_recv", "-b", "2", "-e", "1"], "the sweep is empty"),
    (["send_recv", "-b", "0", "-e", "1K", "-f", "2"], "the sweep never ends"),
    (["send_recv", "-b", "1", "-i", "0"], "the sweep never ends"),
    (["send_recv", "-g", "1"], "-g 1 is too few: 2 ranks are needed"),
    (["send_recv", "-T", "nan"], "no number of seconds"),
    (["send_recv", "--transport", "pigeon"], "no such transport: 'pigeon'"),
    (["send_recv", "--rival", "nccl"], "'nccl' is no rival of send_recv. Use all, or some of"),
    (["send_recv", "--out", "theirs"], "invalid choice: 'theirs'"),
    (["send_recv", "--json", "/no/such/folder/b.json"], "its folder does not exist"),
    (["reshard", "--model", "smollm2-135m"], "required: --src, --dst"),
    (["planner", "--only", "none"], "--only names no case"),
    (["compare", "/no/such/file", "/none"], "cannot read /no/such/file"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_a_wrong_call_is_one_line_and_exit_code_2(bench, arguments, reason):
    code, out, err = bench(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (["--dst", "vllm(tp=2)"], "9 attention heads do not divide by tp 2"),
        (["-d", "all"], "a reshard is of one type"),
        (["-d", "int32"], "a model is not of int32"),
        (["-b", "1M"], "unrecognized arguments: -b 1M"),
        (["-g", "4"], "-g 4 is too few: 5 ranks are needed"),
        (["--model", "gpt-5"], "'gpt-5' is no model"),
    ],
)
def test_wrong_calls_of_reshard(bench, model, change, reason):
    code, out, err = bench(*reshard(model, "fsdp2(2)", "vllm(tp=3)@2-4", *change))
    assert (code, out) == (2, "")
    assert reason in err


def test_help(bench):
    for arguments in ([], ["-h"]):
        code, out, _ = bench(*arguments)
        assert code == 0
        assert all(f"  {name} " in out for name in ("reshard", "send_recv", "planner", "compare"))


def test_compare(bench, tmp_path):
    common = {"schema_version": results.SCHEMA_VERSION, "bench": "x", "commit": "abc", "size": 8}
    before = [{**common, "out_of_place": {"time_us": 4.0}, "in_place": None, "plan_seconds": 1.0}]
    after = [{**before[0], "out_of_place": {"time_us": 2.0}}, {**common, "size": 9, "a_seconds": 1}]
    for name, rows in (("a", before), ("b", after)):
        (tmp_path / name).write_text(json.dumps(rows))
    code, out, _ = bench("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 0
    assert [line.split() for line in out.splitlines() if not line.startswith("#")] == [
        ["4", "2", "0.500", "size=8", "out-of-place"],
        ["1", "1", "1.000", "size=8", "plan_seconds"],
    ]
    assert "# all: x\n" in out
    assert "# only after: size=9 a_seconds\n" in out
    assert "# ours: 2 times, after is 0.707 of before (geometric mean), 0.500 to 1.000\n" in out
    assert "# by more than 5 %: 1 faster, 0 slower\n" in out
    (tmp_path / "c").write_text("[{}]")
    assert bench("compare", str(tmp_path / "a"), str(tmp_path / "c"))[0] == 2


def test_compare_sets_rivals_apart_and_fits_120_columns():
    def rows(time: float) -> list[dict]:
        common = {"bench": "reshard", "model": "m" * 90, "src": "fsdp2(2)", "num_ranks": 3}
        half = {"out_of_place": {"time_us": time}, "in_place": {"time_us": time}}
        return [
            {**common, "rival": rival, "dst": f"vllm({dst * 80})", **half}
            for dst in "ab"
            for rival in ("memcpy", None, "gloo_all_gather")
        ]

    lines = compare.compare(rows(4.0), rows(3.0))
    assert max(map(len, lines)) <= 120
    at = lines.index("# memcpy and rivals")
    ours = [line for line in lines[:at] if not line.startswith("#")]
    others = [line for line in lines[at:] if not line.startswith("#")]
    assert (len(ours), len(others)) == (4, 8)
    assert not any(name in line for line in ours for name in ("memcpy", "gloo"))
    assert lines[-2].startswith("# ours: 4 times, after is 0.750 of before")
    assert lines[-1] == "# by more than 5 %: 4 faster, 0 slower"
    assert "# ours: nothing to compare" in compare.compare([], [])


def test_planner(bench, tmp_path, monkeypatch):
    small = {"small": lambda: planner_cases.matrices_case(30, [_core.Cut(1, 0, "even")])}
    monkeypatch.setattr(planner, "CASES", {**small, "moe": planner_cases.moe_case})
    path = tmp_path / "p.json"
    code, out, err = bench("planner", "--only", "small", "-n", "3", "--json", str(path))
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].split()[0] == "30"
    (row,) = json.loads(path.read_text())
    assert row["num_tensors"] == 30
    assert row["received_over_bound"] == 1.0
    assert all(row[f"{name}_seconds"] > 0 for name in ("bind", "plan", "schedule"))
    assert 1 < row["peak_mb"] < 1 << 20


def test_pack(bench, tmp_path):
    """A copy, a cast of another width, a way back, a transposition with odd sides, and sums."""
    path = tmp_path / "b.json"
    cases = [
        "rows_tp8",
        "permuted_256B",
        "rows_odd_60B",
        "fp32_bf16",
        "transposed_odd",
        "add_fp32",
        "fold4_bf16",
    ]
    line = ["pack", "--only", ",".join(cases), "-b", "1000001", "-e", "1000001", "-n", "1"]
    code, out, err = bench(*line, "--json", str(path))
    assert (code, err) == (0, "")
    rows = [row for row in json.loads(path.read_text()) if row["rival"] is None]
    assert [row["case"] for row in rows] == cases
    assert all(row["nwrong"] == 0 and row["in_place"] is None for row in rows)
    assert [row["redop"] for row in rows] == ["none"] * 5 + ["sum"] * 2
    assert [row[9] for row in table_rows(out)] == ["N/A"] * len(cases)
    lines = [line.split() for line in out.splitlines() if line.endswith(" / - of memcpy")]
    assert [line[1] for line in lines] == cases
    assert {row["transport"] for row in rows} == {"none"}
    assert "[-] host memory, no transport\n" in out


@pytest.mark.slow
def test_200_reshards_do_not_grow():
    for early, late in run_local(2, bench_scenarios.reshard_often, 200, (20, 200)):
        assert late["resident"] - early["resident"] < 8 << 20
        for name in ("descriptors", "threads", "shared"):
            assert late[name] <= early[name], name  # less: what was idle is given back


@pytest.mark.slow
def test_under_torchrun(tmp_path):
    path = tmp_path / "b.json"
    line = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "hybridengine", "bench"]
    line += ["send_recv", "-b", "1000", "-e", "1000", "--rival", "all", "--json", str(path), *QUICK]
    done = subprocess.run([sys.executable, *line], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(table_rows(done.stdout)) == 1
    assert list(wrong_of_rivals(done.stdout)) == ["gloo_send_recv"]
    assert len(json.loads(path.read_text())) == 3


@pytest.mark.slow
def test_a_rank_whose_others_do_not_come_says_so_and_ends_by_a_signal():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    line = [sys.executable, "-m", "hybridengine", "bench", "send_recv"]
    # Rank 0 opens the meeting and waits in torch; rank 1 of another job waits for its rank 0.
    jobs = (job, {**job, "MASTER_PORT": "1", "RANK": "1"})
    ranks = [
        subprocess.Popen(
            line, env={"RANK": "0", **os.environ, **each}, stderr=subprocess.PIPE, text=True
        )
        for each in jobs
    ]
    for number, (process, each) in enumerate(zip(ranks, jobs, strict=True)):
        waits = f"rank {number} of 2 waits for the others at 127.0.0.1:{each['MASTER_PORT']}."
        assert waits in process.stderr.readline()
        began = time.monotonic()
        process.terminate()
        assert process.communicate(timeout=10)[1] == ""
        assert process.returncode == 128 + signal.SIGTERM
        assert time.monotonic() - began < 4


@pytest.mark.parametrize("numbers", [("2", "2", "1"), ("a", "2", "1"), ("0", "2", "x")])
def test_what_is_no_rank_of_torchrun_is_an_error(bench, monkeypatch, numbers):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    for name, value in zip(names, numbers, strict=True):
        monkeypatch.setenv(name, value)
    code, _, errors = bench("send_recv")
    assert code == 2
    rank, world, port = numbers
    assert f"RANK={rank}, WORLD_SIZE={world} and MASTER_PORT={port} are no place" in errors


def test_the_installed_package_brings_its_benchmarks(tmp_path):
    if Path(hybridengine.__file__).parent == Path(__file__).parents[1] / "hybridengine":
        pytest.skip("the source folder is imported: a core was linked into it, or it is editable")
    line = [sys.executable, "-P", "-m", "hybridengine", "bench", "send_recv"]
    line += ["-b", "64", "-e", "64", *QUICK]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    home = Path(command.__file__).parent
    assert not home.is_symlink() and not (home / "results").exists()
