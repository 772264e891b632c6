"""Tests that tt.load and `teletensor convert` read files of PyTorch: the objects must be those of
torch.load, bit by bit."""

import argparse
import io
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from teletensor import cli
from teletensor._tensors import arrays as _arrays
from torch import nn

DTYPES = [getattr(torch, name) for name in """bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16
float32 float64 complex64 complex128""".split()]


def written(obj, legacy=False):
    buffer = io.BytesIO()
    torch.save(obj, buffer, _use_new_zipfile_serialization=not legacy)
    return io.BytesIO(buffer.getvalue())


def bits(tensor):
    """The bits of a tensor of either library, in row-major order."""
    if isinstance(tensor, torch.Tensor):
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return (
            plain.view(torch.uint8).numpy().tobytes()
            if plain.numel() and plain.dim()
            else plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return _arrays.array_of(tensor)[1].tobytes()


def assert_same(tt, ours, theirs, at="it"):
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, tt.Tensor) and isinstance(theirs, nn.Parameter) == isinstance(ours, tt.nn.Parameter), at
        assert str(ours.dtype).rpartition(".")[2] == str(theirs.dtype).rpartition(".")[2], at
        assert tuple(ours.shape) == tuple(theirs.shape) and ours.requires_grad == theirs.requires_grad, at
        assert ours.is_leaf == theirs.is_leaf and not ours._is_view(), at
        if not (theirs.is_conj() or theirs.is_neg()):
            assert tuple(ours.stride()) == theirs.stride() and ours.storage_offset() == theirs.storage_offset(), at
        assert bits(ours) == bits(theirs), at
    elif isinstance(theirs, dict):
        assert type(ours) is type(theirs) and list(ours) == list(theirs), at
        for key in theirs:
            assert_same(tt, ours[key], theirs[key], f"{at}[{key!r}]")
    elif isinstance(theirs, (list, tuple)) and not isinstance(theirs, torch.Size):
        assert type(ours) is type(theirs) and len(ours) == len(theirs), at
        for i, each in enumerate(theirs):
            assert_same(tt, ours[i], each, f"{at}[{i}]")
    elif isinstance(theirs, torch.Size):
        assert type(ours) is tt.Size and tuple(ours) == tuple(theirs), at
    elif isinstance(theirs, (torch.device, torch.dtype)):
        assert str(ours).rpartition(".")[2] == str(theirs).rpartition(".")[2], at
    elif isinstance(theirs, argparse.Namespace):
        assert_same(tt, vars(ours), vars(theirs), at)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes(), at
    else:
        assert type(ours) is type(theirs) and (ours == theirs or ours != ours and theirs != theirs), at


def every_bit(dtype, count=64):
    raw = torch.randint(0, 256, (count * 16,), dtype=torch.uint8)
    return (raw[:count] % 2).bool() if dtype == torch.bool else raw.view(dtype)[:count].clone()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(3, 3).tril().bool())
        self.register_buffer("small", torch.randn(3).bfloat16())

    def forward(self, x):
        return self.head(self.layer(self.norm(self.embedding(x).transpose(1, 2)).transpose(1, 2)))


def stepped(make):
    model = Block()
    optimizer = make(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.tensor([[1, 2, 3], [4, 5, 6]])).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return model, optimizer


def models():
    model, optimizer = stepped(lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    yield "state_dict", model.state_dict()
    yield (
        "checkpoint",
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": {
                k: v for k, v in scheduler.state_dict().items() if not callable(v) and k != "_anneal_func_type"
            },
            "epoch": 3,
            "best": float("nan"),
            "rng": torch.get_rng_state(),
            "numpy": np.random.get_state(),
            "args": argparse.Namespace(lr=0.1, betas=(0.9, 0.999), names=["a"]),
            "device": torch.device("cuda", 1),
            "dtype": torch.float16,
            "counts": Counter("abca"),
            "scaler": torch.amp.GradScaler("cpu").state_dict(),
        },
    )
    for name, make in {
        "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        "lbfgs": torch.optim.LBFGS,
        "adafactor": torch.optim.Adafactor,
    }.items():
        yield name, stepped(make)[1].state_dict()
    yield "lstm", nn.LSTM(3, 4, 2, bidirectional=True).state_dict()
    yield "half", Block().bfloat16().state_dict()
    yield "parameters", list(Block().parameters())


