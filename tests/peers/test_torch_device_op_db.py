"""PyTorch's operator samples on the device "tt": one sample a name, forward in float32."""

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_device_db import names, run_name

# Names that differ, and why.
DIFFERENT = {
    "as_strided/partial_views": "the sample is a view of a storage, which a copy to a device is not",
    "chalf": "there is no complex32",
    "to_sparse": "there are no sparse tensors",
    "tensor_split": "PyTorch wants its indices on the CPU",
}
FALLBACKS = 0.18  # of all names may need the CPU


def test_names_are_equal(tt_device):
    torch.set_num_threads(1)
    different, fallen = {}, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names():
            reason, fallbacks = run_name(name, 1)
            fallen += bool(fallbacks)
            if reason and name not in DIFFERENT:
                different[name] = reason
    assert not different, "\n".join(f"{name}: {reason}" for name, reason in different.items())
    assert fallen <= FALLBACKS * len(names()), fallen


def test_a_wrong_result_is_seen(tt_device, monkeypatch):
    from torch_device_db import op_db

    info = next(each for each in op_db if each.name == "sin")
    monkeypatch.setattr(info, "op", lambda x: x.sin() if x.device.type == "cpu" else x.cos())
    reason, _ = run_name("sin", 1)
    assert reason is not None and "not close" in reason
