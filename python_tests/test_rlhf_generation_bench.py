"""The benchmark of the rollout engine: its rows, and that it counts tokens that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridengine import UsageError
from hybridengine._bench import command, rollout

pytestmark = pytest.mark.python

_CASES = {
    "even": rollout.Case(16, 1, 2, 1, 32, rows=3, slots=3, prompt=2, tokens=4),
    "uneven": rollout.Case(16, 1, 2, 1, 32, rows=5, slots=2, prompt=2, tokens=9, ends=8),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "CASES", _CASES)


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    assert command.main(["rollout", "-n", "2", "--json", str(path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [line.split()[-2:] for line in lines] == [["0", "even"], ["0", "uneven"]]
    for row, case in zip(json.loads(path.read_text()), _CASES.values(), strict=True):
        assert (row["rows"], row["slots"], row["nwrong"]) == (case.rows, case.slots, 0)
        assert row["ratio"] == row["tokens_per_s"] / row["transformers_tokens_per_s"]
        assert row["token_seconds"] * row["tokens_per_s"] == pytest.approx(1)


def test_wrong_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = rollout._generated

    def spoiled(*args: object) -> list[list[int]]:
        first, second, *others = generated(*args)  # type: ignore[arg-type]
        return [first[:-1], [second[0], 31 - second[1], *second[2:]], *others]

    monkeypatch.setattr(rollout, "_generated", spoiled)
    assert command.main(["rollout", "--only", "even", "-n", "1", "--json", "-"]) == 1


def test_a_case_that_is_none() -> None:
    with pytest.raises(UsageError, match="Cases are even, uneven"):
        command.main(["rollout", "--only", "large"])
