"""Validation of trees in LightGBM's text format; LightGBM itself does not validate its input.

In: the text of a saved booster, which is untrusted data. Out: nothing, or a ValueError that names
the tree and the line. Sizes and numbers of children and features are checked, because wrong values
would make LightGBM read outside its arrays or loop forever. Categorical and linear trees, which
this project never writes, are rejected.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

MAX_LEAVES = 1 << 16
MAX_FEATURES = 1 << 16
_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
_NODES = ("split_gain", "threshold", "internal_value", "internal_weight", "internal_count")
_COUNTS = ("split_feature", "decision_type", "left_child", "right_child")
_NEEDED = ("num_leaves", "num_cat", "split_feature", "threshold", "decision_type", "left_child")
_KNOWN = {*_LEAVES, *_NODES, *_COUNTS, "Tree", "num_leaves", "num_cat", "is_linear", "shrinkage"}


def check_trees(text: str) -> None:
    """Raise ValueError unless the text holds well-formed trees."""
    if not text.isascii() or "\0" in text or not text.startswith("tree\n"):
        raise ValueError("the text does not begin with trees")
    head, mark, _ = text.partition("\n\n")
    fields = _fields(head.partition("\n")[2], "the head")
    if not mark or (fields.get("num_class"), fields.get("num_tree_per_iteration")) != ("1", "1"):
        raise ValueError("the head of the trees has a number of classes other than 1")
    features = 1 + _integers(fields.get("max_feature_idx", ""), "max_feature_idx", 1)[0]
    if not 0 < features <= MAX_FEATURES:
        raise ValueError(f"trees of {features} features")
    for name in ("feature_names", "feature_infos"):
        if len(fields.get(name, "").split()) != features:
            raise ValueError(f"{name} does not have {features} entries")
    sizes = _integers(fields.get("tree_sizes", ""), "tree_sizes")
    body = text[len(head) + 1 :]
    starts = [m.start() for m in re.finditer(r"^Tree=", body, re.MULTILINE)]
    end = body.find("\nend of trees\n") + 1
    if end <= 0 or any(s >= end for s in starts) or len(starts) != len(sizes):
        raise ValueError(f"there are {len(starts)} trees and {len(sizes)} sizes, or no end of them")
    for k, ((start, stop), size) in enumerate(zip(pairwise([*starts, end]), sizes, strict=True)):
        if stop - start != size:
            raise ValueError(f"tree {k} has {stop - start} characters, not {size}")
        _check_tree(k, _fields(body[start:stop], f"tree {k}"), features)


def _check_tree(k: int, fields: dict[str, str], features: int) -> None:
    """ValueError unless the fields of tree k describe a binary tree over `features` features."""
    where = f"tree {k}"
    if fields.get("Tree") != str(k) or not set(fields) <= _KNOWN:
        raise ValueError(f"{where} has another number or unknown lines")
    if any(name not in fields for name in (*_NEEDED, "right_child", "leaf_value")):
        raise ValueError(f"{where} lacks a line")
    (leaves,) = _integers(fields["num_leaves"], where, 1)
    if not 1 <= leaves <= MAX_LEAVES:
        raise ValueError(f"{where} has {leaves} leaves")
    if fields["num_cat"] != "0" or fields.get("is_linear", "0") != "0":
        raise ValueError(f"{where} is categorical or linear")
    _numbers(fields.get("shrinkage", "1"), f"shrinkage of {where}", 1)
    for name in _LEAVES:
        if fields.get(name) or name == "leaf_value":
            _numbers(fields[name], f"{name} of {where}", leaves)
    nodes = leaves - 1
    for name in _NODES:
        if fields.get(name) or (name == "threshold" and nodes):
            _numbers(fields[name], f"{name} of {where}", nodes)
    split, decision, left, right = (
        _integers(fields[name], f"{name} of {where}", nodes) for name in _COUNTS
    )
    if any(not 0 <= f < features for f in split):
        raise ValueError(f"{where} uses a feature beyond {features}")
    if any(not 0 <= d < 16 or d % 2 for d in decision):
        raise ValueError(f"{where} has an unknown decision type")
    # Every node and leaf is the child of exactly one node and has a larger index than that node.
    pairs = zip(left, right, strict=True)
    children = [(child, node) for node, both in enumerate(pairs) for child in both]
    wanted = [*range(-leaves, 0), *range(1, nodes)] if nodes else []
    if sorted(c for c, _ in children) != wanted or any(0 <= c <= node for c, node in children):
        raise ValueError(f"{where} is no tree: its nodes are not children of one node each")


def _fields(text: str, where: str) -> dict[str, str]:
    """Fields by name of the lines `name=value`; ValueError for a duplicate."""
    lines = [line.partition("=") for line in text.splitlines() if line]
    fields = {name: value for name, _, value in lines}
    if len(fields) < len(lines):
        raise ValueError(f"a line occurs twice in {where}")
    return fields


def _integers(text: str, where: str, count: int | None = None) -> list[int]:
    """The integers of a line; ValueError for other text or another count."""
    words = text.split()
    if not all(re.fullmatch(r"-?[0-9]{1,9}", w) for w in words):
        raise ValueError(f"{where} does not consist of integers")
    return [int(w) for w in _counted(words, where, count)]


def _numbers(text: str, where: str, count: int) -> None:
    """ValueError unless the line has `count` finite numbers."""
    for word in _counted(text.split(), where, count):
        if not math.isfinite(float(word)):
            raise ValueError(f"{where} is not finite")


def _counted(words: Sequence[str], where: str, count: int | None) -> Sequence[str]:
    if count is not None and len(words) != count:
        raise ValueError(f"{where} has {len(words)} numbers, not {count}")
    return words
