"""The command line: what it prints, writes and returns."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_checkpoint import reshard_arguments, write_checkpoint

from hybridengine import _core
from hybridengine.command import cli
from hybridengine.models import models

pytestmark = pytest.mark.python

LINES = [
    ("fsdp2(6)", "vllm(tp=3,dp=2)"),
    ("fsdp2(4)", "vllm(tp=3)"),
    ("vllm(tp=3)", "fsdp2(2)"),
    ("fsdp2(4)@0-3", "vllm(tp=3)@4-6"),
    ("fsdp2(4)@0-3", "vllm(tp=3)@1-3"),
    ("hf", "replicated(2)@1-2"),
]
RESULT_KEYS = {
    *("model", "src", "dst", "transport", "received_over_bound", "mismatched_elements"),
    *("seconds", "buckets", "ranks"),
}
RANK_KEYS = {"rank", "received_bytes", "bound_bytes", "sent_bytes", "staging_bytes"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def run(capsys):
    """Runs a command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(list(arguments))
        return (code, *capsys.readouterr())

    return call


@pytest.mark.parametrize(("src", "dst"), LINES)
def test_reshard_moves_the_bound_and_every_element_is_right(run, checkpoint, src, dst):
    code, out, err = run(*reshard_arguments(checkpoint, src, dst, "--verify", "--json", "-"))
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["received_over_bound"] == 1.0
    assert result["mismatched_elements"] == 0
    assert sum(row["received_bytes"] for row in result["ranks"]) > 0


def test_the_json_has_exactly_these_keys(run, checkpoint, tmp_path):
    path = tmp_path / "r.json"
    code, out, _ = run(
        *reshard_arguments(checkpoint, "fsdp2(2)", "vllm(tp=3)", "--json", str(path))
    )
    assert code == 0
    result = json.loads(path.read_text())
    assert set(result) == RESULT_KEYS
    assert [row["rank"] for row in result["ranks"]] == [0, 1, 2]
    assert all(set(row) == RANK_KEYS for row in result["ranks"])
    assert result["mismatched_elements"] is None
    assert (result["model"], result["src"]) == (checkpoint, "fsdp2(2)")
    assert result["dst"] == "vllm(tp=3)" and result["transport"] in ("cma", "shm")
    assert result["seconds"] > 0
    assert result["buckets"] > 0
    assert "verified: no" in out


def test_the_report_for_people(run, checkpoint):
    code, out, err = run(*reshard_arguments(checkpoint, "fsdp2(2)", "vllm(tp=3)", "--verify"))
    assert (code, err) == (0, "")
    assert re.search(r"received \S+ kB of \S+ kB bound \(ratio 1\.00\)", out)
    assert re.search(r"\d+ buckets over (cma|shm) in \d+\.\d+ s, \d+\.\d+ GB/s", out)
    assert "verified: yes" in out
    for column in ("rank", "received", "bound", "sent", "held", "staging"):
        assert column in out


def test_small_buckets_and_another_dtype(run, checkpoint):
    more = ["--bucket", "1K", "--verify", "--json", "-", "--dtype", "float64"]
    code, out, _ = run(*reshard_arguments(checkpoint, "fsdp2(2)", "vllm(tp=3)", *more))
    result = json.loads(out)
    assert (code, result["mismatched_elements"]) == (0, 0)
    moved = sum(row["received_bytes"] for row in result["ranks"])
    assert result["buckets"] >= moved // 1024


def test_a_difference_is_counted_and_fails(run, checkpoint, monkeypatch):
    outcomes = []

    def one_is_wrong(*arguments, **keywords):
        outcomes.extend(real(*arguments, **keywords))
        return [cli.RankOutcome(each.report, 3) for each in outcomes]

    real = cli.run_local
    monkeypatch.setattr(cli, "run_local", one_is_wrong)
    code, out, _ = run(*reshard_arguments(checkpoint, "fsdp2(2)", "replicated(2)", "--verify"))
    assert code == cli.DIFFERENT == 1
    assert "verified: 6 elements DIFFER" in out


BAD = [
    (["--dst", "vllm(tp=2)"], "9 attention heads do not divide by tp 2; possible: 1, 3, 9"),
    (["--dst", "vllm(tp=3"], "cannot read the layout"),
    (["--dst", "vllm(pt=3)"], "pt is no key of vllm. Its keys: tp, pp, dp, ep, replicas"),
    (["--dst", "vlm(tp=3)"], "'vlm' is no layout. Use fsdp2, replicated, tensor_parallel, vllm"),
    (["--dst", "megatron(tp=3)"], "megatron layouts are not supported yet"),
    (["--dst", "vllm(tp=3)@0-1"], "names 2 ranks"),
    (["--src", "fsdp2(0)"], "Use a whole number from 1"),
    (["--src", "fsdp2(300)"], "at most 256"),
    (["--model", "gpt-5"], "'gpt-5' is no model and no directory. Use smollm2-135m"),
    (["--bucket", "32X"], "'32X' is no size. Write 33554432, 512K, 32M or 1G."),
    (["--bucket", "0"], "bucket"),
    (["--bucket", "1"], "bucket"),
    (["--dtype", "int8"], "floating"),
    (["--dtype", "bf17"], "'bf17' is not an element type"),
    (["--transport", "pigeon"], "no such transport: 'pigeon'. Use one of: auto, cma, shm"),
    (["--timeout", "soon"], "a valid number"),
    (["--timeout", "-1"], "timeout"),
    (["--json", "/no/such/folder/r.json"], "its folder does not exist"),
    (["--verfy"], "No such option"),
]


