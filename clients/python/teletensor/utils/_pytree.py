"""Flattens nested containers to their leaves and rebuilds them, as `torch.utils._pytree` does.

Containers are tuples, named tuples, lists, dicts, OrderedDicts, defaultdicts, deques and the classes that
`register_pytree_node` adds; every other object, including None, is a leaf. Dicts keep their order.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "GetAttrKey", "LeafSpec", "MappingKey", "PyTree", "SequenceKey", "TreeSpec", "is_namedtuple",
    "is_namedtuple_class", "is_namedtuple_instance", "key_get", "keystr", "register_pytree_node",
    "tree_all", "tree_all_only", "tree_any", "tree_any_only", "tree_flatten",
    "tree_flatten_with_path", "tree_is_leaf", "tree_iter", "tree_leaves", "tree_leaves_with_path",
    "tree_map", "tree_map_", "tree_map_only", "tree_map_only_", "tree_map_with_path",
    "tree_structure", "tree_unflatten",
]  # fmt: skip

PyTree = Any
_IsLeaf = Callable[[Any], bool] | None


class _Node(NamedTuple):
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    unflatten: Callable[[Iterable[Any], Any], Any]
    keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]] | None


@dataclass(frozen=True)
class SequenceKey:
    """An index of a tuple, list or deque."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        """The element at this index."""
        return sequence[self.idx]


@dataclass(frozen=True)
class MappingKey:
    """A key of a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        """The value of this key."""
        return mapping[self.key]


@dataclass(frozen=True)
class GetAttrKey:
    """A field of a named tuple, or an attribute."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: Any) -> Any:
        """The value of this attribute."""
        return getattr(obj, self.name)


class TreeSpec:
    """The structure of a tree without its leaves. Two structures are equal if their types, contexts and
    children are."""

    def __init__(self, type: Any, context: Any = None, children_specs: Iterable[TreeSpec] = ()) -> None:
        self.type, self.context, self._children = type, context, list(children_specs)
        self.num_leaves: int = 1 if type is None else sum(child.num_leaves for child in self._children)
        self.num_nodes: int = 1 + sum(child.num_nodes for child in self._children)
        self.num_children = len(self._children)

    def is_leaf(self) -> bool:
        """Returns whether the structure is a leaf."""
        return self.type is None

    def children(self) -> list[TreeSpec]:
        """The structures of the children."""
        return list(self._children)

    def child(self, index: int) -> TreeSpec:
        """The structure of one child."""
        return self._children[index]

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """As tree_unflatten(leaves, self)."""
        return tree_unflatten(leaves, self)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The subtrees of a tree at the positions of this structure's leaves. ValueError if the tree has
        another structure above them."""
        if self.is_leaf():
            return [tree]
        if _kind(tree) is not self.type:
            raise ValueError(f"Type mismatch; expected {self.type!r}, but got {type(tree)!r}.")
        branches, context = _NODES[self.type].flatten(tree)
        branches = list(branches)
        if self.type in _DICTS:
            context, branches = self._in_order(tree, context)
        if len(branches) != self.num_children or context != self.context:
            raise ValueError(
                f"Node context mismatch for node type {self.type!r}: expected {self.context!r} with "
                f"{self.num_children} children, but got {context!r} with {len(branches)}."
            )
        return [
            leaf
            for child, branch in zip(self._children, branches, strict=True)
            for leaf in child.flatten_up_to(branch)
        ]

    def _in_order(self, tree: Any, context: Any) -> tuple[Any, list[Any]]:
        """A dict's values in the order of this structure's keys, if it has the same keys."""
        keys = self.context[1] if self.type is defaultdict else self.context
        if set(keys) != set(tree):
            return context, list(tree.values())
        return self.context, [tree[key] for key in keys]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeSpec) and (self.type, self.context, self._children) == (
            other.type,
            other.context,
            other._children,
        )

    def __hash__(self) -> int:
        return hash((self.type, self.num_leaves, tuple(self._children)))

    def __repr__(self) -> str:
        if self.is_leaf():
            return "*"
        return f"TreeSpec({self.type.__name__}, {self.context}, {self._children})"


def LeafSpec() -> TreeSpec:
    """The structure of a leaf."""
    return TreeSpec(None)


def is_namedtuple_class(cls: type) -> bool:
    """Returns whether the class is one of named tuples."""
    fields = getattr(cls, "_fields", None) if isinstance(cls, type) and issubclass(cls, tuple) else None
    return isinstance(fields, tuple) and all(isinstance(field, str) for field in fields)


def is_namedtuple_instance(obj: Any) -> bool:
    """Returns whether the object is a named tuple."""
    return is_namedtuple_class(type(obj))