def tensors():
    for dtype in DTYPES:
        yield str(dtype), every_bit(dtype)
    x = torch.randn(4, 6)
    z = torch.randn(3, 2, dtype=torch.complex64)
    yield "views", [x, x.t(), x[1:3, ::2], x[2], x[3, 4], x.expand(2, 4, 6), x[:0], x.view(2, 2, 6).permute(2, 0, 1)]
    yield "empty", [torch.empty(0), torch.empty(3, 0, 2), torch.tensor(2.5), torch.empty(0)[:0]]
    yield "channels", torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    yield "conj", [z, z.conj(), z.t().conj()]
    yield "neg", [z.imag, z.conj().imag, torch.view_as_real(z)]
    yield (
        "gradients",
        {
            "leaf": torch.randn(3, requires_grad=True),
            "made": torch.randn(2, requires_grad=True) * 2,
            "w": nn.Parameter(x),
            "frozen": nn.Parameter(x, requires_grad=False),
        },
    )


def others():
    shared = [1, 2]
    yield (
        "containers",
        {
            "l": [shared, shared, ()],
            "t": (1, (2, (3, (4, 5, 6, 7)))),
            "s": {1, 2, 3},
            "none": None,
            "b": [True, False],
            "n": [0, -1, 255, 256, 65536, 2**31, -(2**31), -(2**31) - 1, 2**63, -(2**63), 2**300],
            "f": [0.1, -0.0, float("inf")],
            "text": ["", "é", "𝄞", "x" * 300, "\ud800"],
            "bytes": [b"", b"\x00\xff" * 200],
            "array": bytearray(b"abc"),
            "z": 1 - 2j,
            (1, "x"): 2,
            1.5: 3,
            None: 4,
            True: 5,
            b"k": 6,
        },
    )
    yield "ordered", OrderedDict([("b", 1), ("a", OrderedDict())])
    yield "size", [torch.Size([2, 3]), torch.randn(2, 3).shape, torch.device("cpu"), torch.int8]
    yield (
        "numpy",
        [
            np.float64(2.5),
            np.float32(0.1),
            np.int64(-3),
            np.bool_(True),
            np.complex64(1j),
            np.arange(6.0).reshape(2, 3),
            np.zeros(0, "u2"),
            np.arange(6, dtype="i4").reshape(2, 3).T,
            np.array(3.5),
        ],
    )
    yield "large", list(range(2000))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", [tensors, others, models])
def test_the_same_objects(tt, kind, legacy):
    for name, obj in kind():
        if legacy and name in ("torch.uint16", "torch.uint32", "torch.uint64"):
            continue  # torch.load cannot read what torch.save has written
        file = written(obj, legacy)
        theirs = torch.load(file, weights_only=False)
        file.seek(0)
        assert_same(tt, tt.load(file), theirs, name)


