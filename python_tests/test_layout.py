"""Layout rules as text, their errors, FSDP2 chunks, and specs inferred from local shapes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridengine._core import UsageError
from hybridengine.layouts.families import FAMILIES
from hybridengine.layouts.grammar import format_ranks, parse_ranks
from hybridengine.layouts.layout import Layout, LayoutRule
from hybridengine.layouts.spec import Spec
from hybridengine.mapping import Mapping, Weight, column


def plain_spec(*shapes, dtype="float32"):
    return Spec.from_tensors([(f"t{i}", shape, dtype) for i, shape in enumerate(shapes)])


def rows_of(layout, local):
    """(begin, end) of dim 0 that each rank holds of the one tensor."""
    result = []
    for rank in layout.ranks:
        boxes = [
            (s[0], s[0] + n[0]) for _, name, s, n, _, _ in layout.pieces(rank) if name == local
        ]
        result.append(boxes[0] if boxes else None)
    return result


@st.composite
def rules(draw):
    name = draw(st.sampled_from(sorted(FAMILIES)))
    family = FAMILIES[name]
    args = {key: draw(st.integers(1, 4)) for key in family.defaults}
    if "ep" in args:
        args["ep"] = draw(st.sampled_from([1, args["tp"] * args["dp"]]))
    size = family.size(args)
    ranks = draw(
        st.none() | st.lists(st.integers(0, 999), min_size=size, max_size=size, unique=True)
    )
    return LayoutRule.make(name, args, ranks)


@given(rules())
def test_text_round_trips(rule):
    assert LayoutRule.parse(str(rule)) == rule
    assert hash(LayoutRule.parse(str(rule))) == hash(rule)


@given(st.lists(st.integers(0, 40), unique=True, min_size=1))
def test_ranks_round_trip(ranks):
    assert parse_ranks(format_ranks(ranks)) == tuple(ranks)


@given(st.text(alphabet="vlmfsdp2(),=@-hn 01x\n", max_size=24))
def test_text_gives_a_rule_or_a_usage_error(text):
    try:
        assert LayoutRule.parse(text).size >= 1
    except UsageError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "rule", "canonical"),
    [
        ("fsdp2(8)", Layout.fsdp2(8), "fsdp2(8)"),
        ("fsdp2(n=8)", Layout.fsdp2(8), "fsdp2(8)"),
        (" fsdp2( 2 , tp = 3 , replicas=2 ) ", Layout.fsdp2(2, tp=3, replicas=2), None),
        ("vllm(tp=3,dp=2)@0-5", Layout.vllm(tp=3, dp=2), "vllm(tp=3,dp=2)"),
        ("vllm()", Layout.vllm(), "vllm(tp=1)"),
        ("vllm(dp=2,tp=1)", Layout.vllm(dp=2), "vllm(tp=1,dp=2)"),
        ("vllm(tp=4)@0-1, 6-7", Layout.vllm(tp=4, ranks=[0, 1, 6, 7]), "vllm(tp=4)@0-1,6-7"),
        ("replicated(3)@5,4,3", Layout.replicated(3, ranks=[5, 4, 3]), "replicated(3)@5,4,3"),
        ("tensor_parallel(2)", Layout.tensor_parallel(2), "tensor_parallel(2)"),
        (
            "tensor_parallel(2,replicas=3)",
            Layout.tensor_parallel(2, replicas=3),
            "tensor_parallel(2,replicas=3)",
        ),
        ("hf", Layout.hf(), "hf"),
        ("hf()@7", Layout.hf(ranks=[7]), "hf@7"),
    ],
)
def test_text_and_constructors_agree(text, rule, canonical):
    assert LayoutRule.parse(text) == rule
    if canonical is not None:
        assert str(rule) == canonical


def test_size_and_arguments():
    rule = Layout.vllm(tp=2, pp=3, dp=5, replicas=7)
    assert rule.size == 210
    assert [rule.arg(key) for key in ("tp", "pp", "dp", "ep", "replicas")] == [2, 3, 5, 1, 7]
    assert Layout.fsdp2(2, replicas=3, tp=5).size == 30
    assert Layout.hf().size == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fsdp3(2)", "'fsdp3' is no layout. Use fsdp2, replicated, tensor_parallel, vllm, hf."),
        ("megatron(tp=2)", "megatron layouts are not supported yet"),
        ("vllm(tq=2)", "tq is no key of vllm. Its keys: tp, pp, dp, ep, replicas."),
        ("hf(tp=2)", "tp is no key of hf. Its keys: none."),
        ("vllm(tp=2,tp=2)", "tp is given twice in vllm(tp=2,tp=2). Give it once."),
        ("fsdp2(2,n=3)", "n of fsdp2 is given twice: 2 and 3. Give it once."),
        ("vllm(tp=two)", "tp in vllm(tp=two) is 'two'. Use a whole number from 1."),
        ("vllm(tp=)", "tp in vllm(tp=) is ''. Use a whole number from 1."),
        ("fsdp2(2.5)", "the number of ranks in fsdp2(2.5) is '2.5'. Use a whole number from 1."),
        ("vllm(tp=0)", "tp of vllm is 0. Use a whole number from 1."),
        ("fsdp2(-1)", "n of fsdp2 is -1. Use a whole number from 1."),
        ("fsdp2()", "fsdp2 needs its number of ranks. Write fsdp2(2)."),
        ("fsdp2", "fsdp2 needs its number of ranks. Write fsdp2(2)."),
        (
            "vllm(2)",
            "vllm takes no number without a key: 2. Its keys: tp, pp, dp, ep, replicas.",
        ),
        ("hf(1)", "hf takes no number without a key: 1. Write hf."),
        ("vllm(tp=3)@0-3", "@0-3 names 4 ranks, vllm(tp=3) has 3"),
        ("hf@0,1", "@0-1 names 2 ranks, hf has 1"),
        ("fsdp2(2)@1,1", "rank 1 is named twice in '@1,1'. Name it once."),
        ("fsdp2(2)@3-2", "ranks '3-2' run backwards. Write 2-3."),
        ("fsdp2(2)@", "cannot read the ranks '@': ''. Write 0-7 or 0-7,16-23."),
        ("fsdp2(2)@0-1x", "cannot read the ranks '@0-1x': '0-1x'. Write 0-7 or 0-7,16-23."),
        ("fsdp2(2)@-1", "cannot read the ranks '@-1': '-1'. Write 0-7 or 0-7,16-23."),
        ("hf@0-99999999", "'@0-99999999' names more than 1048576 ranks. Name fewer."),
        ("fsdp2(999999,tp=999)", "fsdp2 has 998999001 ranks. Use at most 1048576."),
    ],
)
def test_errors_say_what_to_write(text, expected):
    with pytest.raises(UsageError) as error:
        LayoutRule.parse(text)
    assert str(error.value) == expected


@pytest.mark.parametrize(
    "text", ["", "(2)", "fsdp2(2", "fsdp2 2", "fsdp2(2) x", "fsdp2((2))", "fsdp2(tp=2,8)", "a b"]
)
def test_what_cannot_be_read_shows_the_form(text):
    with pytest.raises(UsageError, match=r"Write name\(key=number, \.\.\.\)"):
        LayoutRule.parse(text)


@pytest.mark.parametrize("value", [0, -2, 1.5, True, None, "2"])
def test_constructors_check_as_text_does(value):
    with pytest.raises(UsageError, match="whole number from 1"):
        Layout.fsdp2(value)
    with pytest.raises(UsageError, match="-1 is no rank"):
        Layout.fsdp2(1, ranks=[-1])


def test_ep_is_one_or_all():
    with pytest.raises(UsageError, match=r"ep 3 does not fit .*Use ep=1 or ep=4\."):
        Layout.vllm(tp=2, dp=2, ep=3).bind(plain_spec((4, 4)))


def test_fsdp2_chunks_rows():
    layout = Layout.fsdp2(8).bind(plain_spec((9, 2)))
    assert [shape for rank in range(8) for _, shape, _ in layout.locals(rank)] == [
        (rows, 2) for rows in (2, 2, 2, 2, 1, 0, 0, 0)
    ]
    assert rows_of(layout, "t0") == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 9), None, None, None]


def test_fsdp2_chunks_each_half_of_tensor_parallelism():
    mapping = Mapping([Weight("t0", cut=column(14))])
    layout = Layout.fsdp2(3, tp=2, mapping=mapping).bind(plain_spec((14, 3)))
    held = rows_of(layout, "t0")
    assert [held[2 * n] for n in range(3)] == [(0, 3), (3, 6), (6, 7)]
    assert [held[2 * n + 1] for n in range(3)] == [(7, 10), (10, 13), (13, 14)]


def test_scalars_empty_and_thin_tensors_are_whole_somewhere():
    spec = plain_spec((), (0, 4), (1,), (3, 0))
    layout = Layout.fsdp2(2, replicas=2).bind(spec)
    layout.check()
    for rank in range(4):
        assert layout.locals(rank)[0] == ("t0", (), "float32")
    assert [layout.locals(rank)[2][1] for rank in range(4)] == [(1,), (0,), (1,), (0,)]


def test_ranks_need_not_begin_at_zero_or_be_in_order():
    layout = LayoutRule.parse("fsdp2(2)@9,4").bind(plain_spec((4, 2)))
    assert layout.ranks == [4, 9]
    assert rows_of(layout, "t0") == [(2, 4), (0, 2)]
    assert layout.text == "fsdp2(2)@9,4"


def test_layouts_compare_and_are_saved():
    spec = plain_spec((9, 2), ())
    layout = Layout.fsdp2(3).bind(spec)
    again = Layout.load(layout.save())
    assert again == layout and again.spec == spec and again.text == "fsdp2(3)"
    assert layout != Layout.fsdp2(2).bind(spec)
    assert layout.num_bytes(0) == 3 * 2 * 4 + 4
    assert "t0" in layout.to_string(0) and "fsdp2(3)" in repr(layout)
    with pytest.raises(UsageError):
        Layout.load(layout.save()[:-3])


def test_binding_many_tensors_is_quick():
    rows = [
        (f"model.layers.{i}.mlp.experts.{j}.up", (8, 4)) for i in range(147) for j in range(128)
    ]
    spec = Spec.from_tensors([(name, shape, "bfloat16") for name, shape in rows])
    begin = time.perf_counter()
    Layout.fsdp2(4).bind(spec)
    assert time.perf_counter() - begin < 2.0


def local_shapes(layout):
    return {rank: layout.locals(rank) for rank in layout.ranks}


@pytest.mark.parametrize("text", ["fsdp2(4)", "fsdp2(3,replicas=2)@3-8", "replicated(3)", "hf@2"])
def test_a_spec_is_inferred_from_what_every_rank_holds(text):
    spec = Spec.from_tensors(
        [
            ("b", (9, 2), "bfloat16"),
            ("a", (), "float32"),
            ("c", (0, 3), "int64"),
            ("d", (1, 2, 3), "float32"),
        ]
    )
    rule = LayoutRule.parse(text)
    assert rule.infer_spec(local_shapes(rule.bind(spec))) == spec


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        (
            "fsdp2(2)",
            [[4, 4], [0]],
            "'w' is [4, 4] on rank 0 and [0] on rank 1: only dim 0 may differ. A rank without rows "
            "must keep the other dims, as [0, 4].",
        ),
        (
            "fsdp2(2)",
            [[0], [4, 4]],
            "'w' is [0] on rank 0 and [4, 4] on rank 1: only dim 0 may differ. A rank without rows "
            "must keep the other dims, as [0, 4].",
        ),
        (
            "fsdp2(2)@4-5",
            [[3, 2], [1, 2]],
            "'w' is [3, 2] on rank 4, where [2, 2] is due: [4, 2] in 2 chunks of 2 rows (ranks 4, "
            "5). Shard it with fully_shard, or describe the split by hand with "
            "Layout.from_boxes().",
        ),
        (
            "fsdp2(2,replicas=2)",
            [[2, 1], [2, 1], [2, 1], [1, 1]],
            "'w' is [1, 1] on rank 3, where [2, 1] is due: [4, 1] in 2 chunks of 2 rows (ranks 0, "
            "1). Shard it with fully_shard, or describe the split by hand with "
            "Layout.from_boxes().",
        ),
        (
            "replicated(2)",
            [[4, 2], [2, 2]],
            "'w' is [4, 2] on rank 0 and [2, 2] on rank 1. Every rank must hold all of it; if it "
            "is sharded, name that layout.",
        ),
    ],
)
def test_shapes_that_contradict_the_rule_are_named(text, shapes, expected):
    rule = LayoutRule.parse(text)
    local = {
        rank: [("w", shape, "float32")] for rank, shape in zip(rule.ranks, shapes, strict=True)
    }
    with pytest.raises(UsageError) as error:
        rule.infer_spec(local)
    assert str(error.value) == expected


def test_names_dtypes_and_ranks_that_clash_are_named():
    rule, row = Layout.fsdp2(2), ("w", (2, 2), "float32")
    with pytest.raises(UsageError, match="'w' is float32 on rank 0 and bfloat16 on rank 1"):
        rule.infer_spec({0: [row], 1: [("w", (2, 2), "bfloat16")]})
    for local in ({0: [row], 1: []}, {0: [], 1: [row]}):
        with pytest.raises(UsageError, match=r"'w' is on rank \d but not on rank \d"):
            rule.infer_spec(local)
    with pytest.raises(UsageError, match="two tensors named 'w'"):
        rule.infer_spec({0: [row, row], 1: [row]})
    with pytest.raises(UsageError, match=r"ranks \[0\], the layout has \[0, 1\]"):
        rule.infer_spec({0: [row]})
    for text in ("vllm(tp=1)", "fsdp2(1,tp=2)"):
        with pytest.raises(UsageError, match="cannot be inferred"):
            LayoutRule.parse(text).infer_spec({0: [row], 1: [row]})
