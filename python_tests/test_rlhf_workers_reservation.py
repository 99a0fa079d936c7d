"""Pools that do not fit: an error within the limit that says what was asked and what there is, and
nothing stays reserved. On one host, and on several fake ones."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hybridengine import UsageError
from hybridengine.rlhf.config import schema
from hybridengine.rlhf.workers import Cluster, PlacementError, Pool, PoolSpec, create_pools

pytestmark = [pytest.mark.python, pytest.mark.slow]  # starting Ray

_LIMIT_S = 2.0


def _until_available(cluster: Cluster, cpus: float) -> None:
    deadline = time.monotonic() + 10.0
    while cluster.available()["CPU"] != cpus and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cluster.available()["CPU"] == cpus


@pytest.fixture(scope="class")
def two_hosts() -> Iterator[Cluster]:
    """Two hosts with 2 CPUs each, at an address."""
    from ray.cluster_utils import Cluster as FakeHosts

    hosts = FakeHosts(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    hosts.add_node(num_cpus=2)
    config = schema.Cluster(address=hosts.address, placement_timeout_s=_LIMIT_S)
    with Cluster.start(config) as cluster:
        yield cluster
    hosts.shutdown()


class TestTwoHosts:
    def test_two_pools_that_fit_only_one_at_a_time(self, two_hosts: Cluster) -> None:
        """One is granted, the other never is; both are given back."""
        specs = {"actor": PoolSpec(2, one_host=True), "rollout": PoolSpec(3, one_host=True)}
        start = time.monotonic()
        with pytest.raises(PlacementError) as caught:
            create_pools(two_hosts, specs)
        assert _LIMIT_S * 0.9 < time.monotonic() - start < _LIMIT_S + 3.0
        text = str(caught.value)
        assert text.startswith("ranks were not placed within 2 s: ")
        assert "pool actor asks for 2 ranks of 1 CPU on one host" in text
        assert "pool rollout asks for 3 ranks of 1 CPU on one host" in text
        assert "available are 4 of 4 CPU and 0 of 0 GPU on 2 hosts with 2 CPU, 2 CPU" in text
        assert "trainer.ranks" in text and "cluster.cpus_per_rank" in text
        assert isinstance(caught.value, UsageError)
        _until_available(two_hosts, 4)

    def test_gpus_that_are_not_there(self, two_hosts: Cluster) -> None:
        with pytest.raises(PlacementError, match=r"pool train asks for 1 ranks of 1 CPU and 1 GPU"):
            Pool.create(two_hosts, "train", 1, gpus_per_rank=1, timeout_s=0.5)
        _until_available(two_hosts, 4)

    def test_pools_spread_over_hosts_and_meet(self, two_hosts: Cluster) -> None:
        specs = {"actor": PoolSpec(2, one_host=True), "rollout": PoolSpec(2, one_host=True)}
        pools = create_pools(two_hosts, specs)
        assert [pool.num_ranks for pool in pools.values()] == [2, 2]
        _until_available(two_hosts, 0)
        for pool in pools.values():
            pool.close()
        _until_available(two_hosts, 4)


class TestOneHost:
    """A local Ray of two CPUs."""

    @pytest.fixture(scope="class")
    def local(self) -> Iterator[Cluster]:
        with Cluster.start(schema.Cluster(placement_timeout_s=60.0), num_cpus=2) as cluster:
            yield cluster

    def test_too_many_ranks_are_refused_at_once(self, local: Cluster) -> None:
        """B25: 2 CPUs, and two roles that ask for 2 each: an error within 30 s (of a local Ray at
        once, for it gets no more hosts) with what each asked and what there is; both CPUs are free
        after."""
        start = time.monotonic()
        with pytest.raises(
            PlacementError, match=r"asks for 3 ranks of 1 CPU; available are 2 of 2"
        ):
            Pool.create(local, "train", 3)
        with pytest.raises(PlacementError, match=r"or for less .*: cluster\.cpus_per_rank=0\.33\."):
            Pool.create(local, "train", 6)
        with pytest.raises(PlacementError, match=r"less of a CPU each \(cluster\.cpus_per_rank\)"):
            Pool.create(local, "train", 500)
        with pytest.raises(PlacementError, match=r"Use trainer\.device=cpu \(or auto\)\.$"):
            Pool.create(local, "train", 1, gpus_per_rank=1)
        asked = r"actor asks for 2 ranks of 1 CPU.* rollout asks for 2 ranks of 1 CPU"
        with pytest.raises(PlacementError, match=rf"{asked}.*available are 2 of 2 CPU"):
            create_pools(local, {"actor": PoolSpec(2), "rollout": PoolSpec(2)})
        with pytest.raises(PlacementError, match=r"1 ranks of 1 CPU and 1 GPU; .* 0 of 0 GPU"):
            Pool.create(local, "train", 1, gpus_per_rank=1)
        assert time.monotonic() - start < 10.0
        with pytest.raises(UsageError, match="pool 'train' has 0 ranks"):
            Pool.create(local, "train", 0)
        # Ranks that ask for no CPU fit anywhere.
        assert Pool.create(local, "train", 3, cpus_per_rank=0).num_ranks == 3
        _until_available(local, 2)

    def test_one_process_uses_one_ray(self, local: Cluster) -> None:
        with Cluster.start(schema.Cluster()) as second:
            assert second.available() == local.available()
        with pytest.raises(UsageError, match="this process uses another Ray already"):
            Cluster.start(schema.Cluster(address="127.0.0.1:1"))
        assert local.available()["CPU"] == 2  # the second one closed nothing


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "no Ray cluster answers .*refused.*ray start --head"),
        ("here", "'here' is no address. Use host:port"),
    ],
)
def test_addresses_without_a_cluster(address: str, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(UsageError, match=words):
        Cluster.start(schema.Cluster(address=address))
    assert time.monotonic() - start < 10.0
