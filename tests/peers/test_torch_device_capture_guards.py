"""teletensor.torch.capture: the guards of a captured step. A call that is as an earlier one, and one that differs in
something small."""

import collections
import contextlib
import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn as nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_torch_device_capture import (
    OPTIMIZERS,
    assert_equal,
    batches,
    mlp,
    pair,
    refusal,
    states,
    trainer,
)


def alternating(tt_device, step, other, calls, change, count=14):
    """Calls both steps with the same arguments, and change(i) before each. Returns the captured step."""
    captured = tt_device.capture(other)
    for i in range(count):
        change(i)
        arguments = calls(i)
        a, b = step(*arguments), captured(*arguments)
        torch.testing.assert_close(b.cpu(), a.detach().cpu(), rtol=1e-6, atol=1e-7)
    return captured


def test_the_sign_of_a_zero_and_a_nan_are_values(tt_device):
    captured = tt_device.capture(lambda x, n: x * n)
    x = torch.ones(2, device="tt")
    for n in [0.0, -0.0] * 5:
        assert torch.signbit(captured(x, n).cpu()).all() == (str(n) == "-0.0")
    for _ in range(5):
        assert captured(x, float("nan")).isnan().all()
    assert captured.programs == 3


def test_the_order_of_a_dictionary_is_a_part_of_it(tt_device):
    captured = tt_device.capture(lambda d: sum(i * each for i, each in enumerate(d.values())))
    a, b = torch.ones(2, device="tt"), torch.full((2,), 5.0, device="tt")
    for _ in range(5):
        assert captured({"a": a, "b": b}).tolist() == [5, 5]
        assert captured({"b": b, "a": a}).tolist() == [1, 1]
        assert captured({"b": a, "a": b}).tolist() == [5, 5]


def test_arguments_of_other_containers_and_keywords(tt_device):
    Pair = collections.namedtuple("Pair", "left right")
    captured = tt_device.capture(lambda pair, *, scale: Pair(pair.left + pair.right, pair.left * scale))
    for i in range(6):
        x = torch.full((2,), float(i), device="tt")
        made = captured(Pair(x, x), scale=2 + i % 2)
        assert made.left.tolist() == [2.0 * i] * 2 and made.right.tolist() == [i * (2.0 + i % 2)] * 2
    nested = tt_device.capture(lambda xs, d: {"sum": [xs[0] + xs[1][0], d["k"]], "n": 3})
    for i in range(6):
        x = torch.full((2,), float(i), device="tt")
        made = nested([x, (x,)], {"k": x})
        assert made["sum"][0].tolist() == [2.0 * i] * 2 and torch.equal(made["sum"][1], x) and made["n"] == 3


def test_numbers_in_a_list_of_an_optimizer(tt_device):
    (model, own), (other, others) = pair(OPTIMIZERS["capturable"])
    for each in (own, others):
        each.param_groups[0]["betas"] = [0.9, 0.999]

    def change(i):
        for each in (own, others):
            each.param_groups[0]["betas"][0] = 0.9 if i < 7 else 0.1

    data = batches(14)
    alternating(tt_device, trainer(model, own), trainer(other, others),
                lambda i: [each.to("tt") for each in data[i]], change)
    assert_equal(states(model, own), states(other, others))


def test_a_number_that_an_optimizer_counts_is_refused(tt_device):
    class Counting(torch.optim.SGD):
        def step(self):
            super().step()
            for each in self.state.values():
                each["calls"] = each.get("calls", 0) + 1

    model = mlp().to("tt")
    x, y = (each.to("tt") for each in batches(1)[0])
    text = refusal(tt_device, trainer(model, Counting(model.parameters(), lr=0.1, momentum=0.9)), x, y)
    assert "changes a number of an optimizer" in text


def test_modes_of_pytorch_between_calls(tt_device):
    x = torch.ones(2, 2, device="tt")

    def modes(i):
        return [contextlib.nullcontext(), torch.no_grad(), torch.inference_mode(),
                torch.autocast("tt", torch.bfloat16)][i % 4]

    captured = tt_device.capture(lambda x: (x @ x) * 1.001)
    for i in range(24):
        with modes(i):
            made = captured(x)
        assert made.dtype == (torch.bfloat16 if i % 4 == 3 else torch.float32)
    made = tt_device.capture(lambda x: x + torch.ones(2))
    for _ in range(5):
        with torch.device("tt"):
            assert made(x).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(RuntimeError, match="same device"):
        made(x)
    with torch.device("tt"):
        assert made(x).tolist() == [[2, 2], [2, 2]]


def test_autograd_refuses_a_saved_value_that_a_call_has_overwritten(tt_device):
    weight, state = (torch.ones(3, device="tt", requires_grad=each) for each in (True, False))

    def step(x):
        with torch.no_grad():
            weight.mul_(2)
            state[:2].add_(x[:2])
            x.add_(1)
        return weight.sum()

    captured = tt_device.capture(step)
    for _ in range(6):
        x = torch.ones(3, device="tt")
        for saved in (weight, state, x):
            other = torch.ones(3, device="tt", requires_grad=True)
            loss = (saved * other).sum()
            captured(x)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
    assert captured.programs == 1


