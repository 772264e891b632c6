"""Compares views as another dtype with PyTorch: random programs of views, writes through them, and
gradients.

All steps are linear in the values through which gradients flow, so that no library needs a value that was
overwritten.
"""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


def apart(m, x):
    """PyTorch refuses to read elements that it writes at another position; teletensor reads the old
    values."""
    return x.clone() if m is torch else x


class Program:
    """The same steps in both libraries."""

    def __init__(self, tt, seed):
        self.libraries = (torch, tt)
        self.random = random.Random(seed)
        self.told = []
        self.pairs = []  # (torch's tensor, teletensor's tensor)
        self.leaves = []
        for dtype in self.random.choices(("complex64", "complex128", "float32", "float64"), k=2):
            shape = self.random.choice(((4, 2), (2, 3, 2), (6,), (3, 4)))
            values = np.array([self.random.randint(-4, 4) for _ in range(2 * int(np.prod(shape)))], dtype=np.float64)
            values = values.reshape(2, *shape)
            data = (values[0] + 1j * values[1] if "complex" in dtype else values[0]).astype(dtype)
            leaf = tuple(m.tensor(data.tolist(), dtype=getattr(m, dtype), requires_grad=True) for m in self.libraries)
            self.leaves.append(leaf)
            self.pairs.append(tuple(x * 1 for x in leaf))

    def both(self, what, step, *pairs, record=True):
        """One step in both libraries: returns the results, or None if both refuse."""
        self.told.append(what)
        made = []
        for i, m in enumerate(self.libraries):
            try:
                if record:
                    made.append(step(m, *(pair[i] for pair in pairs)))
                else:
                    with m.no_grad():
                        made.append(step(m, *(pair[i] for pair in pairs)))
            except (RuntimeError, IndexError, TypeError) as error:
                made.append(error)
        refused = [isinstance(x, Exception) for x in made]
        assert refused[0] == refused[1], (self.told, made)
        return None if refused[0] else tuple(made)

    def pick(self):
        return self.random.choice(list(enumerate(self.pairs)))

    def view(self):
        at, pair = self.pick()
        n = self.random.randint(-2, 2)
        name, step = self.random.choice((
            ("real", lambda m, x: x.real), ("imag", lambda m, x: x.imag),
            ("real", lambda m, x: m.real(x)), ("view_as_real", lambda m, x: m.view_as_real(x)),
            ("view_as_complex", lambda m, x: m.view_as_complex(x)),
            ("pairs", lambda m, x: m.view_as_complex(x.view(*x.shape[:-1], -1, 2))),
            ("select", lambda m, x: x.select(n, 0)), ("slice", lambda m, x: x[1:]), ("every", lambda m, x: x[..., ::2]),
            ("mT", lambda m, x: x.transpose(0, -1)), ("flat", lambda m, x: x.view(-1)),
            ("detach", lambda m, x: x.detach()), ("bits", lambda m, x: x.view(m.int32)),
            ("halves", lambda m, x: x.view(m.int16)), ("wide", lambda m, x: x.view(m.int64)),
            ("as it was", lambda m, x: x.view(m.float32)), ("as it was", lambda m, x: x.view(m.complex64))))
        made = self.both(f"{name} of {at}", step, pair, record=self.random.random() < 0.9)
        if made is None:
            return
        theirs, ours = made
        assert (tuple(theirs.shape), theirs.stride(), theirs.storage_offset()) == (
            tuple(ours.shape), ours.stride(), ours.storage_offset()), self.told
        assert str(theirs.dtype).split(".")[1] == str(ours.dtype).split(".")[1], self.told
        assert theirs._is_view() == ours._is_view(), self.told
        self.pairs.append(made)

    def write(self):
        (at, pair), (of, other) = self.pick(), self.pick()
        floats = pair[0].is_floating_point() or pair[0].is_complex()
        name, step = self.random.choice((
            ("mul_", lambda m, x, y: x.mul_(2)), ("add_", lambda m, x, y: x.add_(3)),
            ("fill_", lambda m, x, y: x.fill_(1)), ("set", lambda m, x, y: x.__setitem__(0, 2)),
            ("add tensor", lambda m, x, y: x.add_(apart(m, y))), ("copy_", lambda m, x, y: x.copy_(apart(m, y))),
            ("real =", lambda m, x, y: setattr(x, "real", apart(m, m.real(y))))) if floats else (
            ("xor", lambda m, x, y: x.bitwise_xor_(5)),))
        if name in ("add tensor", "copy_", "real =") and (
                pair[0].shape != other[0].shape or pair[0].dtype != other[0].dtype):
            return
        self.both(f"{name} {at} {of}", step, pair, other,
                  record=self.random.random() < 0.9)

    def same(self, theirs, ours, what):
        theirs, ours = theirs.detach().numpy(), ours.detach().numpy()
        assert theirs.dtype == ours.dtype and np.array_equal(theirs, ours, equal_nan=theirs.dtype.kind in "fc"), (
            self.told, what, theirs, ours)

    def run(self, steps):
        for _ in range(steps):
            self.random.choice((self.view, self.view, self.write))()
        for i, (theirs, ours) in enumerate(self.pairs):
            self.same(theirs, ours, i)
            assert theirs.requires_grad == ours.requires_grad, (self.told, i)

        def loss(m, *tensors):
            parts = (m.view_as_real(x) if x.is_complex() else x for x in tensors if x.requires_grad)
            terms = [(x.double() * (m.arange(x.numel(), dtype=m.float64) % 5 + 1).view(x.shape)).sum() for x in parts]
            sum(terms).backward()

        if not any(theirs.requires_grad for theirs, _ in self.pairs):
            return
        if self.both("backward", loss, *self.pairs) is None:
            return
        for i, leaf in enumerate(self.leaves):
            grads = [x.grad for x in leaf]
            assert (grads[0] is None) == (grads[1] is None), (self.told, i)
            if grads[0] is not None:
                self.same(*grads, f"gradient {i}")


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(shared_daemon, seed):
    import teletensor as tt

    with tt.connect(shared_daemon.unix).as_current():
        for part in range(40):
            Program(tt, seed * 1000 + part).run(14)


