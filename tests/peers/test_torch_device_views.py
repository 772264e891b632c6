"""Random programs of views and writes: the device "tt" of PyTorch against the CPU."""

import random

import pytest
import torch

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)


def view_of(rng, x):
    """A random view of x, as a function of any tensor of its shape."""
    kinds = ["view", "reshape_alias", "detach", "unsqueeze"]
    if x.dim():
        kinds += ["select", "slice", "permute", "squeeze", "expand", "flatten"]
    if x.dim() > 1:
        kinds += ["transpose", "diagonal", "unfold"]
    if x.is_complex():
        kinds += ["conj", "as_real"]
    kind = rng.choice(kinds)
    dim = rng.randrange(x.dim()) if x.dim() else 0
    size = x.shape[dim] if x.dim() else 1
    if kind == "select" and size:
        index = rng.randrange(size)
        return lambda t: t.select(dim, index)
    if kind == "slice" and size:
        start, step = rng.randrange(size), rng.choice((1, 1, 2, 3))
        return lambda t: t[(slice(None),) * dim + (slice(start, None, step),)]
    if kind == "permute":
        order = rng.sample(range(x.dim()), x.dim())
        return lambda t: t.permute(order)
    if kind == "transpose":
        return lambda t: t.transpose(0, dim)
    if kind == "diagonal":
        return lambda t: t.diagonal(0, 0, 1)
    if kind == "unfold" and size > 1:
        return lambda t: t.unfold(dim, 2, 1)
    if kind == "unsqueeze":
        return lambda t: t.unsqueeze(dim)
    if kind == "squeeze":
        return lambda t: t.squeeze(dim)
    if kind == "view" and x.is_contiguous() and x.numel():
        return lambda t: t.view(-1)
    if kind == "flatten" and x.is_contiguous() and x.numel():
        return lambda t: t.flatten()
    if kind == "conj":
        return lambda t: t.conj()
    if kind == "as_real" and not x.is_conj():
        return lambda t: torch.view_as_real(t)
    return lambda t: t.detach()


def change_of(rng, x, others):
    """A random write to x."""
    kind = rng.choice(["fill", "add", "mul", "copy", "zero", "copy_of", "index", "masked", "data"])
    number = rng.randrange(1, 4)
    if kind == "fill":
        return lambda t, o: t.fill_(number)
    if kind == "zero":
        return lambda t, o: t.zero_()
    if kind == "copy":
        torch.manual_seed(rng.randrange(1000))
        source = torch.randint(0, 5, x.shape).to(x.dtype)
        return lambda t, o: t.copy_(source)
    if kind == "copy_of" and others:
        at = rng.randrange(len(others))
        if others[at].shape == x.shape and not (others[at].is_complex() and not x.is_complex()):
            return lambda t, o: t.copy_(o[at].clone())
    if x.dtype == torch.bool or kind == "data":
        return lambda t, o: t.logical_not_() if t.dtype == torch.bool else t.neg_()
    if kind == "index" and x.dim() and x.shape[0]:
        index = rng.randrange(x.shape[0])
        return lambda t, o: t.__setitem__(index, number)
    if kind == "masked" and not x.is_complex():
        return lambda t, o: t.masked_fill_(t > 1, number)
    return (lambda t, o: t.add_(number)) if kind == "add" else (lambda t, o: t.mul_(number))


def overlaps(x):
    """Whether two elements share memory; PyTorch leaves writes to such tensors undefined."""
    if not x.numel():
        return False
    last = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride()))
    places = torch.arange(last + 1).as_strided(x.shape, x.stride(), x.storage_offset())
    return places.unique().numel() < x.numel()


def same(here, there, what):
    assert here.shape == there.shape and here.dtype == there.dtype, what
    assert here.stride() == there.stride() and here.storage_offset() == there.storage_offset(), what
    assert torch.equal(there.cpu(), here), (what, here, there.cpu())


def run(seed, steps=14):
    rng = random.Random(seed)
    dtype = rng.choice(DTYPES)
    shape = [rng.randrange(1, 4) for _ in range(rng.randrange(0, 4))]
    here = [torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)]
    there = [here[0].clone().to("tt")]
    for step in range(steps):
        at = rng.randrange(len(here))
        if rng.random() < 0.5:
            view = view_of(rng, here[at])
            here.append(view(here[at]))
            there.append(view(there[at]))
            same(here[-1], there[-1], (seed, step))
        elif not overlaps(here[at]):
            change = change_of(rng, here[at], here)
            change(here[at], here)
            change(there[at], there)
            for a, b in zip(here, there):
                same(a, b, (seed, step))
        if rng.random() < 0.1:
            del here[at], there[at]
        if not here:
            return


@pytest.mark.parametrize("block", range(6))
def test_random_programs_of_views_and_writes(tt_device, block):
    for seed in range(block * 60, block * 60 + 60):
        run(seed)


def test_a_write_to_elements_that_lie_on_one_another_is_an_error(tt_device):
    x = torch.arange(4.0).to("tt")
    for view in (x.unfold(0, 2, 1), x[:1].expand(3)):
        with pytest.raises(RuntimeError, match="single memory location"):
            view.mul_(2)
    assert x.tolist() == [0, 1, 2, 3]


def test_a_storage_grows_and_keeps_what_it_has(tt_device):
    x = torch.arange(4.0).to("tt")
    view = x[1:3]
    x.resize_(2, 4)
    assert x.flatten()[:4].tolist() == [0, 1, 2, 3]
    x.zero_()
    assert view.tolist() == [0, 0]


def test_views_of_other_dtypes_share_memory(tt_device):
    x = torch.arange(4, dtype=torch.int32).to("tt")
    y = x.view(torch.float32)
    y.fill_(1.0)
    assert x.cpu().tolist() == torch.ones(4).view(torch.int32).tolist()


def test_storages_are_torchs_own(tt_device):
    x = torch.arange(6.0).to("tt")
    y = torch.empty(0, device="tt").set_(x.untyped_storage(), 2, (2,), (1,))
    y.add_(10)
    assert x.tolist() == [0, 1, 12, 13, 4, 5]
    assert y.data_ptr() == x.data_ptr() + 8 and x.is_set_to(x) and not x.is_set_to(y)