def is_namedtuple(obj: Any) -> bool:
    """Returns whether the object is a named tuple or a class of named tuples."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


_NAMED = tuple[Any, ...]  # the type of all named tuples; the context is their class
_DICTS = (dict, OrderedDict, defaultdict)
_NODES: dict[Any, _Node] = {
    tuple: _Node(lambda t: (t, None), lambda leaves, _: tuple(leaves), None),
    list: _Node(lambda t: (t, None), lambda leaves, _: list(leaves), None),
    dict: _Node(
        lambda t: (t.values(), list(t)), lambda leaves, keys: dict(zip(keys, leaves, strict=True)), None
    ),
    OrderedDict: _Node(
        lambda t: (t.values(), list(t)),
        lambda leaves, keys: OrderedDict(zip(keys, leaves, strict=True)),
        None,
    ),
    defaultdict: _Node(
        lambda t: (t.values(), [t.default_factory, list(t)]),
        lambda leaves, context: defaultdict(context[0], zip(context[1], leaves, strict=True)),
        None,
    ),
    deque: _Node(lambda t: (t, t.maxlen), lambda leaves, most: deque(leaves, maxlen=most), None),
    _NAMED: _Node(lambda t: (t, type(t)), lambda leaves, kind: kind(*leaves), None),
}


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_fn: Callable[[Iterable[Any], Any], Any],
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: Any = None,
    from_dumpable_context: Any = None,
    flatten_with_keys_fn: Callable[[Any], tuple[Any, Any]] | None = None,
) -> None:
    """Makes instances of exactly this class containers: flatten_fn(x) returns their children and a context,
    and unflatten_fn(children, context) creates an instance. ValueError for a class that is already
    registered.

    The parameters for the serialization of structures, which is not supported, have no effect."""
    if cls in _NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    _NODES[cls] = _Node(flatten_fn, unflatten_fn, flatten_with_keys_fn)


def _register_pytree_node(
    cls: type,
    flatten_fn: Any,
    unflatten_fn: Any,
    to_str_fn: Any = None,
    maybe_from_str_fn: Any = None,
    **options: Any,
) -> None:
    """The older name of register_pytree_node."""
    register_pytree_node(cls, flatten_fn, unflatten_fn, **options)


def _kind(tree: Any) -> Any:
    kind = type(tree)
    return kind if kind in _NODES else _NAMED if is_namedtuple_class(kind) else None


def tree_is_leaf(tree: Any, is_leaf: _IsLeaf = None) -> bool:
    """Returns whether the tree is not a container, or is a leaf according to is_leaf(tree)."""
    return (is_leaf is not None and is_leaf(tree)) or _kind(tree) is None


def _flatten(tree: Any, leaves: list[Any], is_leaf: _IsLeaf) -> TreeSpec:
    if tree_is_leaf(tree, is_leaf):
        leaves.append(tree)
        return LeafSpec()
    kind = _kind(tree)
    branches, context = _NODES[kind].flatten(tree)
    return TreeSpec(kind, context, [_flatten(branch, leaves, is_leaf) for branch in branches])


def tree_flatten(tree: Any, is_leaf: _IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """The leaves, and the structure for tree_unflatten. An object for which is_leaf(x) is true is a leaf.

    >>> leaves, spec = tt.utils._pytree.tree_flatten({"a": [1, 2], "b": (3,)})
    >>> leaves, tt.utils._pytree.tree_unflatten([4, 5, 6], spec)
    ([1, 2, 3], {'a': [4, 5], 'b': (6,)})
    """
    leaves: list[Any] = []
    spec = _flatten(tree, leaves, is_leaf)
    return leaves, spec


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The tree with that structure and these leaves. ValueError if there are too few or too many leaves."""
    if not isinstance(treespec, TreeSpec):
        raise TypeError(
            f"tree_unflatten(leaves, treespec): Expected `treespec` to be instance of TreeSpec but got "
            f"item of type {type(treespec)}."
        )
    leaves = list(leaves)
    if len(leaves) != treespec.num_leaves:
        raise ValueError(
            f"tree_unflatten(leaves, treespec): `leaves` has length {len(leaves)} but the spec refers to "
            f"a pytree that holds {treespec.num_leaves} items ({treespec})."
        )
    return _unflatten(iter(leaves), treespec)


def _unflatten(leaves: Iterator[Any], spec: TreeSpec) -> Any:
    if spec.is_leaf():
        return next(leaves)
    branches = [_unflatten(leaves, child) for child in spec.children()]
    return _NODES[spec.type].unflatten(branches, spec.context)


def tree_leaves(tree: Any, is_leaf: _IsLeaf = None) -> list[Any]:
    """The leaves of a tree."""
    return tree_flatten(tree, is_leaf)[0]


