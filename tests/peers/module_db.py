"""Runs PyTorch's own samples of modules and optimizers (its module and optimizer databases) with
teletensor.

    python tests/peers/module_db.py [--dtype float64] [--names nn.Linear,SGD]

starts a daemon, runs every class in the databases, and prints those that differ, with the first reason for
each. `test_module_db.py` runs the same in CI.
"""

import argparse
import copy
import inspect
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from op_db import Unsupported, differs, flat, fresh, leaves, our_array, print_all

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

MODULES = {info.name: info for info in module_db}
OPTIMIZERS = {info.name: info for info in optim_db}
# The switches between PyTorch's implementations of a step, which have no effect in teletensor and are never
# refused.
SWITCHES = {"foreach", "fused", "capturable", "differentiable"}
# Compared with the tolerance of this dtype: ASGD keeps its step size in float32, and Muon multiplies in
# bfloat16.
LOOSE = {"ASGD": torch.float32, "Muon": torch.bfloat16}
ERRORS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AssertionError)


def random_in(module, training):
    """Returns whether forward uses a random generator."""
    names = ("Dropout", "Fractional", "RReLU")
    return any(any(n in type(m).__name__ for n in names) and (training or "Fractional" in type(m).__name__)
               and getattr(m, "p", 1.0) for m in module.modules()) or (
        training and any(getattr(m, "dropout", 0.0) for m in module.modules()
                         if isinstance(getattr(m, "dropout", 0.0), float)))


def make(ours, info, sample, dtype):
    """The same module in PyTorch and in teletensor, with PyTorch's parameters."""
    args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
    theirs = info.module_cls(*args, **kwargs).to(dtype)
    mine = build(ours, info, sample).to(ours.convert(dtype))
    return mine, theirs


def build(ours, info, sample):
    call = sample.constructor_input
    return ours.dotted(info.name)(*(argument(ours, a) for a in call.args),
                                  **{k: argument(ours, a) for k, a in call.kwargs.items()})


def argument(ours, value):
    """A constructor argument, which may be a module or a function of PyTorch and is then converted."""
    if isinstance(value, torch.nn.Module):
        names = inspect.signature(type(value)).parameters
        known = {n: getattr(value, n) for n in names if hasattr(value, n)}
        if isinstance(value, torch.nn.TransformerEncoderLayer):
            attention = value.self_attn
            known = {"d_model": attention.embed_dim, "nhead": attention.num_heads,
                     "dim_feedforward": value.linear1.out_features, "dropout": value.dropout.p,
                     "activation": argument(ours, value.activation), "layer_norm_eps": value.norm1.eps,
                     "batch_first": attention.batch_first, "norm_first": value.norm_first,
                     "bias": value.linear1.bias is not None}
        return getattr(ours.tt.nn, type(value).__name__)(**known).train(value.training)
    name = getattr(value, "__name__", None)
    if callable(value) and name and getattr(torch.nn.functional, name, None) is value:
        return getattr(ours.tt.nn.functional, name)
    return ours.convert(value)


def load(ours, mine, theirs):
    mine.load_state_dict({k: ours.convert(v.detach().clone()) for k, v in theirs.state_dict().items()})


def structure_differs(mine, theirs):
    """None if the names, shapes, dtypes and reprs of the two modules agree."""
    def facts(m):
        return {k: (tuple(v.shape), str(v.dtype).split(".")[-1]) for k, v in m.state_dict().items()}

    if list(facts(mine)) != list(facts(theirs)):
        return f"state_dict has {list(facts(mine))}, PyTorch's {list(facts(theirs))}"
    for name, fact in facts(theirs).items():
        if facts(mine)[name] != fact:
            return f"{name} is {facts(mine)[name]}, PyTorch's {fact}"
    if repr(mine) != repr(theirs):
        return f"repr {repr(mine)!r}, PyTorch's {repr(theirs)!r}"
    return None


