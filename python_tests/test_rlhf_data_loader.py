"""The order of samples: whole epochs, the same in every run, resumable at any place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridengine import UsageError
from hybridengine.rlhf.data import PromptLoader, digest_of

pytestmark = pytest.mark.python

sizes = st.integers(1, 40)


def take(loader: PromptLoader, batches: int) -> list[int]:
    return [index for _ in range(batches) for index in loader.next_batch()]


@given(sizes, sizes, st.integers(0, 2**40), st.booleans())
def test_every_epoch_has_every_sample_once(n: int, batch: int, seed: int, shuffle: bool) -> None:
    loader = PromptLoader(n, batch, seed, shuffle)
    drawn = []
    while len(drawn) < 3 * n:
        assert loader.epoch == len(drawn) // n
        one = loader.next_batch()
        assert len(one) == batch
        drawn += one
    for epoch in range(3):
        assert sorted(drawn[epoch * n : (epoch + 1) * n]) == list(range(n))
    if not shuffle:
        assert drawn == [i % n for i in range(len(drawn))]


@given(sizes, sizes, sizes, st.integers(0, 20), st.integers(0, 2**40))
def test_resuming_goes_on_exactly(n: int, batch: int, other: int, before: int, seed: int) -> None:
    loader = PromptLoader(n, batch, seed)
    take(loader, before)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = PromptLoader(n, other, seed)
    take(resumed, 3)
    resumed.load_state_dict(state)
    assert resumed.epoch == loader.epoch
    rest = take(loader, other)
    assert take(resumed, batch) == rest


def test_epochs_and_seeds_have_orders_of_their_own_and_runs_have_not() -> None:
    loader = PromptLoader(50, 50, seed=3)
    orders = [tuple(loader.next_batch()) for _ in range(3)]
    assert len(set(orders)) == 3
    again = PromptLoader(50, 10, seed=3)
    assert take(again, 15) == [index for order in orders for index in order]
    assert tuple(PromptLoader(50, 50, seed=4).next_batch()) not in orders


def test_the_order_stays_when_numpy_is_updated() -> None:
    assert PromptLoader(8, 8, seed=0).next_batch() == [0, 3, 7, 5, 1, 2, 6, 4]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("num_samples", PromptLoader(11, 2, 0)),
        ("seed", PromptLoader(10, 2, 1)),
        ("shuffle", PromptLoader(10, 2, 0, shuffle=False)),
    ],
)
def test_a_state_of_other_data_is_refused(name: str, other: PromptLoader) -> None:
    loader = PromptLoader(10, 2, 0)
    with pytest.raises(UsageError, match=f"cannot be resumed: {name} was .* and is "):
        loader.load_state_dict(other.state_dict())


def test_a_state_of_as_many_other_samples_is_refused() -> None:
    rows = [[1, 2], [3]]
    digests = {digest_of(other) for other in (rows, [[1], [2, 3]], [[3], [1, 2]], [[1, 2], [4]])}
    assert len(digests) == 4 and digest_of(iter(rows)) in digests
    one, other = (PromptLoader(2, 2, 0, digest=digest) for digest in sorted(digests)[:2])
    one.load_state_dict(one.state_dict())
    with pytest.raises(
        UsageError, match="there are 2 samples as before, and they are not the same"
    ):
        one.load_state_dict(other.state_dict())


@pytest.mark.parametrize("changes", [None, {"drawn": -1}, {"drawn": "1"}, {"more": 1}])
def test_what_is_no_state_is_refused(changes: dict[str, object] | None) -> None:
    state = {} if changes is None else PromptLoader(10, 2, 0).state_dict() | changes
    with pytest.raises(UsageError, match="is no state of a loader"):
        PromptLoader(10, 2, 0).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 1, 0), "a loader of 0 samples. Give 1 or more"),
        ((1, 0, 0), "a loader of 0 samples of a batch"),
        ((1, 1, -1), "a loader of -1 as seed. Give 0 or more"),
    ],
)
def test_sizes_that_make_no_loader(arguments: tuple[int, int, int], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        PromptLoader(*arguments)
