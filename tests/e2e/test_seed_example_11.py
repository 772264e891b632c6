"""Seed example 11: each optimizer on a regression whose samples come from workers, shuffled; and that
the next batch is uploaded while this one trains."""

import numpy as np
import pytest
from support import datasets

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


def test_the_next_batch_is_there_before_it_is_asked_for(tt):
    """Batch k is handed out when batch k + 1 has arrived, and its tensors are made."""
    datasets.noted.clear()
    loader = tt.utils.data.DataLoader(datasets.Noted(4), num_workers=1, collate_fn=list)
    assert [(len(datasets.noted), batch) for batch in loader] == [(2, [0]), (3, [1]), (4, [2]), (4, [3])]
