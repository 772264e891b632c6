"""Runs PyTorch's own samples of operators (its operator database) with teletensor.

    python tests/peers/op_db.py [--mode forward|reference|grad|errors|refusals] [--dtype float32]
        [--most 10] [--names a,b] [--list]

starts a daemon, runs every name in the database that teletensor has, and prints the names that differ, with
the first reason for each. `test_op_db.py` runs the same in CI.
"""

import argparse
import inspect
import itertools
import sys
import textwrap
import types
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

MAX_SAMPLES = 10
# Results that depend on a random generator or on uninitialised memory: only shapes and dtypes are compared.
RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform", "empty", "empty_like",
    "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "pca_lowrank", "svd_lowrank",
    "nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention",
}  # fmt: skip
# Only some samples of these functions are random.
SOMETIMES_RANDOM = {"nn.functional.multi_head_attention_forward",
                    "nn.functional.scaled_dot_product_attention"}
# Factors whose signs or phases are not unique: magnitudes are compared.
FREE_SIGNS = {"linalg.svd", "svd", "linalg.eigh", "linalg.eig", "linalg.qr", "qr", "geqrf"}
LOOSE = {  # the relative and absolute tolerance in float32 where the default of 2e-5 is too small
    "linalg": 2e-3, "cholesky_inverse": 2e-3, "cholesky_solve": 2e-3, "pinverse": 2e-3, "svd": 2e-3,
    "lu": 1e-3, "logdet": 1e-3, "lu_solve": 2e-3, "triangular_solve": 1e-3, "matrix_exp": 1e-3,
    "nn.functional.conv": 2e-4, "nn.functional.grid_sample": 1e-4, "special": 2e-4, "fft": 1e-4,
    "stft": 1e-4, "istft": 1e-4, "addbmm": 1e-4, "baddbmm": 1e-4, "cumprod": 1e-4, "polygamma": 2e-4,
    "corrcoef": 1e-4, "cdist": 2e-4, "igamma": 2e-4, "igammac": 2e-4, "mvlgamma": 1e-4, "prod": 1e-4,
    "linalg.cond": 5e-3, "nn.functional.interpolate": 1e-4, "ormqr": 1e-3, "cov": 1e-4, "tan": 1e-4,
    "masked.prod": 1e-4, "masked.cumprod": 1e-4, "nn.functional.gaussian_nll_loss": 1e-4,
}  # fmt: skip


class Unsupported(Exception):
    """The sample requires something that no teletensor tensor can be (a layout)."""


def tolerance(name, dtype):
    best = max((k for k in LOOSE if name.startswith(k)), key=len, default=None)
    base = LOOSE[best] if best else 2e-5
    if dtype in (torch.float64, torch.complex128):
        return base * 1e-4
    return max(base, 4 * torch.finfo(dtype).eps) if dtype.is_floating_point else base


class Ours:
    """teletensor under PyTorch's names."""

    def __init__(self, tt):
        self.tt = tt

    def dotted(self, name):
        place = self.tt
        for part in name.split("."):
            place = getattr(place, part, None)
            if place is None:
                return None
        return place if callable(place) else None

    def find(self, name):
        """The function or method with this dotted name, or None."""
        found = self.dotted(name)
        if found is None and "." not in name:
            for candidate in (name, name + "_"):
                if hasattr(self.tt.Tensor, candidate):
                    attribute = inspect.getattr_static(self.tt.Tensor, candidate)
                    if isinstance(attribute, property | types.GetSetDescriptorType):
                        return lambda x, c=candidate: getattr(x, c)
                    return lambda x, *a, c=candidate, **k: getattr(x, c)(*a, **k)
        return found

    def caller(self, info):
        """The function that runs a sample of `info`: its own Python wrapper with teletensor as `torch`, or
        teletensor's function."""
        mine = self.find(info.name)
        if mine is None:
            return None
        function = info.op
        if isinstance(function, types.FunctionType) and function.__module__.startswith("torch.testing"):
            return rebound(function, self.tt)
        return mine

    def convert(self, value):
        tt = self.tt
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided:
                try:
                    return tt.from_torch(value)
                except TypeError as error:
                    raise Unsupported("layout") from error
            x = tt.from_torch(value.detach().resolve_conj().resolve_neg())
            return x.requires_grad_() if value.requires_grad else x
        if isinstance(value, torch.dtype):
            return getattr(tt, str(value).removeprefix("torch."))
        if isinstance(value, torch.device):
            return str(value)
        if isinstance(value, torch.layout):
            return getattr(tt, str(value).removeprefix("torch."), None)
        if isinstance(value, torch.memory_format):
            return getattr(tt, str(value).removeprefix("torch."), None)
        if isinstance(value, torch.Generator):
            return tt.Generator()
        if isinstance(value, torch.Size):
            return tuple(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.convert, value))
        if isinstance(value, list | tuple):
            return type(value)(map(self.convert, value))
        if isinstance(value, dict):
            return {k: self.convert(v) for k, v in value.items()}
        if isinstance(value, types.FunctionType) and value.__module__.startswith("torch.testing"):
            return rebound(value, tt)
        if isinstance(value, torch.nn.PairwiseDistance):
            return tt.nn.PairwiseDistance(value.norm, value.eps, value.keepdim)
        return value


