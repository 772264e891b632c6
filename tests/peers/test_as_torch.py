"""Compares `import teletensor.as_torch as torch` with PyTorch: version checks, and texts that programs
compare."""

import os
import subprocess
import sys

import pytest
from teletensor.torch_version import TorchVersion

# Run as a program with either import; both must print the same.
PROGRAM = """
import collections, inspect
assert torch.__version__ >= (2, 0) and torch.__version__ > "1.13" and torch.__version__ < "3"
assert tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 0)
assert torch.__version__ == torch.version.__version__ or "+" in torch.version.__version__
print(torch.__version__.split("+")[0], isinstance(torch.__version__, str), type(torch.__version__).__name__)
for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16):
    print(dtype, repr(dtype), str(dtype) == "torch." + str(dtype).split(".")[1], f"{dtype}")
x = torch.ones(2, 3)
print(x.shape, repr(x.size()), torch.Size([]), x.type(), x.long().type(), x.bool().type(), x.half().type())
print(x.type("torch.DoubleTensor").dtype, x.type(torch.LongTensor).dtype, getattr(torch, str(x.dtype).split(".")[1]))
print(torch.strided, torch.channels_last, x.layout, x.double(), torch.tensor(1, dtype=torch.int16), x.device)
print(torch.max(x, 0))
print([{"torch.float32": "single", "torch.float64": "double"}[str(t.dtype)] for t in (x, x.double())])
try:
    torch.nothing
except AttributeError as error:
    print("nothing" in str(error))
print("relu" in dir(torch), torch.torch is torch, torch.nn is nn, F.relu is nn.functional.relu, normal.Normal.__name__)
print(isinstance(nn.Linear(2, 1).weight, torch.Tensor), torch.float is torch.float32)
print(issubclass(nn.BatchNorm1d, _BatchNorm), nn.modules.batchnorm._BatchNorm is _BatchNorm, _pair(3))
print(hasattr(torch, "distributed"), torch.distributed.is_initialized(), torch.jit.is_scripting())
"""
IMPORTS = """
import {0}as torch
import {1}.nn as nn
import {1}.nn.functional as F
from {1}.distributions import normal
from {1}.nn.modules.batchnorm import _BatchNorm
from {1}.nn.modules.utils import _pair
from {1}.utils.data import DataLoader
"""


def output(imports, daemon):
    session = f"import teletensor\nteletensor.connect({daemon.unix!r}).__enter__()\n" if daemon else ""
    done = subprocess.run([sys.executable, "-c", imports + session + PROGRAM], capture_output=True, text=True,
                          timeout=240, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_program_prints_the_same(shared_daemon):
    pytest.importorskip("torch")
    theirs = output(IMPORTS.format("torch ", "torch"), None)
    assert "torch.float32" in theirs
    ours = output(IMPORTS.format("teletensor.as_torch ", "teletensor.as_torch"), shared_daemon)
    assert ours == theirs
    assert output(IMPORTS.format("teletensor.as_torch ", "teletensor"), shared_daemon) == ours


def test_versions_compare():
    theirs = pytest.importorskip("torch").torch_version.TorchVersion
    others = ["2.9", "2.10.0", "2.10", "2.10.1", "2.11.0a0", "2.10.0rc1", (2, 10), (2, 9, 9), (2, 11), "3",
              "2.10.0.dev20260101"]
    for text in ("2.10.0", "2.10.0rc2", "2.9.1"):
        ours, wanted = TorchVersion(text), theirs(text)
        for other in others:
            for compare in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"):
                assert getattr(ours, compare)(other) == getattr(wanted, compare)(other), (text, compare, other)
    assert TorchVersion("2.1") != "something else" and {TorchVersion("2.1"): 1}["2.1"] == 1
    with pytest.raises(ValueError, match="'new' is not a valid version"):
        _ = TorchVersion("2.1") < "new"
