"""Flattening and rebuilding nested containers of tensors, for transforms and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["broadcast", "flatten", "map_tree", "unflatten"]


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Returns the leaves in order, and the structure for `unflatten`."""
    if isinstance(tree, dict):
        parts = [flatten(each) for each in tree.values()]
        return [leaf for leaves, _ in parts for leaf in leaves], (
            type(tree), list(tree), [spec for _, spec in parts], [len(leaves) for leaves, _ in parts])
    if isinstance(tree, (list, tuple)):
        parts = [flatten(each) for each in tree]
        return [leaf for leaves, _ in parts for leaf in leaves], (
            type(tree), None, [spec for _, spec in parts], [len(leaves) for leaves, _ in parts])
    return [tree], None


def unflatten(leaves: Sequence[Any], spec: Any) -> Any:
    """Returns the tree of that structure with these leaves."""
    if spec is None:
        return leaves[0]
    kind, keys, specs, counts = spec
    children, at = [], 0
    for child, count in zip(specs, counts, strict=True):
        children.append(unflatten(leaves[at:at + count], child))
        at += count
    if keys is not None:
        return kind(zip(keys, children, strict=True))
    if hasattr(kind, "_fields"):
        return kind(*children)
    return kind(children)


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns the tree in which every leaf is replaced by the function's result for it."""
    leaves, spec = flatten(tree)
    return unflatten([function(leaf) for leaf in leaves], spec)


def broadcast(prefix: Any, tree: Any) -> list[Any] | None:
    """Returns one value of `prefix` for every leaf of `tree`, where a leaf of prefix may stand for a whole
    subtree; returns None if the structures do not fit."""
    if not isinstance(prefix, (dict, list, tuple)) or _is_named(prefix) and not _is_named(tree):
        return [prefix] * len(flatten(tree)[0])
    if isinstance(prefix, dict):
        if not isinstance(tree, dict) or prefix.keys() != tree.keys():
            return None
        pairs = [(prefix[key], tree[key]) for key in tree]
    else:
        if not isinstance(tree, (list, tuple)) or len(prefix) != len(tree):
            return None
        pairs = list(zip(prefix, tree, strict=True))
    out: list[Any] = []
    for part, branch in pairs:
        values = broadcast(part, branch)
        if values is None:
            return None
        out += values
    return out
