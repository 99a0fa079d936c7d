"""owners_of against an oracle that counts elements, and the other layouts that a two-step update is
made from: subsets, layouts without copies, and its movement."""

from __future__ import annotations

import math

import blobs
import oracle
import pytest
import random_layouts as rand
import tiny_models as tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridengine import Layout, LayoutRule, Spec, UsageError, _core
from hybridengine.two_step.ownership import owners_for


def owners(text: str, spec: Spec, dtype: str = "float32") -> _core.Layout:
    return _core.owners_of(rand.bind(text, spec), dtype)


def held_ids(core: _core.Layout) -> dict[int, set[int]]:
    """Numbers of the elements that each rank holds."""
    layout = blobs.read_layout(core.save())
    memory = oracle.Memory(layout, oracle.first_ids(layout.spec)).fill()
    return {rank: memory.held(rank) for rank in layout.ranks}


def check_owners(before: _core.Layout, after: _core.Layout, dtype: str) -> None:
    """Each element has one owner, who holds it; local tensors are flat, dense and in order."""
    after.check()
    held, owned = held_ids(before), held_ids(after)
    assert after.ranks == before.ranks
    assert set().union(*owned.values()) == set().union(*held.values())
    assert sum(map(len, owned.values())) == len(set().union(*held.values()))
    assert after.spec == before.spec.with_dtype(dtype)
    for rank in after.ranks:
        assert owned[rank] <= held[rank]
        check_flat(after, rank)


def check_flat(core: _core.Layout, rank: int) -> None:
    names = [name for name, _, _ in core.spec.tensors]
    locals_ = core.locals(rank)
    assert [names.index(name) for name, _, _ in locals_] == sorted(
        names.index(name) for name, _, _ in locals_
    )
    for name, shape, dtype in locals_:
        pieces = [piece for piece in core.pieces(rank) if piece[0] == name]
        assert all(piece[1] == name for piece in pieces)
        assert [piece[2] for piece in pieces] == sorted(piece[2] for piece in pieces)
        next_elem = 0
        for _, _, _, size, offset, strides in pieces:
            assert offset == next_elem
            assert strides == tuple(math.prod(size[dim + 1 :]) for dim in range(len(size)))
            next_elem += math.prod(size)
        assert shape == (next_elem,) and next_elem > 0
        assert (name, dtype) in [(row[0], row[2]) for row in core.spec.tensors]


@given(st.data())
@settings(max_examples=150)
def test_every_element_has_one_owner_among_its_holders(data):
    spec = data.draw(rand.specs())
    layout = data.draw(rand.layouts(spec)).core
    dtype = data.draw(st.sampled_from(["float32", "float64", "bfloat16"]))
    check_owners(layout, _core.owners_of(layout, dtype), dtype)


@given(st.data())
def test_boxes_that_overlap_go_to_the_first_holder(data):
    """Where two different boxes meet, all that both cover is the lowest rank's that has it."""
    layout = data.draw(rand.layouts_by_hand(data.draw(rand.specs(max_tensors=2)))).core
    owned = held_ids(_core.owners_of(layout, "float32"))
    saved = blobs.read_layout(layout.save())
    firsts = oracle.first_ids(saved.spec)
    boxes: dict[int, set] = {}
    for piece in saved.pieces:
        name, _, shape = saved.spec.tensors[piece.tensor]
        for number in oracle.ids_of(shape, firsts[name], piece.start, piece.size).ravel():
            boxes.setdefault(int(number), set()).add((piece.start, piece.size))
    held = held_ids(layout)
    for number, covering in boxes.items():
        if len(covering) > 1:
            first = min(rank for rank in held if number in held[rank])
            assert number in owned[first]


@given(st.data())
def test_replicas_own_equally_much(data):
    """With n ranks that hold all, each owns a share that differs by elements that cannot be cut."""
    spec = data.draw(rand.specs(dtypes=rand.FLOATS))
    n = data.draw(st.integers(1, 8))
    shares = [owners(f"replicated({n})", spec).num_bytes(rank) for rank in range(n)]
    assert max(shares) - min(shares) <= 4
    assert sum(shares) == spec.with_dtype("float32").num_bytes


@pytest.mark.parametrize(
    "text",
    [
        "replicated(3)",
        "replicated(8)",
        "fsdp2(1,replicas=2,tp=2)",
        "fsdp2(2,replicas=3)",
        "tensor_parallel(2)",
        "vllm(tp=2)",
        "vllm(tp=4,dp=2)",
        "vllm(tp=1,replicas=4)",
        "vllm(tp=2,pp=2,dp=2)",
    ],
)
@pytest.mark.parametrize("tie", [False, True])
def test_owners_of_a_model_are_balanced(text, tie):
    """Norms that all ranks hold, kv heads that some share, and tied weights even out."""
    facts = tiny.config(hidden=32, heads=8, kv_heads=2, head_dim=4, intermediate=96, layers=4)
    spec = Spec.from_config(facts | {"vocab_size": 64, "tie_word_embeddings": tie})
    layout = rand.bind(text, spec)
    found = _core.owners_of(layout, "float32")
    check_owners(layout, found, "float32")
    shares = [found.num_bytes(rank) for rank in found.ranks]
    if "pp" not in text:  # stages own what only they have
        assert max(shares) / (sum(shares) / len(shares)) <= 1.05


