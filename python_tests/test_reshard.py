"""reshard from start to end: every rank gets exactly its tensors, and the way back is exact too."""

from __future__ import annotations

import pytest
import tiny_models as tiny
import torch
from ranks import MEDIA, run_threads

import hybridengine
from hybridengine import Communicator, Layout, Resharder, Spec, reshard

pytestmark = pytest.mark.threads


@pytest.fixture(params=MEDIA)
def transport(request) -> str:
    return request.param


def shards_of(full: tiny.Tensors, rule: str, rank: int) -> tiny.Tensors | None:
    """What `rank` holds of a model under a rule that keeps names; None outside of it."""
    layout = hybridengine.LayoutRule.parse(rule)
    if rank not in layout.ranks:
        return None
    if layout.family == "fsdp2":
        n = layout.arg("n")
        return tiny.fsdp2(full, n, layout.ranks.index(rank) % n)
    return {name: tensor.clone() for name, tensor in full.items()}


def move(full: tiny.Tensors, src: str, dst: str, world: int, transport: str, **options) -> list:
    """What reshard returns on every rank."""

    def rank_main(comm: Communicator) -> tiny.Tensors:
        return reshard(shards_of(full, src, comm.rank), src, dst, comm=comm, **options)

    return run_threads(world, rank_main, transport=transport)


@pytest.mark.parametrize(
    ("src", "dst", "world"),
    [
        ("fsdp2(1)", "fsdp2(1)", 1),
        ("fsdp2(2)", "fsdp2(3)", 3),
        ("fsdp2(4)", "hf", 4),
        ("hf@2", "fsdp2(2)@0-1", 3),
        ("hf", "replicated(3)", 3),
        ("replicated(2)", "fsdp2(4)", 4),
        ("fsdp2(2,replicas=2)", "fsdp2(4)", 5),
        ("fsdp2(2)@0-1", "fsdp2(2)@2-3", 4),
        ("fsdp2(2)@1,0", "hf", 2),
    ],
)
@pytest.mark.parametrize("bucket_bytes", [16, 60, 32 << 20])
def test_names_are_kept_and_every_bit_arrives(src, dst, world, bucket_bytes, transport):
    full = {
        "w": tiny.numbered(9, 2),
        "deep.bias": tiny.numbered(5, dtype=torch.int64),
        "scale": torch.tensor(3.5),
        "half": torch.randn(3, 3, 3).to(torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 6),
        "no_columns": torch.zeros(4, 0),
    }
    for rank, got in enumerate(move(full, src, dst, world, transport, bucket_bytes=bucket_bytes)):
        tiny.assert_same(got, shards_of(full, dst, rank) or {})


def test_uneven_shards(transport):
    """B06 (i), (iii)"""
    full = {"w": tiny.numbered(9, 2)}
    assert [shards_of(full, "fsdp2(8)", r)["w"].shape[0] for r in range(8)] == [2] * 4 + [1] + [
        0
    ] * 3
    got = move(full, "fsdp2(8)", "vllm(tp=1)", 8, transport)
    tiny.assert_same(got[0], full)
    assert got[1:] == [{}] * 7

    def round_trip(comm: Communicator) -> tiny.Tensors:
        eight = reshard(shards_of(full, "fsdp2(4)", comm.rank), "fsdp2(4)", "fsdp2(8)", comm=comm)
        return reshard(eight, "fsdp2(8)", "fsdp2(3)", comm=comm)

    for rank, shard in enumerate(run_threads(8, round_trip, transport=transport)):
        tiny.assert_same(shard, shards_of(full, "fsdp2(3)", rank) or {})


def test_a_transposed_parameter_and_a_column_slice(transport):
    """B07 (i), (ii): what a tensor says counts, not how its bytes lie."""
    turned = tiny.numbered(3, 4).T
    assert not turned.is_contiguous() and turned.shape == (4, 3)
    wide = tiny.numbered(4, 10)

    def main(comm: Communicator) -> tiny.Tensors:
        two = slice(2 * comm.rank, 2 * comm.rank + 2)
        local = {"p": turned[two], "q": wide[two, 1:8:3]}
        return reshard(local, "fsdp2(2)", "vllm(tp=1)", comm=comm)

    got = run_threads(2, main, transport=transport)[0]
    assert got["p"].flatten().tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    assert got["q"].tolist() == wide[:, 1:8:3].tolist()
    assert got["p"].view(12).shape == (12,)


