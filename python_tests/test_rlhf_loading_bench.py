"""The benchmark of loading: what its rows say of a model of a few thousand weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rlhf_training_scenarios import facts

from hybridengine import UsageError
from hybridengine._bench import command, loading

pytestmark = pytest.mark.python


def test_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks keep half of actor and reference each, and all of what generates: 4 bytes each."""
    monkeypatch.setattr(loading, "CASES", {"small": facts(vocab_size=128)})
    path = tmp_path / "rows.json"
    assert command.main(["loading", "-g", "2", "--json", str(path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [line.split()[-2:] for line in lines] == [["0", "small"]] * 2
    rows = json.loads(path.read_text())
    weights = (
        128 * 20 + 20 + 2 * (2 * 20 + 24 * 20 + 24 + 2 * (12 * 20 + 12) + 20 * 24 + 3 * 26 * 20)
    )
    kept = [row["kept_bytes"] for row in rows]
    assert sum(kept) == pytest.approx(4 * (2 * weights + 2 * weights), rel=0.01)
    for row in rows:
        assert row["peak_bytes"] > 0 and row["ratio"] == row["peak_bytes"] / row["kept_bytes"]
    with pytest.raises(UsageError, match="--only names no case"):
        command.main(["loading", "--only", "large"])
