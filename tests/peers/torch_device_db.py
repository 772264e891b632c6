"""PyTorch's operator samples on the device "tt" against the CPU.

    python tests/peers/torch_device_db.py [--most 3] [--names a,b] [--dtype float32] [--gradients]
        [--address ADDRESS]

runs the operators forward, or also their gradients, and prints the names whose results differ, with the
first reason, those that need the CPU, and the counts.
Without an address it starts a daemon.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from op_db import FREE_SIGNS, RANDOM, SOMETIMES_RANDOM, op_db, tolerance

# Which of several equal elements an index names is free: only the elements are compared.
FREE_INDICES = {"topk", "kthvalue"}


def whole_storage(tensor):
    """All elements of the tensor's storage, in one dimension."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def moved(value, device):
    """The same value with its tensors on another device."""
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        part = plain.untyped_storage().nbytes() != plain.numel() * plain.element_size()
        if part and not plain.is_conj() and not plain.is_neg():  # a view stays one
            made = whole_storage(plain).to(device).as_strided(
                plain.size(), plain.stride(), plain.storage_offset())
        else:
            made = plain.to(device)
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, tuple | list):
        parts = [moved(each, device) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device(device)
    return value


def tensors(value):
    """The tensors in a result, in order; other parts as they are."""
    if isinstance(value, tuple | list):
        return [each for part in value for each in tensors(part)]
    return [value]


def with_gradients(results, arguments):
    """The results, and the gradients of the sum of their squares with respect to the arguments."""
    ends = [x for x in tensors(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves = [x for x in tensors([*arguments[:1], *arguments[1], *arguments[2].values()])
              if isinstance(x, torch.Tensor) and x.requires_grad]
    if not ends or not leaves:
        return results
    loss = sum((x * x.conj()).real.sum() if x.is_complex() else (x * x).sum() for x in ends)
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [x.detach() for x in ends], [0 if x is None else x for x in found]


def drops(sample):
    """Whether a sample draws random numbers for a dropout."""
    if sample.kwargs.get("training") is False:
        return False
    return sample.kwargs.get("dropout_p", 0) > 0 or any(
        isinstance(each, float) and each > 0 for each in sample.args)


def difference(name, wanted, got, dtype, exact):
    """Why two results differ; None where they do not. Without `exact` only dtypes and shapes count."""
    wanted, got = tensors(wanted), tensors(got)
    if len(wanted) != len(got):
        return f"{len(got)} results instead of {len(wanted)}"
    if name in FREE_INDICES and not dtype.is_floating_point:
        wanted, got = wanted[:1], got[:1]
    for a, b in zip(wanted, got):
        if not isinstance(a, torch.Tensor):
            if isinstance(a, int | float | bool) and exact and a != b and not (a != a and b != b):
                return f"{b} instead of {a}"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{b.dtype} {tuple(b.shape)} instead of {a.dtype} {tuple(a.shape)}"
        if not exact:
            continue
        if b.device.type == "tt":
            b = b.cpu()
        if name in FREE_SIGNS:
            a, b = a.abs(), b.abs()
        limit = max(tolerance(name, dtype), 2e-5)
        try:
            torch.testing.assert_close(b, a, rtol=limit, atol=limit, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())
    return None


def run_name(name, most, dtype=torch.float32, gradients=False):
    """The first difference (or None), and the operators that ran on the CPU."""
    import teletensor.torch as device

    device.fallbacks(clear=True)
    for info in op_db:
        if (info.name, info.variant_test_name) != tuple(name.partition("/")[::2]):
            continue
        wants = gradients and info.supports_autograd
        samples = iter(info.sample_inputs("cpu", dtype, requires_grad=wants))
        for _, sample in zip(range(most), samples):
            values = (sample.input, sample.args, sample.kwargs)
            if any(isinstance(each, torch.Tensor) and each.layout != torch.strided
                   for each in tensors([values[0], *values[1]])):
                continue
            there = moved(values, "tt")
            try:
                torch.manual_seed(0)
                here = [moved(value, "cpu") for value in values]
                wanted = info.op(here[0], *here[1], **here[2])
                if wants:
                    wanted = with_gradients(wanted, here)
            except Exception:
                continue  # not a sample for the CPU
            try:
                got = info.op(there[0], *there[1], **there[2])
                if wants:
                    got = with_gradients(got, there)
                random = info.name in RANDOM and (info.name not in SOMETIMES_RANDOM or drops(sample))
                reason = difference(info.name, wanted, got, dtype, not random)
            except Exception as error:
                reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            if reason:
                return reason, device.fallbacks()
    return None, device.fallbacks()


def names(dtype=torch.float32):
    """The names of the database that have this dtype."""
    found = {f"{info.name}/{info.variant_test_name}".rstrip("/"): None for info in op_db
             if info.supports_dtype(dtype, "cpu")}
    return list(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--names", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--address", default="")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.address:
        os.environ["TELETENSOR_ADDRESS"] = options.address
    torch.set_num_threads(1)
    dtype = getattr(torch, options.dtype)
    wanted = options.names.split(",") if options.names else names(dtype)
    different, fallen = {}, {}
    for name in wanted:
        print(name, file=sys.stderr, flush=True)
        reason, fallbacks = run_name(name, options.most, dtype, options.gradients)
        if reason:
            different[name] = reason
        if fallbacks:
            fallen[name] = fallbacks
    for name, reason in different.items():
        print(f"differs: {name}: {reason}")
    for name, fallbacks in fallen.items():
        print(f"on the CPU: {name}: {' '.join(sorted(fallbacks))}")
    print(f"{len(wanted)} names: {len(wanted) - len(different)} equal, {len(fallen)} need the CPU")


if __name__ == "__main__":
    main()
