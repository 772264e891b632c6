"""PyTorch's operator samples on the device "tt": one sample a name, forward, with gradients, and integers."""

import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_device_db import names, run_name

# Names that differ, and why.
DIFFERENT = {
    "chalf": "there is no complex32",
    "tensor_split": "PyTorch wants its indices on the CPU, for every device",
}
# Names that need the CPU, and why. A name that no longer needs it is an error too.
ON_THE_CPU = {
    "hash_tensor": "its hash is defined by PyTorch's code only",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "an operator of the CPU",
}


def check(dtype, gradients, different, on_the_cpu):
    torch.set_num_threads(1)
    wrong, fallen = {}, set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names(dtype):
            reason, fallbacks = run_name(name, 1, dtype, gradients)
            if fallbacks:
                fallen.add(name)
            if bool(reason) != (name in different):
                wrong[name] = reason or "is equal now: take it out of the list"
    assert not wrong, "\n".join(f"{name}: {reason}" for name, reason in wrong.items())
    assert fallen == set(on_the_cpu), fallen ^ set(on_the_cpu)


def test_names_are_equal(tt_device):
    check(torch.float32, False, DIFFERENT, ON_THE_CPU)


def test_gradients_are_equal(tt_device):
    check(torch.float64, True, DIFFERENT, ON_THE_CPU)


def test_integers_are_equal(tt_device):
    check(torch.int64, False, DIFFERENT, {name: ON_THE_CPU[name] for name in ("hash_tensor",)})


@pytest.mark.parametrize("wrong", [torch.cos, lambda x: x.sin()[:-1], lambda x: x.sin().double()],
                         ids=["value", "shape", "dtype"])
def test_a_wrong_result_is_seen(tt_device, monkeypatch, wrong):
    from torch_device_db import op_db

    info = next(each for each in op_db if each.name == "sin")
    monkeypatch.setattr(info, "op", lambda x: x.sin() if x.device.type == "cpu" else wrong(x))
    assert run_name("sin", 1)[0] is not None