def run_module_sample(ours, info, sample, dtype, training):
    """None, or how the module differs from PyTorch's: in structure, result, gradients or state
    afterwards."""
    tt = ours.tt
    torch.manual_seed(0)
    mine, theirs = make(ours, info, sample, dtype)
    mine.train(training)
    theirs.train(training)
    call = sample.forward_input
    inputs = (list(map(fresh, call.args)), {k: fresh(v) for k, v in call.kwargs.items()})
    if info.is_lazy:
        with torch.no_grad():
            theirs(*inputs[0], **inputs[1])
        mine(*map(ours.convert, inputs[0]), **ours.convert(inputs[1]))
    bad = structure_differs(mine, theirs)
    if bad:
        return bad
    load(ours, mine, theirs)
    mine = copy.deepcopy(mine)
    our_inputs = [ours.convert(x) for x in inputs[0]]
    our_kwargs = ours.convert(inputs[1])
    want = theirs(*inputs[0], **inputs[1])
    got = mine(*our_inputs, **our_kwargs)
    values = not random_in(theirs, training)
    bad = differs(tt, info.name, got, want, dtype, values)
    if bad or not values:
        return bad
    bad = backward_differs(ours, info, (mine, theirs), (got, want),
                           (our_inputs + list(our_kwargs.values()), inputs[0] + list(inputs[1].values())), dtype)
    if bad:
        return bad
    for name, value in theirs.state_dict().items():  # compares running statistics
        bad = differs(tt, info.name, mine.state_dict()[name], value, dtype)
        if bad:
            return f"{name} after forward: {bad}"
    return None


def backward_differs(ours, info, modules, results, inputs, dtype):
    tt = ours.tt
    pairs = [(a, b) for a, b in zip(flat(results[0]), flat(results[1]), strict=True)
             if isinstance(b, torch.Tensor) and b.requires_grad]
    if not pairs:
        return None
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(tuple(b.shape)) for _, b in pairs]
    sum((b * torch.from_numpy(np.asarray(w)).to(b.dtype)).sum() for (_, b), w in
        zip(pairs, weights, strict=True)).backward()
    sum((a * tt.from_numpy(np.asarray(w)).to(a.dtype)).sum() for (a, _), w in
        zip(pairs, weights, strict=True)).backward()
    named = [(n, p, dict(modules[1].named_parameters())[n]) for n, p in modules[0].named_parameters()]
    named += [(f"input {i}", a, b) for i, (a, b) in
              enumerate(zip(leaves(inputs[0]), leaves(inputs[1]), strict=True))]
    for name, a, b in named:
        if (a.grad is None) != (b.grad is None):
            return f"gradient of {name}: {'none' if a.grad is None else 'one'}, PyTorch the other"
        bad = b.grad is not None and differs(tt, info.name, a.grad, b.grad, dtype)
        if bad:
            return f"gradient of {name}: {bad}"
    return None


def run_module(ours, info, dtype):
    """(number of samples, None or the first difference) in training and in evaluation."""
    count = 0
    if ours.dotted(info.name) is None:
        return 0, "not there"
    for training in (True, False):
        torch.manual_seed(1)
        samples = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for i, sample in enumerate(samples):
            if sample.forward_input is None:
                continue
            try:
                bad = run_module_sample(ours, info, sample, dtype, training)
            except Unsupported:
                continue
            except Exception as e:
                bad = f"{type(e).__name__}: {textwrap.shorten(str(e), 200)}"
            count += 1
            if bad:
                return count, f"sample {i} {sample.desc} ({'train' if training else 'eval'}): {bad}"
        if info.module_error_inputs_func is None:
            continue
        for wrong in info.module_error_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True,
                                                   training=training):
            count += 1
            bad = run_module_error(ours, info, wrong, dtype)
            if bad:
                return count, bad
    return count, None


def run_module_error(ours, info, wrong, dtype):
    sample = wrong.module_error_input
    try:
        made = build(ours, info, sample).to(ours.convert(dtype))
        if "FORWARD" in str(wrong.error_on):
            call = sample.forward_input
            for leaf in flat(made(*map(ours.convert, call.args), **ours.convert(call.kwargs))):
                our_array(ours.tt, leaf)
    except ERRORS as e:
        if not isinstance(e, wrong.error_type):
            return f"{type(e).__name__} where PyTorch raises {wrong.error_type.__name__}: {wrong.error_regex}"
        return None
    return f"no error where PyTorch says: {wrong.error_regex}"


def step_towards(m, params, optimizer, targets, sign, sparse=False):
    """The loss after a step that moves the parameters towards targets, with sparse gradients if they are wanted."""
    def closure():
        optimizer.zero_grad()
        loss = sign * sum(((p - m.tensor(t).to(p.dtype)) ** 2).sum() for p, t in zip(params, targets, strict=True))
        loss.backward()
        for p in params if sparse else ():
            p.grad = p.grad.to_sparse()
        return loss

    return optimizer.step(closure)


