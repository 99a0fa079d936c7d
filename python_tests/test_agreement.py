"""agreement: one answer or one error on all ranks; how what it costs grows with their number."""

from __future__ import annotations

import math
import threading

import pytest
from ranks import MemoryStore, run_threads, thread_outcomes

from hybridengine import Communicator, TransportError, UsageError, _core
from hybridengine.agreement import agree, check_everywhere
from hybridengine.rendezvous import exchange
from hybridengine.resharding.agree import Statement, gather

# Null has no page that peers map, so what is small goes through a tree of messages there.
WAYS = ["loopback", "null"]
FAN_OUT = 4
MESSAGE_BYTES = 48


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("world", [1, 2, 3, 5, 6, 21, 23])
def test_all_get_what_all_show(way, world):
    def main(comm: Communicator):
        shown = agree(comm, lambda: {"rank": comm.rank, "x": 0.1 * comm.rank}, list)
        return [(each["rank"], each["x"]) for each in shown]

    expected = [(rank, 0.1 * rank) for rank in range(world)]
    assert run_threads(world, main, transport=way) == [expected] * world


@pytest.mark.parametrize("way", WAYS)
def test_sizes_around_what_an_entry_holds(way):
    """Lengths that fit beside their digest, just not, and many times not; some ranks alike."""
    sizes = [0, 1, 255, 256, 257, 8 << 10, 65_400, 65_536, 200_000]

    def part(size: int, kind: int) -> bytes:
        return bytes([kind]) * size

    def main(comm: Communicator) -> int:
        for size in sizes:
            mine = [part(size, comm.rank // 3), part(3, 7), part(size // 2, comm.rank)]
            with comm.call():
                got = comm.gather(mine)
            expected = [
                [part(size, rank // 3), part(3, 7), part(size // 2, rank)] for rank in range(7)
            ]
            assert got == expected, size
            assert got[0][0] is got[2][0] and got[0][1] is got[6][1]
        return comm.rank

    assert run_threads(7, main, transport=way) == list(range(7))


def test_values_keep_their_bits():
    values = [0.1, -0.0, 5e-324, math.inf, 1e308, 2**60 + 1]

    def main(comm: Communicator):
        return agree(comm, lambda: {"values": values}, lambda shown: shown[0]["values"])

    for got in run_threads(2, main, transport="loopback"):
        assert list(map(repr, got)) == list(map(repr, values))


@pytest.mark.parametrize("way", WAYS)
def test_what_one_rank_finds_wrong_all_raise_and_go_on(way):
    def main(comm: Communicator) -> list[str]:
        def wrong_on_two() -> None:
            if comm.rank == 2:
                raise UsageError("it has a hole. Mend it.")

        def refuse(shown) -> None:
            raise UsageError(f"{len(shown)} are too many.")

        said = []
        for action in (
            lambda: check_everywhere(comm, wrong_on_two),
            lambda: agree(comm, dict, refuse),
        ):
            with pytest.raises(UsageError) as caught, comm.between_calls():
                action()
            said.append(str(caught.value))
        assert not comm.dead
        return said + agree(comm, lambda: {"rank": comm.rank}, lambda shown: [str(len(shown))])

    expected = ["rank 2: it has a hole. Mend it.", "4 are too many.", "4"]
    assert run_threads(4, main, transport=way) == [expected] * 4


@pytest.mark.parametrize("how", ["between", "show", "decide"])
def test_an_error_of_one_rank_alone_reaches_the_others(how):
    """Also a UsageError, where no agreement raised it."""

    def main(comm: Communicator) -> None:
        def show():
            if comm.rank == 1 and how == "show":
                raise LookupError("odd")
            return {}

        def decide(shown):
            if comm.rank == 1 and how == "decide":
                raise LookupError("odd")

        with comm.between_calls():
            if comm.rank == 1 and how == "between":
                raise UsageError("odd")
            agree(comm, show, decide)
        agree(comm, dict, list)

    outcomes = thread_outcomes(3, main, transport="loopback", timeout=20)
    assert outcomes[1][1] == ("UsageError" if how == "between" else "LookupError")
    for rank in (0, 2):
        assert outcomes[rank][1] == "TransportError" and "odd" in outcomes[rank][2]


def test_agreed_with_one_communicator_is_not_agreed_with_another():
    store = MemoryStore()

    def main(comm: Communicator) -> bool:
        alone = Communicator(store, 0, 1, name=f"alone {comm.rank}", transport="loopback")
        if comm.rank == 0:
            with pytest.raises(UsageError), comm.between_calls():
                agree(alone, dict, lambda _: (_ for _ in ()).throw(UsageError("own")))
            assert comm.dead and not alone.dead
            return True
        with pytest.raises(TransportError, match="own"):
            agree(comm, dict, list)
        return True

    assert run_threads(2, main, transport="loopback") == [True, True]


@pytest.mark.parametrize("way", WAYS)
def test_different_calls_are_told(way):
    """One rank agrees while the other reduces."""

    def main(comm: Communicator) -> None:
        if comm.rank == 0:
            _core.Collectives(comm.core, 1 << 20).barrier()
        else:
            agree(comm, dict, list)

    for outcome in thread_outcomes(2, main, transport=way, timeout=20):
        assert outcome[1] == "TransportError" and "different calls" in outcome[2], outcome


def statement(kind: int) -> Statement:
    """Of one of several different parts of a model."""
    rows = [(f"model.layers.{i}.weight", (64 + kind, 128), "bfloat16") for i in range(300)]
    return Statement({"src": "a", "dst": "b"}, rows=rows, config="config")


def test_statements_of_many_ranks_travel_once():
    """Messages and bytes that a rank sends over the tree: few, whatever the number of ranks; the
    text of a model as often as there are different ones, times the ranks right below it."""
    world, kinds = 64, 3
    statements = [statement(kind) for kind in range(kinds)]
    text_bytes = 2000  # of one, compressed

    def main(comm: Communicator):
        sent = []
        for kind in (0, comm.rank % kinds):
            before = comm.core.traffic
            got = gather(comm, statements[kind])
            sent.append([now - then for now, then in zip(comm.core.traffic, before, strict=True)])
            assert len(got) == world and got[comm.rank].rows == statements[kind].rows
        assert len({id(each.rows) for each in got}) == kinds
        return sent

    results = run_threads(world, main, transport="null", timeout=60)
    # An entry: rank, tag, length, number of parts, and 16 bytes for each of two parts.
    table = MESSAGE_BYTES + world * (4 + 8 + 8 + 8 + 2 * 16)
    for rank, (alike, some) in enumerate(results):
        for num_texts, (messages, num_bytes) in ((1, alike), (kinds, some)):
            gifts = num_texts + 1  # and what they have in common
            assert messages <= (FAN_OUT + 1) * (gifts + 1), rank
            most = (FAN_OUT + 1) * (table + gifts * (MESSAGE_BYTES + text_bytes))
            assert num_bytes <= most, rank


class CountingStore(MemoryStore):
    """Says what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def set(self, key, value):
        self.requests += 1
        super().set(key, value)

    def get(self, key):
        self.requests += 1
        return super().get(key)

    def check(self, keys):
        self.requests += 1
        return super().check(keys)


def test_ranks_do_not_ask_the_store_for_each_other():
    """64 ranks, the last one second late: a handful of requests each, not one per rank and look."""
    world, store = 64, CountingStore()
    got: list = [None] * world

    def main(rank: int) -> None:
        got[rank] = exchange(store, "x", rank, world, f"address {rank}".encode(), 20)

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(world)]
    for thread in threads[:-1]:
        thread.start()
    threading.Event().wait(1.0)
    threads[-1].start()
    for thread in threads:
        thread.join(20)
    assert got == [[f"address {rank}".encode() for rank in range(world)]] * world
    assert store.requests < 30 * world