def rebound(function, tt):
    """A Python function of the database whose global `torch` is teletensor."""
    space = dict(function.__globals__)
    space["torch"] = tt
    space["F"] = tt.nn.functional
    for name in function.__code__.co_names:  # its helper functions too
        helper = function.__globals__.get(name)
        if isinstance(helper, types.FunctionType) and helper.__module__ == function.__module__:
            space[name] = rebound(helper, tt) if helper is not function else helper
    cells = function.__closure__
    if cells:
        cells = tuple(types.CellType(translate(c.cell_contents, tt)) for c in cells)
    made = types.FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def translate(value, tt):
    if value is torch:
        return tt
    name = getattr(value, "__name__", None)
    if isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType) and name:
        return getattr(tt, name, None) or getattr(tt.Tensor, name)
    if isinstance(value, types.FunctionType):
        return rebound(value, tt)
    return value


def flat(value):
    """The tensors and plain values in a result, in order."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in flat(item)]
    return [value]


def array(x):
    if x.dtype == torch.bfloat16:
        x = x.to(torch.float32)
    return x.detach().resolve_conj().resolve_neg().cpu().numpy()


def our_array(tt, x):
    x = x.detach()
    return (x.to(tt.float32) if x.dtype == tt.bfloat16 else x).numpy()


def differs(tt, name, mine, theirs, dtype, values=True):
    """None if the results agree, and a sentence otherwise."""
    mine, theirs = flat(mine), flat(theirs)
    if len(mine) != len(theirs):
        return f"{len(mine)} results, PyTorch {len(theirs)}"
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            if isinstance(a, tt.Tensor):
                return f"result {i} is a tensor, PyTorch's is {b!r}"
            if isinstance(b, float | int | bool | complex) and values:
                if not np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
                    return f"result {i} is {a!r}, PyTorch's {b!r}"
            continue
        if isinstance(a, tt.sparse.SparseTensor):
            if str(a.layout).split(".")[-1] != str(b.layout).split(".")[-1]:
                return f"result {i} has layout {a.layout}, PyTorch's {b.layout}"
            a, b = a.to_dense(), b.to_dense()
        if not isinstance(a, tt.Tensor):
            return f"result {i} is {type(a).__name__}, PyTorch's a tensor"
        if str(a.dtype).split(".")[-1] != str(b.dtype).split(".")[-1]:
            return f"result {i}: {a.dtype}, PyTorch {b.dtype}"
        if tuple(a.shape) != tuple(b.shape):
            return f"result {i}: shape {tuple(a.shape)}, PyTorch {tuple(b.shape)}"
        if not values:
            our_array(tt, a)
            continue
        got, want = our_array(tt, a), array(b)
        if name in FREE_SIGNS:
            got, want = np.abs(got), np.abs(want)
        if want.dtype.kind in "fc":
            t = max(tolerance(name, dtype), {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(b.dtype, 0))
            scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
            ok = np.isclose(got, want, rtol=t, atol=t * min(scale, 1e6), equal_nan=True)
            if not ok.all():
                at = tuple(map(int, np.argwhere(~ok)[0]))
                return f"result {i} at {at}: {got[at]}, PyTorch {want[at]} ({(~ok).sum()} of {ok.size})"
        elif not np.array_equal(got, want):
            at = tuple(map(int, np.argwhere(got != want)[0]))
            return f"result {i} at {at}: {got[at]}, PyTorch {want[at]}"
    return None


def is_random(info, sample):
    if info.name in SOMETIMES_RANDOM:
        arguments = {**sample.kwargs}
        return arguments.get("dropout_p", 0.0) not in (0.0, None) or any(
            isinstance(a, float) and a > 0 for a in sample.args)
    return info.name in RANDOM


def fresh(value):
    """A copy without history, to which an in-place op may write."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields") and not isinstance(value, torch.Size):
        return type(value)(map(fresh, value))
    return value


