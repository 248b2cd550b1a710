"""Damaged texts of trees that LightGBM would accept are refused."""

import lightgbm as lgb
import numpy as np
import pytest

from ansorlite.cost.tree_text import check_trees


@pytest.fixture(scope="module")
def text() -> str:
    x = np.random.default_rng(0).random((200, 4)).astype(np.float32)
    params = {"verbosity": -1, "num_leaves": 4, "min_data_in_leaf": 5, "num_threads": 1}
    trees = lgb.train(params, lgb.Dataset(x, x[:, 0] * 2 + x[:, 1]), 3)
    return str(trees.model_to_string())


def sized(text: str) -> str:
    """The text with the sizes that its trees have."""
    body = text[text.index("Tree=0") : text.index("end of trees")]
    sizes = [str(len(part) + len("Tree=")) for part in body.split("Tree=")[1:]]
    head, _, rest = text.partition("tree_sizes=")
    return f"{head}tree_sizes={' '.join(sizes)}{rest[rest.index(chr(10)) :]}"


def test_what_was_saved_is_read(text: str) -> None:
    check_trees(text)
    assert sized(text) == text
    flat = lgb.train({"verbosity": -1}, lgb.Dataset(np.zeros((20, 2)), np.arange(20.0)), 2)
    check_trees(flat.model_to_string())  # trees of one leaf


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("left_child", "-1 2 0", "no tree"),
        ("left_child", "-1 2 99", "no tree"),
        ("left_child", "0 0 0", "no tree"),
        ("left_child", "-1 2", "has 2 numbers, not 3"),
        ("right_child", "1 -3 999999999", "no tree"),
        ("split_feature", "0 0 4", "a feature beyond 4"),
        ("split_feature", "0 0 -1", "a feature beyond 4"),
        ("decision_type", "2 2 1", "unknown decision"),
        ("threshold", "0.3 nan 0.4", "not finite"),
        ("leaf_value", "1 2 3", "has 3 numbers, not 4"),
        ("leaf_value", "1 2 3 inf", "not finite"),
        ("num_leaves", "400000000", "has 400000000 leaves"),
        ("num_leaves", "0", "has 0 leaves"),
        ("num_leaves", "99", "numbers, not 99"),
        ("num_cat", "1", "categorical"),
        ("is_linear", "1", "linear"),
        ("internal_value", "1 2", "has 2 numbers, not 3"),
    ],
)
def test_a_tree_that_cannot_be_walked(text: str, name: str, values: str, what: str) -> None:
    at = text.index(f"\n{name}=") + 1
    odd = f"{text[:at]}{name}={values}{text[text.index(chr(10), at) :]}"
    with pytest.raises(ValueError, match=what):
        check_trees(sized(odd))


@pytest.mark.parametrize("name", ["max_feature_idx", "num_class", "feature_infos", "tree_sizes"])
def test_a_head_that_does_not_fit(text: str, name: str) -> None:
    at = text.index(f"\n{name}=") + 1
    for value in ("7", "", "-1", "99999999999"):
        odd = f"{text[:at]}{name}={value}{text[text.index(chr(10), at) :]}"
        with pytest.raises(ValueError):
            check_trees(odd)


def test_a_text_that_was_cut(text: str) -> None:
    for n in range(0, text.index("end of trees") + len("end of trees"), 7):
        with pytest.raises(ValueError):
            check_trees(text[:n])
