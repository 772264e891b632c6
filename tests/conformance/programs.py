"""The programs of the transcripts `client_*` as the clients in Python write them."""

import teletensor as tt
from teletensor._conformance.transcript import FOLDER

from .thin import LateError, ThinClient

NAMES = sorted(path.stem for path in FOLDER.glob("client_*.txt"))


def thin_ops(client):
    x = client.constant([1, 2, 3, 4], [2, 2])
    y = client.op("mul", client.op("mul", x, x), 2.5)
    return [client.value(y), client.value(client.op("sum", y, attributes=[[1], True])),
            client.value(client.op("sum", x))]


def thin_gradients(client):
    a = client.constant([1, 2])
    client.require_grad(a)
    b = client.constant([3, 5])
    client.require_grad(b)
    return [client.value(each) for each in client.backward(client.op("sum", client.op("mul", a, b)), [b, a])]


def thin_late_error(client):
    x = client.constant([1, 2])
    y = client.op("matmul", x, client.constant([1, 2, 3]))
    try:
        client.value(client.op("neg", y))
    except LateError as error:
        return [error.root, error.code, client.value(client.op("neg", x))]
    return None


def thin_cut(client):
    y = client.op("neg", client.constant([4, 5]))
    return [client.value(y), client.value(client.op("neg", y))]


def own_ops():
    x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    y = x * x * 2.5
    return [y.numpy().tolist(), y.sum(1, keepdim=True).numpy().tolist(), x.sum().item()]


def own_gradients():
    a = tt.tensor([1.0, 2.0], requires_grad=True)
    b = tt.tensor([3.0, 5.0], requires_grad=True)
    return [each.numpy().tolist() for each in tt.autograd.grad((a * b).sum(), [b, a])]


def own_cut():
    y = -tt.tensor([4.0, 5.0])
    return [y.numpy().tolist(), (-y).numpy().tolist()]


def own_bulk():
    return (-tt.tensor([1.0, 2.0, 3.0, 4.0])).numpy().tolist()


# The values that each program returns. The thin client has no transfers; the Python client refuses wrong shapes itself.
THIN = {
    "client_ops": (thin_ops, [[2.5, 10, 22.5, 40], [12.5, 62.5], [10]]),
    "client_gradients": (thin_gradients, [[1, 2], [3, 5]]),
    "client_late_error": (thin_late_error, [3, 3, [-1, -2]]),
    "client_cut": (thin_cut, [[-4, -5], [4, 5]]),
}
OWN = {
    "client_ops": (own_ops, [[[2.5, 10], [22.5, 40]], [[12.5], [62.5]], 10]),
    "client_gradients": (own_gradients, [[1, 2], [3, 5]]),
    "client_cut": (own_cut, [[-4, -5], [4, 5]]),
    "client_bulk": (own_bulk, [-1, -2, -3, -4]),
}


def run_thin(address, name):
    """Returns the result of the thin client's program and the expected one."""
    client = ThinClient(address)
    program, wanted = THIN[name]
    try:
        return program(client), wanted
    finally:
        client.close()


def run_own(address, name):
    """Returns the result of the Python client's program and the expected one."""
    program, wanted = OWN[name]
    with tt.connect(address):
        return program(), wanted