def leaves(value):
    return [x for x in flat(value) if getattr(x, "requires_grad", False)]


def run_sample(ours, call, info, sample, dtype, gradients):
    """None, or how teletensor's result differs from PyTorch's."""
    tt = ours.tt
    inputs = (sample.input, *sample.args)
    torch.manual_seed(0)
    base = tuple(fresh(x) for x in inputs)
    try:
        theirs = info.op(*base, **sample.kwargs)
    except Exception:
        return None  # the sample fails in PyTorch itself
    values = not is_random(info, sample)
    converted = [ours.convert(fresh(x)) for x in inputs]
    kwargs = ours.convert(sample.kwargs)
    mine = call(*converted, **kwargs)
    if sample.output_process_fn_grad is not None and gradients:
        theirs = sample.output_process_fn_grad(theirs)
        mine = rebound(sample.output_process_fn_grad, tt)(mine) if isinstance(
            sample.output_process_fn_grad, types.FunctionType) else mine
    bad = differs(tt, info.name, mine, theirs, dtype, values)
    if bad or not gradients or not values:
        return bad
    return gradient_differs(tt, info, (converted, kwargs), (base, sample.kwargs), mine, theirs, dtype)


def gradient_differs(tt, info, mine_in, theirs_in, mine, theirs, dtype):
    pairs = [(a, b) for a, b in zip(flat(mine), flat(theirs), strict=True)
             if isinstance(b, torch.Tensor) and b.requires_grad]
    if not pairs:
        return None
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(tuple(b.shape)) for _, b in pairs]
    wanted = leaves(list(theirs_in[0]) + list(theirs_in[1].values()))
    try:
        total = sum((b * torch.from_numpy(np.asarray(w)).to(b.dtype)).sum().real
                    for (_, b), w in zip(pairs, weights, strict=True))
        g_theirs = torch.autograd.grad(total, wanted, allow_unused=True)
    except Exception:
        return None
    if not all(a.requires_grad for a, _ in pairs):
        return "no gradient"
    total = sum((a * tt.from_numpy(np.asarray(w)).to(a.dtype)).sum().real
                for (a, _), w in zip(pairs, weights, strict=True))
    g_mine = tt.autograd.grad(total, leaves(list(mine_in[0]) + list(mine_in[1].values())), allow_unused=True)
    for i, (a, b) in enumerate(zip(g_mine, g_theirs, strict=True)):
        b = torch.zeros_like(wanted[i]) if b is None else b
        a = tt.zeros(tuple(b.shape), dtype=getattr(tt, str(b.dtype)[6:])) if a is None else a
        bad = differs(tt, info.name + " ", a, b, dtype)
        if bad:
            return f"gradient {i}: {bad}"
    return None


def run_errors(ours, call, info):
    """None, or the erroneous call in PyTorch's list that teletensor accepts."""
    for sample in info.error_inputs("cpu"):
        s = sample.sample_input
        try:
            inputs = [ours.convert(x) for x in (s.input, *s.args)]
            kwargs = ours.convert(s.kwargs)
        except Unsupported:
            continue
        if "out" in kwargs:
            continue
        try:
            for leaf in flat(call(*inputs, **kwargs)):
                if isinstance(leaf, ours.tt.Tensor):
                    leaf.detach().numpy()
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            continue
        return f"no error where PyTorch says: {str(sample.error_regex)[:90]}"
    return None


def inner(value, kinds):
    """The value with each tensor that requires grad replaced by a tensor that is no leaf, which in-place
    functions may write to."""
    if isinstance(value, kinds):
        return value * 1 if value.requires_grad else value
    if type(value) in (list, tuple):
        return type(value)(inner(x, kinds) for x in value)
    return value


def gradient_states(results, inputs, grad):
    """For each result: "constant", "refused" if the backward raises an error, "zero" or "gradient"."""
    for result in results:
        if not result.requires_grad:
            yield "constant"
            continue
        try:
            found = grad(result.sum().real, inputs, allow_unused=True, retain_graph=True)
        except RuntimeError:
            yield "refused"
            continue
        found = [g if g is None or str(g.layout).endswith(".strided") else g.to_dense() for g in found]
        yield "gradient" if any(g is not None and (g != 0).any() for g in found) else "zero"