def run_optimizer_sample(ours, info, sample, dtype, steps=6):
    """None, or how the parameters after some steps, or the saved state, differ."""
    tt = ours.tt
    rng = np.random.default_rng(2)
    sparse = info.only_supports_sparse_grads
    shapes = ((4, 3), (3, 5)) if info.name == "Muon" else ((4, 3), (3,)) if sparse else ((4, 3), (3,), ())
    start = [rng.standard_normal(s) for s in shapes]
    mine = [tt.nn.Parameter(tt.tensor(a).to(getattr(tt, str(dtype)[6:]))) for a in start]
    theirs = [torch.nn.Parameter(torch.tensor(a).to(dtype)) for a in start]
    ours_opt = getattr(tt.optim, info.name)(mine, **ours.convert(sample.kwargs))
    torch_opt = info.optim_cls(theirs, **copy.deepcopy(sample.kwargs))
    sign = -1 if sample.kwargs.get("maximize") else 1
    for step in range(steps):
        targets = [rng.standard_normal(p.shape) for p in start]
        a = step_towards(tt, mine, ours_opt, targets, sign, sparse)
        b = step_towards(torch, theirs, torch_opt, targets, sign, sparse)
        bad = differs(tt, info.name, [a, *mine], [b, *theirs], LOOSE.get(info.name, dtype))
        if bad:
            return f"after step {step}: {bad}"
        if step == 2:  # continues from its saved state
            saved = ours_opt.state_dict()
            ours_opt = getattr(tt.optim, info.name)(mine, **ours.convert(sample.kwargs))
            ours_opt.load_state_dict(copy.deepcopy(saved))
    return state_differs(tt, ours_opt.state_dict(), torch_opt.state_dict(), info, dtype)


def state_differs(tt, mine, theirs, info, dtype):
    groups = [[{k: v for k, v in g.items() if k != "lr"} for g in s["param_groups"]] for s in (mine, theirs)]
    for a, b in zip(*groups, strict=True):
        if set(a) != set(b):
            return f"param_groups have {sorted(set(a) ^ set(b))} on one side alone"
    if set(mine["state"]) != set(theirs["state"]):
        return f"state of {list(mine['state'])}, PyTorch of {list(theirs['state'])}"
    for key, state in theirs["state"].items():
        if set(state) - {"al"} != set(mine["state"][key]):  # "al" is a temporary value of LBFGS
            return f"state has {sorted(mine['state'][key])}, PyTorch's {sorted(state)}"
        for name, got in mine["state"][key].items():
            value = state[name]
            if isinstance(value, torch.Tensor) and value.dim():
                bad = differs(tt, info.name, got, value, LOOSE.get(info.name, dtype))
                if bad:
                    return f"state {name}: {bad}"
    return None


def shared(ours, params, known):
    """The parameters or groups of them, where objects that are shared in PyTorch are shared in teletensor
    too."""
    if isinstance(params, torch.Tensor):
        return known.setdefault(id(params), ours.convert(params))
    if isinstance(params, dict):
        return {k: shared(ours, v, known) if k == "params" else v for k, v in params.items()}
    return [shared(ours, p, known) for p in params] if isinstance(params, list) else ours.convert(params)


def run_optimizer(ours, info, dtype):
    """(number of samples, None or the first difference)."""
    count = 0
    if getattr(ours.tt.optim, info.name, None) is None:
        return 0, "not there"
    for sample in info.optim_inputs_func(device="cpu", dtype=dtype):
        try:
            bad = run_optimizer_sample(ours, info, sample, dtype)
        except Exception as e:
            bad = f"{type(e).__name__}: {textwrap.shorten(str(e), 200)}"
        count += 1
        if bad:
            return count, f"{sample.desc}: {bad}"
    for wrong in info.optim_error_inputs_func(device="cpu", dtype=dtype):
        sample = wrong.optimizer_error_input
        if SWITCHES & set(sample.kwargs):
            continue
        count += 1
        params = sample.params
        try:
            params = [ours.tt.nn.Parameter(ours.tt.ones(3))] if params is None else shared(ours, params, {})
            getattr(ours.tt.optim, info.name)(params, **ours.convert(sample.kwargs))
        except ERRORS as e:
            if not isinstance(e, wrong.error_type) and not issubclass(wrong.error_type, Warning):
                return count, f"{type(e).__name__} where PyTorch raises {wrong.error_type.__name__}: {sample.desc}"
            continue
        if "CONSTRUCTION" in str(wrong.error_on):
            return count, f"no error where PyTorch says: {wrong.error_regex} ({sample.desc})"
    return count, None


def run_class(ours, name, dtype):
    """(number of samples, None or the first difference) for a class of either database."""
    if name in MODULES:
        return run_module(ours, MODULES[name], dtype)
    return run_optimizer(ours, OPTIMIZERS[name], dtype)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--names", default="")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    wanted = options.names.split(",") if options.names else [*MODULES, *OPTIMIZERS]
    print_all(wanted, lambda ours, name: run_class(ours, name, dtype), options.dtype)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    main()
