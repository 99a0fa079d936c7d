"""Scored responses of several draws as one, and the means of rewards that not every row has."""

from __future__ import annotations

from typing import Any

import pytest

from hybridengine.rlhf.trainer.rows import Rows
from hybridengine.rlhf.trainer.scored import Scored

pytestmark = pytest.mark.python


def scored(parts: dict[str, list[Any]], rows: int = 1) -> Scored:
    return Scored(
        rows=Rows([None] * rows),  # type: ignore[list-item]
        lengths=[2] * rows,
        responses=[1] * rows,
        truncated=[False] * rows,
        groups=[0] * rows,
        scores=[0.5] * rows,
        task_scores=[0.5] * rows,
        parts={f"reward/{name}": column for name, column in parts.items()},
        errors=0,
    )


@pytest.mark.parametrize(
    ("draws", "columns", "means"),
    [
        ([{"f": [1.0]}, {}], {"f": [1.0, None]}, {"f": 1.0}),
        ([{}, {"f": [1.0]}], {"f": [None, 1.0]}, {"f": 1.0}),
        (
            [{"f": [1.0], "f/x": [2.0]}, {"f": [0.0]}],
            {"f": [1.0, 0.0], "f/x": [2.0, None]},
            {"f": 0.5, "f/x": 2.0},
        ),
        ([{"g": [1.0]}, {"f": [3.0]}], {"g": [1.0, None], "f": [None, 3.0]}, {"g": 1.0, "f": 3.0}),
        ([{}, {}], {}, {}),
        ([{"f": [None]}, {"f": [None]}], {"f": [None, None]}, {}),
        ([{"f": [None]}, {"f": [0.0]}], {"f": [None, 0.0]}, {"f": 0.0}),
    ],
)
def test_parts_that_some_draws_lack(
    draws: list[dict[str, list[Any]]],
    columns: dict[str, list[Any]],
    means: dict[str, float],
) -> None:
    joined = Scored.concat([scored(parts) for parts in draws])
    columns = {f"reward/{name}": column for name, column in columns.items()}
    assert joined.parts == columns
    found = {name.partition("/")[2]: value for name, value in joined.metrics().items()}
    assert {name: found[name] for name in found if name[0] in "fg"} == means
    assert joined.select([1]).parts == {name: column[1:] for name, column in columns.items()}
    assert found["mean"] == found["shaped"] == 0.5