def run_refusals(ours, info, sample, call):
    """None, or a result whose backward PyTorch refuses, or fills with zeros, and teletensor computes."""
    inputs = (sample.input, *sample.args)
    theirs_in = [fresh(x) for x in inputs]
    try:
        theirs = info.op(*inner(theirs_in, torch.Tensor), **sample.kwargs)
    except Exception:
        return None
    mine_in, kwargs = [ours.convert(fresh(x)) for x in inputs], ours.convert(sample.kwargs)
    mine = call(*inner(mine_in, ours.tt.Tensor), **kwargs)
    wanted = gradient_states([x for x in flat(theirs) if isinstance(x, torch.Tensor)],
                             leaves([*theirs_in, *sample.kwargs.values()]), torch.autograd.grad)
    found = gradient_states([x for x in flat(mine) if isinstance(x, ours.tt.Tensor)],
                            leaves([*mine_in, *kwargs.values()]), ours.tt.autograd.grad)
    for i, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if (b == "refused" and a != b) or (b == "zero" and a == "gradient"):
            return f"backward of result {i}: {a}, PyTorch {b}"
    return None


def names():
    grouped = defaultdict(list)
    for info in op_db:
        grouped[info.name].append(info)
    return dict(sorted(grouped.items()))


def plain_calls(info, most):
    """(positional arguments, keyword arguments) of the first `most` samples, in float32 if the op accepts
    it; the tensors among the positional arguments require no gradient."""
    dtype = torch.float32 if torch.float32 in info.dtypes else sorted(info.dtypes, key=str)[0]
    for sample in itertools.islice(info.sample_inputs("cpu", dtype), most):
        yield [x.detach() if isinstance(x, torch.Tensor) else x for x in (sample.input, *sample.args)], sample.kwargs


def run_name(ours, infos, mode, dtype, most=MAX_SAMPLES):
    """(number of samples, None or the first difference) over `most` samples of each variant of one name."""
    count = 0
    for info in infos:
        call = ours.caller(info)
        if mode == "errors":
            if info.error_inputs_func is None:
                continue
            count += 1
            try:
                bad = run_errors(ours, call, info)
            except Exception as e:
                bad = f"{type(e).__name__}: {e}"
            if bad:
                return count, f"{info.variant_test_name or 'plain'}: {bad}"
            continue
        gradients = mode in ("grad", "refusals")
        if mode == "refusals" and dtype in info.dtypes:
            pass  # also ops without a derivative
        elif dtype not in info.dtypes or (gradients and not (info.supports_autograd and dtype in info.backward_dtypes)):
            continue
        torch.manual_seed(1)
        inputs = info.reference_inputs if mode == "reference" else info.sample_inputs
        samples = inputs("cpu", dtype, requires_grad=gradients)
        for i, sample in zip(range(most), samples, strict=False):
            try:
                bad = run_refusals(ours, info, sample, call) if mode == "refusals" else run_sample(
                    ours, call, info, sample, dtype, gradients)
            except Unsupported:
                continue
            except Exception as e:
                first = textwrap.shorten(str(e), 160)
                bad = f"{type(e).__name__}: {first}"
            count += 1
            if bad:
                return count, f"{info.variant_test_name or 'plain'} sample {i}: {bad}"
    return count, None


def print_all(wanted, run, how):
    """Runs `run(ours, name)`, which returns a number of samples and None or a reason, on a daemon."""
    import teletensor as tt
    from support.daemon import Daemon

    ours = Ours(tt)
    daemon = Daemon()
    whole = samples = 0
    with tt.connect(daemon.unix):
        for name in wanted:
            count, bad = run(ours, name)
            samples += count
            whole += bad is None
            if bad:
                print(f"{name}: {bad}", flush=True)
    daemon.stop()
    print(f"{whole} of {len(wanted)} names whole, {samples} samples ({how})")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="forward", choices=("forward", "reference", "grad", "errors", "refusals"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--names", default="")
    parser.add_argument("--most", type=int, default=MAX_SAMPLES, help="samples of a variant")
    parser.add_argument("--list", action="store_true", help="names that we have not")
    options = parser.parse_args()
    import teletensor as tt

    ours = Ours(tt)
    everything = names()
    have = {n: i for n, i in everything.items() if ours.find(n) is not None}
    print(f"{len(have)} of {len(everything)} names")
    if options.list:
        print(" ".join(n for n in everything if n not in have))
        return
    wanted = options.names.split(",") if options.names else list(have)
    dtype = getattr(torch, options.dtype)
    print_all(wanted, lambda ours, name: run_name(ours, have[name], options.mode, dtype, options.most),
              f"{options.mode}, {options.dtype}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main()
