"""teletensor.torch.capture: the guards of a captured step. A call that is as an earlier one, and one that differs in
something small."""

import collections
import contextlib
import copy
import sys
from pathlib import Path

import numpy as np
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


SCALE, OFFSET = 1.0, None


class Config:
    factor = 1.0


class Reading(nn.Module):
    """A module whose forward reads numbers and tensors from many kinds of places."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.config, self.factors, self.table = Config(), [1.0, [2.0]], {"k": 1.0, "deep": {"k": 3.0}}
        self.bank = [torch.ones(3, device="tt")]
        self.array = np.ones(1)

    def forward(self, x):
        x = x * self.weight * self.config.factor * self.factors[0] * self.factors[1][0]
        x = x * self.table["k"] * self.table["deep"]["k"] * self.bank[0] * float(self.array[0])
        return x * SCALE + OFFSET


READS = {
    "global number": lambda model, own, put: put("SCALE", 3.0),
    "global tensor": lambda model, own, put: put("OFFSET", torch.full((3,), 7.0, device="tt")),
    "object": lambda model, own, put: setattr(model.config, "factor", 3.0),
    "class": lambda model, own, put: put("factor", 4.0, Config),
    "list": lambda model, own, put: model.factors.__setitem__(0, 3.0),
    "list in a list": lambda model, own, put: model.factors[1].__setitem__(0, 3.0),
    "dictionary": lambda model, own, put: model.table.update(k=3.0),
    "dictionary in a dictionary": lambda model, own, put: model.table["deep"].update(k=-3.0),
    "list of tensors": lambda model, own, put: model.bank.__setitem__(0, torch.full((3,), 5.0, device="tt")),
    "tensor's memory": lambda model, own, put: setattr(model.bank[0], "data", torch.full((3,), 6.0, device="tt")),
    "array": lambda model, own, put: model.array.fill(3.0),
    "closure": lambda model, own, put: own.update(lr=0.5),
}


@pytest.mark.parametrize("change", READS.values(), ids=READS)
def test_what_the_code_of_a_step_reads_may_change(tt_device, change, monkeypatch):
    """Numbers by value, tensors and objects by identity, wherever the program's own code reads them."""
    def results(run):
        with monkeypatch.context() as patch:
            module = sys.modules[__name__]
            patch.setattr(module, "OFFSET", torch.zeros(3, device="tt"))
            model, own = Reading().to("tt"), {"lr": 0.1}

            def step(x):
                model.zero_grad()
                loss = model(x).sum()
                loss.backward()
                with torch.no_grad():
                    model.weight.sub_(model.weight.grad, alpha=own["lr"])
                return loss

            def put(name, value, owner=module):
                patch.setattr(owner, name, value)

            step, losses = run(step), []
            for i in range(12):
                if i == 6:
                    change(model, own, put)
                losses.append(step(torch.arange(3.0, device="tt")).item())
            return losses, getattr(step, "programs", 1)

    expected, _ = results(lambda step: step)
    found, programs = results(tt_device.capture)
    assert programs == 1
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_what_a_step_reads_and_changes_is_refused(tt_device):
    x, counts = torch.ones(2, device="tt"), {"calls": 0}
    target = torch.zeros(2, device="tt")

    def counting(x):
        counts["calls"] += 1
        if counts["calls"] % 50 == 0:
            target.copy_(x)
        return x * 2

    text = refusal(tt_device, counting, x)
    assert "it reads the item 'calls' of a dict, and changes it in each call" in text
    rows = iter(range(100))
    assert "cannot take elements from an iterator" in refusal(tt_device, lambda x: x * next(rows), x)
    moved = torch.ones(2, device="tt")

    def moves(x):
        return x * moved

    captured = tt_device.capture(moves)
    with pytest.raises(RuntimeError, match="It reads the variable 'moved' of an enclosing function"):
        for i in range(20):
            moved = torch.full((2,), float(i), device="tt")
            assert captured(x).tolist() == [float(i)] * 2


SCHEDULERS = {
    "StepLR": lambda own: torch.optim.lr_scheduler.StepLR(own, 5),
    "MultiStepLR": lambda own: torch.optim.lr_scheduler.MultiStepLR(own, [9]),
    "LambdaLR": lambda own: torch.optim.lr_scheduler.LambdaLR(own, lambda epoch: 1.0 if epoch < 9 else 0.1),
    "ConstantLR": lambda own: torch.optim.lr_scheduler.ConstantLR(own, 1.0, 9),
    "CyclicLR": lambda own: torch.optim.lr_scheduler.CyclicLR(own, 0.1, 0.1, cycle_momentum=False),
}


@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_in_a_step_is_refused(tt_device, name, tensor):
    weight = torch.ones(1, device="tt", requires_grad=True)
    rate = torch.tensor(0.1, device="tt") if tensor else 0.1
    own = torch.optim.AdamW([weight], lr=rate, capturable=True)
    schedule = SCHEDULERS[name](own)

    def step(x):
        own.zero_grad()
        loss = (weight * x).sum()
        loss.backward()
        own.step()
        schedule.step()
        return loss

    text = refusal(tt_device, step, torch.ones(1, device="tt"))
    assert "schedule" in text and "outside" in text


@pytest.mark.parametrize("reads", [False, True])
def test_steps_that_set_the_mode_themselves_may_alternate(tt_device, reads):
    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Dropout(0.5)])

        def forward(self, x):
            for each in self.parts:
                x = each(x)
            return x * 2 if reads and self.training else x

    model, other = (Drop().to("tt") for _ in range(2))
    other.load_state_dict(model.state_dict())

    def trains(model):
        def step(x):
            model.train()
            model.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss
        return step

    def tests(model):
        def step(x):
            model.eval()
            with torch.no_grad():
                return model(x).sum()
        return step

    own, captured = (trains(model), tests(model)), [tt_device.capture(each(other)) for each in (trains, tests)]
    x = torch.randn(2, 4, device="tt")
    for i in [0, 0, 1, 0, 1, 1] * 4:
        torch.manual_seed(3)
        expected = own[i](x)
        torch.manual_seed(3)
        torch.testing.assert_close(captured[i](x).cpu(), expected.detach().cpu())
        assert [each.training for each in other.modules()] == [each.training for each in model.modules()]
    assert all(each.programs for each in captured)
