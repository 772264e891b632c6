"""The op tester: one function per mode that tests the rows of the table.

    python tests/ops/tester.py [--library teletensor|torch] [--mode MODE] [OP...]

Modes: value (against NumPy in float64), inplace, gradient (against finite differences in float64), second
(derivatives of gradients), jvp (tangents against gradients), vmap (a batch against its samples).
tests/peers adds `torch` (values, dtypes, strides and gradients). Each mode returns the number of cases and
a list of failures as text.
"""

import argparse
import importlib
import sys
import zlib

import numpy as np
import transforms
from arrays import COMPLEX, FLOATS, Dt, In, Ins, Library, exact, quantise
from table import TOLERANCE

LARGEST_GRADIENT = 700  # elements; larger cases test values only
INEXACT = (*FLOATS, *COMPLEX)
MODES = ("value", "inplace", "gradient", "second", "jvp", "vmap")


class Case:
    """One sample of a row in one dtype: as arrays, and as tensors of a library."""

    def __init__(self, row, index, dtype):
        self.row, self.sample, self.dtype, self.index = row, row.samples[index], dtype, index
        self.rng = np.random.default_rng(zlib.crc32(f"{row.op} {index} {dtype}".encode()))
        self.arrays = [a.make(self.rng, dtype) if isinstance(a, (In, Ins)) else a
                       for a in self.sample.args]

    def __str__(self):
        shapes = [f"{a.shape}{'' if a.layout == 'plain' else ' ' + a.layout}" if isinstance(a, In) else
                  str([i.shape for i in a.items]) if isinstance(a, Ins) else str(a)
                  for a in self.sample.args]
        return f"{self.row.op}[{self.index}] {self.dtype} {' '.join(shapes)} {self.sample.kwargs or ''}"

    def specs(self):
        """(spec, array) of every tensor; lists are flattened."""
        for spec, array in zip(self.sample.args, self.arrays):
            if isinstance(spec, In):
                yield spec, array
            elif isinstance(spec, Ins):
                yield from zip(spec.items, array)

    def tensors(self, lib, arrays=None, requires_grad=False):
        """(arguments of the call, the floating-point tensors among them that may have gradients)."""
        wanted, leaves = [], []

        def one(spec, array):
            t = lib.tensor(spec, array, self.dtype)
            if requires_grad and spec.grad and (spec.dtype or self.dtype) in INEXACT:
                t = t.detach().requires_grad_()
                leaves.append(t)
            return t
        for spec, array in zip(self.sample.args, arrays or self.arrays):
            if isinstance(spec, In):
                wanted.append(one(spec, array))
            elif isinstance(spec, Ins):
                wanted.append([one(i, a) for i, a in zip(spec.items, array)])
            else:
                wanted.append(lib.dtype(spec.name) if isinstance(spec, Dt) else spec)
        return wanted, leaves

    def kwargs(self, lib):
        return {k: lib.dtype(v.name) if isinstance(v, Dt) else v for k, v in self.sample.kwargs.items()}

    def call(self, lib, args):
        return as_list(self.row.call(lib.m, *args, **self.kwargs(lib)))

    def expected(self):
        """The oracle's results in float64 (other dtypes in their own)."""
        args = [[exact(i) for i in a] if isinstance(a, list) else
                exact(a) if isinstance(a, np.ndarray) else a for a in self.arrays]
        with np.errstate(all="ignore"):
            return [np.asarray(r) for r in as_list(self.row.reference(*args, **self.sample.kwargs))]

    def result_dtypes(self, count):
        wanted = self.row.result
        if callable(wanted):
            wanted = wanted(self.dtype, self.sample)
        elif not isinstance(wanted, tuple):
            wanted = {"same": self.dtype,
                      "float": self.dtype if self.dtype in INEXACT else "f32",
                      "real": {"c64": "f32", "c128": "f64"}.get(self.dtype, self.dtype)}.get(wanted, wanted)
        return list(wanted) if isinstance(wanted, tuple) else [wanted] * count


def as_list(x):
    return list(x) if isinstance(x, (tuple, list)) else [x]


