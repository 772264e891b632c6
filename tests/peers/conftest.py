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
