"""save and load: the safetensors format, trees, damaged files."""

import argparse
import io
import json
import pathlib
import pickle
import random
import struct

import numpy as np
import pytest
from fuzz import saved_files
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

NUMPY = {"bool": "?", "uint8": "u1", "int32": "i4", "int64": "i8", "float16": "f2",
         "float32": "f4", "float64": "f8", "int8": "i1", "int16": "i2", "uint16": "u2",
         "uint32": "u4", "uint64": "u8", "complex64": "c8", "complex128": "c16"}


def everything(tt):
    generator = np.random.default_rng(2)
    tensors = {name: tt.tensor(generator.normal(size=(3, 4)) * 3).to(getattr(tt, name))
               for name in [*NUMPY, "bfloat16"]}
    return {**tensors, "empty": tt.zeros(0, 3), "scalar": tt.tensor(2.5), "é.w": tt.ones(2, 3).t()}


def assert_same(tt, left, right):
    assert list(left) == list(right)
    for name, a in left.items():
        b = right[name]
        assert a.dtype == b.dtype and a.shape == b.shape, name
        assert np.array_equal(a.cdouble().numpy(), b.cdouble().numpy()), name


def test_round_trip_of_every_dtype(tt, tmp_path):
    tensors = everything(tt)
    tt.save(tensors, tmp_path / "x.safetensors", {"made": "here"})
    assert_same(tt, tensors, tt.load(tmp_path / "x.safetensors"))
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
    on_sim = tt.load(tmp_path / "x.safetensors", map_location="sim:0")
    assert {str(t.device) for t in on_sim.values()} == {"sim:0"}
    buffer = io.BytesIO(b"before")
    buffer.seek(6)
    tt.save(tensors, buffer)
    buffer.seek(6)
    assert_same(tt, tensors, tt.load(buffer))


def test_other_writers_and_readers(tt, tmp_path):
    # The format has no complex128 (we write it as C128).
    tensors = {k: v for k, v in everything(tt).items() if k not in ("bfloat16", "complex128")}
    tt.save(tensors, tmp_path / "ours")
    for name, array in load_file(tmp_path / "ours").items():
        assert np.array_equal(array, tensors[name].numpy()) and array.dtype == tensors[name].numpy().dtype
    save_file({k: np.asarray(v.numpy(), order="C") for k, v in tensors.items()}, tmp_path / "theirs")
    loaded = tt.load(tmp_path / "theirs")
    assert_same(tt, tensors, {name: loaded[name] for name in tensors})


def test_special_values_keep_their_bits(tt, tmp_path):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38], np.float32)
    tt.save({"x": tt.tensor(values), "b": tt.tensor(values).bfloat16()}, tmp_path / "x")
    assert np.array_equal(tt.load(tmp_path / "x")["x"].numpy().view("u4"), values.view("u4"))
    raw = (tmp_path / "x").read_bytes()
    bits = np.frombuffer(raw[-12:], "<u2")
    assert list(bits[1:4]) == [0x7F80, 0xFF80, 0x8000]


def test_a_header_length_that_begins_like_a_pickle(tt, tmp_path):
    for size in range(300):  # one size makes a header of 128 bytes, whose first byte is 0x80
        tt.save({"x": tt.ones(1)}, tmp_path / "x", {"k": "v" * size})
        if (tmp_path / "x").read_bytes()[0] == 0x80:
            break
    assert (tmp_path / "x").read_bytes()[0] == 0x80
    assert tt.load(tmp_path / "x")["x"].tolist() == [1]


