"""The shape, strides and offset of a view on flat storage, from which the fuzzer recognises known
deviations."""

import numpy as np


def contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def positions(shape, strides, offset):
    """The storage index of every element of a view, as an int array of the view's shape."""
    index = np.full(shape, offset, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides)):
        index += (np.arange(size) * stride).reshape((size,) + (1,) * (len(shape) - axis - 1))
    return index


def dense(shape, strides):
    """Returns whether some permutation of it is contiguous (PyTorch: non-overlapping and dense)."""
    if len(shape) == 1:
        return shape[0] < 2 or strides[0] == 1
    step = 1
    for stride, size in sorted((t, s) for s, t in zip(shape, strides) if s > 1):
        if stride != step:
            return False
        step *= size
    return True


def overlaps_itself(tensor):
    shape, strides = tuple(tensor.shape), tensor.stride()
    return not dense(shape, strides) and any(s > 1 and t == 0 for s, t in zip(shape, strides))


def broadcasts(shape, to):
    """Returns whether `shape` broadcasts to exactly `to`."""
    shape, to = tuple(shape), tuple(to)
    return len(shape) <= len(to) and all(s in (1, t) for s, t in zip(shape[::-1], to[::-1]))
