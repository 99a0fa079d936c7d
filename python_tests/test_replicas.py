"""Replicas that disagree: under verify an error that names tensor and ranks."""

from __future__ import annotations

import pytest
import tiny_models as tiny
from ranks import run_threads
from two_step_scenarios import cut

from hybridengine import Communicator, LayoutRule, Resharder, Spec, UsageError, reshard

pytestmark = pytest.mark.threads

FACTS = tiny.config(intermediate=8)


@pytest.fixture(params=["loopback", "shm", "cma"])
def transport(request) -> str:
    return request.param


def shards(src: str, rank: int) -> tiny.Tensors:
    """What `rank` holds under `src`, cut piece by piece."""
    spec = Spec.from_config(FACTS)
    return cut(tiny.weights(spec), LayoutRule.parse(src).bind(spec), rank)


@pytest.mark.parametrize(
    ("src", "odd", "name", "words"),
    [
        # Two kv heads on four ranks: 2 and 3 share the second.
        (
            "vllm(tp=4)",
            3,
            "model.layers.0.self_attn.qkv_proj.weight",
            r"'model.layers.0.self_attn.v_proj.weight' \[2:4, 0:8\] differ: ranks 2 and 3",
        ),
        ("replicated(4)", 2, "lm_head.weight", r"'lm_head.weight' \[0:7, 0:8\] .* 0 and 2"),
        ("fsdp2(2,replicas=2)", 3, "model.norm.weight", r"'model.norm.weight' \[4:8\] .* 1 and 3"),
    ],
)
def test_one_replica_that_is_another(src, odd, name, words, transport):
    spec = Spec.from_config(FACTS)

    def main(comm: Communicator) -> None:
        mine = shards(src, comm.rank)
        bound = LayoutRule.parse(src).bind(spec)
        resharder = Resharder(mine, bound, "replicated(4)", comm=comm, verify=True)
        tiny.assert_same(resharder.run(), tiny.weights(spec))
        if comm.rank == odd:
            mine[name].view(-1)[-1] *= 2
        for run in (resharder.run, lambda: resharder.stream(lambda *_: None)):
            with pytest.raises(UsageError, match=words):
                run()
        assert not comm.dead
        if comm.rank == odd:
            mine[name].view(-1)[-1] /= 2
        tiny.assert_same(resharder.run(), tiny.weights(spec))

    run_threads(4, main, transport=transport)


def test_transposed_replicas_and_padding():
    """The elements are compared, not the memory; what pads a table is nobody's."""

    def main(comm: Communicator) -> None:
        full = tiny.numbered(6, 4)
        mine = {"w": full if comm.rank else full.T.contiguous().T}
        got = reshard(mine, "replicated(2)", "fsdp2(2)", comm=comm, verify=True)
        assert got["w"].equal(tiny.chunk(full, 2, comm.rank))
        padded = shards("vllm(tp=1,dp=2)", comm.rank)
        if comm.rank:
            padded["lm_head.weight"][7:] = 9
        src = LayoutRule.parse("vllm(tp=1,dp=2)").bind(Spec.from_config(FACTS))
        got = reshard(padded, src, "replicated(2)", comm=comm, verify=True)
        tiny.assert_same(got, tiny.weights(Spec.from_config(FACTS)))

    run_threads(2, main, transport="loopback")
