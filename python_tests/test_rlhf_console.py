"""What people see of a run: the same lines for good on a terminal and elsewhere, at any width."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rlhf_console_story import FIRST_WORD, SECOND_WORD
from terminal import run_in_terminal, shown

from hybridengine.rlhf.logging.columns import COLUMNS, chosen_columns
from hybridengine.rlhf.logging.metrics import find_metric
from hybridengine.rlhf.logging.screen import PLAIN_WIDTH

pytestmark = pytest.mark.python

_COMMAND = [sys.executable, "-m", "rlhf_console_story", "runs/demo"]
_WORDS = [f"{FIRST_WORD}\n", f"{SECOND_WORD}\n"]
_COLOR = re.compile(r"\x1b\[[\d;]+m")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)


def _env(**changes: str) -> dict[str, str]:
    env = {"TERM": "xterm-256color", "PYTHONUTF8": "1", **os.environ}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "COLORTERM"):
        env.pop(name, None)
    return {**env, **changes}


def _piped(**changes: str) -> str:
    done = subprocess.run(
        _COMMAND, env=_env(**changes), stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    assert done.stderr.decode() == "".join(_WORDS)
    return done.stdout.decode()


def _capture(width: int) -> str:
    return (Path(__file__).parent / "captures" / f"console_{width}.txt").read_text()


def _without_words(text: str) -> str:
    for word in _WORDS:
        assert text.count(word) == 1
        text = text.replace(word, "")
    return text


@pytest.mark.parametrize("width", [80, 120])
def test_a_run_from_its_first_line_to_its_last(width: int) -> None:
    found = _piped(COLUMNS=str(width))
    assert found == _capture(width)
    assert max(map(cell_len, found.splitlines())) <= width


def test_a_pipe_is_as_wide_as_documented() -> None:
    assert PLAIN_WIDTH == 120
    found = _piped(FORCE_COLOR="1", CLICOLOR_FORCE="1")  # a pipe is no terminal, whatever these say
    assert found == _capture(120)


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_has_the_same_lines_and_keeps_them_all(width: int) -> None:
    written = run_in_terminal(_COMMAND, width, 24, _env())
    found = "\n".join(shown(written))
    assert _without_words(found) == _capture(width)
    before, first, rest = found.partition(_WORDS[0])
    assert first and before.count("\n") == 3 and f"{_WORDS[1]}step   reward  errors" in rest
    assert "\x1b[1mstep " in written  # headings stand out
    assert "24/24" in written  # of the bar, which is gone in the end


def test_no_color_leaves_no_color() -> None:
    written = run_in_terminal(_COMMAND, 80, 24, _env(NO_COLOR="1"))
    assert not _COLOR.search(written)
    assert _without_words("\n".join(shown(written))) == _capture(80)


def test_a_dumb_terminal_gets_lines_alone() -> None:
    written = run_in_terminal(_COMMAND, 80, 24, _env(TERM="dumb", COLUMNS="80"))
    assert "\x1b" not in written
    assert _without_words(written.replace("\r\n", "\n")) == _capture(80)


def test_what_goes_to_a_file_goes_there_from_a_terminal_too(tmp_path: Path) -> None:
    command = ["sh", "-c", '"$@" 2> stderr.txt', "sh", *_COMMAND]
    written = run_in_terminal(command, 80, 24, _env())
    assert "\n".join(shown(written)) == _capture(80)
    assert (tmp_path / "stderr.txt").read_text() == "".join(_WORDS)


def test_what_stdout_cannot_hold_is_escaped() -> None:
    found = _piped(COLUMNS="80", PYTHONUTF8="0", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert "\\u591a\\u5c11?" in found and "..." in found and found.isascii()


def test_columns_are_left_out_in_one_order() -> None:
    known = {column.metric for column in COLUMNS if not column.metric.startswith("reward_model/")}
    chosen = [chosen_columns(known, width) for width in range(200)]
    sizes = [sum(2 + column.width for column in columns) for columns in chosen]
    assert all(size <= width for width, size in enumerate(sizes))
    for narrow, wide in itertools.pairwise(chosen):
        assert set(narrow) <= set(wide)
    titles = [" ".join(column.title for column in columns) for columns in chosen]
    assert titles[0] == "" and titles[9] == "reward" and titles[26] == "reward errors KL"
    assert titles[80 - 4] == "reward errors KL clip entropy tok/s rollout update"
    assert len(chosen[-1]) == len(known)


def test_every_number_fits_its_column() -> None:
    for column in COLUMNS:
        for value in (0.0, -0.0, 1e-9, -0.5, 1.0, 999.9994, -1234567.0, 1e12, float("nan")):
            cell = column.cell({column.metric: value, column.bound: 1e9})
            assert len(cell) <= column.width, (column.title, value, cell)
        assert column.cell({}) == "-"


def test_bytes() -> None:
    moved = next(column for column in COLUMNS if column.title == "moved")
    found = [moved.cell({moved.metric: value}) for value in (0.0, 999.0, 463616.0, 1.5e6, 2.345e9)]
    assert found == ["0 B", "999 B", "464 kB", "1.50 MB", "2.35 GB"]


_RANKS = """
import sys
import types

