"""Attributes that a program sets on tensors and parameters."""

import copy
import gc
import weakref

import pytest


class Mark:
    """An object whose destruction the tests observe."""


def test_any_attribute(tt):
    x = tt.zeros(3)
    assert not hasattr(x, "note") and vars(x) == {}
    x.note, x.require_grad = "pe", False  # the second is a typing error that PyTorch takes as well
    assert x.note == "pe" and vars(x) == {"note": "pe", "require_grad": False} and not x.requires_grad
    del x.note
    with pytest.raises(AttributeError, match="note"):
        _ = x.note
    with pytest.raises(AttributeError, match="note"):
        del x.note
    net = tt.nn.Linear(2, 2)
    net.bias.no_decay = True
    groups = {decays: [n for n, p in net.named_parameters() if getattr(p, "no_decay", False) is not decays]
              for decays in (True, False)}
    assert groups == {True: ["weight"], False: ["bias"]}


def test_what_a_tensor_has_stays_what_it_is(tt):
    x = tt.zeros(3)
    for name in ("shape", "dtype", "ndim", "is_leaf", "grad_fn", "T"):
        with pytest.raises(AttributeError):
            setattr(x, name, 1)
    x.requires_grad = True
    x.grad = tt.ones(3)
    assert x.requires_grad and vars(x) == {}
    x.relu = lambda: "own"  # of this tensor, as in PyTorch
    assert x.relu() == "own" and tt.zeros(1).relu().tolist() == [0.0]


def test_attributes_belong_to_one_tensor(tt):
    x = tt.ones(2, requires_grad=True)
    x.note = [1]
    for other in (x.detach(), x.clone(), x.data, x + 0, x.view(2), tt.tensor(x.detach()), x.double()):
        assert not hasattr(other, "note")
    assert x.float() is x and x.contiguous() is x and x.requires_grad_() is x and x.note == [1]
    y = tt.ones(2, 3)
    y.note = 1
    y.t_().mul_(2)
    assert y.note == 1 and y.shape == (3, 2)
    x.data = tt.zeros(4)
    assert x.note == [1] and x.shape == (4,)


def test_copies(tt):
    x = tt.ones(2, requires_grad=True)
    x.note, x.twin = [1], x
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    assert shallow.note is x.note and shallow.twin is x and shallow is not x
    assert deep.note == [1] and deep.note is not x.note and deep.twin is deep and deep.requires_grad
    p = tt.nn.Parameter(tt.ones(2))
    p.no_decay = True
    assert copy.copy(p).no_decay and not hasattr(copy.deepcopy(p), "no_decay")  # both as in PyTorch
    buffer = tt.nn.Buffer(tt.ones(2), persistent=False)
    assert not copy.deepcopy(buffer).persistent


def test_cycles_are_collected(tt):
    for make in (lambda: tt.ones(2), lambda: tt.nn.Parameter(tt.ones(2)), lambda: tt.ones(3).nonzero()):
        x = make()
        x.itself, x.mark = x, Mark()
        seen, mark = weakref.ref(x), weakref.ref(x.mark)
        session = x._session
        del x
        assert seen() is not None
        gc.collect()
        assert seen() is None and mark() is None
        del session
    x = tt.ones(2)
    x.mark = Mark()
    mark = weakref.ref(x.mark)
    del x
    assert mark() is None  # no cycle: at once


def test_an_attribute_whose_end_uses_the_tensor_s_memory(tt):
    """A finalizer of an attribute runs while its tensor ends."""
    seen = []

    class Ends:
        def __init__(self, tensor):
            self.view = tensor.view(2)

        def __del__(self):
            seen.append((self.view + 1).tolist())

    x = tt.ones(2)
    x.ends = Ends(x)
    del x
    assert seen == [[2.0, 2.0]]


def test_compiled_functions_see_the_attributes_of_arguments(tt):
    def scaled(x):
        return x * getattr(x, "factor", 1)

    call = tt.compile(scaled)
    plain, marked, other = tt.ones(2), tt.ones(2), tt.ones(2)
    marked.factor, other.factor = 3, 5
    for _ in range(3):
        for x, want in ((plain, 1.0), (marked, 3.0), (other, 5.0)):
            assert call(x).tolist() == [want] * 2
    marked.factor = 4
    assert call(marked).tolist() == [4.0] * 2
    del marked.factor
    assert call(marked).tolist() == [1.0] * 2
    plain.factor = 7
    assert call(plain).tolist() == [7.0] * 2


def test_compiled_functions_see_the_attributes_of_tensors_outside(tt):
    w = tt.ones(2)

    def scaled(x):
        return x * (w.factor if hasattr(w, "factor") else 1)

    call, x = tt.compile(scaled), tt.ones(2)
    for _ in range(2):
        assert call(x).tolist() == [1.0] * 2
    for factor in (3, 5):
        w.factor = factor
        for _ in range(2):
            assert call(x).tolist() == [float(factor)] * 2


def test_attributes_that_compiled_functions_set(tt):
    def marks(x):
        x.seen = True
        return x + 1

    x = tt.ones(2)
    assert tt.compile(marks)(x).tolist() == [2.0, 2.0] and x.seen

    def returns(x):
        y = x + 1
        y.seen = True
        return y

    with pytest.raises(RuntimeError, match="set attributes"):
        tt.compile(returns)(tt.ones(2))