def cases(row, dtypes=None):
    for index, sample in enumerate(row.samples):
        for dtype in row.dtypes:
            if (sample.dtypes is None or dtype in sample.dtypes) and (dtypes is None or dtype in dtypes):
                yield Case(row, index, dtype)


def difference(got, want, dtype, factor, bits=False):
    """Returns how the arrays differ, or None. `want` is in float64 or has the dtype of `got`."""
    if got.shape != want.shape:
        return f"shape {got.shape}, wanted {want.shape}"
    if dtype not in INEXACT or bits:
        same = np.array_equal(got, quantise(want, dtype), equal_nan=dtype in INEXACT)
        return None if same else show(got, want, got != quantise(want, dtype))
    rtol, atol = (t * factor for t in TOLERANCE[dtype])
    with np.errstate(all="ignore"):
        wide = np.complex128 if dtype in COMPLEX else np.float64
        close = np.isclose(got.astype(wide), want, rtol, atol, equal_nan=True)
        rounded = quantise(want, dtype)  # accounts for overflow to infinity and for subnormals
        close |= got == rounded
    return None if close.all() else show(got, want, ~close)


def show(got, want, where):
    at = tuple(int(i[0]) for i in np.nonzero(where)) if got.ndim else ()
    if got.ndim and not np.any(where):
        return "NaN differs"
    return f"{np.count_nonzero(where)} of {got.size} differ, at {at}: {got[at]!r}, wanted {want[at]!r}"


# ---------------------------------------------------------------- modes

def check_value(lib, case):
    args, _ = case.tensors(lib)
    results = case.call(lib, args)
    if case.row.check:
        return case.row.check(lib, case, results)
    wanted = case.expected()
    if len(results) != len(wanted):
        return f"{len(results)} results, wanted {len(wanted)}"
    for i, (result, want, dtype) in enumerate(zip(results, wanted, case.result_dtypes(len(results)))):
        if not hasattr(result, "dtype"):
            return f"result {i} is {type(result).__name__}"
        if lib.name(result) != dtype:
            return f"result {i}: dtype {lib.name(result)}, wanted {dtype}"
        if tuple(result.shape) != want.shape:
            return f"result {i}: shape {tuple(result.shape)}, wanted {want.shape}"
        bad = difference(lib.numpy(result), want, dtype, case.row.tolerance, case.row.exact)
        if bad:
            return f"result {i}: {bad}"
    return None


def fits_inplace(case):
    spec = case.sample.args[0]
    return case.row.inplace and isinstance(spec, In) and spec.layout != "expanded"


def check_inplace(lib, case):
    want = case.expected()[0]
    if want.shape != case.arrays[0].shape:
        return None
    args, _ = case.tensors(lib)
    dtype, result = lib.name(args[0]), case.result_dtypes(1)[0]
    before = args[0]
    try:
        after = getattr(before, case.row.inplace)(*args[1:], **case.kwargs(lib))
    except RuntimeError as error:
        if rank(result) <= rank(dtype) or "can't be cast" not in str(error):
            raise
        return None
    if rank(result) > rank(dtype):
        return f"in-place: a result of {result} was stored in {dtype}"
    if after is not before:
        return "the in-place method does not return its tensor"
    with np.errstate(all="ignore"):
        want = exact(quantise(want, result))
    return difference(lib.numpy(after), want, dtype, case.row.tolerance, case.row.exact)


def rank(dtype):  # the rank of the dtype's category
    """The rank of a dtype's category, bool < integers < floats < complex, which in-place casts must not
    lower."""
    return 0 if dtype == "bool" else 3 if dtype in COMPLEX else 2 if dtype in FLOATS else 1


def loss(lib, case, args, weights):
    """A real scalar: the floating-point results weighted by fixed numbers, which are appended to `weights`
    if they are missing."""
    results = [r for r in case.call(lib, args) if lib.name(r) in INEXACT]
    total = None
    for i, r in enumerate(results):
        if i >= len(weights):
            numbers = case.rng.uniform(0.5, 1.5, tuple(r.shape))
            if lib.name(r) in COMPLEX:
                numbers = numbers + 1j * case.rng.uniform(0.5, 1.5, tuple(r.shape))
            weights.append(lib.plain(np.asarray(numbers), "c128" if lib.name(r) in COMPLEX else "f64"))
        part = real_sum(r * weights[i])
        total = part if total is None else total + part
    return total


