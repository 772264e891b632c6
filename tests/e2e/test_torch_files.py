"""Files of torch.save, built by support/torch_files.py: the contents that are read, and that all others are
refused. tests/peers/test_saved_torch.py has files that PyTorch itself has written."""

import argparse
import io
import json
import pathlib
import pickle
import re
import struct
import tracemalloc
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest
from fuzz import torch_files as fuzz
from safetensors import safe_open
from safetensors.numpy import load_file
from support import torch_files as files
from support.torch_files import NUMBERS, Call, Name, Outside
from teletensor import cli

WRITERS = pytest.mark.parametrize("write", [files.archive, files.legacy])


def load(tt, raw, **more):
    return tt.load(io.BytesIO(raw), **more)


@WRITERS
def test_containers_and_numbers(tt, write):
    tree = {
        "w": files.whole(NUMBERS.reshape(2, 3)),
        "o": OrderedDict(b=1, a=[2.5, None, True, "tëxt", (1,), (), (1, 2, 3, 4)]),
        "n": [0, -1, 255, 65535, 2**31 - 1, -(2**31), 2**62, 2**200, -(2**70), float("inf")],
        3: {"x", 1},
        (1, "k"): b"\x00\xff",
        "e": [b"", bytearray(b"ab"), 1 - 2j, set(), {}, []],
    }
    got = load(tt, write(tree))
    assert type(got.pop("o")) is OrderedDict and list(got) == ["w", "n", 3, (1, "k"), "e"]
    w = got.pop("w")
    assert w.tolist() == [[0, 1, 2], [3, 4, 5]] and not w.requires_grad and not w._is_view()
    del tree["w"], tree["o"]
    assert got == tree
    assert type(got["e"][1]) is bytearray


