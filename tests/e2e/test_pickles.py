"""Pickles of tensors and modules: refused, with what to do instead, unless the program allows them."""

import importlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
from support import datasets


@pytest.fixture
def allowed(tt, monkeypatch):
    monkeypatch.setenv("TELETENSOR_ALLOW_PICKLE", "0")  # as before, after the test
    tt.allow_pickle()


def again(value, protocol=None):
    return pickle.loads(pickle.dumps(value, protocol))


def test_without_being_allowed(tt, monkeypatch):
    monkeypatch.delenv("TELETENSOR_ALLOW_PICKLE", raising=False)
    for value in (tt.ones(2), {"a": [tt.ones(2)]}, tt.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=r"only after teletensor\.allow_pickle\(\)"):
            pickle.dumps(value)
    tt.allow_pickle()
    assert again(tt.ones(2)).tolist() == [1.0, 1.0]
    tt.allow_pickle(False)
    with pytest.raises(TypeError, match=r"teletensor\.save"):
        pickle.dumps(tt.ones(2))


DTYPES = """bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64
complex128"""


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_values_of_every_dtype(tt, allowed, dtype):
    x = tt.tensor([0, 1, 3]).to(getattr(tt, dtype))
    for protocol in range(2, 6):
        y = again(x, protocol)
        assert y.dtype == x.dtype and tt.equal(y, x) and not y.requires_grad


def test_what_a_pickle_holds(tt, allowed):
    x = tt.arange(6.0).reshape(2, 3).t()
    assert tt.equal(again(x), x) and again(x[0, 0]).shape == () and again(tt.empty(0, 3)).shape == (0, 3)
    w = tt.ones(2, requires_grad=True)
    w.grad, w.note, w.itself = tt.ones(2), [1], w
    made = again(w)
    assert made.requires_grad and made.is_leaf and made.grad is None and made.note == [1] and made.itself is made
    assert again(w * 2).is_leaf  # no history
    far = tt.ones(2, device="sim:1")
    assert again(far).device == far.device
    a, b = again((w, w))
    assert a is b


def test_modules_and_optimizers(tt, allowed):
    net = tt.nn.Sequential(tt.nn.Linear(2, 3), tt.nn.BatchNorm1d(3), tt.nn.ReLU())
    net.tied = net[0].weight
    net[0].bias.no_decay = True
    optimizer = tt.optim.Adam(net.parameters(), lr=0.1)
    net(tt.ones(4, 2)).sum().backward()
    optimizer.step()
    made, moves = again((net, optimizer))
    assert type(made[0].weight) is tt.nn.Parameter and made.tied is made[0].weight and made[0].bias.no_decay
    for name, value in net.state_dict().items():
        assert tt.equal(made.state_dict()[name], value), name
    for model, steps in ((net, optimizer), (made, moves)):
        model.eval()
        steps.zero_grad()
        model(tt.ones(1, 2)).sum().backward()
        steps.step()
    assert tt.equal(net[0].weight, made[0].weight)


def test_in_other_processes(tt, allowed, shared_daemon, monkeypatch):
    monkeypatch.setenv("TELETENSOR_ADDRESS", shared_daemon.unix)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(datasets.doubled, (tt.ones(2),)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("library", ["joblib", "cloudpickle"])
def test_libraries(tt, allowed, library, tmp_path):
    pickler = importlib.import_module(library)
    net = tt.nn.Linear(2, 2)
    functions = [tt.nn.functional.gelu, tt.std, tt.exp, tt.Tensor.exp, tt.lstm_cell]
    path = tmp_path / "net"
    with open(path, "wb") as file:
        pickler.dump((net, functions), file)
    with open(path, "rb") as file:
        made, found = pickler.load(file) if library == "joblib" else pickle.load(file)
    assert tt.equal(made.weight, net.weight) and all(a is b for a, b in zip(functions, found, strict=True))


def test_a_program_that_cannot_be_edited(shared_daemon):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import pickle, teletensor as tt
        print(pickle.loads(pickle.dumps(tt.ones(2))).tolist())
    """)], env={**os.environ, "TELETENSOR_ALLOW_PICKLE": "1", "TELETENSOR_ADDRESS": shared_daemon.unix},
        capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[1.0, 1.0]\n", done.stderr
