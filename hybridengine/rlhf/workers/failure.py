"""failure: what went wrong on which rank, and which of several failures was the first.

When one rank fails, its neighbours fail too, because they lose it in the middle of a collective.
Those *echoes* are told apart from the *cause*, which is the one that is reported.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from hybridengine._core import TimeoutError as CommTimeoutError
from hybridengine._core import TransportError, UsageError

# How far a failure is from the first cause.
DIED, RAISED, ECHO = 0, 1, 2

# After the first failure the others' words are heard for this long; after nothing but echoes for
# longer, since what they echo is still to come.
LAST_WORDS_S, ORIGIN_S = 0.5, 3.0


class WorkerError(TransportError):
    """A rank died, raised or fell silent. All ranks of all pools have been ended.

    `role` (several names where the whole rank is meant, none before it has a role), `pool`,
    `rank`, `host` say where, `cause` what happened.
    """

    def __init__(self, role: str, pool: str, rank: int, host: str, cause: str) -> None:
        self.role, self.pool, self.rank, self.host, self.cause = role, pool, rank, host, cause
        what = f"role {role}, " if role else ""
        super().__init__(
            f"rank {rank} of pool {pool!r} ({what}host {host}) {cause}. All ranks were "
            f"ended; see above what it wrote to stderr."
        )


@dataclass(frozen=True)
class Failure:
    """One rank's failure, as plain values that travel. `cause` is a verb phrase: "died", "raised
    ValueError in ..."."""

    cause: str
    distance: int = RAISED
    trace: str = ""
    usage: str = ""  # the words of a UsageError
    at: float = field(default_factory=time.time)

    @staticmethod
    def of(error: BaseException, method: str, trace: str | None = None) -> Failure:
        """What `method` of a role raised; `trace` where it is not that of `error`."""
        text = f"{type(error).__name__}: {error}".rstrip(".")
        return Failure(
            cause=f"raised in {method}: {text}{_last_line(error)}",
            distance=ECHO if _is_echo(error) else RAISED,
            trace="".join(traceback.format_exception(error)) if trace is None else trace,
            usage=str(error) if isinstance(error, UsageError) else "",
        )

    def exception(self, role: str, pool: str, rank: int, host: str) -> Exception:
        """What the controller raises: a UsageError of the rank in its words, else WorkerError."""
        error: Exception = WorkerError(role, pool, rank, host, self.cause)
        if self.usage:
            error = UsageError(self.usage)
        if self.trace:
            error.add_note(f"on rank {rank} of pool {pool!r}:\n{self.trace}")
        return error


def _last_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    return f" (at {Path(last.filename).name}:{last.lineno}, in {last.name})"


def _is_echo(error: BaseException) -> bool:
    """Whether it is what a rank sees when it loses another one."""
    if isinstance(error, (TransportError, CommTimeoutError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    in_torch = bool(frames) and "torch/distributed" in Path(frames[-1].filename).as_posix()
    return in_torch or "gloo/transport" in str(error) or "NCCL" in str(error)
