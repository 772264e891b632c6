"""torch.compile(backend="teletensor") on the device "tt"."""

import copy
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from teletensor import _core as core
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_models import make, moved


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(function, model, arguments, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = function(model, arguments)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses], [p.grad.cpu() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", ["gpt2", "vit", "convnext", "bert"])
def test_compiled_models_train_like_themselves(tt_device, name):
    model, arguments, loss_of = make(name)
    model, arguments = model.to("tt"), moved(arguments, "tt")
    other = copy.deepcopy(model)

    def loss(model, arguments):
        return loss_of(model(**arguments))

    wanted, gradients = train(loss, model, arguments)
    found, others = train(torch.compile(loss, backend="teletensor"), other, arguments)
    assert found == pytest.approx(wanted, rel=1e-5)
    for a, b in zip(gradients, others, strict=True):
        assert (a - b).abs().max() <= 1e-4 * a.abs().max() + 1e-7


def test_a_compiled_function_is_one_command_for_each_direction(tt_device):
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to("tt")
    x, y = torch.randn(8, 6, device="tt"), torch.arange(8, device="tt") % 3
    step = torch.compile(lambda x, y: F.cross_entropy(model(x), y), backend="teletensor")
    counts = []
    for _ in range(4):
        before = core.torch_session().last_seq
        step(x, y).backward()
        counts.append(core.torch_session().last_seq - before)
        model.zero_grad()
    # the program of the forward, a one, the program of the backward
    assert counts[-1] == counts[-2] < 10 < counts[0], counts


def test_other_sizes_and_new_values(tt_device):
    compiled = torch.compile(lambda x, k: (x * k).cumsum(0).relu(), backend="teletensor")
    for size, k in ((3, 2), (3, 2), (5, 2), (5, 3), (3, 2)):
        x = torch.randn(size, device="tt")
        torch.testing.assert_close(compiled(x, k).cpu(), (x.cpu() * k).cumsum(0).relu())


def test_writes_to_arguments_and_buffers(tt_device):
    norm = nn.BatchNorm1d(4).to("tt")
    other = copy.deepcopy(norm)
    compiled = torch.compile(lambda module, x: module(x.add_(1)), backend="teletensor")
    for _ in range(3):
        x = torch.randn(5, 4, device="tt")
        mine = x.clone()
        torch.testing.assert_close(compiled(other, mine).cpu(), norm(x.add_(1)).cpu())
        assert torch.equal(mine, x)
    torch.testing.assert_close(other.running_var.cpu(), norm.running_var.cpu())


def test_dropout_draws_new_numbers(tt_device):
    x = torch.ones(100, device="tt")
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="teletensor")
    first, second, third = (compiled(x) for _ in range(3))
    assert not torch.equal(first, second) and not torch.equal(second, third)
    assert set(third.unique().tolist()) == {0, 2}


def test_a_checkpoint_repeats_its_random_numbers(tt_device):
    x = torch.ones(64, device="tt", requires_grad=True)
    step = torch.compile(lambda x: checkpoint(lambda x: F.dropout(x.sin().asin()) * 2, x, use_reentrant=False),
                         backend="teletensor")
    for _ in range(3):
        x.grad = None
        y = step(x)
        y.sum().backward()
        torch.testing.assert_close(y, x.grad)
        assert y.round().unique().tolist() == [0, 4]


@torch.library.custom_op("teletensor_tests::add_to", mutates_args={"x"})
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


def test_an_operator_of_the_program_that_writes(tt_device):
    @torch.compile(backend="teletensor")
    def step(x, y):
        z = x * 2
        add_to(z, y)
        add_to(x, z)
        return z + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is one command
        for i in range(4):
            x = torch.full((3,), float(i), device="tt")
            assert step(x, torch.ones(3, device="tt")).tolist() == [2 * i + 2.0] * 3
            assert x.tolist() == [3 * i + 1.0] * 3


def test_what_cannot_be_a_program_runs_line_by_line(tt_device):
    x = torch.randn(4, 4, device="tt")
    compiled = torch.compile(torch.linalg.svdvals, backend="teletensor")
    for _ in range(2):
        torch.testing.assert_close(compiled(x).cpu(), torch.linalg.svdvals(x.cpu()), rtol=1e-4, atol=1e-5)
    here = torch.compile(lambda x: x * 2 + 1, backend="teletensor")
    assert torch.equal(here(torch.ones(3)), torch.full((3,), 3.0))


def test_a_graph_that_is_not_a_program_warns_once_with_its_function_and_the_reason(tt_device):
    def decomposes(x):
        return torch.linalg.svdvals(x).sum()

    def draws(x):
        return torch._standard_gamma(x) * 2

    def at_home(x, y):
        return x * 2 + y

    def whole(x):
        return x * 2 + 1

    def chooses(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    there, here = torch.rand(4, 4, device="tt"), torch.rand(4, 4)
    texts = {}
    for function, arguments in ((decomposes, [there]), (draws, [there]), (at_home, [here, here]), (whole, [there]),
                                (chooses, [there])):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="teletensor")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for size in (4, 4, 3):
                compiled(*(each[:size, :size].contiguous() for each in arguments))
        texts[function.__name__] = [text for text in (str(each.message) for each in caught)
                                    if text.startswith("torch.compile")]
    assert {name: len(found) for name, found in texts.items()} == {
        "decomposes": 0, "draws": 1, "at_home": 1, "whole": 0, "chooses": 1}
    assert "PyTorch's operator cond runs functions of its own" in texts["chooses"][0]
    (text,) = texts["draws"]
    assert "draws (" in text and Path(__file__).name in text and "_standard_gamma has no row" in text
    (text,) = texts["at_home"]
    assert "at_home (" in text and "2 of its 2 tensors are not on the device tt" in text


def test_options_are_refused(tt_device):
    with pytest.raises(Exception, match="no options"):
        torch.compile(torch.sin, backend="teletensor", options={"fast": True})(torch.ones(2, device="tt"))
