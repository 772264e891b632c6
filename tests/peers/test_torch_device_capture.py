"""teletensor.torch.capture: a step as one program computes what the step computes, or is refused."""

import copy
import runpy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_models import MODELS, make, moved

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "capturable": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, capturable=True),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
}


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 3))


def batches(count, size=8):
    made = torch.Generator().manual_seed(5)
    return [(torch.randn(size, 6, generator=made), torch.randint(0, 3, (size,), generator=made))
            for _ in range(count)]


def trainer(model, optimizer, zero="first"):
    """A step of training; gradients are removed first, last or never."""

    def step(x, y):
        if zero == "first":
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if zero == "last":
            optimizer.zero_grad()
        return loss

    return step


def states(model, optimizer):
    found = [*model.state_dict().values()]
    for state in optimizer.state.values():
        found += [each for each in state.values() if isinstance(each, torch.Tensor)]
    return [*found, *(p.grad for p in model.parameters() if p.grad is not None)]


def pair(optimizer, model=None):
    """Two equal models on the device, with their optimizers."""
    here = (model or mlp()).to("tt")
    there = copy.deepcopy(here)
    return (here, optimizer(here.parameters())), (there, optimizer(there.parameters()))


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("zero", ["first", "last", "never"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_captured_step_does_what_the_step_does(tt_device, optimizer, zero):
    (model, own), (other, others) = pair(OPTIMIZERS[optimizer])
    step = trainer(model, own, zero)
    captured = tt_device.capture(trainer(other, others, zero))
    losses = [(step(x.to("tt"), y.to("tt")).item(), captured(x.to("tt"), y.to("tt")).item())
              for x, y in batches(8)]
    assert captured.programs == 1
    for a, b in losses:
        assert a == pytest.approx(b, rel=1e-6)
    assert_equal(states(model, own), states(other, others))


@pytest.mark.parametrize("name", MODELS)
def test_captured_models_train_like_themselves(tt_device, name):
    model, arguments, loss_of = make(name)
    (model, own), (other, others) = pair(OPTIMIZERS["capturable"], model)
    arguments = moved(arguments, "tt")

    def stepper(model, optimizer):
        def step(arguments):
            optimizer.zero_grad()
            loss = loss_of(model(**arguments))
            loss.backward()
            optimizer.step()
            return loss

        return step

    step, captured = stepper(model, own), tt_device.capture(stepper(other, others))
    for _ in range(5):
        a, b = step(arguments), captured(arguments)
    assert captured.programs == 1
    assert a.item() == pytest.approx(b.item(), rel=1e-5)


def compare(tt_device, step, other, calls, count=7):
    """Calls both steps with the same arguments. Returns the captured step."""
    captured = tt_device.capture(other)
    for i in range(count):
        arguments = calls(i)
        a, b = step(*arguments), captured(*arguments)
        torch.testing.assert_close(b.cpu(), a.detach().cpu(), rtol=1e-6, atol=1e-7)
    return captured


def test_arguments_may_be_slices_strided_or_in_host_memory(tt_device):
    data = torch.randn(40, 6)
    for there in (data, data.to("tt"), torch.randn(6, 40, device="tt").t()):
        captured = compare(tt_device, lambda x: (x * 2).sum(1), lambda x: (x * 2).sum(1),
                           lambda i: (there[4 * i : 4 * i + 4].to("tt"),))  # noqa: B023
        assert captured.programs == 1
    captured = tt_device.capture(lambda x: x + 1)
    for i in range(5):
        assert torch.equal(captured(data[i]).cpu(), data[i] + 1)


def test_each_shape_and_each_value_has_its_own_program(tt_device):
    captured = compare(tt_device, lambda x, n: x * n, lambda x, n: x * n,
                       lambda i: (torch.full((2 + i % 2,), float(i), device="tt"), 2 + i % 3), 25)
    assert captured.programs == 6


def test_a_step_may_write_to_its_arguments(tt_device):
    captured = tt_device.capture(lambda x: x.add_(1).sum())
    whole = torch.zeros(3, 8, device="tt")
    for _ in range(5):
        captured(whole[:, ::2])
    assert captured.programs == 1
    assert whole.cpu()[:, ::2].eq(5).all() and whole.cpu()[:, 1::2].eq(0).all()


def test_an_argument_that_the_step_also_reads_from_outside(tt_device):
    outside = torch.ones(3, device="tt")
    captured = tt_device.capture(lambda x: x + outside)
    for _ in range(3):
        captured(outside)
    assert captured(torch.full((3,), 5.0, device="tt")).tolist() == [6, 6, 6]


def test_results_of_two_calls_do_not_share_memory(tt_device):
    kept = {}

    def step(x):
        kept["last"] = x * 2
        return kept["last"], kept["last"].t(), x

    captured = tt_device.capture(step)
    results = []
    for i in range(6):
        x = torch.full((2, 3), float(i), device="tt")
        y, turned, same = captured(x)
        assert torch.equal(turned, y.t()) and torch.equal(same, x)
        assert kept["last"].tolist() == [[2.0 * i] * 3] * 2
        results.append(y)
    assert captured.programs == 1
    results[-1].add_(1)
    assert kept["last"].tolist() == [[10.0] * 3] * 2
    assert [y[0, 0].item() for y in results] == [0, 2, 4, 6, 8, 11]


def test_the_optimizer_may_be_outside_of_the_step(tt_device):
    (model, own), (other, others) = pair(OPTIMIZERS["fused"])

    def gradients(model):
        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return step

    step, captured = gradients(model), tt_device.capture(gradients(other))
    for i, (x, y) in enumerate(batches(12)):
        step(x.to("tt"), y.to("tt")), captured(x, y)
        if i % 2:  # gradients of two calls are added
            for optimizer in (own, others):
                optimizer.step()
                optimizer.zero_grad()
    assert_equal(states(model, own), states(other, others))


def test_dropout_draws_new_numbers_in_each_call(tt_device):
    x = torch.ones(100, device="tt")
    captured = tt_device.capture(lambda x: F.dropout(x, 0.5))
    for _ in range(3):
        captured(x)
    torch.manual_seed(7)
    wanted = [F.dropout(x, 0.5) for _ in range(3)]
    torch.manual_seed(7)
    found = [captured(x) for _ in range(3)]
    assert captured.programs == 1
    assert all(map(torch.equal, wanted, found)) and not torch.equal(found[0], found[1])


def test_modes_numbers_and_tensors_that_change_between_calls(tt_device):
    (model, own), (other, others) = pair(OPTIMIZERS["sgd"])
    step, captured = trainer(model, own), tt_device.capture(trainer(other, others))
    for i, (x, y) in enumerate(batches(20)):
        for each, optimizer in ((model, own), (other, others)):
            each.train(i % 10 < 6)
            optimizer.param_groups[0]["lr"] = 0.05 if i < 8 else 0.01
            if i == 14:
                each[0].weight.data = torch.ones(16, 6, device="tt")
            if i == 17:
                optimizer.load_state_dict(optimizer.state_dict())
        a, b = step(x.to("tt"), y.to("tt")), captured(x, y)
        assert a.item() == pytest.approx(b.item(), rel=1e-6)
    assert_equal(states(model, own), states(other, others))


def check_schedule(tt_device, optimizer, schedule):
    """A schedule that steps between the calls changes the rate of one captured program as it changes eager steps."""
    (model, own), (other, others) = pair(optimizer)
    step, captured = trainer(model, own), tt_device.capture(trainer(other, others))
    schedules = [schedule(each) for each in (own, others)]
    for x, y in batches(8):
        step(x.to("tt"), y.to("tt")), captured(x, y)
        for each in schedules:
            each.step()
    assert captured.programs == 1
    assert_equal(states(model, own), states(other, others))


def test_a_learning_rate_in_a_tensor_may_change_in_each_step(tt_device):
    def optimizer(parameters):
        return torch.optim.AdamW(parameters, lr=torch.tensor(1e-2, device="tt"), capturable=True)

    check_schedule(tt_device, optimizer, lambda own: torch.optim.lr_scheduler.ExponentialLR(own, 0.9))


def refusal(tt_device, step, *arguments):
    captured = tt_device.capture(step)
    with pytest.raises((RuntimeError, NotImplementedError)) as raised:
        for _ in range(20):
            captured(*arguments)
    return str(raised.value)


def test_numbers_that_a_program_would_repeat_are_refused_with_the_line_and_advice(tt_device):
    x, y = (each.to("tt") for each in batches(1)[0])
    model = mlp().to("tt")
    text = refusal(tt_device, trainer(model, torch.optim.Adam(model.parameters())), x, y)
    assert "capturable=True" in text and Path(__file__).name in text
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    inner = trainer(model, optimizer)

    def scheduled(x, y):
        loss = inner(x, y)
        schedule.step()
        return loss

    text = refusal(tt_device, scheduled, x, y)
    assert "not the same in each call" in text and Path(__file__).name in text and "lr=torch.tensor" in text
    captured = tt_device.capture(inner)
    with pytest.raises(RuntimeError, match="without a call of its program|not the same in each call"):
        for _ in range(60):
            captured(x, y)
            schedule.step()


def test_reads_are_refused_with_the_line(tt_device):
    def step(x):
        return x * 2 if x.sum().item() > 0 else x

    text = refusal(tt_device, step, torch.ones(3, device="tt"))
    assert "cannot read a tensor's value" in text and Path(__file__).name in text
    assert torch.ones(2, device="tt").sum().item() == 2  # nothing is being captured any more


@pytest.mark.parametrize("name, function", {
    "nonzero": torch.nonzero, "_unique2": torch.unique, "masked_select": lambda x: x.masked_select(x > 0),
    "index": lambda x: x[x > 0]}.items())
def test_an_operator_whose_size_depends_on_values_is_refused_by_its_name(tt_device, name, function):
    text = refusal(tt_device, function, torch.ones(3, device="tt"))
    assert "cannot read a tensor's value" in text and "aten::" + name in text and "tt.where" not in text


def test_advice_names_what_an_optimizer_has(tt_device):
    x, y = (each.to("tt") for each in batches(1)[0])
    model = mlp().to("tt")
    text = refusal(tt_device, trainer(model, torch.optim.Adafactor(model.parameters())), x, y)
    assert "outside of the step" in text
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    captured = tt_device.capture(trainer(model, own))
    with pytest.raises(RuntimeError, match="give SGD fused=True and lr=torch.tensor"):
        for i in range(60):
            own.param_groups[0]["lr"] = 0.1 / (i + 1)
            captured(x, y)


def test_the_advice_for_a_rate_that_changes_works(tt_device):
    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=torch.tensor(0.1, device="tt"), fused=True, momentum=0.9)

    check_schedule(tt_device, optimizer, lambda own: torch.optim.lr_scheduler.CosineAnnealingLR(own, 20))


def test_operators_without_a_row_are_refused(tt_device):
    assert "strict" in refusal(tt_device, torch._standard_gamma, torch.ones(3, device="tt"))


def test_state_that_a_call_would_not_keep_is_refused(tt_device):
    history, state = [], {"h": torch.zeros(3, device="tt"), "calls": torch.zeros(())}

    def remembers(x):
        history.append(x * 2)
        return x

    def recurrent(x):
        state["h"] = state["h"] + x
        return state["h"].sum()

    def counts(x):
        state["calls"] += 1
        return x * 2

    x = torch.ones(3, device="tt")
    assert "it keeps a tensor" in refusal(tt_device, remembers, x)
    assert "reads other tensors from outside" in refusal(tt_device, recurrent, x)
    assert "in host memory" in refusal(tt_device, counts, x)
    assert "return a tensor in host memory" in refusal(tt_device, lambda x: torch.ones(2), x)


def test_state_that_is_written_in_place_stays(tt_device):
    state = torch.zeros(3, device="tt")

    def step(x):
        state.mul_(0.5).add_(x)
        return state.sum()

    captured = tt_device.capture(step)
    for _ in range(6):
        captured(torch.ones(3, device="tt"))
    assert captured.programs == 1 and state.tolist() == [1.96875] * 3


def test_an_argument_that_requires_a_gradient_is_refused(tt_device):
    with pytest.raises(ValueError, match="detach"):
        tt_device.capture(torch.sin)(torch.ones(3, device="tt", requires_grad=True))


def test_the_example_learns(tt_device, monkeypatch, capsys):
    example = Path(__file__).resolve().parents[2] / "clients/python/examples/torch_captured.py"
    monkeypatch.setattr(sys, "argv", [str(example), "--steps", "60"])
    runpy.run_path(str(example), run_name="__main__")
    assert float(capsys.readouterr().out.split()[-1]) < 2


def test_gradients_of_several_calls_are_added(tt_device):
    (model, own), (other, others) = pair(OPTIMIZERS["sgd"])

    def gradients(model):
        return lambda x, y: F.cross_entropy(model(x), y).backward()

    step, captured = gradients(model), tt_device.capture(gradients(other))
    for i, (x, y) in enumerate(batches(27)):
        step(x.to("tt"), y.to("tt")), captured(x, y)
        if i % 3 == 2:
            assert_equal(states(model, own), states(other, others))
            for optimizer in (own, others):
                optimizer.step()
                optimizer.zero_grad()
    assert captured.programs == 2