@WRITERS
def test_every_dtype(tt, write):
    bits = np.random.default_rng(3).integers(0, 256, 48, dtype="u1")
    for dtype, kind in files.KINDS.items():
        array = (bits % 2 if dtype == "b1" else bits).view(dtype)
        tree = {
            "x": files.whole(array),
            "twos": files.tensor(files.storage(kind, "0", array.size), (-(-array.size // 2),), (2,)),
        }
        got = load(tt, write(tree, {"0": array}))
        assert got["x"].numpy().tobytes() == array.tobytes(), dtype
        assert got["twos"].numpy().tobytes() == array[::2].tobytes(), dtype
    halves = bits.view("u2")
    x = load(tt, write(files.tensor(files.storage("BFloat16Storage", count=24), (24,), (1,)), {"0": halves}))
    assert x.dtype == tt.bfloat16
    assert x.view(tt.uint16).numpy().tobytes() == halves.tobytes()  # NaNs, too


def test_bools_that_are_neither_0_nor_1(tt):
    raw = np.array([0, 1, 2, 255], "u1")
    x = load(tt, files.archive(files.tensor(files.storage("BoolStorage", count=4), (4,), (1,)), {"0": raw}))
    assert x.tolist() == [False, True, True, True] and (x.view(tt.uint8) + 1).tolist() == [1, 2, 2, 2]


@WRITERS
def test_sparse_tensors(tt, write):
    places = np.array([[0, 0, 2], [0, 1, 1]])
    values, at = files.tensor(files.storage(count=6), (3,), (2,)), files.indices((2, 3), key="i")
    for parts in ((at, values, files.size(3, 2)), (at, values, files.size(3, 2), True)):
        found = load(tt, write(files.sparse(*parts), {"0": NUMBERS, "i": places}))
        assert found.layout is tt.sparse_coo and found.is_coalesced() == (len(parts) == 4)
        assert found.to_dense().tolist() == [[0, 2], [0, 0], [0, 4]]


@WRITERS
@pytest.mark.parametrize("places, text", [
    ([[0, 0, 3], [0, 1, 1]], "found index 3"), ([[0, 0, -1], [0, 1, 1]], "found negative index -1"),
    ([[0, 2, 0], [0, 1, 1]], "cannot set is_coalesced to true"),
])
def test_sparse_indices_that_do_not_fit(tt, write, places, text):
    values, at = files.tensor(files.storage(count=6), (3,), (2,)), files.indices((2, 3), key="i")
    raw = write(files.sparse(at, values, files.size(3, 2), True), {"0": NUMBERS, "i": np.array(places)})
    with pytest.raises(ValueError, match=f"holds a sparse tensor whose parts do not fit: .*{text}"):
        load(tt, raw)


def test_memory_is_shared_as_it_was(tt):
    all_of_it = files.storage()
    tied = files.tensor(all_of_it)
    got = load(
        tt,
        files.archive(
            {
                "a": tied,
                "b": tied,
                "t": files.tensor(all_of_it, (3, 2), (1, 3)),
                "end": files.tensor(all_of_it, (2,), (1,), 4),
                "wide": files.tensor(all_of_it, (4, 2), (0, 1)),
                "none": files.tensor(all_of_it, (0, 3), (3, 1), 6),
            }
        ),
    )
    assert got["a"] is got["b"] and got["none"].shape == (0, 3)
    assert got["t"].stride() == (1, 3) and got["end"].storage_offset() == 4 and got["wide"].stride() == (0, 1)
    got["end"].fill_(9)
    assert got["a"].tolist() == [[0, 1, 2], [3, 9, 9]] and got["t"].tolist() == [[0, 3], [1, 9], [2, 9]]
    assert got["wide"].tolist() == [[0, 1]] * 4


def test_conjugates_and_negatives(tt):
    z = np.array([1 + 2j, 3 - 4j, complex(0.0, -0.0)], "c8")
    for bits, wanted in (
        ({"conj": True}, z.conj()),
        ({"neg": True}, -z),
        ({"conj": True, "neg": True}, -z.conj()),
        (None, z),
    ):
        x = load(
            tt,
            files.archive(
                files.tensor(files.storage("ComplexFloatStorage", count=3), (3,), (1,), 0, False, bits), {"0": z}
            ),
        )
        assert x.numpy().tobytes() == wanted.tobytes()


def test_gradients_and_parameters(tt):
    got = load(
        tt,
        files.archive(
            {
                "leaf": files.tensor(files.storage(), (6,), (1,), 0, True),
                "w": files.parameter(files.tensor(files.storage())),
                "frozen": files.parameter(files.tensor(files.storage()), False),
            }
        ),
    )
    assert got["leaf"].requires_grad and got["leaf"].is_leaf and type(got["leaf"]) is tt.Tensor
    assert type(got["w"]) is tt.nn.Parameter and got["w"].requires_grad and got["w"].is_leaf
    assert type(got["frozen"]) is tt.nn.Parameter and not got["frozen"].requires_grad
    (got["w"] * 2).sum().backward()
    assert got["w"].grad.tolist() == [[2, 2, 2]] * 2
    with tt.no_grad():
        got["w"].fill_(7)
    assert got["leaf"].tolist() == [7] * 6


def test_dtypes_that_are_of_the_tensor(tt):
    """For uint16 to uint64 the storage is of bytes."""
    data, of = np.arange(8, dtype="u1"), files.raw(count=8)
    tree = [files.of_dtype(of, "uint16", 4), files.of_dtype(of, "uint32", 2), files.of_dtype(of, "uint64", 1)]
    got = load(tt, files.archive(tree, {"0": data}))
    assert [x.numpy().tobytes() for x in got] == [data.tobytes()] * 3
    got[0].fill_(0)
    assert got[2].tolist() == [0]


def test_other_objects(tt):
    f8 = Call("numpy.dtype", "f8", False, True, state=(3, "<", None, None, None, -1, -1, 0))
    array = Call(
        "numpy.core.multiarray._reconstruct",
        Name("numpy.ndarray"),
        (0,),
        b"b",
        state=(1, (2, 1), f8, False, struct.pack("<dd", 1, 2)),
    )
    tree = {
        "size": Call("torch.Size", (2, 3)),
        "device": Call("torch.device", "cuda", 1),
        "cpu": Call("torch.device", "cpu"),
        "dtype": Name("torch.bfloat16"),
        "counts": Call("collections.Counter", {"a": 2}),
        "array": array,
        "again": array,
        "scalar": Call("numpy._core.multiarray.scalar", f8, struct.pack("<d", 2.5)),
        "numpy": f8,
        "args": Call("argparse.Namespace", new=True, state={"lr": 0.1, "layers": [1, 2]}),
        "path": Call("pathlib.PosixPath", "/", "data", "run"),
    }
    got = load(tt, files.archive(tree))
    assert type(got["size"]) is tt.Size and got["size"] == (2, 3)
    assert got["device"] == tt.device("cuda:1") and got["cpu"] == tt.device("cpu") and got["dtype"] is tt.bfloat16
    assert type(got["counts"]) is Counter and got["counts"] == {"a": 2}
    assert got["array"].tolist() == [[1], [2]] and got["array"] is got["again"] and got["array"].flags.writeable
    assert type(got["scalar"]) is np.float64 and got["scalar"] == 2.5 and got["numpy"] == np.dtype("f8")
    assert got["args"] == argparse.Namespace(lr=0.1, layers=[1, 2]) and got["path"] == pathlib.Path("/data/run")


def test_the_versions_of_modules_stay(tt):
    saved = Call("collections.OrderedDict", state={"_metadata": OrderedDict({"": {"version": 1}})})
    assert load(tt, files.archive(saved))._metadata == {"": {"version": 1}}


def test_big_endian_files(tt):
    z = np.array([1 + 2j, 3 - 4j, 5], "c8")
    tree = [
        files.tensor(files.storage()),
        files.whole(z, "1"),
        files.tensor(files.storage("BFloat16Storage", "2", 2), (2,), (1,)),
    ]
    raw = files.archive(
        tree,
        {"0": NUMBERS.astype(">f4").tobytes(), "1": z.astype(">c8").tobytes(), "2": b"\x3f\x80\x40\x00"},
        byteorder=b"big",
    )
    got = load(tt, raw)
    assert (
        got[0].flatten().tolist() == NUMBERS.tolist()
        and np.array_equal(got[1].numpy(), z)
        and got[2].tolist() == [1, 2]
    )


def test_where_tensors_go(tt):
    raw = files.archive(
        {
            "a": files.whole(NUMBERS, "0", "cuda:0"),
            "b": files.whole(NUMBERS, "1", "cuda:1"),
            "c": files.whole(NUMBERS, "2"),
        },
        dict.fromkeys("012", NUMBERS),
    )

    def places(map_location):
        return [str(x.device) for x in load(tt, raw, map_location=map_location).values()]

    asked = []

    def place(storage, location):
        asked.append((storage.nbytes(), location))
        return {"cuda:0": storage.cpu(), "cuda:1": tt.device("sim:1"), "cpu": None}[location]

    assert places(None) == ["cpu"] * 3
    assert places("sim:0") == places(tt.device("sim:0")) == ["sim:0"] * 3
    assert places({"cuda:0": "sim:0", "cuda:1": "sim:1"}) == ["sim:0", "sim:1", "cpu"]
    assert places(place) == ["cpu", "sim:1", "cpu"] and asked == [(24, "cuda:0"), (24, "cuda:1"), (24, "cpu")]
    assert places(lambda storage, location: storage) == ["cpu"] * 3
    with pytest.raises(RuntimeError, match="cuda"):
        places({"cuda:0": "sim:0"})
    with pytest.raises(RuntimeError, match="cuda"):
        places(lambda storage, location: storage.cuda(1))
    buffer = io.BytesIO()
    tt.save({"x": tt.ones(1)}, buffer)
    assert load(tt, buffer.getvalue(), map_location={"cpu": "sim:1"})["x"].device == tt.device("sim:1")


def test_files_at_a_place_and_by_path(tt, tmp_path):
    for write in (files.archive, files.legacy):
        raw = write({"w": files.whole(NUMBERS)})
        (tmp_path / "x.pt").write_bytes(raw)
        assert tt.load(tmp_path / "x.pt", "cpu", weights_only=True, mmap=True)["w"].tolist() == NUMBERS.tolist()
        buffer = io.BytesIO(b"before" + raw)
        buffer.seek(6)
        assert tt.load(buffer)["w"].tolist() == NUMBERS.tolist()


def test_archives_without_checksums(tt):
    raw = bytearray(files.archive(files.tensor(files.storage())))
    with zipfile.ZipFile(io.BytesIO(bytes(raw))) as archive:
        crc, end = archive.getinfo("archive/data/0").CRC, archive.start_dir
    at = raw.index(struct.pack("<I", crc), end)
    data = raw.index(NUMBERS.tobytes())
    raw[data] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        load(tt, bytes(raw))
    raw[data] ^= 1
    raw[at : at + 4] = bytes(4)  # torch.serialization.set_crc32_options(False)
    assert load(tt, bytes(raw)).tolist() == [[0, 1, 2], [3, 4, 5]]


# ---------------------------------------------------------------- what is refused

MIB = 1 << 20


def op(*parts):
    """A pickle of these opcodes."""
    return pickle.PROTO + b"\x02" + b"".join(parts) + pickle.STOP


def text(value):
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def named(path):
    module, _, name = path.rpartition(".")
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


AT, ONES = files.indices((1, 2)), files.indices((2,))
OBJECTS = [
    (Call("os.system", "touch marker"), "os.system, which is not among"),
    (Call("builtins.eval", "open('marker', 'w')"), "builtins.eval, which is not among"),
    (Call("torch.hub.load", "x"), "from_torch"),
    (Name("os.system"), "os.system"),
    (Call("model.Net", new=True, state={"training": True}), "model.Net, which is not among"),
    (Call("torch._utils._rebuild_qtensor"), r"_rebuild_qtensor with \(\)"),
    (Call("torch._utils._rebuild_sparse_tensor"), r"_rebuild_sparse_tensor with \(\)"),
    (files.sparse(), "sparse tensor whose parts are damaged"),
    (files.sparse(AT), "sparse tensor whose parts are damaged"),
    (files.sparse(AT, ONES, (3,)), "sparse tensor whose parts are damaged"),
    (files.sparse(AT, 2, files.size(3)), "sparse tensor whose parts are damaged"),
    (files.sparse(2, ONES, files.size(3)), "sparse tensor whose parts are damaged"),
    (files.sparse(AT, ONES, files.size(3), layout="torch.sparse_csr"), "sparse tensor whose parts are damaged"),
    (files.sparse(AT, ONES, files.size(3), layout="torch.strided"), "sparse tensor whose parts are damaged"),
    (files.sparse(AT, ONES, files.size(3), 1), "flag of coalesced"),
    (files.sparse(AT, ONES, files.size(*[2] * 13)), "sparse tensor whose shape is damaged"),
    (files.sparse(files.indices((1, 2**40), (1, 0)), files.indices((2**40,), (0,)), files.size(3)),
     "indices have more elements than their storage"),
    (files.sparse(layout="torch._mkldnn"), "torch._mkldnn, which is not supported"),
    (Call("torch._tensor._rebuild_from_type_v2", Name("torch._utils._rebuild_sparse_tensor"), Name("torch.Tensor"),
          files.sparse(AT, ONES, files.size(3)).args, {"_places": 1}), "with the attribute '_places'"),
    (Call("torch._utils._rebuild_meta_tensor_no_storage"), r"_rebuild_meta_tensor_no_storage with \(\)"),
    (Call("torch._utils._rebuild_wrapper_subclass"), "subclass"),
    (files.tensor(files.storage("QInt8Storage")), "torch.QInt8Storage"),
    (Name("torch.float8_e4m3fn"), "torch.float8_e4m3fn, which is not supported"),
    (Name("torch.complex32"), "torch.complex32"),
    (Name("torch.FloatStorage"), "torch.FloatStorage where a value should be"),
    ({"a": [(Name("torch.FloatStorage"),)]}, "where a value should be"),
    ([files.storage()], "Storage where a value should be"),
    (files.tensor(files.storage(), (2, 4)), "ends after the 24 bytes"),
    (files.tensor(files.storage(), (6,), (1,), 1), "ends after the 24 bytes"),
    (files.tensor(files.storage(), (0,), (1,), 7), "ends after the 24 bytes"),
    (files.tensor(files.storage(), (2**62, 2**62), (1, 1)), "ends after the 24 bytes"),
    (files.tensor(files.storage(), (2**63,), (0,)), "has the shape"),
    (files.tensor(files.storage(), (-1,), (1,)), "has the shape"),
    (files.tensor(files.storage(), (2,), (-1,)), "has the stride"),
    (files.tensor(files.storage(), (2.0,), (1,)), "has the shape"),
    (files.tensor(files.storage(), (1,) * 13, (1,) * 13), "has the shape"),
    (files.pickled(files.tensor(files.storage(), ((),))).replace(b")\x85", b")" + b"\x85" * 100_000),
     "has the shape .tuple"),
    (files.tensor(files.storage(), (2,), (1, 1)), "storage offset"),
    (files.tensor(files.storage(), (1,), (1,), -1), "storage offset"),
    (files.tensor(files.storage(), (2, 3), (3, 1), 0, False, {"other": True}), "metadata"),
    (files.tensor(files.storage("LongStorage", count=3), (3,), (1,), 0, True), "int64 that requires grad"),
    (files.parameter(files.tensor(files.storage("LongStorage", count=3), (3,), (1,))), "int64 that requires grad"),
    (files.tensor(files.storage(count=2**40)), "storage '0' of 1099511627776 elements of 4 bytes"),
    (files.tensor(files.storage(count=2**63)), "persistent id"),
    (files.tensor(files.storage(count=-1)), "persistent id"),
    (files.tensor(Outside(("module", 1, 2, 3, 4))), "persistent id"),
    (files.tensor(Outside(7)), "persistent id"),
    ([files.tensor(files.storage()), files.tensor(files.storage("IntStorage"))], "in two ways"),
    (files.tensor((1, 2)), "calls torch._utils._rebuild_tensor_v2 with"),
    (files.with_attributes(data=1), "with the attribute 'data'"),
    (files.with_attributes(__class__=1), "with the attribute '__class__'"),
    (files.with_attributes(**{"a b": 1}), "with the attribute 'a b'"),
    (files.with_attributes(tag=[1]), "attribute 'tag' is a list; numbers, text"),
    (files.with_attributes(tag=((1,),)), "attribute 'tag' is a tuple; numbers, text"),
    (files.with_attributes(tag=Name("torch.FloatStorage")), "attribute 'tag' is a Global"),
    (files.with_attributes(tag=files.storage()), "attribute 'tag' is a Storage"),
    (files.with_attributes(tag=Name("torch.float8_e4m3fn")), "attribute 'tag' is torch.float8_e4m3fn"),
    (Call("torch._utils._rebuild_parameter_with_state", files.tensor(files.storage()), True, OrderedDict(),
          {1: 2}), "attributes that are not named"),
    (Call("torch.nn.parameter.UninitializedParameter", 3), "UninitializedParameter with .int"),
    ({"a": ({"b": [1, files.tensor(files.storage("QInt8Storage"))]},)},
     r"its \['a'\]\[0\]\['b'\]\[1\] is a tensor of torch.QInt8Storage"),
    (op(pickle.EMPTY_TUPLE, named("torch.float8_e4m3fn"), pickle.TUPLE1 * 50_000),
     r"its (\[0\]){20} is torch.float8"),
    (Call("torch._tensor._rebuild_from_type_v2", Name("builtins.set"), Name("torch.Tensor"), ([],), {}),
     "class torch.Tensor"),
    ([files.of_dtype(files.raw(count=6), "uint16"), files.of_dtype(files.raw(count=6), "uint32")], "uint32 on 6 bytes"),
    (files.of_dtype(files.storage(), "uint16"), "uint16 on 24 bytes of float32"),
    (files.of_dtype(files.raw(), "bool"), "tensor of bool on 24 bytes"),
    (Call("torch.device", "mainframe"), "device"),
    (Call("torch.Size", (2**70,)), "torch.Size"),
    (Call("collections.OrderedDict", state={"items": 1}), "attributes"),
    (Call("collections.OrderedDict", [1, 2]), "pairs"),
    (Call("builtins.bytearray", 2**40), "calls builtins.bytearray with"),
    (Call("_codecs.encode", "x", "zlib"), "'zlib'"),
    (Call("_codecs.encode", "€", "latin1"), "decoded"),
    (Call("builtins.set", [[]]), "key of type list"),
    (Call("numpy.dtype", "O8", False, True), "NumPy dtype 'O8'"),
    (Call("numpy._core.multiarray.scalar", Call("numpy.dtype", "f8", False, True), b"1"), "of 1 bytes"),
    (Call("numpy._core.multiarray._reconstruct", Name("numpy.ndarray"), (0,), b"b",
          state=(1, (2**40,), Call("numpy.dtype", "f8", False, True), False, b"12345678")), "NumPy array"),
    (Call("numpy._core.multiarray._reconstruct", Name("numpy.ndarray"), (0,), b"b", state=7), "NumPy array"),
    (Call("argparse.Namespace", new=True, state={1: 2}), "Namespace"),
    (Call("builtins.set", new=True), "makes an object of a builtins.set"),
    # Pickles written opcode by opcode.
    (files.pickled({"a": 1}, 4), "protocol 4"),
    (op(text("os"), text("system"), pickle.STACK_GLOBAL), "opcode STACK_GLOBAL"),
    (op(b"(S'touch marker'\nios\nsystem\n"), "opcode STRING"),
    (op(b"(" + text("touch marker") + b"ios\nsystem\n"), "opcode INST"),
    (op(pickle.EXT1 + b"\x01"), "opcode EXT1"),
    (op(b"\xff"), "opcode b'\\\\xff'"),
    (op(), "takes more values from the stack"),
    (op(pickle.TUPLE), "takes more values from the stack"),
    (op(pickle.NONE, pickle.TUPLE2), "takes more values from the stack"),
    (op(pickle.BINGET + b"\x05"), "memo"),
    (op(pickle.NONE, pickle.EMPTY_TUPLE, pickle.REDUCE), "calls a NoneType"),
    (op(pickle.NONE, pickle.NONE, pickle.APPEND), "appends to a NoneType"),
    (op(pickle.NONE, pickle.NONE, pickle.NONE, pickle.SETITEM), "sets items of a NoneType"),
    (op(pickle.EMPTY_DICT, pickle.MARK, pickle.NONE, pickle.SETITEMS), "sets items of a dict"),
    (op(pickle.NONE, pickle.NONE, pickle.BUILD), "state of a NoneType"),
    (op(pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.NONE, pickle.SETITEM), "key of type list"),
    (op(pickle.EMPTY_DICT, pickle.EMPTY_TUPLE, pickle.TUPLE1 * 100_000, pickle.NONE, pickle.SETITEM), "too large"),
    (op(pickle.EMPTY_DICT, pickle.EMPTY_TUPLE,
        (pickle.BINPUT + b"\x00" + (pickle.BINGET + b"\x00") * 2 + pickle.TUPLE3) * 60,  # 3 ** 60 parts
        pickle.NONE, pickle.SETITEM), "too large"),
    (op(pickle.EMPTY_DICT, pickle.LONG1 + b"\x10" + b"\x7f" * 16, pickle.NONE, pickle.SETITEM), "key of type int"),
    (op(pickle.BINUNICODE + b"\xff\xff\xff\xff"), "cut short"),
    (op(pickle.BINUNICODE + b"\x01\x00\x00\x00\xff"), "decoded"),
    (op(pickle.GLOBAL + b"os"), "cut short"),
    (op(pickle.GLOBAL + b"o" * 2000 + b"\nx\n"), "name that is too long"),
    # Each call makes a MiB from a string that the pickle contains once.
    (op(text("x" * MIB), pickle.BINPUT + b"\x00", text("latin1"), pickle.TUPLE2, pickle.BINPUT + b"\x01",
        (named("_codecs.encode") + pickle.BINGET + b"\x01" + pickle.REDUCE) * 1000),
     "makes larger objects than its size allows"),
]  # fmt: skip


@pytest.mark.parametrize("obj, said", OBJECTS, ids=[said for _, said in OBJECTS])
@WRITERS
def test_hostile_pickles(tt, tmp_path, monkeypatch, write, obj, said):
    monkeypatch.chdir(tmp_path)  # where `touch marker` would leave it
    raw = write(obj)
    (tmp_path / "x.pt").write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=said) as error:
            tt.load(tmp_path / "x.pt")
        assert tracemalloc.get_traced_memory()[1] < 40 * len(raw) + 8 * MIB
    finally:
        tracemalloc.stop()
    assert str(tmp_path / "x.pt") in str(error.value) and [p.name for p in tmp_path.iterdir()] == ["x.pt"]


def without_data():
    return files.zipped({"archive/data.txt": b""})


def overlapping():
    """Two storages whose entries name the same bytes."""
    raw = bytearray(
        files.archive(
            [files.tensor(files.storage()), files.tensor(files.storage(key="1"))], {"0": NUMBERS, "1": NUMBERS}
        )
    )
    with zipfile.ZipFile(io.BytesIO(bytes(raw))) as archive:
        first, second, end = archive.getinfo("archive/data/0"), archive.getinfo("archive/data/1"), archive.start_dir
    at = raw.index(b"archive/data/1", end) - 4
    assert struct.unpack("<I", raw[at : at + 4])[0] == second.header_offset
    raw[at : at + 4] = struct.pack("<I", first.header_offset)
    return bytes(raw)


def twice():
    raw = files.archive(files.tensor(files.storage()), {"0": NUMBERS, "1": NUMBERS})
    return raw.replace(b"archive/data/1", b"archive/data/0")


def larger():
    """An entry whose size reaches beyond the file."""
    raw = bytearray(files.archive(files.tensor(files.storage(count=2**28))))
    with zipfile.ZipFile(io.BytesIO(bytes(raw))) as archive:
        end = archive.start_dir
    at = raw.index(b"archive/data/0", end) - 26
    raw[at : at + 8] = struct.pack("<II", 2**30, 2**30)
    return bytes(raw)


ARCHIVES = [
    (b"PK\x03\x04", "damaged or cut short"),
    (b"PK\x03\x04" + bytes(100), "damaged or cut short"),
    (pickle.dumps("some text", 2), "nor a file of torch.save"),
    (files.archive(b""), "pickle is cut short"),
    (files.archive(pickle.PROTO), "pickle is cut short"),
    (without_data(), "no data.pkl"),
    (files.zipped({**files.records(1), **files.records(1, root="other")}), "no data.pkl"),
    (files.zipped({"../../x/data.pkl": files.pickled(1)}), "no data.pkl"),
    (files.zipped(files.records(files.tensor(files.storage()), {"0": bytes(10 * MIB)}), zipfile.ZIP_DEFLATED),
     "is compressed"),
    (files.archive(1, **{"constants.pkl": b""}), "torch.jit.save"),
    (files.archive(1, version=b"11"), "version '11'"),
    (files.archive(1, version=b"-1"), "version '-1'"),
    (files.archive(1, version=b"1" * 101), "101 bytes"),
    (files.archive(1, byteorder=b"middle"), "byte order 'middle'"),
    (files.archive(files.tensor(files.storage(key="1"))), "no storage '1'"),
    (files.archive(files.tensor(files.storage(key="../data/0"))), "no storage '../data/0'"),
    (files.archive(files.tensor(files.storage(key="/etc/passwd"))), "no storage '/etc/passwd'"),
    (files.archive(files.tensor(files.storage(count=7), (7,), (1,))), "has 24 bytes"),
    (overlapping(), "reaches into|where the archive says"),
    (twice(), "two records"),
    (larger(), "reaches into"),
    (files.legacy(files.tensor(files.storage()), magic=1), "nor a file of torch.save"),
    (files.legacy(1, little=False), "big-endian"),
    (files.legacy(files.tensor(files.storage()), keys=[]), "storages behind its pickle"),
    (files.legacy(files.tensor(files.storage()), keys=["0", "1"]), "storages behind its pickle"),
    (files.legacy(files.tensor(files.storage()), keys=["0", "0"]), "is cut short"),
    (files.legacy(files.tensor(files.storage(count=5), (5,), (1,))), "damaged or cut short"),
    (files.legacy(files.tensor(files.storage()))[:-1], "damaged or cut short"),
]  # fmt: skip


@pytest.mark.parametrize("raw, said", ARCHIVES, ids=[said for _, said in ARCHIVES])
def test_hostile_archives(tt, tmp_path, raw, said):
    (tmp_path / "x.pt").write_bytes(raw)
    with pytest.raises(ValueError, match=said) as error:
        tt.load(tmp_path / "x.pt")
    assert str(tmp_path / "x.pt") in str(error.value)
    assert cli.main(["convert", str(tmp_path / "x.pt"), str(tmp_path / "out")]) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]


@WRITERS
def test_every_cut(tt, write):
    raw = write({"w": files.whole(NUMBERS), "b": [1, "text"]})
    for cut in range(len(raw)):
        with pytest.raises(ValueError):
            load(tt, raw[:cut])


def test_files_that_are_something_else(tt):
    """Runs tests/fuzz/torch_files.py briefly; `make fuzz` runs it for minutes."""
    tried, read = fuzz.run(seed=1, count=1500)
    assert tried == 1500 and read > 30


# ---------------------------------------------------------------- indexes


def shards(tt, folder):
    """Two files and their index."""
    tt.save({"a": tt.ones(2), "b": tt.arange(3)}, folder / "model-00001-of-00002.safetensors")
    (folder / "model-00002-of-00002.bin").write_bytes(files.archive({"c": files.whole(NUMBERS), "unused": 1}))
    index = {
        "metadata": {"total_size": 56},
        "weight_map": {
            "b": "model-00001-of-00002.safetensors",
            "c": "model-00002-of-00002.bin",
            "a": "model-00001-of-00002.safetensors",
        },
    }
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2))
    return path


