"""The kit's client in pure Python, on grpclib: the kit's programs, the sin^2 network, lost connections."""

import asyncio
import random

import pytest
from conformance.programs import NAMES
from conformance.pure import SESSION, Client, LateError, Refusal
from support import sin2
from support.proxy import Proxy
from teletensor._conformance.fake import FakeDaemon
from teletensor._conformance.transcript import FOLDER


async def ops(client):
    x = await client.tensor([1, 2, 3, 4], [2, 2])
    y = client.op("mul", client.op("mul", x, x), 2.5)
    return [await client.value(y), await client.value(client.op("sum", y, dim=[1], keepdim=True)),
            await client.value(client.op("sum", x))]


async def gradients(client):
    a = await client.tensor([1, 2])
    client.require_grad(a)
    b = await client.tensor([3, 5])
    client.require_grad(b)
    found = client.gradients(client.op("sum", client.op("mul", a, b)), [b, a])
    return [await client.value(each) for each in found]


async def late_error(client):
    x = await client.tensor([1, 2])
    y = client.op("neg", client.op("matmul", x, await client.tensor([1, 2, 3])))
    with pytest.raises(LateError) as caught:
        await client.value(y)
    return [caught.value.root, caught.value.code, await client.value(client.op("neg", x))]


async def cut(client):
    y = client.op("neg", await client.tensor([4, 5]))
    return [await client.value(y), await client.value(client.op("neg", y))]


async def bulk(client):
    return await client.value(client.op("neg", await client.tensor([1, 2, 3, 4])))


PROGRAMS = {
    "client_ops": (ops, [[2.5, 10, 22.5, 40], [12.5, 62.5], [10]]),
    "client_gradients": (gradients, [[1, 2], [3, 5]]),
    "client_late_error": (late_error, [3, 3, [-1, -2]]),
    "client_cut": (cut, [[-4, -5], [4, 5]]),
    "client_bulk": (bulk, [-1, -2, -3, -4]),
}


def run(address, program, *arguments, bearer=None):
    """Returns the result of a program in a session of its own."""
    async def whole():
        client = await Client.open(address, bearer)
        try:
            return await program(client, *arguments)
        finally:
            await client.close()
    return asyncio.run(whole())


@pytest.mark.parametrize("name", NAMES)
def test_the_kits_programs(name):
    """The fake daemon finds no difference to its transcripts."""
    program, wanted = PROGRAMS[name]
    fake = FakeDaemon("127.0.0.1:0")
    try:
        script = fake.begin(FOLDER / f"{name}.txt")
        found = run(fake.address, program)
        assert (fake.wait(script, 10), found) == ("", wanted)
    finally:
        fake.close()


async def train(client, momentum, epochs=sin2.EPOCHS):
    """The losses of the sin^2 network, one for each epoch."""
    params = []
    for values in sin2.weights().values():
        params.append(await client.tensor(values.ravel().tolist(), list(values.shape)))
        client.require_grad(params[-1])
    shapes = [list(values.shape) for values in sin2.weights().values()]
    buffers = [client.op("full", 0.0, size=shape) for shape in shapes] if momentum else []
    x, y = [await client.tensor(each.ravel().tolist(), [51, 1]) for each in sin2.data()]
    history, first = [], True
    for _ in range(epochs):
        losses = []
        for index in range(51):
            sample, target = (client.op("select", each, dim=0, index=index) for each in (x, y))
            before = client.op("linear", sample, params[0], params[1])
            hidden = client.op("sigmoid", before)
            output = client.op("linear", hidden, params[2], params[3])
            loss = client.op("mse_loss", output, target)
            grads = client.gradients(loss, params)
            with client.no_grad():
                client.call("sgd_step", params, grads, buffers, sin2.RATE, momentum, 0.0, 0.0, 0.0, first=first)
            losses.append(client.op("detach", loss))
            client.release([sample, target, before, hidden, output, loss, *grads])
            first = False
        history += await client.value(client.op("mean", client.op("stack", losses)))
        client.release(losses)
    await client.finish()
    return history


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_sin2_gives_pytorchs_losses(shared_daemon, momentum):
    losses = run(shared_daemon.tcp, train, momentum, bearer=shared_daemon.token)
    assert losses == pytest.approx(sin2.stored()[str(momentum)], abs=1e-5)


def test_a_cut_connection_changes_nothing(shared_daemon):
    """The connection is cut again and again in both directions; every loss equals that of an uncut run."""
    whole = run(shared_daemon.unix, train, 0.9)
    proxy, rng = Proxy(shared_daemon.unix.removeprefix("unix:")), random.Random(20261129)
    try:
        proxy.cut_each(lambda: rng.randrange(12000, 24000), both=True)  # Hello has 6,000 bytes
        assert run(proxy.address, train, 0.9) == whole
        assert proxy.connections > 5
    finally:
        proxy.close()


def test_the_daemon_restarts(start_daemon):
    """The daemon is restarted in the middle of the training, and the client continues with its session."""
    daemon = start_daemon("--restart", "60")

    async def interrupted(client):
        x = await client.tensor([1.0, 2.0])
        first = await client.value(client.op("neg", x))
        assert await asyncio.to_thread(daemon.terminate) == 0
        await asyncio.to_thread(daemon.restart)
        return first, await client.value(client.op("add", x, x))
    assert run(daemon.unix, interrupted) == ([-1, -2], [2, 4])


def test_cut_transfers_are_continued(shared_daemon):
    """An upload and a download of 8 MiB, over connections that are cut within 1 to 3 MiB."""
    async def large(client):
        x = await client.tensor(list(range(1 << 20)), dtype=10)
        return await client.value(client.op("add", x, 1))
    proxy, rng = Proxy(shared_daemon.unix.removeprefix("unix:")), random.Random(20261129)
    try:
        proxy.cut_each(lambda: rng.randrange(1 << 20, 3 << 20), both=True)
        found = run(proxy.address, large)
        assert (found[0], found[-1], len(found)) == (1, 1 << 20, 1 << 20)
        assert proxy.connections > 5
    finally:
        proxy.close()


def test_late_errors(shared_daemon):
    async def program(client):
        x = await client.tensor([1, 2])
        client.op("matmul", x, await client.tensor([1, 2, 3]))
        with pytest.raises(LateError, match="matmul"):
            await client.finish()
        await client.finish()  # each failure once
        return await client.value(x)
    assert run(shared_daemon.unix, program) == [1, 2]


def test_a_session_that_is_over_says_so(shared_daemon):
    async def program():
        client = await Client.open(shared_daemon.unix)
        await client.link.unary("Close", SESSION.CloseRequest())
        with pytest.raises(Refusal) as caught:
            await client.value(await client.tensor([1]))
        await client.cut()
        client.link.channel.close()
        return caught.value.reason
    assert asyncio.run(program()) == "closed"
