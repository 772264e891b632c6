"""Tests types of arguments: where PyTorch refuses one with TypeError, teletensor must too. The calls are
the samples of PyTorch's operator database with each tensor replaced by an object that is not a tensor, and
lines with common mistakes."""

import functools
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import teletensor
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from op_db import Ours, Unsupported, names, plain_calls

torch.set_num_threads(1)
warnings.filterwarnings("ignore")

OURS = Ours(teletensor)
DATABASE = names()
# Functions, whose arguments PyTorch checks; a name that is only a method is looked up on the argument
# itself.
HAVE = sorted(name for name in DATABASE if OURS.dotted(name) is not None)
# For these functions None means that the argument is left out.
NONE_IS_LEFT_OFF = {"cumulative_trapezoid", "max", "min", "trapezoid", "trapz"}


class Other:
    """A type that PyTorch does not know."""


NO_TENSORS = (None, "abc", [1.0, 2.0], {}, Other())


@pytest.fixture(scope="module")
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


def kind(call):
    """The built-in class of the error; None if there is no error."""
    try:
        call()
        teletensor.synchronize()
    except Exception as error:
        return next(c for c in type(error).__mro__ if c.__module__ == "builtins")
    return None


def wrong_calls(info):
    """(the mistake, positional arguments, keyword arguments) for the first sample."""
    for args, kwargs in plain_calls(info, 1):
        for i, given in enumerate(args):
            if isinstance(given, torch.Tensor):
                for other in NO_TENSORS:
                    yield f"argument {i} is {other!r:.12}", [*args[:i], other, *args[i + 1:]], kwargs


@pytest.mark.parametrize("name", HAVE)
def test_what_is_no_tensor_is_refused(session, name):
    for info in DATABASE[name]:
        function = OURS.caller(info)
        try:
            calls = list(wrong_calls(info))
        except Exception as error:
            pytest.skip(f"PyTorch has no sample: {error}")
        for what, args, kwargs in calls:
            if name in NONE_IS_LEFT_OFF and what == "argument 1 is None":
                continue
            if kind(functools.partial(info.op, *args, **kwargs)) is not TypeError:
                continue
            try:
                own = [OURS.convert(a) for a in args], {k: OURS.convert(v) for k, v in kwargs.items()}
            except Unsupported:
                continue
            assert kind(functools.partial(function, *own[0], **own[1])) is TypeError, what


LINES = """
t.clamp_min(None, 1)
t.dist("abc", t.ones(2))
t.nn.functional.relu(None)
t.nn.functional.linear(t.ones(2), [1.0])
t.nn.functional.cross_entropy(t.ones(2, 3), [0, 1])
t.nn.functional.conv2d(np.ones((1, 1, 3, 3)), t.ones(1, 1, 2, 2))
t.nn.functional.batch_norm(t.ones(2, 3), "mean", None)
t.nn.functional.max_pool2d(t.ones(1, 4, 4), "2")
t.nn.functional.avg_pool2d(t.ones(1, 4, 4), ("a", "b"))
t.nn.functional.avg_pool2d(t.ones(1, 4, 4), (2.0, 2.0))
t.nn.functional.pad(t.ones(3), ("a", 1))
t.nn.functional.pad(t.ones(3), (1.5, 1))
t.nn.functional.softmax(t.ones(2), dim="a")
t.nn.functional.dropout("abc")
t.linalg.inv(None)
t.linalg.norm([1.0])
t.fft.fft("abc")
t.special.polygamma(1, "abc")
t.ones(3).flatten("a")
t.ones(3).unflatten(1.5, (3,))
t.flatten(t.tensor(1.0), 1)
t.meshgrid()
t.linspace(t.ones(1), 2, 3)
t.nn.functional.prelu(t.ones(2, 3), t.ones(1, 1))
t.nn.functional.rms_norm(t.ones(2, 3), (3,), t.ones(2, 3))
t.nn.functional.instance_norm(t.ones(2, 3, 4), weight=t.ones(2))
t.nn.functional.instance_norm(t.ones(2, 3, 4), running_mean=t.ones(3))
t.nn.functional.bilinear(t.ones(2, 3), t.ones(2, 3), t.ones(4, 3, 3), t.ones(5))
t.nn.functional.margin_ranking_loss(t.ones(2), t.ones(2), t.ones(1, 2))
t.nn.functional.cosine_embedding_loss(t.ones(2, 3), t.ones(2, 3), t.ones(2, 1))
t.nn.functional.triplet_margin_loss(t.ones(2, 3), t.ones(2, 3), t.ones(3))
t.nn.functional.gaussian_nll_loss(t.ones(2, 3), t.ones(2, 3), t.ones(1, 2, 3))
t.nn.functional.binary_cross_entropy_with_logits(t.ones(2), t.ones(2), pos_weight=t.ones(1, 2))
t.ones(4, 4).narrow(t.tensor(0), t.tensor(1), t.tensor(2)).shape
t.split(t.ones(4), t.tensor(2))[1].shape
t.linspace(0, 1, t.tensor(3)).shape
t.norm(t.ones(4), t.tensor(2.0)).item()
t.ones(4).sum(t.tensor(0)).item()
t.ones(4).sum(t.tensor(0.5))
"""


@pytest.mark.parametrize("line", [line for line in LINES.splitlines() if line])
def test_lines(tt, line):
    found = []
    for t in (tt, torch):
        try:
            found.append(eval(line, {"t": t, "np": np}))
        except Exception as error:
            found.append(next(c for c in type(error).__mro__ if c.__module__ == "builtins"))
    assert found[0] == found[1]


def test_the_text_names_function_argument_and_kind(tt):
    with pytest.raises(TypeError, match=r"clamp_min\(\): argument 'input' \(position 1\) must be Tensor, not NoneType"):
        tt.clamp_min(None, 1)
    with pytest.raises(TypeError, match=r"cross_entropy\(\): argument 'target' must be Tensor, not list"):
        tt.nn.functional.cross_entropy(tt.ones(2, 3), target=[0, 1])
    with pytest.raises(TypeError, match=r"flatten\(\): argument 'start_dim' \(position 2\) must be int, not str"):
        tt.ones(3).flatten("a")


def test_functions_stay_what_they_are(tt):
    """Checked functions can still be found, documented, copied and pickled as functions."""
    import copy
    import inspect
    import pickle

    relu = tt.nn.functional.gelu
    assert relu.__name__ == "gelu" and relu.__doc__ and inspect.isfunction(relu)
    assert list(inspect.signature(tt.clamp_min).parameters) == ["input", "min"]
    for function in (relu, tt.clamp_min, tt.linalg.vander, tt.fft.fftshift):
        assert copy.deepcopy(function) is function
        assert pickle.loads(pickle.dumps(function)) is function