def test_an_index(tt, tmp_path):
    path = shards(tt, tmp_path)
    got = tt.load(path)
    assert {name: x.tolist() for name, x in got.items()} == {"b": [0, 1, 2], "c": NUMBERS.tolist(), "a": [1, 1]}
    assert list(got) == ["b", "c", "a"]
    assert tt.load(path, map_location="sim:0")["c"].device == tt.device("sim:0")
    assert cli.main(["convert", str(path), str(tmp_path / "one.safetensors")]) == 0
    assert load_file(tmp_path / "one.safetensors")["c"].tolist() == NUMBERS.tolist()
    with pytest.raises(ValueError, match="give the path of the index"):
        tt.load(io.BytesIO(path.read_bytes()))


@pytest.mark.parametrize(
    "index, said",
    [
        ({"weight_map": {"a": "../x/model.safetensors"}}, "cannot be a file beside it"),
        ({"weight_map": {"a": "/etc/passwd"}}, "cannot be a file beside it"),
        ({"weight_map": {"a": ".."}}, "cannot be a file beside it"),
        ({"weight_map": {"a": ""}}, "cannot be a file beside it"),
        ({"weight_map": {"a": "x\0y"}}, "cannot be a file beside it"),
        ({"weight_map": {"a": ["x"]}}, "no weight_map"),
        ({"weight_map": ["x"]}, "no weight_map"),
        ({"unknown": 1}, "no weight_map"),
        ({"weight_map": {"d": "model-00001-of-00002.safetensors"}}, "does not hold 'd'"),
        ({"weight_map": {"a": "model.safetensors.index.json"}}, "index.json: the file is neither a safetensors file"),
    ],
    ids=str,
)
def test_damaged_indexes(tt, tmp_path, index, said):
    path = shards(tt, tmp_path)
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=said) as error:
        tt.load(path)
    assert str(path) in str(error.value)


