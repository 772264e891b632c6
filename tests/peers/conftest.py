"""Makes every test draw the same random numbers in each run."""

import random

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def seeds(request):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    if "tt" in request.fixturenames:
        request.getfixturevalue("tt").manual_seed(1)


@pytest.fixture(scope="session")
def tt_device(shared_daemon):
    """The package teletensor.torch, whose device has a session of its own on the shared daemon."""
    import teletensor

    session = teletensor.connect(shared_daemon.unix)
    with session.as_current():
        import teletensor.torch

        torch.zeros(1, device="tt").add_(1)
    yield teletensor.torch
    session.close()