def test_trees(tt, tmp_path):
    w = tt.ones(2, requires_grad=True)
    tree = {"m": {"w": w, "$x": 2}, "o": {"state": {0: {"step": 3, "b": w}, None: []}},
            "t": [(1, 2.5, None, True, "s"), np.int64(4)], "inf": float("-inf")}
    tt.save(tree, tmp_path / "x")
    loaded = tt.load(tmp_path / "x")
    first = loaded["m"].pop("w")
    assert first is loaded["o"]["state"][0].pop("b") and first.tolist() == [1, 1]
    assert not first.requires_grad
    assert loaded == {"m": {"$x": 2}, "o": {"state": {0: {"step": 3}, None: []}},
                      "t": [(1, 2.5, None, True, "s"), 4], "inf": float("-inf")}
    tt.save(tt.arange(3), tmp_path / "y")
    assert tt.load(tmp_path / "y").tolist() == [0, 1, 2]


def test_objects_that_json_lacks(tt, tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(3, dtype=">i2"), "n": np.array(2, "u8")}
    tree = {"arrays": arrays, "again": arrays["a"], "path": pathlib.Path("/data/x"), "dtype": [tt.bfloat16, tt.bool],
            "args": argparse.Namespace(w=tt.ones(2), inner=argparse.Namespace(path=pathlib.PurePosixPath("y"))),
            "set": {1, (2, "x")}, "bytes": b"\x00\xff", "complex": [1 - 2j, np.complex64(1j)],
            "size": tt.ones(2, 3).shape, "device": tt.device("cuda:1"), "$x": {"$y": None}}
    tt.save(tree, tmp_path / "x")
    got = tt.load(tmp_path / "x")
    for name, array in got.pop("arrays").items():
        assert array.dtype == arrays[name].dtype.newbyteorder("=") and np.array_equal(array, arrays[name]), name
        assert array.shape == arrays[name].shape and array.flags.writeable
    assert np.array_equal(got.pop("again"), arrays["a"]) and type(got["size"]) is tt.Size
    assert got["args"].w.tolist() == [1, 1] and isinstance(got["args"].inner.path, pathlib.Path)
    assert got.pop("args").inner == argparse.Namespace(path=pathlib.Path("y"))
    del tree["arrays"], tree["again"], tree["args"]
    assert got == tree


def test_the_format_of_the_arrays_is_in_the_metadata(tt, tmp_path):
    """transformers refuses files without this metadata entry."""
    for given, there in ((None, {"format": "pt"}), ({"made": "here"}, {"format": "pt", "made": "here"}),
                         ({"format": "np"}, {"format": "np"})):
        tt.save({"w": tt.ones(2)}, tmp_path / "x", given)
        with safe_open(tmp_path / "x", "numpy") as file:
            assert file.metadata() == there


@pytest.mark.parametrize("weights_only", [None, True, False])
def test_weights_only_is_all_there_is(tt, tmp_path, weights_only):
    tt.save({"a": tt.ones(2)}, tmp_path / "f")
    assert tt.load(tmp_path / "f", weights_only=weights_only)["a"].tolist() == [1, 1]