def real_sum(x):
    return x.real.sum() if x.is_complex() else x.sum()


def moved(case, direction, step):
    """The arrays of the case with `step * direction` added to its differentiable ones."""
    at = iter(direction)
    arrays = []
    for spec, array in zip(case.sample.args, case.arrays):
        if isinstance(spec, Ins):
            arrays.append([a + step * next(at) if takes_gradient(i, a) else a
                           for i, a in zip(spec.items, array)])
        elif isinstance(spec, In) and takes_gradient(spec, array):
            arrays.append(array + step * next(at))
        else:
            arrays.append(array)
    return arrays


def takes_gradient(spec, array):
    return spec.grad and array.dtype.kind in "fc"


def directions(case):
    """A random direction for every differentiable operand (with equal rows where memory is shared)."""
    made = []
    for spec, array in case.specs():
        if takes_gradient(spec, array):
            d = case.rng.uniform(-1, 1, array.shape)
            if array.dtype.kind == "c":
                d = d + 1j * case.rng.uniform(-1, 1, array.shape)
            if spec.layout == "expanded" and array.ndim and array.shape[0] > 1:
                d = np.broadcast_to(d[:1], array.shape)
            made.append(d)
    return made


def gradients(lib, case):
    """The gradients of the loss with fixed weights, computed by the library's backward; None if the loss
    has no history."""
    case.rng = np.random.default_rng(5)
    args, leaves = case.tensors(lib, requires_grad=True)
    out = loss(lib, case, args, [])
    if not out.requires_grad:
        return None
    out.backward()
    return [None if x.grad is None else lib.numpy(x.grad) for x in leaves]


