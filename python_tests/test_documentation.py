"""What the pages say about the tree and the tables of the code, where a test can tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hybridengine.layouts.families import FAMILIES
from hybridengine.mapping import MAPPINGS

pytestmark = pytest.mark.static

_ROOT = Path(__file__).parents[1]
_PAGES = [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted((_ROOT / "docs").glob("*.md"))]
_FOLDERS = [
    "bench",
    "cmake",
    "csrc",
    "cuda_tests",
    "docs",
    "examples",
    "hybridengine",
    "python_tests",
]


def _named_paths(text: str) -> list[str]:
    """Paths of the tree in backticks, but for those with a placeholder."""
    quoted = re.findall(r"`([\w./-]+)`", text)
    return [each for each in quoted if each.split("/")[0] in _FOLDERS and "/" in each]


def _cells(page: str, heading: str) -> list[list[str]]:
    """What stands in backticks in each row of the first table under a heading."""
    text = (_ROOT / "docs" / page).read_text().split(f"\n{heading}\n", 1)[1]
    rows = re.search(r"(\|.*\n)+", text).group().splitlines()[2:]
    return [re.findall(r"`([^`]+)`", row) for row in rows]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    assert [path for path in _named_paths(page.read_text()) if not (_ROOT / path).exists()] == []


def test_the_search_for_paths_itself() -> None:
    text = "`csrc/plan/` `csrc/<name>.cc` `docs/a.md` `Plan.check` `torch/all.h` `hybridengine`"
    assert _named_paths(text) == ["csrc/plan/", "docs/a.md"]


def test_cards_name_files() -> None:
    cards = (_ROOT / "CONTRIBUTING.md").read_text().split("## Where do I add ...?")[1]
    assert len(_named_paths(cards)) > 20


def test_the_page_lists_every_architecture() -> None:
    rows = _cells("layouts.md", "## Models that are mapped")
    assert rows == [[name, mapping.model_type] for name, mapping in MAPPINGS.items()]


def test_the_page_lists_every_layout() -> None:
    assert [row[0] for row in _cells("layouts.md", "## The strings")] == list(FAMILIES)


def test_every_result_is_listed_and_names_its_commit() -> None:
    """A number without its command, commit and machine is no number."""
    folder = _ROOT / "bench" / "results"
    overview = (folder / "README.md").read_text()
    pages = {page.name: page.read_text() for page in folder.glob("*.md")}
    del pages["README.md"]
    assert sorted(set(re.findall(r"\(([\w.]+\.md)\)", overview))) == sorted(pages)
    for name, text in pages.items():
        assert re.search(r"[Cc]ommit [0-9a-f]{7}", text), name
        assert re.search(r"AMD|Intel|ARM|CPU", text), name
    shown = "".join(pages.values())
    assert [each.name for each in folder.glob("*.png") if f"({each.name})" not in shown] == []