@pytest.mark.parametrize(("change", "reason"), BAD, ids=[" ".join(change) for change, _ in BAD])
def test_a_wrong_call_is_one_line_and_exit_code_2(run, checkpoint, change, reason):
    base = {"--model": checkpoint, "--src": "fsdp2(2)", "--dst": "vllm(tp=3)"}
    if len(change) == 2:
        base[change[0]] = change[1]
        change = []
    arguments = [each for pair in base.items() for each in pair]
    code, out, err = run("reshard", *arguments, *change)
    assert code == cli.USAGE == 2
    assert out == ""
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["reshard"], "Missing option '--model'"),
        (
            ["reshard", "--model", "llama-3.1-70b", "--src", "fsdp2(2)", "--dst", "vllm(tp=2)"],
            "llama-3.1-70b has no weights here, only a config. `hybridengine plan` works with it; "
            "to reshard use smollm2-135m or the directory of a checkpoint.",
        ),
        (["fly"], "No such command 'fly'"),
        (["plan", "--model", "smollm2-135m", "--src", "hf"], "Missing option '--dst'"),
        (["plan", "--model", "smollm2-135m", "--src", "hf", "--dst", "vllm(tp=2)"], "9 attention"),
        (["plan", "--model", "/", "--src", "hf", "--dst", "hf"], "config.json"),
    ],
)
def test_wrong_calls_of_other_commands(run, arguments, reason):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


def test_a_variable_that_is_not_legal_is_a_wrong_call(run, checkpoint, monkeypatch):
    monkeypatch.setenv("HYBRIDENGINE_TIMEOUT_S", "soon")
    code, _, err = run(*reshard_arguments(checkpoint, "fsdp2(2)", "vllm(tp=3)"))
    assert code == 2
    assert err.startswith("error: HYBRIDENGINE_TIMEOUT_S=soon is not legal. Use a number")


def test_plan_says_what_would_move(run):
    arguments = ["plan", "--model", "smollm2-135m", "--src", "fsdp2(6)", "--dst", "vllm(tp=3,dp=2)"]
    code, out, err = run(*arguments, "--json", "-", "--bucket", "1M")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert plan["received_over_bound"] == 1.0
    assert plan["moved_bytes"] == sum(pair["num_bytes"] for pair in plan["pairs"])
    assert plan["buckets"] == sum(pair["buckets"] for pair in plan["pairs"])
    assert all(pair["buckets"] >= pair["num_bytes"] / (1 << 20) for pair in plan["pairs"])
    spec = models.resolve("smollm2-135m").spec
    assert sum(row["src_bytes"] for row in plan["ranks"]) == spec.num_bytes
    for row in plan["ranks"]:
        assert (
            row["received_bytes"] == row["bound_bytes"] == row["needed_bytes"] - row["held_bytes"]
        )
        assert row["received_bytes"] == sum(
            pair["num_bytes"] for pair in plan["pairs"] if pair["dst"] == row["rank"]
        )
        assert row["peak_bytes"] == row["src_bytes"] + row["dst_bytes"] + (3 << 20)
    code, out, _ = run(*arguments)
    assert code == 0
    assert "receives 449 MB of 449 MB bound (ratio 1.00)" in out


def test_plan_where_nothing_moves(run):
    arguments = ["plan", "--model", "smollm2-135m", "--src", "hf", "--dst", "hf"]
    code, out, _ = run(*arguments)
    assert code == 0
    assert "receives 0 B of 0 B bound (ratio 1.00)" in out
    assert "0 buckets" in out


def test_a_plan_of_many_ranks_stays_readable(run):
    arguments = ["--model", "llama-3.1-8b", "--src", "fsdp2(64)", "--dst", "vllm(tp=8,dp=8)"]
    code, out, _ = run("plan", *arguments)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 160
    assert "and 24 more rows, which --json lists" in out


def test_a_plan_of_a_70b_model_needs_no_weights_torch_or_time():
    code = (
        "import sys; from hybridengine.command import cli; code = cli.run(sys.argv[1:]);"
        "sys.exit(code or 100 * ('torch' in sys.modules))"
    )
    arguments = ["plan", "--model", "llama-3.1-70b", "--src", "fsdp2(16)", "--dst", "vllm(tp=8)"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 5
    assert "(ratio 1.00)" in done.stdout


def test_version_and_help(run):
    assert run("--version") == (0, _core.build_facts()["version"] + "\n", "")
    for arguments in ([], ["--help"]):
        code, out, _ = run(*arguments)
        assert code == 0
        for command in ("reshard", "plan", "info"):
            assert command in out
    for command, words in (("reshard", "--verify"), ("plan", "--bucket"), ("info", "--json")):
        code, out, err = run(command, "--help")
        assert (code, err) == (0, "")
        assert words in out


def test_info(run):
    code, out, _ = run("info", "--json")
    assert code == 0
    assert json.loads(out)["build"] == _core.build_facts()
    code, out, _ = run("info")
    assert code == 0
    assert "HYBRIDENGINE_TIMEOUT_S" in out


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "hybridengine", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, _core.build_facts()["version"])


def test_the_environment_page_is_the_table_of_the_core(run):
    code, out, _ = run("info", "--environment-markdown")
    assert code == 0
    assert (Path(__file__).parents[1] / "docs" / "environment.md").read_text() == out