def gradients_apart(ours, theirs, whose):
    """Returns how two lists of gradients differ, or None."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if (a is None) != (b is None):
            return f"gradient {i}: {a}, {whose} {b}"
        # In its gradient, PyTorch's hardsigmoid multiplies by a float32 value of 1/6.
        if a is not None and not np.allclose(a, b, rtol=1e-7, atol=1e-9, equal_nan=True):
            return f"gradient {i}: largest difference {np.nanmax(np.abs(a - b))}"
    return None


def usable_for_gradients(case):
    total = sum(a.size for s, a in case.specs() if takes_gradient(s, a))
    return case.sample.gradients and 0 <= total <= LARGEST_GRADIENT and any(
        takes_gradient(s, a) for s, a in case.specs())


def dot(vectors, directions):
    """The real inner product; for complex vectors, that of their parts."""
    return float(sum((np.conj(exact(np.asarray(v))) * d).real.sum() for v, d in zip(vectors, directions)))


def close(analytic, numeric, scale, tolerance):
    return np.isfinite(analytic) and abs(analytic - numeric) <= tolerance * max(1.0, scale, abs(numeric))


def check_gradient(lib, case):
    weights, direction, step = [], directions(case), 1e-6
    args, leaves = case.tensors(lib, requires_grad=True)
    out = loss(lib, case, args, weights)
    if out is None or not out.requires_grad:
        return "the result does not require grad"
    out.backward()
    grads = []
    for leaf in leaves:
        if leaf.grad is None:
            return "an operand has no gradient"
        if tuple(leaf.grad.shape) != tuple(leaf.shape) or lib.name(leaf.grad) != lib.name(leaf):
            return f"gradient {tuple(leaf.grad.shape)} {lib.name(leaf.grad)}"
        grads.append(lib.numpy(leaf.grad))
    numeric = 0.0
    for sign in (1, -1):
        args, _ = case.tensors(lib, moved(case, direction, sign * step))
        numeric += sign * float(loss(lib, case, args, weights).item()) / (2 * step)
    analytic = dot(grads, direction)
    scale = sum(np.abs(g * d).sum() for g, d in zip(grads, direction))
    if not close(analytic, numeric, scale, 2e-7):
        return f"gradient along a direction: {analytic!r}, finite differences {numeric!r}"
    return None


def gradients_dot(lib, case, args, leaves, weights, others, create_graph):
    """sum(grad * others): a scalar whose gradient is a Hessian product. None if grad is constant."""
    out = loss(lib, case, args, weights)
    grads = lib.m.autograd.grad(out, leaves, create_graph=create_graph, allow_unused=True)
    total = None
    for g, v in zip(grads, others):
        if g is not None:
            part = real_sum(g * v.conj())
            total = part if total is None else total + part
    return total


def check_second(lib, case):
    weights, step = [], 1e-5
    direction, others = directions(case), directions(case)
    others = [lib.plain(np.ascontiguousarray(v), "c128" if v.dtype.kind == "c" else "f64") for v in others]
    args, leaves = case.tensors(lib, requires_grad=True)
    mixed = gradients_dot(lib, case, args, leaves, weights, others, True)
    if mixed.requires_grad:
        grads = lib.m.autograd.grad(mixed, leaves, allow_unused=True)
        grads = [np.zeros(d.shape) if g is None else lib.numpy(g) for g, d in zip(grads, direction)]
    else:
        grads = [np.zeros(d.shape) for d in direction]
    numeric = 0.0
    for sign in (1, -1):
        args, leaves = case.tensors(lib, moved(case, direction, sign * step), requires_grad=True)
        value = gradients_dot(lib, case, args, leaves, weights, others, False)
        numeric += sign * float(value.item()) / (2 * step)
    analytic = dot(grads, direction)
    scale = sum(np.abs(g * d).sum() for g, d in zip(grads, direction))
    if not close(analytic, numeric, scale, 2e-5):
        return f"second derivative along two directions: {analytic!r}, finite differences {numeric!r}"
    return None


# ---------------------------------------------------------------- running

def plan(row, mode):
    """The cases of a row for a mode."""
    if mode == "value":
        return cases(row)
    if mode == "inplace":
        return (c for c in cases(row) if fits_inplace(c)) if row.inplace else ()
    if mode == "vmap":
        return batches(row)
    if not row.gradients or (mode == "second" and not row.second):
        return ()
    found = [c for c in cases(row, ("f64", "c128")) if usable_for_gradients(c)]
    found += [Case(row, i, "f64") for i, s in enumerate(row.samples) if s.dtypes and "f64" not in s.dtypes
              and set(s.dtypes) & set(FLOATS) and usable_for_gradients(Case(row, i, "f64"))]
    return found[:4] if mode == "second" else found


def batches(row):
    """Up to six small cases, of one floating-point and one integer dtype."""
    if row.check or row.op in transforms.REFUSED:
        return []
    chosen = [next((d for d in row.dtypes if d in kinds), None)
              for kinds in (("f64", "f32"), ("i64", "bool"))]
    found = [c for c in cases(row, [d for d in chosen if d])
             if sum(a.size for _, a in c.specs()) <= 600]
    return found[:6]


CHECKS = {"value": check_value, "inplace": check_inplace, "gradient": check_gradient,
          "second": check_second,
          "jvp": lambda lib, case: transforms.check_jvp(lib, case, sys.modules[__name__]),
          "vmap": lambda lib, case: transforms.check_vmap(lib, case, sys.modules[__name__])}


def run(lib, row, mode):
    """Returns (the number of cases, the failures as text)."""
    count, failures = 0, []
    for case in plan(row, mode):
        count += 1
        try:
            bad = CHECKS[mode](lib, case)
        except Exception as error:
            bad = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]
        if bad:
            failures.append(f"{mode} {case}: {bad}")
    return count, failures


def main():
    from rows import ROWS
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="teletensor")
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--all", action="store_true", help="show every failure")
    parser.add_argument("ops", nargs="*")
    options = parser.parse_args()
    lib = Library(importlib.import_module(options.library))
    for mode in [options.mode] if options.mode else MODES:
        total, bad = 0, []
        for row in ROWS:
            if not options.ops or row.op in options.ops:
                count, failures = run(lib, row, mode)
                total += count
                bad += failures if options.all else failures[:3]
        print("\n".join(bad))
        print(f"{mode}: {total} cases, {len(bad)} failures shown")


if __name__ == "__main__":
    main()
