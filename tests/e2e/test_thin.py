"""Thin clients: no wrong call of an op ends their session, and the answers say what was wrong."""

import math
import struct

import pytest
from conformance.calls import GUESSES, operands_of
from conformance.thin import FLOAT32, Handle, LateError, ThinClient, attributes_of
from support import sin2
from support.daemon import Daemon

BOOL, INT64, FLOAT64 = 1, 6, 10
NOT_FOUND, INVALID_ARGUMENT, UNIMPLEMENTED = 5, 3, 12


@pytest.fixture(scope="module")
def daemon():
    running = Daemon("--session-memory", "256MiB")
    yield running
    problem = running.stop()
    assert not problem, problem


@pytest.fixture
def thin(daemon):
    client = ThinClient(daemon.unix)
    yield client
    assert client.value(client.op("neg", client.constant([1.5, -2.0]))) == [-1.5, 2.0], "it works no more"
    client.close()


def failure(client, handle):
    with pytest.raises(LateError) as caught:
        client.value(handle)
    return caught.value


WRONG_KINDS = {"bool": 3.5, "int": "x", "float": "x", "int[]": "x", "str": 1, "dtype": 1, "device": 1}


def wrongly_typed(kind, command):
    """An attribute's number and contents of another kind."""
    wrong = WRONG_KINDS[kind]
    if isinstance(wrong, str):
        command.setdefault("texts", []).append(wrong)
        return 5
    command.setdefault("reals", []).append(float(wrong))
    return 3


def test_every_op_with_every_wrong_call(thin):
    tensors = [thin.constant([2, .5, .25, .5, 3, .5, .25, .5, 4], [3, 3]),
               thin.constant([True, False], [2], BOOL), thin.constant([1, 2, 3], [3], INT64),
               thin.constant([1.0], [], FLOAT64)]
    refused = 0
    for name, (number, declared) in thin.ops.items():
        signature = declared["signature"]
        attributes = attributes_of(signature)
        made = abs(declared.get("results", 0)) if not declared.get("updates") else 0
        handles = []
        for tensor in tensors:
            operands = operands_of(signature, tensor)
            guesses = [GUESSES[kind] for _, kind in attributes]
            handles += thin.call(name, *operands, attributes=guesses, made=made)
            handles += thin.call(name, *operands, made=made)
            handles += thin.call(name, *operands, tensor, made=made)
            handles += thin.call(name, made=made)
            handles += thin.call(name, *[None] * len(operands), made=1)
        command = {"op": number, "made": 2, "attributes": []}
        command["attributes"] = [wrongly_typed(kind, command) for _, kind in attributes]
        handles += [Handle(thin.next_id), Handle(thin.next_id + 1)]
        thin.add(command, 2)
        thin.finish()  # the session has not ended
        asked = [thin.ask(handle, describe=True) for handle in handles]
        for seq in asked:
            try:
                thin.answer(seq)
            except LateError as error:
                assert error.code and error.text, (name, error)
                refused += 1
        thin.release(handles)
        for root in list(thin.errors):
            thin.forgive(root)
        thin.errors.clear()
    assert refused > len(thin.ops)


def test_an_op_that_the_server_has_not(daemon):
    client = ThinClient(daemon.unix)
    names = [{"name": name, "revision": op["revision"]} for name, (_, op) in client.ops.items()]
    client.close()
    client = ThinClient(daemon.unix, ops=[*names, {"name": "frobnicate", "revision": 7}])
    client.ops["frobnicate"] = (len(names) + 1, {"signature": "frobnicate(Tensor x) -> Tensor", "results": 1})
    assert client.hello["unsupported_ops"] == ["frobnicate (revision 7)"]
    error = failure(client, client.op("frobnicate", client.constant([1.0])))
    assert error.code == UNIMPLEMENTED and "frobnicate (revision 7)" in error.text
    assert client.value(client.op("neg", client.constant([1.0]))) == [-1.0]
    client.close()


