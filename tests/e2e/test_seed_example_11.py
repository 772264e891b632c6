"""Seed example 11: each optimizer on a regression whose samples come from workers, shuffled; and that
the next batch is uploaded while this one trains."""

import numpy as np
import pytest
from support import datasets
from teletensor.utils.data.loader import _Ahead

OPTIMIZERS = {"SGD": {"lr": 0.2}, "RMSprop": {"lr": 0.1}, "Adam": {"lr": 0.1}, "AdamW": {"lr": 0.1},
              "Adagrad": {"lr": 0.6}, "LBFGS": {"lr": 0.5}}




@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(tt, kind):
    tt.manual_seed(0)
    loader = tt.utils.data.DataLoader(datasets.Line(64), batch_size=16, shuffle=True, num_workers=2,
                                      pin_memory=True, persistent_workers=True)
    model = tt.nn.Linear(2, 1)
    optimizer = getattr(tt.optim, kind)(model.parameters(), **OPTIMIZERS[kind])
    for _ in range(10):
        for x, y in loader:
            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = tt.nn.functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            if kind == "LBFGS":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    assert np.allclose(model.weight.tolist(), [[2.0, -1.0]], atol=0.25)
    assert abs(model.bias.item() - 0.5) < 0.25


class Arrivals:
    """The iteration over four batches of workers, of which `arrived` have arrived."""

    def __init__(self):
        self.arrived, self.taken = 1, 0

    def ready(self):
        return self.taken < self.arrived

    def __next__(self):
        if self.taken == 4:
            raise StopIteration
        self.taken += 1  # here the tensors of the batch are made, which uploads them
        return self.taken - 1


def test_a_batch_that_has_arrived_is_uploaded_before_it_is_asked_for():
    epoch = Arrivals()
    batches = _Ahead(epoch)
    assert (next(batches), epoch.taken) == (0, 1)  # batch 1 is not waited for
    epoch.arrived = 4
    assert (next(batches), epoch.taken) == (1, 3)
    assert (next(batches), epoch.taken) == (2, 4)
    assert list(batches) == [3]
