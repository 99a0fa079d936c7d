"""The table of metrics: its page, its names, and how names are found.

test_rlhf_train.py and test_rlhf_reward_run.py look up what whole runs log.
"""

from pathlib import Path

import pytest

from hybridengine.command import cli
from hybridengine.rlhf.logging.metrics import SECTIONS, find_metric, metrics_markdown

pytestmark = pytest.mark.python

_PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def test_the_page_is_in_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "--metrics-markdown"]) == 0
    assert capsys.readouterr().out == metrics_markdown()
    assert _PAGE.read_text() == metrics_markdown(), (
        "run `hybridengine train --metrics-markdown > docs/metrics.md`"
    )


def test_every_metric_has_one_row_with_unit_and_meaning() -> None:
    rows = [metric for section in SECTIONS.values() for metric in section]
    names = [metric.name for metric in rows]
    assert len(set(names)) == len(names)
    assert all(metric.unit and metric.meaning for metric in rows)
    assert not any("|" in f"{m.unit}{m.meaning}{m.when}" for m in rows)  # they are cells of a table


@pytest.mark.parametrize(
    ("logged", "row"),
    [
        ("reward/mean", "reward/mean"),
        ("reward/length", "reward/<reward>"),
        ("reward/politeness/words", "reward/<reward>/<part>"),
        ("critic/lr", "critic/lr"),
        ("reward_model/pairs", "reward_model/pairs"),
        ("reward/a/b/c", None),
        ("actor/news", None),
        ("step", None),
    ],
)
def test_a_name_finds_its_row(logged: str, row: str | None) -> None:
    found = find_metric(logged)
    assert (found.name if found else None) == row
