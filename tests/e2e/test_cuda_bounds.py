"""Bounds of integers that are kept for a storage on a device: indices that are known to be in range are not
checked, and a write to the storage removes its bounds. (A bound that survived a write would allow an access
beyond a tensor's end.)"""

import re

import numpy as np
import pytest
from support.cuda import fake
from support.http import scrape

SIZE = 50
SMALL, LARGE = 3, 20_000  # sizes: in a command, and in chunks of a separate upload


@pytest.fixture
def device(start_daemon):
    """(teletensor, launches(call): of the device, and the call's result), in a session."""
    import teletensor as tt

    arguments, environment = fake()
    daemon = start_daemon(*arguments, env=environment)

    def count():
        tt.cuda.synchronize()
        text = scrape(daemon)
        return float(re.search(r'^teletensor_device_launches_total{device="cuda:0"} (\S+)$', text, re.M)[1])

    def launches(call):
        before = count()
        result = call()
        return count() - before - alone, result

    with tt.connect(daemon.unix) as session:
        session.daemon = daemon
        alone = 0
        alone, _ = launches(lambda: None)  # the launches of the wait itself
        yield tt, launches, session


def test_indices_that_are_known_are_not_looked_at(device):
    tt, launches, _ = device
    table = tt.arange(4.0 * SIZE).reshape(SIZE, 4).to("cuda")

    def pick(places, wanted):
        asked, found = launches(lambda: tt.nn.functional.embedding(places, table))
        np.testing.assert_array_equal(found.numpy(), np.arange(4.0 * SIZE).reshape(SIZE, 4)[wanted])
        return asked

    for places in (tt.tensor([3, 49, 0], device="cuda"), tt.tensor([3, 49, 0]).to("cuda")):
        assert pick(places, [3, 49, 0]) == 1
        assert pick(places[1:], [49, 0]) == 1
    made = places.flip(0)  # the result of an op, whose numbers are unknown at first
    assert pick(made[1:], [49, 3]) == 2 and pick(made, [0, 49, 3]) == 2
    assert pick(made, [0, 49, 3]) == 1 and pick(made[1:], [49, 3]) == 1
    places[0] = 7
    assert pick(places, [7, 49, 0]) == 2 and pick(places, [7, 49, 0]) == 1


def set_element(tt, x):
    x[-1] = 77


def add_in_place(tt, x):
    x += 77


def several_steps(tt, x):
    for _ in range(7):
        x += 5
        x *= 1
        x += 6


def copy_from_device(tt, x):
    x.copy_(tt.full(x.shape, 77, device="cuda"))


def copy_from_host(tt, x):
    x.copy_(tt.full(x.shape, 77))


def other_dtype(tt, x):
    x.view(tt.int32)[0] = 77


def through_a_view(tt, x):
    x.view(1, -1).t()[1:].fill_(77)


def one_of_many_names(tt, x):
    x.detach()[1:2].mul_(0).add_(77)


def by_itself(tt, x):
    """The tensor's own numbers are the indices: they are checked, become known, and are then overwritten."""
    x %= SMALL
    x.index_copy_(0, x, tt.full(x.shape, 77, device="cuda"))


def scattered_by_itself(tt, x):
    x %= SMALL
    x.scatter_(0, x, 77)


def put(tt, x):
    x.index_put_((tt.tensor([1, 0], device="cuda"),), tt.tensor(77, device="cuda"))


def on_the_host(tt, x):
    """Two indices: no kernel."""
    zero = tt.tensor([0], device="cuda")
    x.view(1, -1).index_put_((zero, zero), tt.tensor(77, device="cuda"))


def masked(tt, x):
    x.masked_fill_(x < SIZE, 77)


def data(tt, x):
    x.data = tt.full(x.shape, 77, device="cuda")


def out(tt, x):
    tt.add(x, 77, out=x)


def random(tt, x):
    x.random_(77, 78)


def sorted_into(tt, x):
    tt.sort(x + 77, out=(x, tt.empty_like(x)))


def interrupted_by_an_error(tt, x):
    x += 77
    with pytest.raises(IndexError):
        x.index_select(0, tt.tensor([10**6], device="cuda")).sum().item()


WRITERS = [set_element, add_in_place, several_steps, copy_from_device, copy_from_host, other_dtype, through_a_view,
           one_of_many_names, by_itself, scattered_by_itself, put, on_the_host, masked, data, out, random, sorted_into,
           interrupted_by_an_error]


@pytest.mark.parametrize("numel", [SMALL, LARGE])
def test_whoever_writes_forgets(device, numel):
    tt, launches, session = device
    table = tt.arange(float(SIZE)).reshape(SIZE, 1).to("cuda")
    captured = {name: tt.compile(lambda x, write=write: (write(tt, x), x.clone())[1])
                for name, write in (("captured", add_in_place), ("captured steps", several_steps))}
    writers = {write.__name__: (lambda x, write=write: write(tt, x)) for write in WRITERS} | captured
    for name, write in writers.items():
        places = (tt.arange(numel) % SMALL).to("cuda")
        for _ in range(2):
            asked, _ = launches(lambda: tt.nn.functional.embedding(places, table))  # noqa: B023
        assert asked == 1, name
        write(places)
        with pytest.raises(IndexError, match="is out of range"):
            tt.nn.functional.embedding(places, table).sum().item()
            pytest.fail(name)


def test_what_takes_over_a_storage_knows_nothing_of_it(device):
    tt, launches, _ = device
    table = tt.arange(float(SIZE)).reshape(SIZE, 1).to("cuda")
    for step in (lambda x: x + 77, lambda x: (x * 2 + 77).abs(), lambda x: x.flip(0) + 77):
        places = (tt.arange(LARGE) % SMALL).to("cuda")
        assert tt.nn.functional.embedding(places, table).sum().item() == (np.arange(LARGE) % SMALL).sum()
        places = step(places)
        with pytest.raises(IndexError, match="is out of range"):
            tt.nn.functional.embedding(places, table).sum().item()


def test_halves_of_numbers_make_others(device):
    """A tensor that is put together from parts of checked tensors has no bounds."""
    tt, launches, _ = device
    table = tt.arange(float(SIZE)).reshape(SIZE, 1).to("cuda")
    halves = tt.tensor([1, 2, 3, 4]).view(tt.int32)[::2]
    places = halves.to("cuda").view(tt.int64)  # 1 + 2^33, 3 + 2^34
    assert places.tolist() == [1 + 2**33, 3 + 2**34]
    with pytest.raises(IndexError, match="is out of range"):
        tt.nn.functional.embedding(places, table).sum().item()


def test_nothing_is_known_of_what_others_write(device):
    tt, launches, session = device
    table = tt.arange(float(SIZE)).reshape(SIZE, 1).to("cuda")
    places = tt.tensor([1, 2, 0], device="cuda")
    assert launches(lambda: tt.nn.functional.embedding(places, table))[0] == 1
    session.publish("places", places, writable=True)
    session.synchronize()
    with tt.connect(session.daemon.unix).as_current() as other:
        other.published("places").add_(77)
        other.synchronize()
    with pytest.raises(IndexError, match="is out of range"):
        tt.nn.functional.embedding(places, table).sum().item()
