"""Pairs that a reward model is fitted to, and those that are held out."""

import json
from pathlib import Path
from typing import Any

import pytest

from hybridengine import UsageError
from hybridengine.rlhf.config.schema import Config
from hybridengine.rlhf.data import Counts, Pair, PromptEncoder, character_tokenizer, hold_out
from hybridengine.rlhf.trainer.pairs import Pairs, measured

pytestmark = pytest.mark.python


def _pairs(prompts: int, each: int = 1) -> list[Pair]:
    return [Pair(i, f"prompt {i % prompts}", "yes", "no") for i in range(prompts * each)]


def test_whole_prompts_are_held_out() -> None:
    pairs = _pairs(prompts=20, each=3)
    kept, held_out = hold_out(pairs, 0.1, seed=0)
    assert sorted(kept + held_out, key=lambda pair: pair.index) == pairs
    assert kept == sorted(kept, key=lambda pair: pair.index)
    assert len(held_out) == 6 and len({pair.prompt for pair in held_out}) == 2
    assert not {pair.prompt for pair in kept} & {pair.prompt for pair in held_out}


def test_the_seed_says_which_and_nothing_else_does() -> None:
    pairs = _pairs(prompts=50)
    first = [pair.index for pair in hold_out(pairs, 0.1, seed=0)[1]]
    assert first == [pair.index for pair in hold_out(pairs, 0.1, seed=0)[1]]
    assert first != [pair.index for pair in hold_out(pairs, 0.1, seed=1)[1]]


@pytest.mark.parametrize(
    ("prompts", "share", "count"),
    [(1, 0.1, 0), (2, 0.1, 1), (2, 0.5, 1), (9, 0.1, 1), (100, 0.1, 10), (100, 0.0, 0)],
)
def test_how_many_are_held_out(prompts: int, share: float, count: int) -> None:
    kept, held_out = hold_out(_pairs(prompts), share, seed=3)
    assert len(held_out) == count and len(kept) == prompts - count


def test_messages_are_prompts_too() -> None:
    pairs = [Pair(i, [{"role": "user", "content": str(i % 2)}], "a", "b") for i in range(4)]
    assert [len(part) for part in hold_out(pairs, 0.1, seed=0)] == [2, 2]


def _open(tmp_path: Path, train: int, size: int, **data: Any) -> Pairs:
    for name, count in (("train", train), ("eval", 7)):
        rows = ({"prompt": f"{i}?", "chosen": "yes", "rejected": "no"} for i in range(count))
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    config = Config()
    config.data.train_files = [str(tmp_path / "train.jsonl")]
    config.data.train_batch_size = size
    for key, value in data.items():
        setattr(config.data, key, value)
    return Pairs.open(config, PromptEncoder.of(character_tokenizer(), config.data))


def test_a_share_is_held_out_unless_there_are_files(tmp_path: Path) -> None:
    found = _open(tmp_path, 50, 45)
    assert (len(found.train), len(found.held_out)) == (45, 5)
    assert found.counts == Counts(50, 50, 0, 0)
    files = _open(tmp_path, 50, 50, eval_files=[str(tmp_path / "eval.jsonl")])
    assert (len(files.train), len(files.held_out)) == (50, 7)
    assert files.counts == Counts(57, 57, 0, 0)
    assert _open(tmp_path, 20, 5, max_prompt_length=2).counts == Counts(20, 10, 10, 0)
    assert len(_open(tmp_path, 50, 50, eval_share=0.0).train) == 50


def test_fewer_pairs_than_a_batch_are_refused_with_the_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        _open(tmp_path, 50, 512)
    assert str(caught.value) == (
        "data.train_batch_size is 512, and there are 45 pairs besides 5 held out "
        "(data.eval_share): each would be in a step 11.4 times. Set data.train_batch_size to 45 or "
        "less; 5 makes 8 steps of a pass."
    )
    with pytest.raises(UsageError, match=r"is 8, and there are 7 pairs: each .* 1\.14 times"):
        _open(tmp_path, 7, 8, eval_files=[str(tmp_path / "eval.jsonl")])


class _Group:
    """Scores by the length of the first row: what each batch holds is seen in the means."""

    num_places = 1

    def evaluate(self, parts: list[Any]) -> list[dict[str, float]]:
        ((chosen, _),) = parts
        return [{"loss": float(len(chosen)), "accuracy": 1.0 / len(chosen)}]


def test_means_are_over_pairs_and_not_over_batches(tmp_path: Path) -> None:
    group: Any = _Group()
    found = _open(tmp_path, 50, 45).held_out
    assert measured(group, found, 4) == {"eval/loss": (4 * 4 + 1) / 5, "eval/accuracy": 2 / 5}
    assert measured(group, [], 4) == {}
