"""Tests that other libraries with their own gRPC, protobuf and OpenMP can be imported in the same process,
in either order."""

import importlib.util
import os
import subprocess
import sys

import pytest

USE = {
    "teletensor": """
s = tt.connect(os.environ["TT_TEST_ADDRESS"])
s.__enter__()
x = tt.arange(300_000, dtype=tt.float32)
assert s.transport == "native" and tt.tensor(x.numpy()).sum().item() == x.sum().item()
""",
    "torch": "assert (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item() == 300.0 ** 3\n",
    "tensorflow": "assert float(tf.reduce_sum(tf.ones((30, 30)))) == 900.0\n",
    "grpc": """
channel = grpc.insecure_channel(os.environ["TT_TEST_ADDRESS"])
grpc.channel_ready_future(channel).result(timeout=200)
""",
}
IMPORTS = {"teletensor": "import teletensor as tt\n", "torch": "import torch\n",
           "tensorflow": "import tensorflow as tf\n", "grpc": "import grpc\n"}


@pytest.mark.parametrize("other", ["torch", "tensorflow", "grpc"])
@pytest.mark.parametrize("first", [True, False])
def test_import_order(shared_daemon, other, first):
    if importlib.util.find_spec(other) is None:
        pytest.skip(f"{other} is not installed here")
    order = ["teletensor", other] if first else [other, "teletensor"]
    code = "import os\n" + "".join(IMPORTS[name] for name in order)
    code += "".join(USE[name] for name in (*order, *reversed(order)))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240,
        env={**os.environ, "TT_TEST_ADDRESS": shared_daemon.unix, "TELETENSOR_TRANSPORT": "native"})
    assert done.returncode == 0, done.stderr[-3000:]