WRONG_VALUES = {
    "thirteen dimensions": ({"constant": {"dtype": FLOAT32, "shape": [1] * 13, "data": b"1234"}}, 1),
    "a negative size": ({"constant": {"dtype": FLOAT32, "shape": [-1]}}, 1),
    "no such dtype": ({"constant": {"dtype": 99, "shape": [1], "data": b"1"}}, 1),
    "no such device": ({"constant": {"dtype": FLOAT32, "shape": [1], "device": 999, "data": b"1234"}}, 1),
    "too many bytes": ({"constant": {"dtype": FLOAT32, "shape": [1], "data": b"12345678"}}, 1),
    "an upload on no device": ({"uploaded": {"dtype": FLOAT32, "shape": [1], "device": 999, "upload": 1}}, 1),
    "a text that is not ASCII": ({"op": "sum", "attributes": [5], "texts": ["é"]}, 1),
    "a long text": ({"op": "sum", "attributes": [5], "texts": ["x" * 5000], "made": 3}, 3),
    "nine texts": ({"op": "sum", "attributes": [5] * 9, "texts": ["x"] * 9}, 1),
    "a kept name": ({"keep": {"name": "é", "handle": 1}}, 0),
    "a published name": ({"publish": {"name": "", "handle": 1}}, 0),
    "a group's name": ({"join": {"group": 1, "ranks": 2}}, 0),
    "no such flag": ({"set_flag": {"what": 9, "handle": 1}}, 0),
    "seeds": ({"backward": {"roots": [1, 1], "seeds": [0], "has_inputs": True, "made": 2}}, 2),
    "a call's numbers": ({"call": {"program": 1, "numbers": b"\x7f", "made": 2}}, 2),
}


