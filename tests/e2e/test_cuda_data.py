"""Operations whose sizes depend on the data stay on the GPU (the fake one): masks, sets, bins, searches,
long scans.

Sizes that the data decide are counted there and read as a number; nothing else comes to the host.
"""

import numpy as np
import pytest
from support.cuda import fake, last_words

NUMBERS = np.random.default_rng(4).integers(-6, 7, (5, 1200))


def masked(tt, x):
    x = x.clone()
    y = tt.zeros_like(x)
    y[x > 2] = x[x > 2] * 2
    y.masked_scatter_(x < -3, tt.arange(x.numel(), device=x.device))
    return [x[x > 0], tt.masked_select(x, x.remainder(3) == 0), y, tt.argwhere(x == 6), x.nonzero(as_tuple=True)[1]]


def sets(tt, x):
    found = tt.unique(x, return_inverse=True, return_counts=True)
    rows = tt.unique(x[:, :2].remainder(2), dim=0)
    return [*found, tt.unique_consecutive(x.flatten() // 4), rows, tt.isin(x, tt.tensor([1, 5], device=x.device))]


def bins(tt, x):
    flat = x.flatten()
    edges = tt.arange(-6, 7, 3, device=x.device)
    return [tt.bincount(flat + 6), tt.bucketize(x, edges), tt.searchsorted(edges, x, right=True),
            tt.histc(flat.to(tt.float32), 5, -6, 6)]


def scans(tt, x):
    flat = x.flatten()
    return [flat.cumsum(0), flat.cummax(0).indices, flat.to(tt.float32).cumsum(0),
            tt.repeat_interleave(flat[:50], (flat[50:100] + 6))]


def reductions(tt, x):
    index = (x + 6)[:, :400]
    source = x[:, :400].to(tt.float32)
    zeros = tt.zeros(5, 13, device=x.device)
    made = [zeros.scatter_reduce(1, index, source, how, include_self=False) for how in ("sum", "prod", "mean", "amax")]
    return [*made, tt.take(x, x.abs()), tt.outer(x[0, :9], x[1, :7])]


@pytest.mark.parametrize("work", [masked, sets, bins, scans, reductions], ids=lambda f: f.__name__)
def test_stays_on_the_device(start_daemon, work):
    import teletensor as tt

    flags, environment = fake()
    daemon = start_daemon(*flags, env=environment)
    with tt.connect(daemon.unix):
        wanted = [y.numpy() for y in work(tt, tt.tensor(NUMBERS))]
        found = work(tt, tt.tensor(NUMBERS, device="cuda"))
        assert {y.device.type for y in found} == {"cuda"}
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.cpu().numpy(), other)
    assert last_words(daemon)[1] == {}


def test_a_wrong_count_is_told(start_daemon):
    import teletensor as tt

    flags, environment = fake()
    daemon = start_daemon(*flags, env=environment)
    with tt.connect(daemon.unix):
        x = tt.ones(8, device="cuda")
        with pytest.raises(RuntimeError, match="source has 2 elements, the mask 8 ones"):
            x.masked_scatter_(x > 0, tt.zeros(2, device="cuda")).tolist()
        with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
            x[x > 0] = tt.zeros(3, device="cuda")
            x.tolist()
    assert last_words(daemon)[1] == {"masked_scatter": 1, "require": 1}  # the host says what is wrong
