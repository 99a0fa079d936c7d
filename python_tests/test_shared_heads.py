"""B03: more tensor-parallel ranks than kv heads, so that several hold the same one. In numbers that
one can read: row r of k is 2000 + r, its bias too, and element e of the norm of k is 500 + e."""

from __future__ import annotations

import pytest
import tiny_models as tiny
import torch
from ranks import run_threads

import hybridengine
from hybridengine import Communicator, Layout, Spec, UsageError, reshard

_LAYER = "model.layers.0.self_attn."
_HEAD_DIM = 2
_KEYS = [2000.0 + row for row in range(2 * _HEAD_DIM)]


def _model() -> tuple[Spec, tiny.Tensors]:
    """8 heads, 2 kv heads of 2 rows, biases, and norms of k by head."""
    facts = tiny.config("Qwen3ForCausalLM", heads=8, kv_heads=2, head_dim=_HEAD_DIM, intermediate=8)
    spec = Spec.from_config({**facts, "attention_bias": True})
    full = tiny.weights(spec)
    keys = tiny.rows_of({2000: len(_KEYS)}, 8, torch.float32)
    full[f"{_LAYER}k_proj.weight"], full[f"{_LAYER}k_proj.bias"] = keys, keys[:, 0].clone()
    full[f"{_LAYER}k_norm.weight"] = tiny.numbered(_HEAD_DIM, start=500)
    return spec, full


@pytest.mark.parametrize("transport", ["loopback", "shm"])
@pytest.mark.parametrize(
    ("tp", "heads"), [(2, [0, 1]), (4, [0, 0, 1, 1]), (8, [0, 0, 0, 0, 1, 1, 1, 1])]
)
def test_each_rank_holds_its_kv_head(tp, heads, transport):
    """Its rows, its bias and the norm; gathered there are 4 rows to the bit, not 2 a rank."""
    spec, full = _model()
    fused, sharded = (rule.bind(spec) for rule in (Layout.vllm(tp=tp), Layout.fsdp2(2)))

    def main(comm: Communicator) -> tuple[list[float], list[float], list[float], tiny.Tensors]:
        mine = tiny.fsdp2(full, 2, comm.rank) if comm.rank < 2 else None
        held = reshard(mine, sharded, fused, comm=comm)
        back = reshard(held, fused, sharded, comm=comm)
        queries = 8 // tp * _HEAD_DIM
        keys = slice(queries, queries + _HEAD_DIM)
        weight, bias = (held[f"{_LAYER}qkv_proj.{kind}"][keys] for kind in ("weight", "bias"))
        return weight[:, 5].tolist(), bias.tolist(), held[f"{_LAYER}k_norm.weight"].tolist(), back

    got = run_threads(tp, main, transport=transport)
    for head, (weight, bias, norm, _) in zip(heads, got, strict=True):
        rows = _KEYS[head * _HEAD_DIM : (head + 1) * _HEAD_DIM]
        assert (weight, bias, norm) == (rows, rows, [500, 501])
    for rank in range(2):
        tiny.assert_same(got[rank][3], tiny.fsdp2(full, 2, rank))
    gathered = torch.cat([got[rank][3][f"{_LAYER}k_proj.weight"] for rank in range(2)])
    assert gathered[:, 0].tolist() == _KEYS


@pytest.mark.parametrize("text", ["vllm(tp=3)", "tensor_parallel(3)"])
def test_a_split_that_the_heads_do_not_have_is_refused_by_the_plan(text):
    spec, _ = _model()
    with pytest.raises(UsageError, match=r"do not divide by tp 3.*Nor do 2 kv heads"):
        hybridengine.plan(spec, "fsdp2(2)", text)
