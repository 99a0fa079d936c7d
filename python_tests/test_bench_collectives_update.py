"""The benchmark of the two-step update: ours and the rival give the same weights, and one wrong
weight is found."""

import json

import bench_collective_scenarios as scenarios
import pytest
from small_checkpoint import write_config

from hybridengine._bench import command, flags, two_step
from hybridengine.command import cli

QUICK = ["-n", "2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A directory with shapes only."""
    return write_config(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [(1, None), (2, None), (3, "vllm(tp=3)"), (3, "replicated(2)"), (4, "vllm(tp=3)@1-3")],
)
def test_ours_and_the_rival_update_every_weight(capsys, tmp_path, model, ranks, layout):
    path = tmp_path / "b.json"
    line = ["bench", "two_step", "--model", model, "-g", str(ranks), "--json", str(path), *QUICK]
    code = cli.run(line + ([] if layout is None else ["--dst", layout]))
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    rows = {row["rival"]: row for row in json.loads(path.read_text())}
    assert set(rows) - {"memcpy"} == {None, "gloo_update"}
    assert all(row["nwrong"] == 0 and row["out_of_place"] is None for row in rows.values())
    ours = rows[None]
    assert (ours["redop"], ours["type"], ours["num_ranks"]) == ("sum", "bfloat16", ranks)
    assert ours["busbw"] == pytest.approx(ours["algbw"] * 2 * (ranks - 1) / ranks)
    assert rows["gloo_update"]["rival_ratio"] > 0


def test_one_altered_weight_is_one_wrong_and_fails(capsys, tmp_path, model):
    path = tmp_path / "b.json"
    line = ["--model", model, "-g", "2", "--json", str(path), "-n", "1"]
    options = flags.parse("two_step", "", two_step.BENCH.flags, line)
    assert command.run_bench(scenarios.SPOILED_UPDATE, options, line) == 1
    assert "# Out of bounds values : 1 FAILED" in capsys.readouterr().out
    rows = {row["rival"]: row for row in json.loads(path.read_text())}
    assert (rows[None]["nwrong"], rows["gloo_update"]["nwrong"]) == (1, 0)
