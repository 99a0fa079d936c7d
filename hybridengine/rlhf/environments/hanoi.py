"""hanoi: the towers of Hanoi of reasoning-gym's tower_of_hanoi, a move a turn.

    prompt: the question    then "1: 2:321 3:\n"    response: "2>1\n"    then "1:1 2:32 3:\n"

Digits are disks, the lowest first; 1 is the smallest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hybridengine._core import UsageError
from hybridengine.rlhf.data.samples import Sample
from hybridengine.rlhf.environments.protocol import Turn
from hybridengine.rlhf.environments.registry import environment

_MOVE = re.compile(r"\s*(\d+)\s*>\s*(\d+)\s*")
_LINE = re.compile(r"from Peg (\d+) to Peg (\d+)")


@environment("tower_of_hanoi")
class TowerOfHanoi:
    """Rewards: 1 for the move that solves it, and -`illegal` for one that breaks the rules or is no
    move, which leaves the pegs as they are. Logs `moves`, `illegal_moves` and `solved`."""

    stop = ("\n",)
    counts = ("moves", "illegal_moves", "solved")

    def __init__(self, *, illegal: float = 0.1) -> None:
        self._illegal = illegal

    def reset(self, sample: Sample) -> str:
        facts = sample.extra["metadata"] if isinstance(sample.extra, dict) else {}
        if not {"num_disks", "num_pegs", "start_peg", "target_peg"} <= set(facts):
            raise UsageError(
                "the sample is none of reasoning-gym's tower_of_hanoi. Set "
                "data.gym.name=tower_of_hanoi."
            )
        self._sample, self._disks = sample, int(facts["num_disks"])
        self._target = int(facts["target_peg"])
        self._pegs: dict[int, list[int]] = {peg + 1: [] for peg in range(facts["num_pegs"])}
        self._pegs[int(facts["start_peg"])] = list(range(self._disks, 0, -1))
        return self._shown()

    def step(self, response: str) -> Turn:
        if not self._move(response):
            return Turn(self._shown(), -self._illegal, {"moves": 1, "illegal_moves": 1})
        if len(self._pegs[self._target]) == self._disks:
            return Turn(None, 1.0, {"moves": 1, "solved": 1})
        return Turn(self._shown(), 0.0, {"moves": 1})

    def demonstration(self) -> Sequence[str]:
        """The moves of the sample's answer."""
        return [f"{start}>{end}\n" for start, end in _LINE.findall(self._sample.extra["answer"])]

    def _move(self, response: str) -> bool:
        """Makes the move that a response says; whether it was one."""
        said = _MOVE.fullmatch(response)
        if said is None:
            return False
        start, end = (self._pegs.get(int(peg)) for peg in said.groups())
        if not start or end is None or end is start or (end and end[-1] < start[-1]):
            return False
        end.append(start.pop())
        return True

    def _shown(self) -> str:
        pegs = (f"{peg}:{''.join(map(str, disks))}" for peg, disks in self._pegs.items())
        return " ".join(pegs) + "\n"