def test_what_is_not_saved(tt, tmp_path):
    for bad, text in [(object(), "the object is object"),
                      ({"a": [tt.nn.Linear(1, 1)]}, r"a.0 is Linear; save its state_dict\(\)"),
                      ({(1, 2): tt.ones(1)}, "a key of the dict is tuple"),
                      ({"a": {1: range(3)}}, "a.1 is range"),
                      ({"a": np.array(["text"])}, "a is an array of <U4")]:
        with pytest.raises(TypeError, match=text):
            tt.save(bad, tmp_path / "x")
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        tt.save(loop, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_keeps_the_old_file(tt, tmp_path):
    tt.save({"x": tt.ones(1)}, tmp_path / "x")
    bad = tt.ones(2)[tt.tensor([7])]  # an error that reading finds
    with pytest.raises(IndexError):
        tt.save({"x": bad}, tmp_path / "x")
    assert tt.load(tmp_path / "x")["x"].tolist() == [1]
    assert len(list(tmp_path.iterdir())) == 1


def packed(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="U8", shape=(2,), offsets=(0, 2)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


DAMAGED = [
    (b"", "too few"),
    (pickle.dumps("some text"), "nor a file of torch.save"),
    (struct.pack("<Q", 2**60) + b"{}", "neither a safetensors file"),
    (struct.pack("<Q", 50) + b"{}", "cut short"),
    (packed(b"\xff\xfe"), "not UTF-8"),
    (packed(b"{"), "not JSON"),
    (packed(b"[]"), "not a JSON object"),
    (packed(b"[" * 100000), "not JSON"),
    (packed(b'{"a":1,"a":2}'), "twice"),
    (packed({"a": 3}), "does not hold"),
    (packed({"a": {**entry(), "more": 1}}, b"xx"), "does not hold"),
    (packed({"a": entry("F4")}, b"xx"), "dtype 'F4'"),
    (packed({"a": entry(shape=[-2])}, b"xx"), "has the shape"),
    (packed({"a": entry(shape=[True, 2])}, b"xx"), "has the shape"),
    (packed({"a": entry(shape=[1] * 13)}, b"xx"), "has the shape"),
    (packed({"a": entry(shape=[2**62, 2**62])}, b"xx"), "needs 21267647932558653966460912964485513216"),
    (packed({"a": entry(offsets=[2, 0])}, b"xx"), "needs 2 bytes"),
    (packed({"a": entry(offsets=[0.0, 2])}, b"xx"), "data_offsets"),
    (packed({"a": entry(), "b": entry(offsets=[1, 3])}, b"xxx"), "overlaps"),
    (packed({"a": entry(), "b": entry(offsets=[3, 5])}, b"xxxxx"), "hole"),
    (packed({"a": entry()}, b"x"), "1 bytes of data"),
    (packed({"a": entry()}, b"xxx"), "3 bytes of data"),
    (packed({"__metadata__": {"a": 1}}), "__metadata__"),
    (packed({"__metadata__": {"teletensor.tree": '{"$":"nobody"}'}}), "tree in the metadata"),
    *((packed({"__metadata__": {"teletensor.tree": tree}}), "tree in the metadata") for tree in (
        '{"$dict":[[[],1]]}', '{"$ordered":[]}', '{"$ordered":[[],{"":{"version":"1"}}]}', '{"$ordered":[[],1]}',
        '{"$array":"nobody"}', '{"$unknown":1}', '{"$set":[[]]}', '{"$size":[-1]}', '{"$bytes":"x"}',
        '{"$complex":[1]}', '{"$complex":["1"]}', '{"$dtype":"float8"}', '{"$device":"mainframe"}',
        '{"$path":1}', '{"$namespace":[]}', '{"$namespace":{"$dict":[[1,2]]}}')),
    (packed({"__metadata__": {"teletensor.ordered": "[1]"}}), "tree in the metadata"),
]


@pytest.mark.parametrize("raw, text", DAMAGED, ids=[text for _, text in DAMAGED])
def test_damaged_files(tt, tmp_path, raw, text):
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(ValueError, match=text) as error:
        tt.load(tmp_path / "x")
    assert str(tmp_path / "x") in str(error.value)


def test_files_that_are_something_else(tt):
    """Runs tests/fuzz/saved_files.py briefly; `make fuzz` runs it for minutes."""
    tried, read = saved_files.run(seed=1, count=600)
    assert tried == 600 and read > 10


def test_every_cut_and_random_bytes(tt):
    buffer = io.BytesIO()
    tt.save({"a": tt.ones(3), "b": {"c": tt.arange(2)}}, buffer)
    raw = buffer.getvalue()
    for cut in range(len(raw)):
        with pytest.raises(ValueError):
            tt.load(io.BytesIO(raw[:cut]))
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(2000):
        changed = bytearray(raw)
        for _ in range(generator.randint(1, 3)):
            changed[generator.randrange(len(raw) - 28)] = generator.randrange(256)
        try:
            tt.load(io.BytesIO(bytes(changed)))
        except ValueError:
            pass  # the only error that a file may cause
