"""partial=True: what out names is moved, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiny_models as tiny
import torch
from ranks import run_threads

from hybridengine import Communicator, Layout, Resharder, Spec, UsageError
from hybridengine.mapping import Mapping, Weight, column

pytestmark = pytest.mark.threads

FACTS = tiny.config(layers=2)
FULL = tiny.weights(Spec.from_config(FACTS))
QKV = "model.layers.1.self_attn.qkv_proj"
NORM = "model.norm.weight"


class Model(torch.nn.Module):
    """A transformers model, as far as a reshard looks at it."""

    config = SimpleNamespace(to_dict=lambda: FACTS)

    def __init__(self, weights: tiny.Tensors) -> None:
        super().__init__()
        self.weights = weights

    def state_dict(self, **options):
        return self.weights


def parts(rank: int) -> tiny.Tensors:
    return tiny.fsdp2(FULL, 2, rank)


def test_one_tensor_of_a_model_with_a_config():
    """Only what it needs travels: half of it, to each of two ranks."""

    def main(comm: Communicator) -> tuple:
        out = {NORM: torch.zeros(8)}
        for source in (Model(FULL), FULL):
            out[NORM].zero_()
            moved = Resharder(
                source, "replicated(2)", "replicated(2)", comm=comm, out=out, partial=True
            )
            assert moved.run().keys() == out.keys()
            assert out[NORM].equal(FULL[NORM])
        moved = Resharder(
            parts(comm.rank), "fsdp2(2)", "replicated(2)", comm=comm, out=out, partial=True
        )
        moved.run()
        report = moved.report
        return report.received_bytes, report.tensors_sent, report.tensors_applied

    assert run_threads(2, main, transport="loopback") == [(16, len(FULL), 1)] * 2


@pytest.mark.parametrize("bound", [False, True])
def test_one_fused_tensor(bound):
    """All its parts come, and no others."""
    spec = Spec.from_config(FACTS)

    def main(comm: Communicator) -> int:
        expected = tiny.vllm(FULL, FACTS, 2, comm.rank)
        target = Layout.vllm(tp=2)
        names = [f"{QKV}.weight", NORM] if comm.rank == 0 else [NORM, f"{QKV}.weight"]
        out = {name: torch.zeros_like(expected[name]) for name in names}
        source = Model(FULL) if not bound else FULL
        moved = Resharder(
            source,
            "replicated(2)",
            target.bind(spec) if bound else target,
            comm=comm,
            out=out,
            partial=True,
        )
        moved.run()
        tiny.assert_same(out, {name: expected[name] for name in names})
        return moved.report.tensors_applied

    assert run_threads(2, main, transport="loopback") == [4, 4]


def test_a_source_that_lacks_some():
    """What both have is moved; the rest of out stays as it is."""

    def main(comm: Communicator) -> None:
        layer = {name: t for name, t in parts(comm.rank).items() if "layers.0" in name}
        out = {name: torch.full_like(t, 9.0) for name, t in FULL.items() if "mlp" in name}
        Resharder(layer, "fsdp2(2)", "replicated(2)", comm=comm, out=out, partial=True).run()
        for name, tensor in out.items():
            assert tensor.equal(FULL[name]) if "layers.0" in name else tensor.eq(9).all()

    run_threads(2, main, transport="loopback")


def test_a_fused_tensor_that_would_lack_a_part_is_refused():
    lost = "model.layers.1.self_attn.k_proj.weight"

    def main(comm: Communicator) -> str:
        weights = {name: t for name, t in FULL.items() if name != lost}
        expected = tiny.vllm(FULL, FACTS, 1, 0)
        out = {f"{QKV}.weight": torch.zeros_like(expected[f"{QKV}.weight"])}
        with pytest.raises(UsageError) as raised:
            Resharder(Model(weights), "hf", "vllm(tp=1)", comm=comm, out=out, partial=True)
        norm = {NORM: torch.zeros(8)}  # the rest can be had
        Resharder(Model(weights), "hf", "vllm(tp=1)", comm=comm, out=norm, partial=True).run()
        assert norm[NORM].equal(FULL[NORM])
        return str(raised.value)

    (text,) = run_threads(1, main, transport="loopback")
    assert f"'{QKV}.weight' would lack a part: the model has no '{lost}'" in text


def test_a_mapping_of_ones_own():
    mapping = Mapping(
        [
            Weight("*.a", cut=column(2), fused=("*.ab", 0)),
            Weight("*.b", cut=column(2), fused=("*.ab", 1)),
            Weight("**"),
        ]
    )
    full = {f"{i}.{n}": tiny.numbered(4, 2, start=10 * i) for i in range(2) for n in "abc"}

    def main(comm: Communicator) -> None:
        out = {"1.ab": torch.zeros(4, 2)}
        rule = Layout.vllm(tp=2, mapping=mapping)
        moved = Resharder(full, "replicated(2)", rule, comm=comm, out=out, partial=True)
        moved.run()
        half = slice(2 * comm.rank, 2 * comm.rank + 2)
        assert out["1.ab"].equal(torch.cat([full["1.a"][half], full["1.b"][half]]))
        assert moved.report.tensors_applied == 2

    run_threads(2, main, transport="loopback")


def test_without_out_it_is_refused_on_every_rank():
    def main(comm: Communicator) -> list[str]:
        texts = []
        for source, dst, given in (
            (FULL, "replicated(2)", []),
            (Model(FULL), "vllm(tp=2)", []),
            (FULL, "replicated(2)", [0]),
        ):
            out = {NORM: torch.zeros(8)} if comm.rank in given else None
            with pytest.raises(UsageError) as raised:
                Resharder(source, "replicated(2)", dst, comm=comm, out=out, partial=True)
            texts.append(str(raised.value))
        return texts

    told = run_threads(2, main, transport="loopback")
    assert told[0] == told[1]
    for text, rank in zip(told[0], (0, 0, 1), strict=True):
        assert text.startswith(f"partial=True moves what out= names, and rank {rank} of dst ")


def test_ranks_that_ask_for_different_tensors_hear_of_it():
    def main(comm: Communicator) -> str:
        names = [NORM] if comm.rank == 0 else [NORM, "lm_head.weight"]
        out = {name: torch.zeros_like(FULL[name]) for name in names}
        with pytest.raises(UsageError) as raised:
            Resharder(FULL, "replicated(2)", "replicated(2)", comm=comm, out=out, partial=True)
        return str(raised.value)

    for text in run_threads(2, main, transport="loopback"):
        assert text.startswith("rank 0: ") and "'lm_head.weight' in the source has no dest" in text
