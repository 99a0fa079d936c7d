"""Ranks that lack what the others have."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import limits_scenarios as scenarios
import pytest
from ranks import Ranks, outcomes_of


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user may write into; those of pytest are their owner's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.unsanitized
def test_a_rank_without_descriptors_is_an_error_on_all():
    ranks = outcomes_of(3, scenarios.without_descriptors, limit=60)
    seen = [each[1] if each[0] == "ok" else each for each in ranks]
    assert all(len(each) == 3 for each in seen), seen
    for kind, text, seconds in seen:
        assert kind in ("TransportError", "UsageError"), seen
        assert "descriptor" in text or "open files" in text, seen
        assert seconds < 20, seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_rank_of_another_user_is_an_error_on_all(open_folder):
    path = open_folder / "store"
    path.touch()
    path.chmod(0o666)
    worlds = [Ranks(1, scenarios.of_another_user, str(path), rank) for rank in range(2)]
    seen = [each.results(60)[0] for each in worlds]
    assert [each[0] for each in seen] == ["ok", "ok"], seen
    for kind, text in (each[1] for each in seen):
        assert kind == "TransportError", seen
        assert "65534" in text and "Start all ranks as one user" in text, seen
