"""Runs the examples in PyTorch's docstrings in PyTorch and in teletensor, and compares what they print.

Random numbers come from the same NumPy stream in both libraries; the lines of an example after the first
one that fails in PyTorch itself are left out.
"""

import contextlib
import doctest
import inspect
import io
import re
import sys
import types

import numpy as np
import torch

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)j?", re.I)
NAMESPACES = (
    "", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "nn.utils.rnn", "nn.utils.parametrize",
    "nn.utils.parametrizations", "nn.utils.stateless", "linalg", "fft", "special", "optim",
    "optim.lr_scheduler", "optim.swa_utils", "autograd", "autograd.functional", "autograd.graph",
    "autograd.forward_ad", "func", "utils.data", "utils.checkpoint", "distributions", "signal.windows",
    "amp", "random",
)  # fmt: skip


class Library(types.ModuleType):
    """A library under the name `torch` whose random functions draw from NumPy."""

    def __init__(self, library):
        super().__init__("torch")
        self.library, self.random = library, np.random.default_rng(0)
        for name in ("randn", "rand", "empty", "randn_like", "rand_like", "randint", "randperm"):
            setattr(self, name, getattr(self, "_" + name))

    def __getattr__(self, name):
        return getattr(self.__dict__["library"], name)

    def _tensor(self, values, dtype=None, requires_grad=False, **_):
        made = self.library.tensor(values)
        made = made if dtype is None else made.to(dtype)
        return made.requires_grad_() if requires_grad else made

    @staticmethod
    def _shape(sizes, options):
        sizes = (options.pop("size"),) if "size" in options else sizes
        return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else tuple(sizes)

    def _randn(self, *sizes, **options):
        shape = self._shape(sizes, options)
        return self._tensor(self.random.standard_normal(shape).astype("f4"), **options)

    def _rand(self, *sizes, **options):
        return self._tensor(self.random.random(self._shape(sizes, options)).astype("f4"), **options)

    def _empty(self, *sizes, **options):
        return self._tensor(np.zeros(self._shape(sizes, options), "f4"), **options)

    def _randn_like(self, x, **options):
        return self._randn(tuple(x.shape), **options)

    def _rand_like(self, x, **options):
        return self._rand(tuple(x.shape), **options)

    def _randint(self, *bounds, **options):
        bounds = list(bounds)
        shape = options.pop("size") if "size" in options else bounds.pop()
        return self._tensor(self.random.integers(*bounds, size=tuple(shape)), **options)

    def _randperm(self, n, **options):
        return self._tensor(self.random.permutation(n), **options)


def documented():
    """(dotted name, docstring) of every object with examples, once each."""
    seen = set()
    for namespace in NAMESPACES:
        place = torch
        for part in filter(None, namespace.split(".")):
            place = getattr(place, part)
        for name in sorted(n for n in dir(place) if not n.startswith("_")):
            thing = getattr(place, name, None)
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            members = [(name, thing)]
            if inspect.isclass(thing):
                members += [(f"{name}.{n}", m) for n, m in vars(thing).items() if not n.startswith("_")]
            for dotted, member in members:
                text = getattr(member, "__doc__", None)
                if isinstance(text, str) and ">>>" in text and not inspect.ismodule(member):
                    yield ".".join(filter(None, (namespace, dotted))), text


def examples_of(text):
    try:
        return doctest.DocTestParser().get_examples(inspect.cleandoc(text))
    except ValueError:
        return []


def without_imports(source):
    """Replaces `from torch.a import b` by assignments: `torch` is whichever library runs the example."""
    found = re.match(r"from torch([\w.]*) import (.*)", source)
    if found:
        names = (n.strip().split(" as ") for n in found[2].strip("() \n").split(","))
        return "\n".join(f"{n[-1]} = torch{found[1]}.{n[0]}" for n in names)
    return re.sub(r"^import torch.*$", "pass", source, flags=re.M)


def run(examples, library):
    """What each example prints, and the exception with which it ends, up to the first exception."""
    torch_ = Library(library)
    space = {"torch": torch_, "np": np, "numpy": np, "nn": torch_.nn, "F": torch_.nn.functional}
    told = []
    for example in examples:
        shown, printed, error = [], io.StringIO(), None
        hook, sys.displayhook = sys.displayhook, lambda x, shown=shown: shown.append(repr(x))
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(without_imports(example.source), "<example>", "single"), space)
        except Exception as e:
            error = e
        finally:
            sys.displayhook = hook
        told.append((printed.getvalue() + "\n".join(s for s in shown if s != "None"), error))
        if error is not None:
            break
    return told


def agree(mine, theirs):
    """Returns whether the texts are equal except for blanks, addresses and the last digits of numbers."""
    texts = [re.sub(r"at 0x\w+", "", t.replace("teletensor", "torch")) for t in (mine, theirs)]
    shapes = [re.sub(r"\s", "", NUMBER.sub("#", t)) for t in texts]
    numbers = [NUMBER.findall(t) for t in texts]
    if shapes[0] != shapes[1] or len(numbers[0]) != len(numbers[1]):
        return False
    pairs = [(complex(a), complex(b)) for a, b in zip(*numbers, strict=True)]
    return all(a == b or (a != a and b != b) or np.abs(a - b) <= 2e-3 * max(1, np.abs(b)) for a, b in pairs)


def difference(tt, text):
    """None, or the first example of a docstring that prints something else in teletensor."""
    examples = examples_of(text)
    torch.manual_seed(0)
    tt.manual_seed(0)
    theirs = run(examples, torch)
    whole = len(theirs) - (theirs != [] and theirs[-1][1] is not None)
    mine = run(examples[:whole], tt)
    for example, (ours, error), (wanted, _) in zip(examples, mine, theirs, strict=False):
        if error is not None:
            return f"{example.source.strip()}: {type(error).__name__}: {error}"
        if not agree(ours, wanted):
            return f"{example.source.strip()}\nhere:    {ours}\nPyTorch: {wanted}"
    return None