def test_a_set_of_holders_cuts_few_boxes():
    """Pieces stay long: 4 ranks cut at most 3 of 40 matrices, each into at most 3 boxes."""
    spec = Spec.from_tensors([(f"layers.{i}.weight", (7, 5), "bfloat16") for i in range(40)])
    found = owners("replicated(4)", spec)
    assert sum(len(found.locals(rank)) for rank in range(4)) <= 43
    assert sum(len(found.pieces(rank)) for rank in range(4)) <= 40 - 3 + 3 * 6


def test_owners_by_hand():
    spec = Spec.from_tensors(
        [("w", (3, 4), "bfloat16"), ("b", (), "float32"), ("n", (2,), "int64")]
    )
    found = owners("replicated(2)", spec)
    assert found.text == "owners of replicated(2)"
    assert found.locals(0) == [("w", (9,), "float32")]
    assert found.pieces(0) == [
        ("w", "w", (0, 0), (2, 4), 0, (4, 1)),
        ("w", "w", (2, 0), (1, 1), 8, (1, 1)),
    ]
    assert found.locals(1) == [
        ("w", (3,), "float32"),
        ("b", (1,), "float32"),
        ("n", (2,), "int64"),
    ]


def test_more_ranks_than_elements():
    spec = Spec.from_tensors([("b", (2,), "float32"), ("none", (0, 3), "float32")])
    found = owners("replicated(5)", spec)
    assert sorted(found.num_bytes(rank) for rank in range(5)) == [0, 0, 0, 4, 4]
    assert sum(found.locals(rank) == [] for rank in range(5)) == 3


def test_contributions_have_no_owners():
    partial = rand.bind("replicated(2)", Spec.from_tensors([("b", (2,), "float32")])).partial("sum")
    with pytest.raises(UsageError, match="contributions"):
        _core.owners_of(partial, "float32")
    assert _core.select_tensors(partial, ["b"]) == partial


def test_selected_tensors():
    spec = Spec.from_config(tiny.config(tie=True))
    layout = rand.bind("vllm(tp=1)", spec)
    names = ["model.layers.0.self_attn.k_proj.weight", "model.embed_tokens.weight"]
    chosen = _core.select_tensors(layout, names)
    chosen.check()
    assert [row[0] for row in chosen.spec.tensors] == sorted(names, key=spec.find)
    assert chosen.spec.aliases == [("lm_head.weight", "model.embed_tokens.weight")]
    fused = "model.layers.0.self_attn.qkv_proj.weight"
    assert [row for row in layout.locals(0) if row[0] in (names[1], fused)] == chosen.locals(0)
    assert chosen.pieces(0) == [piece for piece in layout.pieces(0) if piece[0] in names]
    assert _core.select_tensors(layout, [row[0] for row in spec.tensors]) == layout
    assert _core.select_tensors(layout, names[1:]).spec.aliases == spec.aliases
    assert _core.select_tensors(layout, names[:1]).spec.aliases == []
    with pytest.raises(UsageError, match="'x'"):
        _core.select_tensors(layout, ["x"])


@given(st.data())
def test_the_common_part_of_two_layouts(data):
    spec = data.draw(rand.specs(max_tensors=3, max_elems=60))
    first, second = (data.draw(rand.layouts(spec)).core for _ in range(2))
    common = _core.common_part(first, second)
    expected = {}
    for rank in first.ranks:
        for name, shape, _ in spec.tensors:
            both = elements(first, rank, name, shape) & elements(second, rank, name, shape)
            expected[rank, name] = both
    total = sum(
        len(set().union(*(each for (_, name), each in expected.items() if name == tensor)))
        for tensor, _, _ in spec.tensors
    )
    if total < sum(math.prod(shape) for _, shape, _ in spec.tensors):
        assert common is None
        return
    for (rank, name), both in expected.items():
        assert elements(common, rank, name, spec.tensors[spec.find(name)][1]) == both
        assert {row[1] for row in common.pieces(rank)} <= {row[0] for row in first.locals(rank)}


