"""The modes jvp and vmap of the op tester: tangents against gradients, and batches against one sample at a
time."""

import numpy as np
from arrays import FLOATS, In, Ins

# The ops that vmap refuses, with the reasons; the results of all other ops must equal one call per sample.
REFUSED = {
    **dict.fromkeys(("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"),
                    "its shape depends on the data"),
    **dict.fromkeys(("as_strided_scatter",), "a sample has no memory of its own"),
}
BATCH = 3


def leaves_of(args):
    """The tensor arguments, with lists flattened, and a function that replaces them."""
    leaves, places = [], []
    for i, a in enumerate(args):
        if isinstance(a, list):
            for j, each in enumerate(a):
                leaves.append(each)
                places.append((i, j))
        elif hasattr(a, "numpy"):
            leaves.append(a)
            places.append((i, None))

    def rebuilt(new):
        out = [list(a) if isinstance(a, list) else a for a in args]
        for (i, j), t in zip(places, new):
            if j is None:
                out[i] = t
            else:
                out[i][j] = t
        return out
    return leaves, rebuilt


def tangent_of(lib, array):
    return lib.plain(array, "c128" if array.dtype.kind == "c" else "f64")


def check_jvp(lib, case, tools):
    """Compares forward with reverse mode: <weights, tangent of the results> = <gradients, direction>."""
    weights, directions = [], tools.directions(case)
    args, wanted = case.tensors(lib, requires_grad=True)
    out = tools.loss(lib, case, args, weights)
    if out is None or not out.requires_grad:
        return "the result does not require grad"
    grads = lib.m.autograd.grad(out, wanted, allow_unused=True)
    direction = [np.zeros(0) if g is None else d for g, d in zip(grads, directions)]
    grads = [np.zeros(0) if g is None else lib.numpy(g) for g in grads]
    reverse = tools.dot(grads, direction)
    args, wanted = case.tensors(lib, requires_grad=True)
    leaves, rebuilt = leaves_of(args)
    at = iter(directions)
    chosen = [any(x is w for w in wanted) for x in leaves]
    tangents = tuple(tangent_of(lib, np.asarray(next(at))) for c in chosen if c)
    level = lib.m.autograd.forward_ad
    with level.dual_level():
        pairs = iter(tangents)
        duals = [level.make_dual(x.detach(), next(pairs)) if c else x for x, c in zip(leaves, chosen)]
        total = tools.loss(lib, case, rebuilt(duals), weights)
        tangent = level.unpack_dual(total).tangent
    forward = 0.0 if tangent is None else float(tangent.item())
    scale = sum(np.abs(g * d).sum() for g, d in zip(grads, direction))
    if not tools.close(forward, reverse, scale, 1e-9):
        return f"tangent {forward!r}, gradients along the direction {reverse!r}"
    return None


def samples_of(case):
    """The same sample BATCH times with other numbers; the first one keeps its values."""
    sets = [case.arrays]
    for _ in range(BATCH - 1):
        sets.append([a.make(case.rng, case.dtype) if isinstance(a, (In, Ins)) else a
                     for a in case.sample.args])
    return sets


def check_vmap(lib, case, tools):
    sets = samples_of(case)
    each = [case.tensors(lib, arrays)[0] for arrays in sets]
    flat = [leaves_of(args)[0] for args in each]
    if not flat[0] or any(a.shape != b.shape for row in flat[1:] for a, b in zip(row, flat[0])):
        return None
    _, rebuilt = leaves_of(each[0])
    for dims in ((0,) * len(flat[0]), (0,) + (None,) * (len(flat[0]) - 1)):
        rows = [[x if d == 0 else first for x, first, d in zip(row, flat[0], dims)] for row in flat]
        want = []
        for row in rows:
            want.append([lib.numpy(r) for r in case.call(lib, rebuilt(row)) if hasattr(r, "numpy")])
        stacked = [lib.m.stack(list(column)) if d == 0 else column[0]
                   for column, d in zip(zip(*rows), dims)]

        def call(*leaves):
            return tuple(r for r in case.call(lib, rebuilt(leaves)) if hasattr(r, "numpy"))
        got = lib.m.vmap(call, in_dims=dims)(*stacked)
        for i, r in enumerate(got):
            expected = np.stack([w[i] for w in want])
            name = lib.name(r)
            found = lib.numpy(r)
            if name in FLOATS:
                expected = expected.astype(np.float64)
            bad = tools.difference(found, expected, name, max(case.row.tolerance, 4.0))
            if bad:
                return f"in_dims {dims}, result {i}: {bad}"
        if len(dims) == 1:
            break
    return None