def test_a_step_whose_objects_change_without_a_new_number(tt_device):
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).eval().to("tt")
    other = copy.deepcopy(model)
    made = torch.Generator().manual_seed(1)
    new = [torch.randn(6, 6, generator=made) for _ in range(8)]

    def change(i):
        for each in (model, other):
            if i == 5:
                each[0].weight = nn.Parameter(new[0].to("tt"))
            if i == 8:
                each[0].weight.requires_grad_(False)
            if i == 11:
                each[0]._buffers["more"] = torch.zeros(2, device="tt")
            if i == 14:
                each[0]._parameters = dict(each[0]._parameters, weight=nn.Parameter(new[1].to("tt")))
            if i == 17:
                each[0].bias = None

    x = torch.randn(3, 6, device="tt")
    alternating(tt_device, lambda x: model(x).sum(1), lambda x: other(x).sum(1), lambda i: (x,), change, 22)


def test_a_call_as_an_earlier_one_runs_no_python_code_of_the_capture(tt_device):
    (model, own), _ = pair(OPTIMIZERS["capturable"])
    captured = tt_device.capture(trainer(model, own))
    x, y = batches(1)[0]
    for _ in range(5):
        captured(x, y)
    called = []
    sys.setprofile(lambda frame, event, _: event == "call" and called.append(frame.f_code.co_name))
    try:
        captured(x, y)
    finally:
        sys.setprofile(None)
    assert called[:2] == ["__call__", "result"] and len(called) <= 4, called


def test_a_number_of_a_module_that_changes_between_calls(tt_device):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.powers, self.calls = 2.0, (1, 2), 0

        def forward(self, x):
            self.calls += 1  # runs while the step is traced only
            return sum((x * self.scale) ** power for power in self.powers)

    model, other = Scaled(), Scaled()

    def change(i):
        for each in (model, other):
            each.scale = 3.0 if i >= 6 else 2.0
            each.powers = (1, 3) if i >= 11 else (1, 2)

    x = torch.randn(3, device="tt")
    captured = alternating(tt_device, lambda x: model(x), lambda x: other(x), lambda i: (x,), change, 17)
    assert captured.programs == 1 and other.calls < model.calls
    with pytest.raises(RuntimeError, match="The attribute 'scale' of Scaled was 7.0"):
        for i in range(20):
            other.scale = float(i)
            captured(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.rest = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])
        self.act = torch.relu

    def forward(self, x):
        x = self.act(self.first(x))
        for each in self.rest:
            x = each(x)
        return x


def other_linear():
    torch.manual_seed(7)
    return nn.Linear(4, 4).to("tt")


def twice(tensors):
    with torch.no_grad():
        for each in tensors:
            each.mul_(2)


CHANGES = {
    "forward hook": lambda model, own: model.rest[1].register_forward_hook(lambda module, args, made: made * 2),
    "forward pre-hook": lambda model, own: model.first.register_forward_pre_hook(
        lambda module, args: (args[0] + 1,)),
    "backward hook": lambda model, own: model.rest[1].register_full_backward_hook(
        lambda module, inputs, outputs: tuple(each if each is None else each * 2 for each in inputs)),
    "backward pre-hook": lambda model, own: model.first.register_full_backward_pre_hook(
        lambda module, outputs: tuple(each * 3 for each in outputs)),
    "hook of a parameter": lambda model, own: model.first.weight.register_hook(lambda gradient: gradient * 2),
    "hook after a gradient": lambda model, own: model.first.weight.register_post_accumulate_grad_hook(
        lambda weight: twice([weight.grad])),
    "hook of an optimizer": lambda model, own: own.register_step_pre_hook(
        lambda *_: twice(each.grad for each in model.parameters())),
    "hook after a step": lambda model, own: own.register_step_post_hook(
        lambda *_: twice([model.first.bias])),
    "hook of all modules": lambda model, own: nn.modules.module.register_module_forward_hook(
        lambda module, args, made: made + 1),
    "hook of all optimizers": lambda model, own: register_optimizer_step_pre_hook(
        lambda optimizer, *_: twice(each.grad for each in optimizer.param_groups[0]["params"])),
    "other child": lambda model, own: setattr(model, "first", other_linear()),
    "other child of a list": lambda model, own: model.rest.__setitem__(0, other_linear()),
    "longer list": lambda model, own: model.rest.append(nn.Tanh()),
    "function": lambda model, own: setattr(model, "act", torch.sigmoid),
    "method": lambda model, own: setattr(model.first, "forward", lambda x: x * 2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_code_of_a_step(tt_device, change):
    """Hooks, children, functions and methods that a program changes between calls have their effect."""
    def results(run):
        torch.manual_seed(0)
        model = Block().to("tt")
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        step = run(trainer(model, own))
        losses = []
        with contextlib.ExitStack() as hooks:
            for i in range(15):
                if i == 6 and hasattr(handle := change(model, own), "remove"):
                    hooks.callback(handle.remove)
                if i == 11:
                    hooks.close()
                losses.append(step(*data[i]).item())
        return losses

    data = [(torch.randn(3, 4).to("tt"), torch.randn(3, 4).to("tt")) for _ in range(15)]
    expected = results(lambda step: step)
    torch.testing.assert_close(results(tt_device.capture), expected, rtol=1e-6, atol=1e-7)