@pytest.mark.parametrize(
    ("train", "gen", "near"),
    [
        ("fsdp2(1,replicas=2,tp=2)", "replicated(4)", True),
        ("fsdp2(1,replicas=1,tp=4)", "vllm(tp=2,dp=2)", False),  # shards that do not nest
        ("fsdp2(1,replicas=1,tp=4)@0,2,1,3", "vllm(tp=2,dp=2)", True),
        ("fsdp2(1,replicas=2,tp=2)", "replicated(1)", False),
        ("replicated(4)", "vllm(tp=2,dp=2)", True),
    ],
)
def test_ranks_own_what_they_have_on_both_sides(train, gen, near):
    """Where that is fair; then nothing of it travels to training, and none to generation."""
    facts = tiny.config(hidden=32, heads=8, kv_heads=4, head_dim=4, intermediate=96, vocab=64)
    spec = Spec.from_config(facts)
    layouts = [LayoutRule.parse(text).bind(spec) for text in (train, gen)]
    found = owners_for(*layouts)
    shares = [found.num_bytes(rank) for rank in found.ranks]
    assert max(shares) / (sum(shares) / len(shares)) <= 1.06
    owned, trained = held_ids(found.core), held_ids(layouts[0].core)
    assert all(owned[rank] <= held_ids(layouts[1].core)[rank] for rank in found.ranks)
    assert all(owned[rank] <= trained[rank] for rank in found.ranks) == near


def test_copies_of_tensor_parallelism_are_left_out():
    """Of dp 2 x tp 2, a norm keeps two replicas of one tp rank, and a matrix all four shards."""
    spec = Spec.from_config(tiny.config(vocab=8))
    layout = rand.bind("fsdp2(1,replicas=2,tp=2)", spec)
    alone = _core.without_copies(layout)
    holders = {name: [] for name, _, _ in spec.tensors}
    for rank in range(4):
        for name, *_ in alone.pieces(rank):
            holders[name].append(rank)
    norms = [ranks for name, ranks in holders.items() if "norm" in name]
    assert len(norms) == 3 and all(ranks in ([0, 2], [1, 3]) for ranks in norms)
    assert all(ranks == [0, 1, 2, 3] for name, ranks in holders.items() if "norm" not in name)
    alone.check()
    for text in ("replicated(3)", "fsdp2(2,replicas=2)"):
        same = rand.bind(text, spec)
        assert _core.without_copies(same) == same


def test_copies_that_are_none():
    """A tied head of pipeline stages has a gradient of its own on each stage."""
    spec = Spec.from_config(tiny.config(layers=2, tie=True))
    with pytest.raises(UsageError, match=r"embed_tokens.*same tensors"):
        _core.without_copies(rand.bind("vllm(tp=1,pp=2)", spec))


@st.composite
def trained_pairs(draw):
    """Training and generation layouts of one spec, in types of their own."""
    spec = draw(rand.specs(dtypes=["float32", "bfloat16"], max_tensors=3, max_elems=60))
    gen_spec = spec.with_dtype(draw(st.sampled_from(["float32", "bfloat16", "float16"])))
    return draw(rand.layouts(spec)), draw(rand.layouts(gen_spec))


@given(trained_pairs())
def test_an_update_leaves_out_what_can_be_copied(pair):
    """Between the movement and copies on the same rank, everything arrives once."""
    train, gen = pair
    found = _core.owners_of(gen.core, "float32")
    src, dst = _core.make_update(found, train.core, gen.core)
    plan = _core.make_plan(src, dst)
    oracle.check_plan(plan)
    for rank in dst.ranks:
        pieces = [(p[0].removeprefix("training:"), *p[2:]) for p in dst.pieces(rank)]
        trained = [p for p, full in zip(pieces, dst.pieces(rank), strict=True) if full[0][0] == "t"]
        assert sorted(trained) == sorted((p[0], *p[2:]) for p in train.pieces(rank))
        check_rest(train, gen, dst, rank)


def check_rest(train: Layout, gen: Layout, dst: _core.Layout, rank: int) -> None:
    types = {name: dtype for name, _, dtype in train.spec.tensors}
    for name, shape, dtype in gen.spec.tensors:
        wanted = elements(gen.core, rank, name, shape)
        held = elements(train.core, rank, name, shape)
        sent = elements(dst, rank, f"generation:{name}", shape)
        exact = types[name] in (dtype, "float32")
        assert sent == (wanted - held if exact else wanted)


def elements(core: _core.Layout, rank: int, name: str, shape: tuple[int, ...]) -> set[int]:
    found: set[int] = set()
    for tensor, _, start, size, _, _ in core.pieces(rank):
        if tensor == name:
            found |= set(oracle.ids_of(shape, 0, start, size).ravel().tolist())
    return found


def test_an_update_of_equal_layouts_sends_nothing_twice():
    """replicated -> replicated: each rank receives what it does not own, once."""
    spec = Spec.from_tensors([("w", (16, 4), "bfloat16")])
    whole = LayoutRule.parse("replicated(4)").bind(spec).core
    src, dst = _core.make_update(_core.owners_of(whole, "float32"), whole, whole)
    rows = _core.make_plan(src, dst).certificate.ranks
    assert [row["received_bytes"] for row in rows] == [spec.num_bytes * 3 // 4] * 4