def test_parts_along_a_later_dim_arrive_without_holes(transport):
    """B07 (i): [3, 13, 2] in parts of 4, 4, 4 and 1 along dim 1, by hand."""
    full = tiny.numbered(3, 13, 2)
    spec = Spec.from_tensors([("w", (3, 13, 2), "float32")])
    widths = [4, 4, 4, 1]
    rows = [(r, "w", (3, width, 2), "float32") for r, width in enumerate(widths)]
    pieces = [
        ("w", r, "w", (0, 4 * r, 0), (3, width, 2), 0, (2 * width, 2, 1))
        for r, width in enumerate(widths)
    ]
    core = hybridengine._core.Layout("dim 1 in four", spec.core, [0, 1, 2, 3], rows, pieces)

    def main(comm: Communicator) -> tuple:
        local = {"w": full[:, 4 * comm.rank : 4 * comm.rank + 4]}
        got = reshard(local, Layout(core, spec), "replicated(4)", comm=comm)["w"]
        return got.stride(), got.view(39, 2).tolist()

    expected = ((26, 2, 1), full.reshape(39, 2).tolist())
    assert run_threads(4, main, transport=transport) == [expected] * 4


def test_tensors_without_elements(transport):
    """B24: shapes are kept, whether there is anything else or not."""
    rest = {"a": torch.zeros(0, 6), "b": torch.zeros(4, 0), "c": torch.zeros(2, 0, 3)}
    for full in ({**rest, "d": tiny.numbered(4, 4)}, rest):
        for rank, got in enumerate(move(full, "fsdp2(4)", "replicated(2)", 4, transport)):
            tiny.assert_same(got, full if rank < 2 else {})


def test_a_scalar_parameter(transport):
    """B35: 3.5 on every rank."""
    full = {"logit_scale": torch.tensor(3.5), "linear.weight": tiny.numbered(4, 4)}
    full = {name: tensor.to(torch.bfloat16) for name, tensor in full.items()}
    for got in move(full, "fsdp2(2)", "replicated(2)", 2, transport):
        assert got["logit_scale"].shape == () and got["logit_scale"].item() == 3.5


@pytest.mark.parametrize(
    ("src", "tp", "replicas", "facts"),
    [
        (1, 1, 1, tiny.config()),
        (2, 1, 2, tiny.config()),
        (2, 2, 1, tiny.config()),
        (2, 2, 1, tiny.config(hidden=4, intermediate=6, dtype="bfloat16")),
        (2, 3, 1, tiny.config(hidden=4, heads=6, kv_heads=3, vocab=190, dtype="bfloat16")),
        (2, 4, 1, tiny.config("Qwen3ForCausalLM", heads=8, intermediate=8)),
        (2, 4, 1, tiny.config(heads=8, intermediate=8, vocab=130)),
        (2, 8, 1, tiny.config(heads=8, intermediate=8, layers=2)),
        (3, 2, 2, tiny.config(layers=3)),
    ],
)
def test_to_fused_shards_and_back(src, tp, replicas, facts, transport):
    """B01, B02, B03: rows in vLLM's order, kv heads shared where tp exceeds them, HF exact."""
    spec = Spec.from_config(facts)
    full = tiny.weights(spec)
    sharded = Layout.fsdp2(src).bind(spec)
    fused = Layout.vllm(tp=tp, replicas=replicas).bind(spec)

    def main(comm: Communicator) -> tuple[tiny.Tensors, tiny.Tensors]:
        mine = tiny.fsdp2(full, src, comm.rank) if comm.rank < src else None
        there = reshard(mine, sharded, fused, comm=comm, bucket_bytes=256)
        held = there if comm.rank < tp * replicas else None
        return there, reshard(held, fused, "hf", comm=comm, bucket_bytes=256)

    got = run_threads(max(src, tp * replicas), main, transport=transport)
    for rank, (there, _) in enumerate(got):
        expected = tiny.vllm(full, facts, tp, rank % tp) if rank < tp * replicas else {}
        tiny.assert_same(there, expected)
    tiny.assert_same(got[0][1], full)


def test_the_rows_of_fused_shards():
    """B01, B02 as numbers one can read."""
    spec = Spec.from_config(tiny.config(intermediate=6))
    full = tiny.weights(spec)
    for part, first, rows in (("q", 1000, 8), ("k", 2000, 4), ("v", 3000, 4)):
        values = tiny.rows_of({first: rows}, 8, torch.float32)
        full[f"model.layers.0.self_attn.{part}_proj.weight"] = values
        full[f"model.layers.0.self_attn.{part}_proj.bias"] = values[:, 0].clone()
    full["model.layers.0.mlp.gate_proj.weight"] = tiny.rows_of({10: 6}, 8, torch.float32)
    full["model.layers.0.mlp.up_proj.weight"] = tiny.rows_of({50: 6}, 8, torch.float32)

    def main(comm: Communicator) -> tuple[list, list, list]:
        source = Layout.hf().bind(spec)
        got = reshard(full if comm.rank == 0 else None, source, "vllm(tp=2)", comm=comm)
        qkv = "model.layers.0.self_attn.qkv_proj."
        gate_up = got["model.layers.0.mlp.gate_up_proj.weight"][:, 0].tolist()
        return got[qkv + "weight"][:, 7].tolist(), got[qkv + "bias"].tolist(), gate_up

    for rank, (rows, biases, gate_up) in enumerate(run_threads(2, main, transport="loopback")):
        queries = [1000 + 4 * rank + i for i in range(4)]
        keys, values = [[f + 2 * rank, f + 2 * rank + 1] for f in (2000, 3000)]
        assert rows == biases == queries + keys + values
        assert gate_up == [[10, 11, 12, 50, 51, 52], [13, 14, 15, 53, 54, 55]][rank]