def tree_iter(tree: Any, is_leaf: _IsLeaf = None) -> Iterator[Any]:
    """Iterates over the leaves of a tree."""
    return iter(tree_leaves(tree, is_leaf))


def tree_structure(tree: Any, is_leaf: _IsLeaf = None) -> TreeSpec:
    """The structure of a tree."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: _IsLeaf = None) -> Any:
    """The tree of func(leaf, *subtrees), with the subtrees of the further trees at the same position."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return spec.unflatten(map(func, leaves, *(spec.flatten_up_to(rest) for rest in rests)))


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: _IsLeaf = None) -> Any:
    """Calls func as tree_map does; returns the tree itself."""
    leaves, spec = tree_flatten(tree, is_leaf)
    for each in zip(leaves, *(spec.flatten_up_to(rest) for rest in rests), strict=True):
        func(*each)
    return tree


def _only(kinds: Any, func: Callable[[Any], Any]) -> Callable[[Any], Any]:
    wanted = kinds if not isinstance(kinds, type) and callable(kinds) else lambda x: isinstance(x, kinds)
    return lambda x: func(x) if wanted(x) else x


def tree_map_only(
    type_or_types_or_pred: Any, func: Any = None, tree: Any = None, *, is_leaf: _IsLeaf = None
) -> Any:
    """As tree_map, for leaves of these types (or for which the function given first is true)."""
    return tree_map(_only(type_or_types_or_pred, func), tree, is_leaf=is_leaf)


def tree_map_only_(type_or_types_or_pred: Any, func: Any, tree: Any, is_leaf: _IsLeaf = None) -> Any:
    """As tree_map_, for leaves of these types."""
    return tree_map_(_only(type_or_types_or_pred, func), tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: Any, is_leaf: _IsLeaf = None) -> bool:
    """Returns whether pred is true of all leaves."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: Any, is_leaf: _IsLeaf = None) -> bool:
    """Returns whether pred is true of any leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all_only(
    type_or_types: Any, pred: Callable[[Any], bool], tree: Any, is_leaf: _IsLeaf = None
) -> bool:
    """Returns whether pred is true of all leaves of these types."""
    return all(pred(x) for x in tree_leaves(tree, is_leaf) if isinstance(x, type_or_types))


def tree_any_only(
    type_or_types: Any, pred: Callable[[Any], bool], tree: Any, is_leaf: _IsLeaf = None
) -> bool:
    """Returns whether pred is true of any leaf of these types."""
    return any(pred(x) for x in tree_leaves(tree, is_leaf) if isinstance(x, type_or_types))


# ---------------------------------------------------------------- with the paths of the leaves


def _with_keys(kind: Any, tree: Any) -> Iterable[tuple[Any, Any]]:
    if kind in _DICTS:
        return [(MappingKey(key), branch) for key, branch in tree.items()]
    if kind is _NAMED:
        return [(GetAttrKey(name), getattr(tree, name)) for name in tree._fields]
    if kind in (tuple, list, deque):
        return [(SequenceKey(i), branch) for i, branch in enumerate(tree)]
    keys = _NODES[kind].keys
    if keys is None:
        raise ValueError(
            f"Did not find a flatten_with_keys_fn for type: {kind}. Please pass a flatten_with_keys_fn "
            "argument to register_pytree_node."
        )
    return keys(tree)[0]


def _paths(tree: Any, path: tuple[Any, ...], is_leaf: _IsLeaf) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if tree_is_leaf(tree, is_leaf):
        yield path, tree
        return
    for key, branch in _with_keys(_kind(tree), tree):
        yield from _paths(branch, (*path, key), is_leaf)


def tree_leaves_with_path(tree: Any, is_leaf: _IsLeaf = None) -> list[tuple[tuple[Any, ...], Any]]:
    """The leaves, each with its path: the keys that lead to it."""
    return list(_paths(tree, (), is_leaf))


def tree_flatten_with_path(
    tree: Any, is_leaf: _IsLeaf = None
) -> tuple[list[tuple[tuple[Any, ...], Any]], TreeSpec]:
    """The result of tree_leaves_with_path, and the structure."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: _IsLeaf = None) -> Any:
    """The tree of func(path, leaf, *subtrees)."""
    found, spec = tree_flatten_with_path(tree, is_leaf)
    return spec.unflatten(
        func(path, leaf, *branches)
        for (path, leaf), *branches in zip(found, *map(spec.flatten_up_to, rests), strict=True)
    )


def keystr(kp: Iterable[Any]) -> str:
    """A path as text: "['a'][0].x"."""
    return "".join(map(str, kp))


def key_get(obj: Any, kp: Iterable[Any]) -> Any:
    """The object at the end of a path."""
    for key in kp:
        obj = key.get(obj)
    return obj
