"""terminal: a command in a terminal of its own, and what is then on its screen and above it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

_CODE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


def run_in_terminal(command: list[str], columns: int, lines: int, env: dict[str, str]) -> str:
    """All that `command` wrote to a terminal of this size. Fails unless it ended with 0."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    written = b""
    with process:
        while piece := _read(ours):
            written += piece
    os.close(ours)
    assert process.returncode == 0, written.decode()
    return written.decode()


def shown(written: str) -> list[str]:
    """The lines that a terminal has in the end, from the first on: its history and its screen.

    Knows the codes that move up by whole lines and that erase a line; others change no text.
    """
    lines, row, column = [""], 0, 0
    for match in _CODE.finditer(written):
        text = match[0]
        if text == "\r":
            column = 0
        elif text == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif match[2] == "A":
            row -= int(match[1] or 1)
        elif match[2] == "K":
            lines[row] = ""
        elif match[2] is None:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]


def _read(file: int) -> bytes:
    """Nothing once nobody holds the other end, of which Linux makes an error."""
    try:
        return os.read(file, 1 << 16)
    except OSError:
        return b""