def test_a_split_that_the_heads_do_not_have():
    """B03: every rank says what does not divide, before anything is allocated."""
    spec = Spec.from_config(tiny.config(heads=8))
    full = tiny.weights(spec)

    def main(comm: Communicator) -> str:
        mine = tiny.fsdp2(full, 3, comm.rank)
        with pytest.raises(hybridengine.UsageError) as raised:
            reshard(mine, Layout.fsdp2(3).bind(spec), "vllm(tp=3)", comm=comm)
        assert not comm.dead
        return str(raised.value)

    errors = run_threads(3, main, transport="loopback")
    assert len(set(errors)) == 1
    assert errors[0].startswith("8 attention heads do not divide by tp 3; possible: 1, 2, 4, 8. ")
    assert "Nor do 2 kv heads" in errors[0]


def test_an_untied_head_is_not_overwritten(transport):
    """B04 (i)"""
    spec = Spec.from_config(tiny.config(hidden=8, vocab=6))
    full = tiny.weights(spec)
    full["model.embed_tokens.weight"] = tiny.numbered(6, 8)
    full["lm_head.weight"] = tiny.numbered(6, 8, start=100)

    def main(comm: Communicator) -> tuple[float, float]:
        mine = tiny.fsdp2(full, 2, comm.rank)
        got = reshard(mine, Layout.fsdp2(2).bind(spec), "vllm(tp=2)", comm=comm)
        return (
            got["model.embed_tokens.weight"].flatten()[0].item(),
            got["lm_head.weight"].flatten()[0].item(),
        )

    assert run_threads(2, main, transport=transport)[0] == (0, 100)


def test_fp32_masters_become_bf16(transport):
    """dtype=: round to nearest even, integers as they are."""
    full = {
        "w": torch.tensor([1.0, 1.00390625, 1.01171875, -0.0, 3e38, float("inf"), 1e-40, 0.1]),
        "steps": tiny.numbered(8, dtype=torch.int32),
        "wide": torch.randn(7, 5, dtype=torch.float64),
    }
    expected = {k: t if "steps" in k else t.to(torch.bfloat16) for k, t in full.items()}
    for rank, got in enumerate(move(full, "fsdp2(2)", "fsdp2(3)", 3, transport, dtype="bfloat16")):
        tiny.assert_same(got, tiny.fsdp2(expected, 3, rank))
    for got in move(full, "fsdp2(2)", "replicated(2)", 2, transport, dtype=torch.bfloat16):
        tiny.assert_same(got, expected)


def test_verify_compares_every_bucket(transport):
    full = {"a": torch.randn(301), "b": torch.randn(40, 7)}

    def main(comm: Communicator) -> tuple:
        mine = tiny.fsdp2(full, 3, comm.rank)
        resharder = Resharder(
            mine, "fsdp2(3)", "replicated(3)", comm=comm, verify=True, bucket_bytes=128
        )
        tiny.assert_same(resharder.run(), full)
        report = resharder.report
        return report.verified_buckets, report.buckets_in, report.received_over_bound

    for verified, arrived, ratio in run_threads(3, main, transport=transport):
        assert verified == arrived > 10 and ratio == 1.0


def test_out_is_written_in_place(transport):
    """out=: also into strided memory; padding and everything else stays as it is."""
    full = {"w": tiny.numbered(5, 4), "b": tiny.numbered(3)}

    def main(comm: Communicator) -> None:
        board = torch.full((5, 9), -1.0)
        out = {"w": board[:, 1:9:2], "b": torch.full((3,), -1.0, requires_grad=True)}
        got = reshard(
            tiny.fsdp2(full, 2, comm.rank), "fsdp2(2)", "replicated(2)", comm=comm, out=out
        )
        assert got["w"].data_ptr() == out["w"].data_ptr()
        tiny.assert_same({k: t.detach() for k, t in out.items()}, full)
        assert board[:, 0::2].eq(-1).all()

    run_threads(2, main, transport=transport)


def test_padding_of_out_stays(transport):
    spec = Spec.from_config(tiny.config(vocab=7))
    full = tiny.weights(spec)

    def main(comm: Communicator) -> None:
        target = Layout.vllm(tp=1).bind(spec)
        out = {n: torch.full(s, 9.0, dtype=getattr(torch, d)) for n, s, d in target.locals(0)}
        reshard(full, Layout.hf().bind(spec), target, comm=comm, out=out)
        assert out["lm_head.weight"][7:].eq(9).all()
        assert out["lm_head.weight"][:7].equal(full["lm_head.weight"])

    run_threads(1, main, transport=transport)
