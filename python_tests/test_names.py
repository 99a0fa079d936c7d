"""How a caller's names meet a layout's."""

from __future__ import annotations

import pytest

from hybridengine import UsageError
from hybridengine.layouts.names import canonical_names, check_matched, unwrapped

pytestmark = pytest.mark.python


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.weight", "a.weight"),
        ("module.a.weight", "a.weight"),
        ("_orig_mod.a.weight", "a.weight"),
        ("module._orig_mod._fsdp_wrapped_module.a.weight", "a.weight"),
        ("layers.0._checkpoint_wrapped_module.q.weight", "layers.0.q.weight"),
        ("base_model.model.b.base_layer.weight", "b.weight"),
        ("base_model.other", "base_model.other"),
        ("base_model.model.lm_head.modules_to_save.default.weight", "lm_head.weight"),
        ("lm_head.original_module.weight", "lm_head.original_module.weight"),
        ("modules_to_save", "modules_to_save"),
        ("modules.a", "modules.a"),
        ("", ""),
    ],
)
def test_unwrapped(name, expected):
    assert unwrapped(name) == expected


@pytest.mark.parametrize(
    ("names", "targets", "expected"),
    [
        (["module.a"], ["a"], ["a"]),
        (["module.a"], ["module.a"], ["module.a"]),
        (["module.a"], ["module.a", "a"], ["module.a"]),  # the exact name first
        (["module.a"], [], ["module.a"]),
        (["module.a"], ["b"], ["module.a"]),
        (["module.a", "a"], ["module.a", "a"], ["module.a", "a"]),
        (["x.module.a", "y.module.a"], ["x.a", "y.module.a"], ["x.a", "y.module.a"]),
    ],
)
def test_canonical_names(names, targets, expected):
    assert canonical_names(names, targets) == dict(zip(names, expected, strict=True))


def test_two_names_for_one_target():
    with pytest.raises(UsageError, match=r"two names match 'a': 'module.a' and '_orig_mod.a'"):
        canonical_names(["module.a", "_orig_mod.a"], ["a"])
    with pytest.raises(UsageError, match=r"two names match 'a': 'a' and 'module.a'"):
        canonical_names(["a", "module.a"], ["a"])


def test_unmatched_names_of_both_sides_are_listed():
    check_matched(["a", "b"], ["b", "a"])
    check_matched([], [])
    with pytest.raises(UsageError, match=r"'c' in the source has no .*; 'd' in the destination"):
        check_matched(["a", "c"], ["a", "d"])
    with pytest.raises(
        UsageError, match=r"'n7' and 12 more in the source have no destination\. Ren"
    ):
        check_matched([f"n{i}" for i in range(20)], [])
    with pytest.raises(
        UsageError, match=r"match: 'a' in the destination received nothing\. Rename"
    ):
        check_matched([], ["a"])
    with pytest.raises(UsageError, match=r"match: 'a' in the source has no destination\. Rename"):
        check_matched(["a"], [])


def test_what_is_left_over_counts_only_where_all_is_to_be_moved():
    check_matched(["a", "b"], ["a"], partial=True)
    with pytest.raises(UsageError, match=r"match: 'c' in the destination received nothing"):
        check_matched(["a"], ["a", "c"], partial=True)
