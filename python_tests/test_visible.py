"""Any text as one line that a terminal shows as what it is, and lines that fit."""

import os
import subprocess
import sys

from rich.cells import cell_len
from terminal import run_in_terminal, shown

from hybridengine.command.visible import cut, rows_of, visible, wrapped


def test_text_is_one_line_that_shows_what_it_is() -> None:
    assert visible("a\x1b[31m\n\r\t\x00\x9b\x7f") == "a\\x1b[31m\\n\\r\\t\\x00\\x9b\\x7f"
    assert visible("\u200b\u2028\ud800\ue000\U000e0001") == ("\\u200b\\u2028\\ud800\\ue000\\ue0001")
    assert visible("多é e\u0301 [b]\\n") == "多é e\u0301 [b]\\n"


def test_cells_are_cut_by_what_they_take_on_the_screen() -> None:
    assert cut("多少多少", 8) == "多少多少" and cut("多少多少", 7) == "多少多…"
    assert cut("多少多少", 6) == "多少…" and cut("abcdef", 5, "...") == "ab..."
    rows = rows_of([["prompt", "x"], ["e\u0301" * 3, "y"], ["多" * 30, "z" * 90]], 40)
    assert all(cell_len(row) <= 40 for row in rows)
    assert [row.index(mark) for row, mark in zip(rows[:2], "xy", strict=True)] == [21, 24]


def test_words_are_not_broken() -> None:
    text = "error: /a/path/of/many/words-and-more is missing. Set key=value, or none."
    assert wrapped(text, 30).splitlines() == [
        "error:",
        "  /a/path/of/many/words-and-more",
        "  is missing. Set key=value,",
        "  or none.",
    ]
    assert wrapped("short", 30) == "short"


def test_an_error_is_a_line_or_words_in_a_terminal() -> None:
    model = "no-\x1b[2Jmodel"
    command = [sys.executable, "-m", "hybridengine", "plan", "--model", model]
    command += ["--src", "hf", "--dst", "hf"]
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("error: ") and "no-\\x1b[2Jmodel" in ended.stderr
    quietly = ["sh", "-c", '"$@" || true', "sh", *command]
    written = run_in_terminal(quietly, 60, 24, env)
    lines = shown(written)
    assert "\x1b" not in written and max(map(len, lines)) <= 60
    assert " ".join(" ".join(lines).split()) == ended.stderr.strip()