def test_models_go_on(tt):
    torch_model, torch_optimizer = stepped(lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9))
    checkpoint = tt.load(written({"model": torch_model.state_dict(), "optimizer": torch_optimizer.state_dict()}))
    assert checkpoint["model"]._metadata == torch_model.state_dict()._metadata

    class Ours(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = tt.nn.Embedding(7, 4)
            self.norm = tt.nn.BatchNorm1d(4)
            self.layer = tt.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.head = tt.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight
            self.register_buffer("mask", tt.zeros(3, 3, dtype=tt.bool))
            self.register_buffer("small", tt.zeros(3, dtype=tt.bfloat16))

        forward = Block.forward

    model = Ours()
    model.load_state_dict(checkpoint["model"])
    optimizer = tt.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    optimizer.load_state_dict(checkpoint["optimizer"])
    for library, each, step in ((torch, torch_model.eval(), torch_optimizer), (tt, model.eval(), optimizer)):
        for _ in range(2):
            step.zero_grad()
            each(library.tensor([[1, 2, 3]])).square().sum().backward()
            step.step()
    for name, value in torch_model.state_dict().items():
        np.testing.assert_allclose(
            model.state_dict()[name].float().numpy(), value.float().numpy(), rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_tied_weights_stay_tied(tt):
    got = tt.load(written(Block().state_dict()))
    got["head.weight"].fill_(3)
    assert got["embedding.weight"].tolist() == [[3] * 4] * 7
    model = Block()
    parameters = tt.load(written([model.head.weight, model.embedding.weight]))
    assert parameters[0] is parameters[1]


def test_files_without_checksums(tt):
    torch.serialization.set_crc32_options(False)
    try:
        file = written({"x": torch.arange(1000.0)})
    finally:
        torch.serialization.set_crc32_options(True)
    assert tt.load(file)["x"].tolist() == list(range(1000))


def test_where_tensors_go(tt):
    """The storages and locations that a map_location function gets must be those that torch.load passes."""
    x = torch.randn(4)
    file, asked = written([x, x[1:], torch.zeros(3, dtype=torch.int16)]), {torch: [], tt: []}
    for library in asked:

        def place(storage, location, library=library):
            asked[library].append((storage.nbytes(), location))
            return storage

        file.seek(0)
        library.load(file, map_location=place)
    assert asked[tt] == asked[torch]


class Net(nn.Linear):
    pass


class Tagged(torch.Tensor):
    pass


def test_parameters_and_buffers_of_all_kinds(tt):
    x, w = torch.ones(2), nn.Parameter(torch.arange(3.0))
    x.tag, x.other = "here", w
    w.lr_scale, w.sizes, w.frozen = 0.5, (1, "b"), None
    lazy = nn.LazyLinear(3)
    b, c = nn.Buffer(torch.arange(2)), nn.Buffer(torch.ones(2), persistent=False)
    for legacy in (False, True):
        got = tt.load(written({"x": x, "w": w, "b": b, "c": c, "lazy": lazy.state_dict(), "again": b}, legacy))
        assert got["x"].tag == "here" and got["x"].other is got["w"] and type(got["x"]) is tt.Tensor
        assert (got["w"].lr_scale, got["w"].sizes, got["w"].frozen) == (0.5, (1, "b"), None)
        assert isinstance(got["w"], tt.nn.Parameter) and got["w"].requires_grad and got["w"].tolist() == [0, 1, 2]
        assert isinstance(got["b"], tt.nn.Buffer) and got["b"].persistent and got["b"].tolist() == [0, 1]
        assert isinstance(got["c"], tt.nn.Buffer) and not got["c"].persistent and got["again"] is got["b"]
        assert isinstance(got["lazy"]["weight"], tt.nn.UninitializedParameter)
        model = tt.nn.LazyLinear(3)
        model.load_state_dict(got["lazy"])
        assert model(tt.ones(2, 5)).shape == (2, 3)
        lazy_ones = [nn.parameter.UninitializedBuffer(), nn.parameter.UninitializedParameter(False)]
        kinds = tt.load(written(lazy_ones, legacy))
        assert isinstance(kinds[0], tt.nn.UninitializedBuffer) and not kinds[1].requires_grad

    class Net(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.b, self.c = got["b"], got["c"]

    assert list(Net().state_dict()) == ["b"] and [name for name, _ in Net().named_buffers()] == ["b", "c"]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_tensors_without_data(tt, legacy):
    saved = [torch.ones(3, 4, device="meta", dtype=torch.bfloat16, requires_grad=True).t().detach(),
             nn.Parameter(torch.ones(2, device="meta")), torch.ones(0, 5, device="meta"), torch.ones(2),
             torch.ones(2, device="meta", requires_grad=True), nn.Linear(2, 3, device="meta").state_dict()]
    for where in (None, "cpu"):
        got = tt.load(written(saved, legacy), map_location=where)
        for mine, theirs in zip([*got[:5], *got[5].values()], [*saved[:5], *saved[5].values()], strict=True):
            assert mine.is_meta == theirs.is_meta and tuple(mine.shape) == tuple(theirs.shape)
            assert mine.stride() == theirs.stride() and mine.dtype.name == str(theirs.dtype).split(".")[1]
            assert mine.requires_grad == theirs.requires_grad
        assert isinstance(got[1], tt.nn.Parameter) and got[3].tolist() == [1, 1]
    back = tt.to_torch(tt.from_torch(saved[0]))
    assert back.is_meta and back.stride() == saved[0].stride() and back.dtype == torch.bfloat16
    assert tt.from_torch(saved[4]).requires_grad and tt.to_torch(tt.from_torch(saved[4])).requires_grad


def tagged(sparse):
    sparse.tag = (1, "two")
    return sparse


SPARSE = {
    "coo": lambda x: x.to_sparse(), "hybrid": lambda x: x.to_sparse(1), "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(), "bsr": lambda x: x.to_sparse_bsr((2, 3)),
    "bsc": lambda x: x.to_sparse_bsc((1, 2)), "empty": lambda x: (x * 0).to_sparse(),
    "number": lambda x: x[0, 0].to_sparse(), "tagged": lambda x: tagged(x.to_sparse()),
    "repeated": lambda x: torch.sparse_coo_tensor([[3, 1, 3], [1, 2, 1]], x[0, :3], (4, 6)),
    "expanded": lambda x: torch.sparse_coo_tensor([[0, 2]], x[:1, :1].expand(2, 1), (3, 1)),
    "batch of csr": lambda x: torch.stack([x, x * 2]).to_sparse_csr(),
    "batch of bsc": lambda x: torch.stack([x, x * 2]).to_sparse_bsc((4, 3)),
    "narrow": lambda x: torch.sparse_csr_tensor(torch.tensor([0, 1, 1], dtype=torch.int32),
                                                torch.tensor([2], dtype=torch.int32), x[0, :1], (2, 3)),
}


@pytest.mark.filterwarnings("ignore")  # PyTorch says that it checks indices, and that layouts are prototypes
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_tensors(tt, tmp_path, kind, dtype, legacy):
    """Each is what PyTorch saved, also after tt.save, and after `teletensor convert`."""
    x = torch.eye(4, 6).to(dtype) * 3
    theirs = SPARSE[kind](x)
    raw = written({"a": [theirs, theirs], "b": x}, legacy)
    once, again = tt.load(raw), io.BytesIO()
    tt.save(once, again)
    again.seek(0)
    found = [once, tt.load(again)]
    if kind != "expanded":  # safetensors has no strides
        source, target = tmp_path / "a.pt", tmp_path / "a.safetensors"
        source.write_bytes(raw.getvalue())
        assert cli.main(["convert", str(source), str(target)]) == 0
        found.append(tt.load(target))
    for got in found:
        for each in got["a"]:
            assert isinstance(each, tt.sparse.SparseTensor) and not each.requires_grad
            assert repr(tt.to_torch(each)) == repr(theirs)
            assert each.layout is getattr(tt, str(theirs.layout).split(".")[1])
        assert got["b"].tolist() == x.tolist()
    assert kind != "tagged" or once["a"][0].tag == (1, "two")


def of_parts(layout, *parts, size):
    make = torch.sparse_coo_tensor if layout is torch.sparse_coo else torch.sparse_compressed_tensor
    more = {} if layout is torch.sparse_coo else {"layout": layout}
    tensors = [torch.tensor(part) for part in parts]
    return make(*tensors, torch.ones(tensors[-1].shape[-1]), size, check_invariants=False, **more)


HOSTILE = {
    "out of range": lambda: of_parts(torch.sparse_coo, [[0, 5]], size=(3,)),
    "negative": lambda: of_parts(torch.sparse_coo, [[0, -1]], size=(3,)),
    "far away": lambda: of_parts(torch.sparse_coo, [[0, 2**62]], size=(3,)),
    "not coalesced": lambda: of_parts(torch.sparse_coo, [[1, 0]], size=(3,))._coalesced_(True),
    "repeated": lambda: of_parts(torch.sparse_coo, [[1, 1]], size=(3,))._coalesced_(True),
    "column": lambda: of_parts(torch.sparse_csr, [0, 1, 2], [0, 3], size=(2, 3)),
    "negative column": lambda: of_parts(torch.sparse_csr, [0, 1, 2], [0, -1], size=(2, 3)),
    "first start": lambda: of_parts(torch.sparse_csr, [1, 1, 2], [0, 1], size=(2, 3)),
    "last start": lambda: of_parts(torch.sparse_csr, [0, 1, 3], [0, 1], size=(2, 3)),
    "descending starts": lambda: of_parts(torch.sparse_csr, [0, 4, 2], [0, 1], size=(2, 3)),
    "descending columns": lambda: of_parts(torch.sparse_csr, [0, 2, 2], [1, 0], size=(2, 3)),
    "number of rows": lambda: of_parts(torch.sparse_csr, [0, 1, 2], [0, 1], size=(5, 3)),
    "row": lambda: of_parts(torch.sparse_csc, [0, 1, 2], [0, 3], size=(3, 2)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("fault", HOSTILE)
def test_sparse_tensors_with_wrong_indices(tt, fault, legacy):
    raw = written({"a": HOSTILE[fault]()}, legacy)
    with pytest.raises(RuntimeError):
        torch.load(io.BytesIO(raw.getvalue()), weights_only=True)
    with pytest.raises(ValueError, match="load: .*holds a sparse tensor"):
        tt.load(raw)


def quantized():
    return torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 10, torch.quint8)


UNREADABLE = [
    (lambda: nn.Parameter(torch.eye(3).to_sparse()), r"a sparse parameter, which is not supported: save its detach"),
    (lambda: nn.Buffer(torch.eye(3).to_sparse()), "a sparse nn.Buffer, which is not supported"),
    (lambda: torch.jagged, "torch.jagged"),
    (quantized, r"a quantized tensor, which is not supported: save its dequantize\(\)"),
    (lambda: torch.quantize_per_channel(torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0,
                                        torch.qint8), "a quantized tensor"),
    (lambda: torch.qint8, "torch.qint8, which"), (lambda: torch.per_tensor_affine, "the quantization scheme"),
    (lambda: torch.ones(2, dtype=torch.float8_e4m3fn, device="meta"), "a tensor of torch.float8_e4m3fn"),
    (lambda: torch.ones(2).to(torch.float8_e4m3fn), "a tensor of torch.float8_e4m3fn"),
    (lambda: torch.ones(2, dtype=torch.complex32), "a tensor of torch.complex32"),
]


@pytest.mark.filterwarnings("ignore")  # some of the types are deprecated, others prototypes
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("make, said", UNREADABLE, ids=[said for _, said in UNREADABLE])
def test_the_place_of_what_cannot_be_read(tt, make, said, legacy):
    with pytest.raises(ValueError, match=rf"its \['model'\]\['a.b'\]\[1\] is {said}"):
        tt.load(written({"model": OrderedDict([("x", torch.ones(2)), ("a.b", [1, make(), 2])]), "epoch": 3}, legacy))


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_model_is_refused_by_name(tt):
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)), dtype=torch.qint8)
    with pytest.raises(ValueError, match=r"its \['0._packed_params._packed_params'\]\[0\] is a quantized tensor"):
        tt.load(written(model.state_dict()))


@pytest.mark.filterwarnings("ignore")
def test_the_forms_that_the_errors_name(tt):
    q, s = quantized(), nn.Parameter(torch.eye(3).to_sparse())
    got = tt.load(written([q.dequantize(), q.int_repr(), s.detach()]))
    assert got[0].tolist() == [1, 2] and got[1].tolist() == [20, 30]
    assert got[2].to_dense().tolist() == torch.eye(3).tolist()


def listed():
    x = torch.ones(2)
    x.tag = ["here"]
    return x


REFUSED = [
    (lambda: Net(2, 2), r"Net, which is not among what weights need"),
    (lambda: nn.Linear(2, 2), r"torch.nn.modules.linear.Linear, which is not among"),
    (lambda: torch.ones(1 << 60, device="meta"), "device meta has a shape or strides that no tensor can have"),
    (lambda: torch.ones(2).to(torch.float8_e4m3fn), "float8_e4m3fn, which is not supported"),
    (lambda: torch.ones(2, dtype=torch.complex32), "ComplexHalfStorage|complex32"),
    (lambda: torch.ones(2).as_subclass(Tagged), "Tagged, which"),
    (listed, "attribute 'tag' is a list; numbers, text, tensors"),
    (lambda: torch.ones(2).untyped_storage(), "where a value should be|names torch"),
    (lambda: torch.Generator(), "names torch"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested|names torch|Storage"),
    (lambda: {torch.tensor(1): 2}, "key of type"),
    (lambda: np.array(["text"]), "NumPy dtype"),
    (lambda: range(3), "range, which"),
]


@pytest.mark.filterwarnings("ignore")  # the types are prototypes
@pytest.mark.parametrize("make, said", REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused(tt, make, said):
    with pytest.raises(ValueError, match=said):
        tt.load(written(make()))


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
def test_other_protocols_and_programs_are_refused(tt):
    buffer = io.BytesIO()
    torch.save({"x": torch.ones(2)}, buffer, pickle_protocol=4)
    with pytest.raises(ValueError, match="protocol 4"):
        tt.load(io.BytesIO(buffer.getvalue()))
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), buffer)
    with pytest.raises(ValueError, match=r"torch\.jit\.save"):
        tt.load(io.BytesIO(buffer.getvalue()))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_convert(tt, tmp_path, legacy):
    state = {name: value for name, value in Block().state_dict().items()}
    state |= {
        "t": torch.randn(3, 4).t(),
        "z": torch.randn(3, dtype=torch.complex64).conj(),
        "u": torch.arange(5).to(torch.uint16),
    }
    torch.save(state, tmp_path / "in.pt", _use_new_zipfile_serialization=not legacy)
    assert cli.main(["convert", str(tmp_path / "in.pt"), str(tmp_path / "out.safetensors")]) == 0
    got = tt.load(tmp_path / "out.safetensors")
    assert got.keys() == state.keys()
    for name, value in state.items():
        assert got[name].dtype == getattr(tt, str(value.dtype).rpartition(".")[2]), name
        assert tuple(got[name].shape) == value.shape and bits(got[name]) == bits(value), name


def test_lazy_parameters_are_not_converted(tmp_path, capsys):
    torch.save({"b": nn.Buffer(torch.ones(2)), "w": nn.parameter.UninitializedParameter()}, tmp_path / "in.pt")
    assert cli.main(["convert", str(tmp_path / "in.pt"), str(tmp_path / "out.safetensors")]) == 1
    assert "Uninitialized" in capsys.readouterr().err and not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_from_and_to_torch(tt, dtype):
    x = every_bit(dtype)
    assert bits(tt.from_torch(x)) == bits(x) == bits(tt.to_torch(tt.from_torch(x)))
