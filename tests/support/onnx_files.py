"""Builds ONNX files for tests, message by message, because the tests do not have the onnx package."""

import struct

import numpy as np
from teletensor._connection.protowire import encode

TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "string": 8, "bool": 9, "float16": 10,
         "float64": 11, "bfloat16": 16}


def packed(values):
    """Encodes a packed list of int64."""
    return b"".join(encode([(1, v % 2**64)])[1:] or b"\0" for v in values)


def tensor(name, array, **fields):
    """A TensorProto. `fields` are further fields by number, such as f14=1, which replace the bytes of the
    array."""
    array = np.asarray(array)
    more = [(int(key[1:]), value) for key, value in fields.items()] or [(9, array.tobytes())]
    return encode([(1, packed(array.shape)), (2, TYPES[array.dtype.name]), (8, name), *more])


def external(name, array, **facts):
    """A TensorProto whose data is in another file: location, offset, length."""
    entries = [(13, encode([(1, key), (2, str(value))])) for key, value in facts.items()]
    return encode([(1, packed(array.shape)), (2, TYPES[array.dtype.name]), (8, name), (14, 1), *entries])


class Reference(str):
    """The name of an attribute of a function, to which a node of the function refers."""


def attribute(name, value):
    if isinstance(value, Reference):
        return encode([(1, name), (20, 1), (21, str(value))])
    if isinstance(value, float):
        return encode([(1, name)]) + b"\x15" + struct.pack("<f", value) + encode([(20, 1)])
    if isinstance(value, int):
        return encode([(1, name), (3, value % 2**64), (20, 2)])
    if isinstance(value, str):
        return encode([(1, name), (4, value), (20, 3)])
    if isinstance(value, list) and value and isinstance(value[0], float):
        return encode([(1, name), (7, np.array(value, np.float32).tobytes()), (20, 6)])
    if isinstance(value, np.ndarray):
        return encode([(1, name), (5, tensor("", value)), (20, 4)])
    if isinstance(value, bytes):  # a graph
        return encode([(1, name), (6, value), (20, 5)])
    return encode([(1, name), (8, packed(value)), (20, 7)])


def node(op, inputs, outputs, name="", domain="", **attributes):
    """A NodeProto; inputs and outputs are names separated by spaces ("-" for one that is left out)."""
    names = [(number, "" if each == "-" else each) for number, text in ((1, inputs), (2, outputs))
             for each in text.split()]
    body = b"".join(encode([pair]) or bytes([pair[0] << 3 | 2, 0]) for pair in names)
    given = [(5, attribute(key, value)) for key, value in attributes.items()]
    return body + encode([(3, name), (4, op), *given, (7, domain)])


def value(name, dtype="float32", shape=None):
    """A ValueInfoProto; sizes are numbers, names of dynamic axes, or None."""
    tensor_type = [(1, TYPES[dtype])]
    if shape is not None:
        dims = b"".join(
            encode([(1, encode([(2, size) if isinstance(size, str) else (1, size or 0)]))]) or b"\x0a\0"
            for size in shape)
        tensor_type.append((2, dims or b""))
    body = encode(tensor_type) + (b"\x12\0" if shape == [] else b"")
    return encode([(1, name), (2, encode([(1, body)]))])


def graph(nodes, inputs=(), outputs=(), constants=(), name="g"):
    return encode([*((1, each) for each in nodes), (2, name), *((5, each) for each in constants),
                   *((11, each) for each in inputs), *((12, each) for each in outputs)])


def function(name, inputs, outputs, nodes, domain="own", defaults=()):
    return encode([(1, name), *((4, each) for each in inputs.split()), *((5, each) for each in outputs.split()),
                   *((7, each) for each in nodes), (9, encode([(2, 17)])), (9, encode([(1, domain), (2, 1)])),
                   (10, domain), *((11, each) for each in defaults)])


def model(graph, version=17, functions=(), domains=()):
    """A ModelProto."""
    return encode([(1, 8), (7, graph), (8, encode([(2, version)])),
                   *((8, encode([(1, each), (2, 1)])) for each in domains), *((25, each) for each in functions)])


def perceptron(batch="n", hidden=64):
    """(bytes, weights) of a model y = relu(x w1 + b1) w2 with 5 inputs and 3 outputs."""
    rng = np.random.default_rng(1)
    w = {"w1": rng.standard_normal((5, hidden)), "b1": rng.standard_normal(hidden),
         "w2": rng.standard_normal((hidden, 3))}
    w = {name: each.astype(np.float32) for name, each in w.items()}
    nodes = [node("Gemm", "x w1 b1", "h", "first"), node("Relu", "h", "r"), node("MatMul", "r w2", "y", "second")]
    made = graph(nodes, [value("x", shape=[batch, 5])], [value("y", shape=[batch, 3])],
                 [tensor(name, each) for name, each in w.items()], "perceptron")
    return model(made), w
