"""What one rank holds of a plan over many ranks: counts, without weights.

The layouts are given; beyond them a plan and a rank's schedule may grow with what the rank itself
moves, and with nothing else.
"""

import subprocess
import sys

import pytest
import tiny_models as tiny

from hybridengine import LayoutRule, Spec, _core

SPEC = Spec.from_config(
    tiny.config(hidden=512, heads=64, kv_heads=8, head_dim=8, intermediate=512, layers=2, vocab=512)
)


def bind(text: str, op: str | None = None) -> _core.Layout:
    layout = LayoutRule.parse(text).bind(SPEC).core
    return layout if op is None else layout.partial(op)


def held(src: _core.Layout, dst: _core.Layout, rank: int) -> dict[str, int]:
    """Beside the layouts: moves and buckets of one rank, and bytes of the plan when it is saved."""
    plan = _core.make_plan(src, dst)
    schedule = _core.make_schedule(plan, rank, 1 << 16)
    assert schedule.num_moves == len(plan.moves_of(rank))
    layouts = len(src.save()) + len(dst.save())
    return {
        "moves": schedule.num_moves,
        "buckets": schedule.num_buckets,
        "plan_bytes": len(plan.save()) - layouts,
        "all_moves": plan.num_moves,
    }


@pytest.mark.parametrize("dst", ["vllm(tp=8,dp={replicas})", "fsdp2({n})"])
def test_a_rank_holds_what_it_moves(dst):
    """From n to n ranks all moves together grow with n * n, or with n where shards meet shards."""
    found = {}
    for n in (64, 128, 256, 512):
        found[n] = held(bind(f"fsdp2({n})"), bind(dst.format(n=n, replicas=n // 8)), 5)
    tensors = len(SPEC.tensors)
    for n, row in found.items():
        # It sends to each rank, and receives from each, a part of each tensor at most.
        assert row["moves"] <= 2 * tensors * n
        assert row["buckets"] <= 2 * n + 64
        assert row["plan_bytes"] <= 64 * tensors * 8 * n
    assert found[512]["moves"] <= 9 * found[64]["moves"]
    if "vllm" in dst:
        assert found[512]["all_moves"] >= 40 * found[64]["all_moves"]


def test_one_kind_of_tensor_is_planned_once():
    """Ten times as many tensors are ten times as many moves of a rank, and the same plan."""
    sizes = []
    for count in (10, 100):
        spec = Spec.from_tensors([(f"layers.{i}.w", (64, 64), "float32") for i in range(count)])
        src, dst = (LayoutRule.parse(text).bind(spec).core for text in ("fsdp2(16)", "fsdp2(12)"))
        plan = _core.make_plan(src, dst)
        sizes.append((len(plan.save()) - len(src.save() + dst.save()), len(plan.moves_of(3))))
    (small, few), (large, many) = sizes
    assert few > 0 and many == 10 * few
    assert large == small


@pytest.mark.parametrize("n", [64, 512])
def test_a_rank_that_contributes_holds_its_contributions(n):
    """512 data parallel ranks: not a move for each share and contributor."""
    src, dst = bind(f"replicated({n})", "sum"), bind(f"replicated({n})")
    plan = _core.make_plan(src, dst)
    plan.check()
    shares = plan.num_moves // (2 * n - 1)  # each has n contributions and n - 1 copies
    moves = len(plan.moves_of(n // 2))
    own = moves - 2 * shares
    assert moves < 4 * shares + 4 * n
    assert own < 2 * (2 * n) * (shares // n + 2)
    assert len(plan.save()) - len(src.save()) - len(dst.save()) < 64 * n


def test_a_70b_plan_over_256_ranks_fits_into_a_rank():
    """Bind, plan and schedule of one rank: 24 million moves in all, and less than 300 MB."""
    code = (
        "import re; from hybridengine import LayoutRule, Spec, _core\n"
        "from hybridengine.models.presets import PRESETS\n"
        "spec = Spec.from_config(PRESETS['llama-3.1-70b'])\n"
        "src, dst = (LayoutRule.parse(t).bind(spec).core\n"
        "            for t in ('fsdp2(256)', 'vllm(tp=8,dp=32)'))\n"
        "plan = _core.make_plan(src, dst)\n"
        "schedule = _core.make_schedule(plan, 5)\n"
        "plan.check()\n"
        # Not ru_maxrss, which remembers the process that this one was forked from.
        "most = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) >> 10\n"
        "print(plan.num_moves, schedule.num_moves, most, plan.certificate.received_over_bound)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    moves, own, megabytes, ratio = done.stdout.split()
    assert int(moves) > 24_000_000 and int(own) < 200_000 and float(ratio) == 1
    if not _core.build_facts()["sanitize"]:
        assert int(megabytes) < 300
