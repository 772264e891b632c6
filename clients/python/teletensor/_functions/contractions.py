"""einsum and tensordot: sums of products over named dimensions, by permute, reshape and matmul."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from .. import _core
from .._core import Tensor, ops
from .common import function_only

__all__ = ["einsum", "tensordot"]

Label = str | int  # a letter, or the number of a dimension that the ellipsis stands for
Term = tuple[Tensor, list[Label]]
LETTERS = string.ascii_uppercase + string.ascii_lowercase


def einsum(*args: Any) -> Tensor:
    """The sum of products that an equation such as "bij,bjk->bik" describes.

    "..." stands for the remaining dimensions, which broadcast; an index that is repeated within one operand
    takes the diagonal. Instead of an equation, each operand may be followed by a list of numbers: einsum(a,
    [0, 1], [1, 0]).
    """
    inputs, output, operands = _parsed(args)
    terms, spread = [], 0
    for i, (subscripts, x) in enumerate(zip(inputs, operands, strict=True)):
        named = sum(s != "..." for s in subscripts)
        if "..." not in subscripts and named != x.dim():
            raise RuntimeError(f"einsum(): the number of subscripts in the equation ({named}) does not "
                               f"match the number of dimensions ({x.dim()}) for operand {i} and no "
                               "ellipsis was given")
        if named > x.dim():
            raise RuntimeError(f"einsum(): the number of subscripts in the equation ({named}) is more "
                               f"than the number of dimensions ({x.dim()}) for operand {i}")
        spread = max(spread, x.dim() - named)
    for subscripts, x in zip(inputs, operands, strict=True):
        under = x.dim() - sum(s != "..." for s in subscripts)
        labels: list[Label] = []
        for s in subscripts:
            labels += list(range(spread - under, spread)) if s == "..." else [s]
        terms.append(_diagonals(x, labels))
    # implicit output: the ellipsis, then the labels that occur once, in alphabetical order
    if output is None:
        flat = [s for subscripts in inputs for s in subscripts if s != "..."]
        output = ["...", *sorted((s for s in set(flat) if flat.count(s) == 1), key=LETTERS.index)]
    wanted: list[Label] = []
    for s in output:
        wanted += list(range(spread)) if s == "..." else [s]
    known = {label for _, labels in terms for label in labels}
    for label in wanted:
        if wanted.count(label) > 1:
            raise RuntimeError(f"einsum(): output subscript {label} appears more than once in the output")
        if label not in known and not isinstance(label, int):
            raise RuntimeError(f"einsum(): output subscript {label} does not appear in the equation for "
                               "any input operand")
    return _contracted(terms, [label for label in wanted if label in known], _sizes(terms))


def _parsed(args: tuple[Any, ...]) -> tuple[list[list[str]], list[str] | None, list[Tensor]]:
    """Returns the subscripts of the inputs, the subscripts of the output (None if implicit), and the
    operands."""
    if len(args) < 2:
        raise ValueError("einsum(): must specify the equation string and at least one operand, or at "
                         "least one operand and its subscripts list")
    if not isinstance(args[0], str):
        operands = list(args[:len(args) - len(args) % 2:2])
        lists = [_letters(a) for a in args[1::2]]
        return lists, _letters(args[-1]) if len(args) % 2 else None, operands
    operands = list(args[1:])
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    left, arrow, right = args[0].replace(" ", "").partition("->")
    inputs = [_split(part) for part in left.split(",")]
    if len(inputs) != len(operands):
        which = "fewer" if len(operands) < len(inputs) else "more"
        raise RuntimeError(f"einsum(): {which} operands were provided than specified in the equation")
    return inputs, _split(right) if arrow else None, operands


def _letters(numbers: Sequence[Any]) -> list[str]:
    out = []
    for n in numbers:
        if n is not Ellipsis and not 0 <= int(n) < len(LETTERS):
            raise ValueError(f"einsum(): expected subscripts in the range [0, 52), found {n}")
        out.append("..." if n is Ellipsis else LETTERS[int(n)])
    return out


def _split(text: str) -> list[str]:
    parts = text.split("...")
    if len(parts) > 2:
        raise RuntimeError("einsum(): found '.' for an operand for which an ellipsis was already found")
    for c in "".join(parts):
        if c not in LETTERS:
            raise RuntimeError(f"einsum(): invalid subscript given: {c!r}; subscripts must be in [a-zA-Z]")
    return [*parts[0], *(["...", *parts[1]] if len(parts) == 2 else [])]


def _diagonals(x: Tensor, labels: list[Label]) -> Term:
    """Returns x with each label once: for a repeated label, the diagonal."""
    labels = list(labels)
    for label in list(labels):
        while labels.count(label) > 1:
            a = labels.index(label)
            b = labels.index(label, a + 1)
            if x._shape[a] != x._shape[b]:
                raise RuntimeError(f"einsum(): subscript {label} is repeated for one operand but the "
                                   f"sizes don't match, {x._shape[b]} != {x._shape[a]}")
            x = ops["diagonal"](x, 0, a, b)
            del labels[b], labels[a]
            labels.append(label)
    return x, labels


def _sizes(terms: list[Term]) -> dict[Label, int]:
    """Returns the size of each label; dimensions of size 1 broadcast."""
    sizes: dict[Label, int] = {}
    for i, (x, labels) in enumerate(terms):
        for size, label in zip(x._shape, labels, strict=True):
            known = sizes.get(label, 1)
            if known != size and 1 not in (known, size):
                raise RuntimeError(f"einsum(): subscript {label} has size {size} for operand {i} which "
                                   f"does not broadcast with previously seen size {known}")
            sizes[label] = size if known == 1 else known
    return sizes


def _contracted(terms: list[Term], wanted: list[Label], sizes: dict[Label, int]) -> Tensor:
    """Multiplies pair after pair of the terms, the pair with the smallest result first."""
    if len(terms) == 1:  # a sum alone; integers are summed in int64, as in sum()
        x, labels = terms[0]
        gone = [d for d, label in enumerate(labels) if label not in wanted]
        x = ops["sum"](x, gone) if gone else x
        labels = [label for label in labels if label in wanted]
        return ops["permute"](x, [labels.index(label) for label in wanted])
    while len(terms) > 1:
        best: tuple[int, int, int] | None = None
        for i in range(len(terms)):
            for j in range(i + 1, len(terms)):
                if best is not None and len(terms) > 16 and j > i + 1:
                    break  # for long products, only adjacent terms are compared
                out = _kept(terms, i, j, wanted)
                cost = _volume(out, sizes)
                if best is None or cost < best[0]:
                    best = (cost, i, j)
        assert best is not None
        _, i, j = best
        out = _kept(terms, i, j, wanted)
        pair = _pair(terms[i], terms[j], out, sizes)
        terms = [*(t for k, t in enumerate(terms) if k not in (i, j)), pair]
    x, labels = _summed(*terms[0], wanted)
    x = ops["permute"](x, [labels.index(label) for label in wanted])
    return x


def _kept(terms: list[Term], i: int, j: int, wanted: list[Label]) -> list[Label]:
    """The labels that the product of two terms must keep: those that are wanted or are in another term."""
    others = {label for k, (_, labels) in enumerate(terms) if k not in (i, j) for label in labels}
    both = dict.fromkeys([*terms[i][1], *terms[j][1]])
    return [label for label in both if label in others or label in wanted]


def _volume(labels: list[Label], sizes: dict[Label, int]) -> int:
    out = 1
    for label in labels:
        out *= sizes[label]
    return out


def _summed(x: Tensor, labels: list[Label], kept: Sequence[Label]) -> Term:
    """Sums x over the labels that are not in `kept`; integers in int64, as in sum()."""
    gone = [d for d, label in enumerate(labels) if label not in kept]
    if not gone:
        return x, labels
    return ops["sum"](x, gone), [label for label in labels if label in kept]


def _not_broadcast(x: Tensor, labels: list[Label], sizes: dict[Label, int]) -> list[Label]:
    return [label for size, label in zip(x._shape, labels, strict=True) if size == sizes[label]]


def _pair(a: Term, b: Term, out: list[Label], sizes: dict[Label, int]) -> Term:
    """The product of two terms, summed over the labels that both have and `out` does not have."""
    x, x_labels = _summed(*a, [*out, *_not_broadcast(*b, sizes)])
    y, y_labels = _summed(*b, [*out, *x_labels])
    if a[0].dtype == b[0].dtype:  # a sum of one of them made it int64
        x, y = x.to(_core.promote(x.dtype, y.dtype)), y.to(_core.promote(x.dtype, y.dtype))
    both = [label for label in x_labels if label in y_labels]
    batch = [label for label in both if label in out]
    inner = [label for label in both if label not in out]
    left = [label for label in x_labels if label not in y_labels]
    right = [label for label in y_labels if label not in x_labels]
    if not inner:  # an elementwise product without a sum
        order = [*batch, *left, *right]
        return _aligned(x, x_labels, order) * _aligned(y, y_labels, order), order
    shape = {label: sizes[label] for label in both}
    m = _matrices(x, x_labels, batch, left, inner, shape)
    n = _matrices(y, y_labels, batch, inner, right, shape)
    product = ops["matmul"](m, n)
    full = [shape[label] for label in batch]
    full += [_size(x, x_labels, label) for label in left]
    full += [_size(y, y_labels, label) for label in right]
    return ops["reshape"](product, full), [*batch, *left, *right]


def _size(x: Tensor, labels: list[Label], label: Label) -> int:
    return x._shape[labels.index(label)] if label in labels else 1


def _aligned(x: Tensor, labels: list[Label], order: list[Label]) -> Tensor:
    """x with the dimensions in `order`; dimensions that x does not have get size 1."""
    own = [label for label in order if label in labels]
    x = ops["permute"](x, [labels.index(label) for label in own])
    return ops["reshape"](x, [_size(x, own, label) for label in order])


def _matrices(x: Tensor, labels: list[Label], batch: list[Label], rows: list[Label],
              columns: list[Label], shape: dict[Label, int]) -> Tensor:
    """x as [batch, rows, columns], each of which is flattened."""
    order = [*batch, *rows, *columns]
    x = ops["permute"](x, [labels.index(label) for label in order])
    wide = [shape.get(label, size) for label, size in zip(order, x._shape, strict=True)]
    x = ops["expand"](x, wide) if list(x._shape) != wide else x
    b, r = len(batch), len(batch) + len(rows)
    return ops["reshape"](x, [_product(wide[:b]), _product(wide[b:r]), _product(wide[r:])])


def _product(sizes: Sequence[int]) -> int:
    out = 1
    for n in sizes:
        out *= n
    return out


@function_only
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """The sum of products over dimensions: `dims` is a number (the last dims of a with the first of b), or
    a list of dimensions for each operand."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a.dim(), b.dim()):
            raise RuntimeError(f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}")
        of_a, of_b = list(range(a.dim() - dims, a.dim())), list(range(dims))
    else:
        of_a, of_b = ([d] if isinstance(d, int) else list(d) for d in dims)
    if len(of_a) != len(of_b):
        raise RuntimeError("both dimension lists should have same length")
    of_a, of_b = [d % max(a.dim(), 1) for d in of_a], [d % max(b.dim(), 1) for d in of_b]
    for i, j in zip(of_a, of_b, strict=True):
        if a._shape[i] != b._shape[j]:
            if a._shape[i] == 1:
                b = ops["sum"](b, [j], True, b.dtype)
            elif b._shape[j] == 1:
                a = ops["sum"](a, [i], True, a.dtype)
            else:
                raise RuntimeError(f"contracted dimensions need to match, but first has size "
                                   f"{a._shape[i]} in dim {i} and second has size {b._shape[j]} in "
                                   f"dim {j}")
    left = [d for d in range(a.dim()) if d not in of_a]
    right = [d for d in range(b.dim()) if d not in of_b]
    inner = _product([a._shape[d] for d in of_a])
    x = ops["reshape"](ops["permute"](a, [*left, *of_a]), [_product([a._shape[d] for d in left]), inner])
    y = ops["reshape"](ops["permute"](b, [*of_b, *right]), [inner, _product([b._shape[d] for d in right])])
    shape = [*(a._shape[d] for d in left), *(b._shape[d] for d in right)]
    return ops["reshape"](ops["matmul"](x, y), shape)
