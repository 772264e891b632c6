"""Models that train on a GPU without the host, over the fake driver: forward, backward and optimizer, eager
and captured.
"""

import numpy as np
import pytest
from support import models
from support.cuda import fake, last_words

# Ops that run on the host, with the reason.
HOST = {}


def gpt(tt):
    numbers = np.random.default_rng(0).integers(0, 50, (2, 2, 24))
    model = models.gpt(tt, width=64, heads=2, layers=2, tokens=24, words=50)
    return model, tt.optim.AdamW, numbers[0], numbers[1], lambda y, t: models.gpt_loss(tt, y, t)


def resnet(tt):
    """The parts of a ResNet-50: a stem, bottlenecks with and without a stride, means, classes."""
    model = models.resnet(tt, stem=8, stages=((4, 16, 1), (4, 16, 2)), classes=10)
    x = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)

    def sgd(parameters):
        return tt.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)
    return model, sgd, x, np.array([3, 7]), tt.nn.functional.cross_entropy


def mlp(tt):
    nn = tt.nn
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.GroupNorm(2, 16), nn.Linear(16, 4))
    x = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)
    return model, tt.optim.Adam, x, x[:, :4].copy(), nn.functional.mse_loss


def recurrent(kind):
    def make(tt):
        nn = tt.nn

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.cells, self.out = getattr(nn, kind)(5, 7, batch_first=True), nn.Linear(7, 3)

            def forward(self, x):
                return self.out(self.cells(x)[0][:, -1])

        x = np.random.default_rng(0).normal(size=(4, 6, 5)).astype(np.float32)
        return Model(), tt.optim.RMSprop, x, x[:, 0, :3].copy(), nn.functional.smooth_l1_loss
    return make


MODELS = {"gpt": gpt, "resnet": resnet, "mlp": mlp, "lstm": recurrent("LSTM"), "gru": recurrent("GRU")}


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", MODELS)
def test_trains_without_the_host(start_daemon, name, captured):
    import teletensor as tt

    flags, environment = fake(compile="empty")
    daemon = start_daemon(*flags, env=environment)
    with tt.connect(daemon.unix):
        model, optimizer, x, y, criterion = MODELS[name](tt)
        model.to("cuda:0")
        optimizer = optimizer(model.parameters())
        x, y = tt.tensor(x, device="cuda:0"), tt.tensor(y, device="cuda:0")
        step = models.trainer(model, optimizer, criterion)
        run = tt.compile(step) if captured else step
        for _ in range(3):
            run(x, y).item()
    instructions, found = last_words(daemon)
    assert set(found) == HOST.get(name, set()), f"on the host: {found}"
    assert instructions > 50


def test_the_host_is_seen(start_daemon):
    import teletensor as tt

    flags, environment = fake(compile="empty")
    daemon = start_daemon(*flags, env=environment)
    with tt.connect(daemon.unix):
        tt.geqrf(tt.ones(4, 4, device="cuda:0"))[0].tolist()
    assert last_words(daemon)[1] == {"geqrf": 1}