from hybridengine.rlhf import command

trainer = types.ModuleType("hybridengine.rlhf.trainer.run")
trainer.train = lambda config, command, dry: 0
sys.modules[trainer.__name__] = trainer
command.train([])
from ray._private.worker import print_to_stdstream
for pid in (1, 2, 3):
    data = {"pid": pid, "actor_name": "train/0", "ip": "", "localhost": "", "is_err": True}
    print_to_stdstream({**data, "lines": ["a word"]}, False)
"""


def test_lines_of_ranks_have_colors_only_where_they_are_wanted() -> None:
    command = [sys.executable, "-c", _RANKS]
    plain = [f"(train/0 pid={pid}) a word" for pid in (1, 2, 3)]
    piped = subprocess.run(command, env=_env(), stderr=subprocess.PIPE, check=True)
    assert piped.stderr.decode().splitlines() == plain
    assert run_in_terminal(command, 80, 24, _env(NO_COLOR="1")).splitlines() == plain
    assert "\x1b[36m(train/0 pid=1)\x1b[0m a word" in run_in_terminal(command, 80, 24, _env())


def test_the_page_lists_the_columns_with_their_metrics_and_widths() -> None:
    page = (Path(__file__).parents[1] / "docs" / "trainer.md").read_text()
    _, _, table = page.partition("| column | metric | |\n")
    rows = [row.strip("|").split("|") for row in table.partition("\n\n")[0].splitlines()[1:]]
    found = [re.findall(r"`([\w/]+)`", cell) for row in rows for cell in row[:2]]
    of_runs = [column for column in COLUMNS if not column.metric.startswith("reward_model/")]
    titles, metrics = itertools.chain(*found[0::2]), itertools.chain(*found[1::2])
    assert list(titles) == ["step", *(column.title for column in of_runs)]
    assert list(metrics) == [column.metric for column in of_runs]
    assert all(find_metric(column.metric) for column in COLUMNS)
    known = {column.metric for column in of_runs} - {"reward/errors"}
    for title, width in re.findall(r"^\| `(\w+)` .* a width of (\d+) on", table, re.MULTILINE):
        shown_at = [title in _titles(known, int(width) - less) for less in (1, 0)]
        assert shown_at == [False, True], (title, width)
    scoring = re.search(r"`scoring` from a width of (\d+)", table)
    assert scoring and "scoring" not in _titles(known, int(scoring[1]) - 1)
    assert "scoring" in _titles(known, int(scoring[1]))


def _titles(known: set[str], width: int) -> list[str]:
    return [column.title for column in chosen_columns(known, width - len("step"))]