@pytest.mark.parametrize("command,made", WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_wrong_value_in_a_command_is_a_late_error(thin, command, made):
    """The session goes on, and every id that the command takes has the error."""
    before = thin.constant([3.0])
    command = {**command, **({"op": thin.ops[command["op"]][0]} if "op" in command else {})}
    root, first = thin.add(command, made), thin.next_id - made
    for each in range(made):
        error = failure(thin, Handle(first + each))
        assert error.root == root and error.code in (INVALID_ARGUMENT, NOT_FOUND) and error.text
    assert thin.value(before) == [3.0]
    assert list(thin.errors) == [root]
    thin.forgive(root)
    thin.errors.clear()


def test_what_depends_on_a_refused_command_has_its_root(thin):
    bad = thin.op("matmul", thin.constant([1.0, 2.0]), thin.constant([1.0, 2.0, 3.0]))
    root = thin.seq - 1
    error = failure(thin, thin.op("add", thin.op("neg", bad), 1.0))
    assert (error.root, error.code) == (root, INVALID_ARGUMENT) and "matmul" in error.text
    assert list(thin.errors) == [root]


def test_defaults_and_a_random_op_without_seed(thin):
    x = thin.constant([1.0, 2.0, 3.0, 4.0], [2, 2])
    assert thin.value(thin.op("sum", x)) == [10.0]
    assert thin.value(thin.op("add", x, 1.0)) == [2.0, 3.0, 4.0, 5.0]
    one, two = (thin.value(thin.op("rand", attributes=[[5]])) for _ in range(2))
    assert len(one) == 5 and one != two and all(0 <= each < 1 for each in one)


def test_describing_many_handles_is_one_message(thin):
    x = thin.constant([0.0] * 6, [2, 3])
    thin.require_grad(x)
    y = thin.op("transpose", x, attributes=[0, 1])
    z = thin.op("gt", x, 0.5)
    large = thin.op("rand", attributes=[[1 << 12, 1 << 10]])  # far beyond what a Progress carries
    found = thin.describe([x, y, z, large])
    assert [(dtype, shape) for dtype, shape, _ in found] == [
        (FLOAT32, [2, 3]), (FLOAT32, [3, 2]), (BOOL, [2, 3]), (FLOAT32, [1 << 12, 1 << 10])]
    assert [each.get("strides") for _, _, each in found] == [[3, 1], [1, 3], [3, 1], [1 << 10, 1]]
    assert [each.get("requires_grad", False) for _, _, each in found] == [True, True, False, False]
    assert found[0][2]["device"] == "cpu"


def test_a_restored_session_stays_thin(start_daemon):
    daemon = start_daemon("--restart", "60")
    client = ThinClient(daemon.unix)
    x = client.constant([1.0, 2.0])
    bad = client.op("matmul", x, client.constant([1.0, 2.0, 3.0]))
    client.finish()
    assert daemon.terminate() == 0
    daemon.restart()
    assert failure(client, bad).code == INVALID_ARGUMENT
    error = failure(client, client.op("sum", x, attributes=[[7]]))
    assert error.code and "sum" in error.text
    assert client.value(client.op("neg", x)) == [-1.0, -2.0]
    client.close()


def test_declarations_are_those_of_the_documentation(thin):
    import json

    from support.daemon import ROOT
    documented = json.loads((ROOT / "docs/ops.json").read_text())["ops"]
    assert [op["name"] for op in documented] == list(thin.ops)
    for op in documented:
        declared = thin.ops[op["name"]][1]
        assert [each["name"] for each in op["attributes"]] == [n for n, _ in attributes_of(op["signature"])]
        for key in ("signature", "revision", "results", "updates", "differentiable", "random", "inplace"):
            assert declared.get(key, type(op[key])()) == op[key], (op["name"], key)


def test_the_result_of_an_in_place_form_fits_into_operand_0(thin):
    """Ops that make one tensor of their operands have an in-place form, but for lists and ops that create."""
    made = {name: op for name, (_, op) in thin.ops.items()
            if op.get("results") == 1 and not op.get("view") and not op.get("updates")
            and op["signature"].partition("(")[2].startswith(("Tensor", "Operand"))}
    assert {name for name, op in made.items() if not op.get("inplace")} == {
        "full", "arange", "linspace", "to_device", "cat", "stack"}
    assert made["add"]["inplace"] and made["exp"]["inplace"] and made["clamp"]["inplace"]


RATE = 0.001


def sin2_step(client, parameters, x, y):
    """A step of SGD on one sample; its loss and gradients."""
    hidden = client.op("sigmoid", client.op("linear", x, *parameters[:2]))
    error = client.op("sub", client.op("linear", hidden, *parameters[2:]), y)
    loss = client.op("mean", client.op("mul", error, error))
    gradients = client.backward(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        client.call("add", parameter, gradient, attributes=[-RATE], inplace=True, record=False)
    return loss, gradients


def test_sin2_is_trained_through_cut_connections(thin):
    xs, ys = sin2.data()
    weights = sin2.weights()
    parameters = [thin.constant(weights[name].ravel().tolist(), list(weights[name].shape))
                  for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
    for parameter in parameters:
        thin.require_grad(parameter)
    losses = []
    for epoch in range(sin2.EPOCHS):
        told = []
        for x, y in zip(xs, ys, strict=True):
            first = thin.next_id
            loss, gradients = sin2_step(thin, parameters, thin.constant(x.tolist()), thin.constant(y.tolist()))
            told.append(thin.ask(loss))
            if not losses and len(told) == 1:
                bias = abs(thin.value(gradients[-1])[0])  # of (prediction - y)^2 by the last bias
                assert bias == pytest.approx(2 * math.sqrt(thin.value(loss)[0]), rel=1e-5)
            thin.release([Handle(each) for each in range(first, thin.next_id)])
        thin.flush()
        if epoch % 3 == 0:
            thin.run.cut()  # wherever the frames are
        values = [struct.unpack("<f", thin.answer(seq)["data"])[0] for seq in told]
        losses.append(sum(values) / len(values))
    assert losses == pytest.approx(sin2.stored()["0"], rel=1e-3)
    assert thin.attach == 5 and not thin.errors