REFUSED = [
    ("larger, odd last size", lambda m: m.zeros(3, dtype=m.int32).view(m.int64)),
    ("larger, odd offset", lambda m: m.zeros(5, dtype=m.int32)[1:].view(m.int64)),
    ("larger, odd stride", lambda m: m.zeros(3, 3, dtype=m.int32)[:, :2].view(m.int64)),
    ("larger, last stride 2", lambda m: m.zeros(4, 4, dtype=m.int32)[:, ::2].view(m.int64)),
    ("smaller, last stride 4", lambda m: m.zeros(4, 4, dtype=m.int32).t().view(m.int16)),
    ("0-d", lambda m: m.tensor(1.0).view(m.int16)),
    ("complex of 3", lambda m: m.view_as_complex(m.zeros(2, 3))),
    ("complex of a column", lambda m: m.view_as_complex(m.zeros(2, 2).t())),
    ("complex of an odd offset", lambda m: m.view_as_complex(m.zeros(5)[1:].view(2, 2))),
    ("complex of odd strides", lambda m: m.view_as_complex(m.zeros(3, 3)[:, :2])),
    ("complex of 0-d", lambda m: m.view_as_complex(m.tensor(1.0))),
    ("parts of real", lambda m: m.view_as_real(m.zeros(2))),
    ("imag of real", lambda m: m.zeros(2).imag),
    ("a part of a leaf", lambda m: m.zeros(2, dtype=m.complex64, requires_grad=True).real.fill_(1)),
]


@pytest.mark.parametrize("name", [name for name, _ in REFUSED])
def test_both_refuse(shared_daemon, name):
    import teletensor as tt

    step = dict(REFUSED)[name]
    with pytest.raises((RuntimeError, TypeError)):
        step(torch)
    with tt.connect(shared_daemon.unix).as_current(), pytest.raises((RuntimeError, TypeError)):
        step(tt)
