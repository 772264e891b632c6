"""Makes files like those of torch.save by hand: a pickle of protocol 2 and storages, in a zip archive or in
one stream. Each part of a valid file can be replaced."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict

import numpy as np

KINDS = {
    "b1": "BoolStorage",
    "u1": "ByteStorage",
    "i1": "CharStorage",
    "i2": "ShortStorage",
    "i4": "IntStorage",
    "i8": "LongStorage",
    "f2": "HalfStorage",
    "f4": "FloatStorage",
    "f8": "DoubleStorage",
    "c8": "ComplexFloatStorage",
    "c16": "ComplexDoubleStorage",
}
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


class Name:
    """A global of a pickle."""

    def __init__(self, path):
        self.module, _, self.name = path.rpartition(".")


class Call:
    """A call of a global with arguments; with a state, followed by BUILD with that state; new: by NEWOBJ."""

    def __init__(self, path, *args, state=None, new=False):
        self.function, self.args, self.state, self.new = Name(path), args, state, new


class Outside:
    """An object that the pickle only refers to, by a persistent id."""

    def __init__(self, pid):
        self.pid = pid


class _Pickler(pickle._Pickler):
    dispatch = pickle._Pickler.dispatch.copy()

    def persistent_id(self, obj):
        return obj.pid if isinstance(obj, Outside) else None

    def _name(self, obj):
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
        self.memoize(obj)

    def _call(self, obj):
        self.save(obj.function)
        self.save(obj.args)
        self.write(pickle.NEWOBJ if obj.new else pickle.REDUCE)
        self.memoize(obj)
        if obj.state is not None:
            self.save(obj.state)
            self.write(pickle.BUILD)

    dispatch[Name], dispatch[Call] = _name, _call


def pickled(obj, protocol=2):
    buffer = io.BytesIO()
    _Pickler(buffer, protocol).dump(obj)
    return buffer.getvalue()


def storage(kind="FloatStorage", key="0", count=6, location="cpu"):
    return Outside(("storage", Name(f"torch.{kind}"), key, location, count))


def tensor(of, shape=(2, 3), stride=(3, 1), offset=0, requires_grad=False, *more):
    return Call(
        "torch._utils._rebuild_tensor_v2", of, offset, tuple(shape), tuple(stride), requires_grad, OrderedDict(), *more
    )


def raw(key="0", count=24):
    """A storage of bytes."""
    return Outside(("storage", Name("torch.storage.UntypedStorage"), key, "cpu", count))


def of_dtype(of, dtype, count=1):
    """A tensor whose dtype differs from that of its storage."""
    return Call("torch._utils._rebuild_tensor_v3", of, 0, (count,), (1,), False, OrderedDict(), Name(f"torch.{dtype}"))


def whole(array, key="0", location="cpu"):
    """A tensor for an array, with a storage of its own."""
    kind = KINDS[array.dtype.str.lstrip("<|")]
    stride = tuple(n // array.itemsize for n in array.strides)
    return tensor(storage(kind, key, array.size, location), array.shape, stride)


def parameter(of, requires_grad=True):
    return Call("torch._utils._rebuild_parameter", of, requires_grad, OrderedDict())


def indices(shape, stride=None, key="0"):
    """A tensor of integers in a storage of three or six elements."""
    count = 3 if key == "0" else 6
    return tensor(storage("LongStorage", key, count), shape, stride or (shape[-1], 1)[-len(shape):])


def size(*sizes):
    return Call("torch.Size", sizes)


def sparse(*parts, layout="torch.sparse_coo"):
    return Call("torch._utils._rebuild_sparse_tensor", Call("torch.serialization._get_layout", layout), parts)


def with_attributes(**attributes):
    return Call("torch._tensor._rebuild_from_type_v2", Name("torch._utils._rebuild_tensor_v2"), Name("torch.Tensor"),
                tensor(storage()).args, attributes)


NUMBERS = np.arange(6, dtype="<f4")


def records(obj, storages=None, root="archive"):
    """The records of an archive, by name. If the object is bytes it is the pickle itself; the storages
    default to one with NUMBERS."""
    storages = {"0": NUMBERS} if storages is None else storages
    found = {"data.pkl": obj if isinstance(obj, bytes) else pickled(obj), "byteorder": b"little"}
    found |= {f"data/{key}": bytes(data) for key, data in storages.items()}
    found |= {"version": b"3\n", ".data/serialization_id": b"1" * 40}
    return {f"{root}/{name}": data for name, data in found.items()}


def zipped(found, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in found.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def archive(obj, storages=None, **other):
    """The bytes of a file; `other` are records to be replaced, or None for records to be left out."""
    found = records(obj, storages)
    found |= {f"archive/{name}": data for name, data in other.items()}
    return zipped({name: data for name, data in found.items() if data is not None})


def legacy(obj, storages=None, keys=None, magic=MAGIC, little=True):
    """The bytes of a file in the format before PyTorch 1.6."""
    storages = {"0": NUMBERS} if storages is None else storages
    obj = obj if isinstance(obj, bytes) else pickled(obj)
    system = {"protocol_version": PROTOCOL, "little_endian": little, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    parts = [pickled(magic), pickled(PROTOCOL), pickled(system), obj, pickled(list(storages) if keys is None else keys)]
    for data in storages.values():
        parts.append(struct.pack("<q", data.size) + data.tobytes())
    return b"".join(parts)