def test_a_shard_that_is_damaged_or_missing(tt, tmp_path):
    path = shards(tt, tmp_path)
    shard = tmp_path / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match="model-00001-of-00002.safetensors: the file has 31 bytes"):
        tt.load(path)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match="model-00001"):
        tt.load(path)


# ---------------------------------------------------------------- teletensor convert


@WRITERS
def test_convert(tmp_path, write, monkeypatch):
    """The command needs no daemon: none can be reached."""
    monkeypatch.setenv("TELETENSOR_ADDRESS", "127.0.0.1:1")
    z = np.array([1 + 2j, 3 - 4j], "c8")
    half = np.array([0x3F80, 0x7F81, 0x8000], "u2")
    tree = OrderedDict(
        w=files.tensor(files.storage(), (3, 2), (1, 3)),
        p=files.parameter(files.tensor(files.storage(), (2,), (1,), 4)),
        z=files.tensor(files.storage("ComplexFloatStorage", "1", 2), (2,), (1,), 0, False, {"conj": True}),
        h=files.tensor(files.storage("BFloat16Storage", "2", 3), (3,), (1,)),
    )
    (tmp_path / "in.pt").write_bytes(write(tree, {"0": NUMBERS, "1": z, "2": half}))
    out = tmp_path / "out.safetensors"
    assert cli.main(["convert", str(tmp_path / "in.pt"), str(out)]) == 0
    with safe_open(out, "numpy") as opened:
        assert opened.metadata() == {"format": "pt", "teletensor.ordered": "null"}
        assert set(opened.keys()) == {"w", "p", "z", "h"}
        assert opened.get_tensor("w").tolist() == [[0, 3], [1, 4], [2, 5]] and opened.get_tensor("p").tolist() == [4, 5]
        assert np.array_equal(opened.get_tensor("z"), z.conj())
    assert half.tobytes() in out.read_bytes()


