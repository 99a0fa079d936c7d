"""visible: any text as one line that a terminal shows as what it is.

A model's answer may hold anything: escape sequences that move the cursor, line ends, characters
that take two columns or none. Here all that has no picture of its own becomes an escape, and widths
are counted in columns of a terminal.
"""

from __future__ import annotations

import textwrap
import unicodedata

from rich.cells import cell_len, set_cell_size

_GAP = "  "
# Controls, invisible formats, surrogates, private and unassigned characters, line separators.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LEAST = 6  # columns of a cell that is cut


def visible(text: str) -> str:
    """`text` with an escape, such as \\n or \\x1b, for each character that shows nothing."""
    return "".join(_picture(character) for character in text)


def cut(text: str, width: int, more: str = "…") -> str:
    """`text` if it fits into `width` columns, else its beginning with `more` behind it."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - cell_len(more))).rstrip() + more


def wrapped(text: str, width: int) -> str:
    """`text` broken between words where it does not fit, its lines behind the first indented."""
    lines = textwrap.wrap(
        text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def rows_of(cells: list[list[str]], width: int, more: str = "…") -> list[str]:
    """A table as lines of at most `width` columns, texts to the left; long cells are cut.

    Narrow columns keep their width, wide ones share what is left. Cells must be visible().
    """
    natural = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    widths = _shares(natural, width - len(_GAP) * (len(natural) - 1))
    return [
        _GAP.join(
            set_cell_size(cut(cell, size, more), size)
            for cell, size in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def _shares(natural: list[int], room: int) -> list[int]:
    """Widths that add up to at most `room`, if _LEAST for each allows it."""
    widths = [0] * len(natural)
    by_width = sorted(range(len(natural)), key=lambda column: natural[column])
    for position, column in enumerate(by_width):
        share = max(_LEAST, room // (len(natural) - position))
        widths[column] = min(natural[column], share)
        room -= widths[column]
    return widths


def _picture(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
