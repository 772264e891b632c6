"""Models that others wrote train and generate on the device "tt" as on the CPU, without the CPU's help."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from teletensor import _core as core

sys.path.insert(0, str(Path(__file__).resolve().parent))
from torch_models import MODELS, make, moved

# In float32 its batch norms of few elements multiply differences of rounding by a thousand in each step.
IN_FLOAT64 = {"resnet18"}

def train(model, arguments, loss_of, steps=3):
    """The losses, still on the device, and the gradients of the last step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(**arguments))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_are_the_cpus(tt_device, name):
    here, arguments, loss_of = make(name)
    if name in IN_FLOAT64:
        here, arguments = here.double(), {key: value.double() for key, value in arguments.items()}
    there = copy.deepcopy(here).to("tt")
    wanted, gradients = train(here, arguments, loss_of)
    own = moved(arguments, "tt")
    tt_device.fallbacks(clear=True)
    before = core.torch_session().waits
    losses, others = train(there, own, loss_of)
    assert core.torch_session().waits == before, "a step has read a value"
    assert tt_device.fallbacks() == {}
    for a, b in zip(wanted, losses, strict=True):
        assert abs(a.item() - b.item()) <= 1e-5 * abs(a.item())
    assert gradients.keys() == others.keys()
    largest = max(a.abs().max() for a in gradients.values())
    for key, a in gradients.items():
        assert (a - others[key].cpu()).abs().max() <= 1e-4 * a.abs().max() + 1e-7 * largest, key


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("sampling", [False, True])
def test_generation_with_a_cache_is_the_cpus_token_for_token(tt_device, name, sampling):
    here, arguments, _ = make(name)
    there = copy.deepcopy(here).eval().to("tt")
    prompt = arguments["input_ids"][:, :5]
    options = {"max_new_tokens": 12, "use_cache": True, "pad_token_id": 0, "eos_token_id": None}
    # Of the words that could be drawn one is left, so that both devices draw the same.
    options |= {"do_sample": True, "top_k": 1} if sampling else {"do_sample": False}
    wanted = here.eval().generate(prompt, **options)
    tt_device.fallbacks(clear=True)
    found = there.generate(prompt.to("tt"), **options)
    assert not tt_device.fallbacks()
    assert found.device.type == "tt" and torch.equal(found.cpu(), wanted)


def test_whisper_generates_the_cpus_tokens(tt_device):
    here, arguments, _ = make("whisper")
    there = copy.deepcopy(here).eval().to("tt")
    features = arguments["input_features"]
    tt_device.fallbacks(clear=True)
    ids = [model.generate(x, max_new_tokens=6, do_sample=False)
           for model, x in ((here.eval(), features), (there, features.to("tt")))]
    assert not tt_device.fallbacks()
    assert torch.equal(ids[1].cpu(), ids[0])
