"""Checks that testing.assert_close accepts and refuses what PyTorch's does, and that make_tensor draws from the same
ranges."""

import itertools
import warnings

import numpy as np
import pytest
import teletensor
import torch

VALUES = [
    lambda m: m.tensor([1.0, 2.0]), lambda m: m.tensor([1.0, 2.0 + 1e-6]), lambda m: m.tensor([1.0, 2.1]),
    lambda m: m.tensor([1.0, float("nan")]), lambda m: m.tensor([float("inf"), 2.0]), lambda m: m.tensor([1, 2]),
    lambda m: m.tensor([1, 2], dtype=m.uint8), lambda m: m.tensor([True, False]), lambda m: m.tensor([[1.0, 2.0]]),
    lambda m: m.tensor([1.0, 2.0], dtype=m.float64), lambda m: m.tensor([1.0, 2.0 + 1e-6], dtype=m.float64),
    lambda m: m.tensor([1.0, 2.01], dtype=m.bfloat16), lambda m: m.tensor([1 + 1j, 2.0]), lambda m: m.ones(0),
    lambda m: 1.0, lambda m: 1, lambda m: m.tensor(1.0), lambda m: [1.0, 2.0], lambda m: {"a": m.ones(2)},
    lambda m: {"a": m.zeros(2)}, lambda m: [m.ones(2), m.zeros(1)], lambda m: None,
]
OPTIONS = [{}, {"equal_nan": True}, {"check_dtype": False}, {"rtol": 0.1, "atol": 0.0}, {"rtol": 0.0, "atol": 0.0},
           {"check_stride": True}]


def outcome(m, a, b, options):
    try:
        m.testing.assert_close(a(m), b(m), **options)
    except (AssertionError, TypeError, ValueError) as e:
        return type(e)
    return None


@pytest.fixture(scope="module", autouse=True)
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_pairs_are_close(options):
    for (i, a), (j, b) in itertools.product(enumerate(VALUES), repeat=2):
        wanted = outcome(torch, a, b, options)
        assert outcome(teletensor, a, b, options) is wanted, (i, j)


def test_messages():
    with pytest.raises(AssertionError, match=r"(?s)Tensor-likes are not close!.*Mismatched elements: 1 / 2 \(50.0%\)"):
        teletensor.testing.assert_close(teletensor.tensor([1.0, 2.0]), teletensor.tensor([1.0, 3.0]))
    with pytest.raises(AssertionError, match="^mine$"):
        teletensor.testing.assert_close(1.0, 2.0, msg="mine")
    with pytest.raises(AssertionError, match="item .1..'a'."):
        teletensor.testing.assert_close([1, {"a": np.ones(2)}], [1, {"a": np.zeros(2)}])
    with pytest.raises(ValueError, match="rtol and atol must both be specified"):
        teletensor.testing.assert_close(1.0, 1.0, rtol=1.0)


def test_the_older_comparison():
    def close(m, a, b, **options):
        with pytest.warns(FutureWarning, match="assert_allclose"):
            try:
                m.testing.assert_allclose(a, b, **options)
            except AssertionError:
                return False
        return True

    for m in (torch, teletensor):
        x = m.ones(2)
        found = [close(m, x, x + e, **o) for e in (5e-5, 2e-4) for o in ({}, {"rtol": 0.0, "atol": 1e-6})]
        found += [close(m, x.double(), x), close(m, [1.0, float("nan")], [1, float("nan")]), close(m, 1.0, 1.1)]
        assert found == [True, False, False, False, True, True, False], m


DTYPES = """bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64
complex128""".split()
RANGES = [{}, {"low": float("-inf"), "high": float("inf")}, {"low": 0.5, "high": 1.5}, {"low": 1}, {"high": 1},
          {"low": 0, "high": 2, "exclude_zero": True}]
SHAPES = [((3, 400), {}), ((3, 400), {"noncontiguous": True}), ((), {"noncontiguous": True}), ((0, 2), {}), ((1,), {}),
          ((2, 3, 4, 5), {"memory_format": "channels_last"}), (([2, 3],), {}), ((torch.Size([2]),), {})]
WRONG = [{"low": float("nan")}, {"low": 3, "high": 1}, {"low": 1, "high": 1}, {"low": 2.0**70, "high": 2.0**80},
         {"low": 1e39, "high": 2e39}, {"requires_grad": True},
         {"noncontiguous": True, "memory_format": "contiguous_format"}]


def made(m, name, shape, options):
    named = {key: getattr(m, value) if key == "memory_format" else value for key, value in options.items()}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            x = m.testing.make_tensor(*shape, dtype=getattr(m, name), device="cpu", **named)
        except (ValueError, NotImplementedError) as e:
            return type(e), str(e).replace("torch.", "").replace("teletensor.", "")
    return x, [each.category for each in seen]


def layout(x):
    return tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.requires_grad, x.is_leaf


@pytest.mark.parametrize("name", DTYPES)
def test_random_tensors_have_the_same_layouts_and_ranges(name):
    for shape, options in SHAPES:
        theirs, ours = (made(m, name, shape, options)[0] for m in (torch, teletensor))
        assert layout(ours) == layout(theirs), (shape, options)
    for options in RANGES:
        theirs, ours = (made(m, name, (40, 50), options) for m in (torch, teletensor))
        if theirs[0] in (ValueError, NotImplementedError):
            if name != "bool":
                assert name.startswith("uint")  # torch has no ops, or no bounds, for these
                continue
            assert ours == theirs
            continue
        x = ours[0].cpu().numpy() if name != "bfloat16" else ours[0].float().numpy()
        y = theirs[0].numpy() if name != "bfloat16" else theirs[0].float().numpy()
        for each in ((np.real, np.imag) if "complex" in name else (np.asarray,)):
            a, b = (each(v).astype(np.float64) for v in (x, y))
            width = b.max() * 0.01 - b.min() * 0.01
            width += 1 if "int" in name and width > 1 else 0
            assert abs(a.min() - b.min()) <= width and abs(a.max() - b.max()) <= width, options
            assert not ("exclude_zero" in options and (a == 0).any() and "complex" not in name), options
    x = teletensor.testing.make_tensor(3, dtype=getattr(teletensor, name), device="cpu", requires_grad="float" in name)
    assert x.requires_grad == ("float" in name) and x.is_leaf


def test_unsigned_numbers_reach_every_value():
    x = teletensor.testing.make_tensor(4000, dtype=teletensor.uint64, device="cpu", low=0, high=2**64).numpy()
    assert x.min() < 2**56 and x.max() > 2**64 - 2**56
    x = teletensor.testing.make_tensor(50, dtype=teletensor.uint64, device="cpu", low=2**64 - 3, high=2**64).tolist()
    assert set(x) == {2**64 - 3, 2**64 - 2}


@pytest.mark.parametrize("name", ["float32", "int8", "uint16", "int64", "complex64"])
def test_wrong_arguments_of_random_tensors(name):
    for options in WRONG:
        theirs, ours = (made(m, name, (3,), options) for m in (torch, teletensor))
        if isinstance(theirs[0], torch.Tensor):
            assert ours[1] == theirs[1] and tuple(ours[0].shape) == (3,), options  # the same warnings
        else:
            assert ours[0] is theirs[0] and ours[1].partition("memory_format=")[0] == theirs[1].partition(
                "memory_format=")[0], options