def test_convert_a_checkpoint(tt, tmp_path, capsys):
    tree = {
        "model": OrderedDict(w=files.whole(NUMBERS)),
        "epoch": 3,
        "seen": {1, 2},
        "betas": (0.9, 0.999),
        "raw": b"\0\xff",
        "args": Call(
            "argparse.Namespace",
            new=True,
            state={"path": Call("pathlib.PosixPath", "data"), "dtype": Name("torch.float16")},
        ),
    }
    (tmp_path / "in.pt").write_bytes(files.archive(tree))
    assert cli.main(["convert", str(tmp_path / "in.pt"), str(tmp_path / "out")]) == 0
    got = tt.load(tmp_path / "out")
    assert got.pop("model")["w"].tolist() == NUMBERS.tolist()
    assert got == {
        "epoch": 3,
        "seen": {1, 2},
        "betas": (0.9, 0.999),
        "raw": b"\0\xff",
        "args": argparse.Namespace(path=pathlib.Path("data"), dtype=tt.float16),
    }
    # Refused conversions: contents that safetensors cannot hold, a tensor whose copy would be larger than
    # the file, the file itself.
    for obj, said in (
        (bytearray(b"x"), "the object is bytearray"),
        ({(1, 2): 3}, "a key of the dict is tuple"),
        (
            {"wide": files.tensor(files.storage(), (2**40, 6), (0, 1))},
            "wide of shape .* more elements than its storage",
        ),
    ):
        (tmp_path / "in.pt").write_bytes(files.archive(obj))
        assert cli.main(["convert", str(tmp_path / "in.pt"), str(tmp_path / "bad")]) == 1
        error = capsys.readouterr().err
        assert error.startswith("teletensor convert: ") and re.search(said, error), error
    assert cli.main(["convert", str(tmp_path / "in.pt"), str(tmp_path / "in.pt")]) == 1
    assert cli.main(["convert", str(tmp_path / "none"), str(tmp_path / "bad")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.pt", "out"]
