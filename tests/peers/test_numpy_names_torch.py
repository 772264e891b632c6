"""Tests NumPy's names of parameters (axis, keepdims): where PyTorch accepts one, teletensor must too. The
calls are the samples of PyTorch's operator database."""

import sys
import warnings
from pathlib import Path

import pytest
import teletensor
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from op_db import Ours, Unsupported, names, plain_calls

torch.set_num_threads(1)
warnings.filterwarnings("ignore")

OURS = Ours(teletensor)
DATABASE = names()
HAVE = sorted(name for name in DATABASE if OURS.dotted(name) is not None)
NAMES = {"dim": "axis", "dims": "axis", "keepdim": "keepdims"}


@pytest.fixture(scope="module")
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


def renamed(args, kwargs):
    """The call with one argument under NumPy's name: (positional arguments, keyword arguments)."""
    for theirs, other in NAMES.items():
        if theirs in kwargs:
            yield args, {other if key == theirs else key: value for key, value in kwargs.items()}
    if len(args) > 1 and isinstance(args[-1], (int, tuple)):
        name = "keepdims" if isinstance(args[-1], bool) else "axis"
        if name not in kwargs:
            yield args[:-1], {**kwargs, name: args[-1]}


def takes(function, args, kwargs):
    try:
        function(*args, **kwargs)
    except Exception:
        return False
    return True


def calls(info):
    for args, kwargs in plain_calls(info, 12):
        yield from renamed(args, kwargs)


@pytest.mark.parametrize("name", HAVE)
def test_where_pytorch_takes_it_so_do_we(session, name):
    for info in DATABASE[name]:
        function = OURS.caller(info)
        try:
            asked = list(calls(info))
        except Exception as error:
            pytest.skip(f"PyTorch has no sample: {error}")
        for args, kwargs in asked:
            try:
                own = [OURS.convert(a) for a in args], {k: OURS.convert(v) for k, v in kwargs.items()}
            except Unsupported:
                continue
            if takes(info.op, args, kwargs):
                function(*own[0], **own[1])
            if info.method_variant is not None and takes(info.method_variant, args, kwargs):
                getattr(type(own[0][0]), info.method_variant.__name__)(*own[0], **own[1])
    teletensor.synchronize()


def test_both_names_give_the_same_result(session):
    x = teletensor.arange(6.0).reshape(2, 3)
    for name in ("sum", "std", "logsumexp", "argmax"):
        for call in (getattr(teletensor, name), getattr(teletensor.Tensor, name)):
            assert teletensor.equal(call(x, axis=1, keepdims=True), call(x, dim=1, keepdim=True))
    assert teletensor.equal(teletensor.cat([x, x], axis=1), teletensor.cat([x, x], dim=1))


def test_one_argument_by_both_names(session):
    x = teletensor.ones(2, 3)
    for call in (lambda: x.sum(dim=0, axis=0), lambda: teletensor.std(x, dim=0, axis=1),
                 lambda: teletensor.cat([x], 0, axis=0), lambda: x.softmax(0, axis=0)):
        with pytest.raises(TypeError):
            call()
