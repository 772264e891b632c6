"""Saved programs compute the same results, and invalid files are refused with the cause."""

import io
import json
import struct

import numpy as np
import pytest
import teletensor as tt
from teletensor import cli, nn


def written(compiled):
    file = io.BytesIO()
    tt.jit.save(compiled, file)
    return file.getvalue()


def read(contents):
    return tt.jit.load(io.BytesIO(contents))


def test_a_forward_with_its_weights_and_gradients():
    tt.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    compiled = tt.compile(net)
    x = tt.randn(5, 3)
    compiled(x)
    loaded = read(written(compiled))
    assert loaded.arguments == ["input"] or len(loaded.arguments) == 1
    assert set(loaded.weights) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert loaded(x).tolist() == net(x).tolist()
    net(x).sum().backward()
    loaded(x).sum().backward()
    for name, p in net.named_parameters():
        assert loaded.weights[name].grad.tolist() == p.grad.tolist()


@pytest.mark.parametrize("make", [lambda p: tt.optim.SGD(p, lr=0.1, momentum=0.9),
                                  lambda p: tt.optim.Adam(p, lr=0.01)])
def test_a_training_step_goes_on_where_it_was(make):
    tt.manual_seed(0)
    net = nn.Linear(2, 1)
    opt = make(net.parameters())

    @tt.compile
    def step(x, y):
        opt.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    x, y = tt.randn(8, 2), tt.randn(8, 1)
    for _ in range(4):
        step(x, y)
    loaded = read(written(step))
    assert "net.weight" in loaded.weights and "lr" in loaded.numbers
    losses = [step(x, y).item() for _ in range(4)]
    assert [loaded(x, y).item() for _ in range(4)] == losses
    assert loaded.weights["net.weight"].tolist() == net.weight.tolist()
    opt.param_groups[0]["lr"] = loaded.numbers["lr"] = 0.003
    assert step(x, y).item() == loaded(x, y).item() and step(x, y).item() == loaded(x, y).item()


def test_a_loaded_step_repeats_on_the_daemon():
    """Two groups of parameters have two counts of steps, which advance without arguments."""
    tt.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    opt = tt.optim.Adam([{"params": net[0].parameters(), "lr": 0.1}, {"params": net[1].parameters()}])

    @tt.compile
    def step(x, y):
        opt.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    x, y = tt.randn(8, 2), tt.randn(8, 1)
    for _ in range(3):
        step(x, y)
    contents = written(step)
    losses = [step(x, y).item() for _ in range(12)]
    loaded = read(contents)
    before = dict(loaded.numbers)
    assert list(loaded.repeat(12, x, y)) == losses
    one_by_one = read(contents)
    assert [one_by_one(x, y).item() for _ in range(12)] == losses
    assert loaded.numbers == one_by_one.numbers
    counted = [name for name in before if loaded.numbers[name] != before[name]]
    assert len(counted) >= 1 and all(loaded.numbers[n] == before[n] + 12 for n in counted)


def test_results_in_containers_and_numbers():
    def f(x, scale):
        return {"double": x * scale, "pair": (x + 1, "text", 3)}

    g = tt.compile(f)
    x = tt.arange(3, dtype=tt.float32)
    g(x, 2.0)
    loaded = read(written(g))
    out = loaded(x, scale=5.0)
    assert out["double"].tolist() == [0, 5, 10] and out["pair"][0].tolist() == [1, 2, 3]
    assert out["pair"][1:] == ("text", 3)
    with pytest.raises(TypeError, match="missing 'scale'"):
        loaded(x)
    with pytest.raises(RuntimeError, match="'x'"):
        loaded(tt.zeros(4), 1.0)


def damaged(contents, change):
    """The file with another program."""
    length = struct.unpack("<Q", contents[:8])[0]
    header = json.loads(contents[8:8 + length])
    begin, end = header["program"]["data_offsets"]
    data = bytearray(contents)
    at = 8 + length + begin
    data[at:8 + length + end] = change(bytes(data[at:8 + length + end]))
    return bytes(data)


def test_what_is_not_in_order_is_refused():
    g = tt.compile(lambda x: (x * 2).sin())
    with pytest.raises(RuntimeError, match="not been captured"):
        written(g)
    g(tt.ones(2))
    contents = written(g)
    for at in range(20, 100, 7):
        with pytest.raises(RuntimeError, match="checksum"):
            read(damaged(contents, lambda p, at=at: p[:at] + bytes([p[at] ^ 64]) + p[at + 1:]))

    def other_op(program):
        assert b"sin" in program
        body = program.replace(b"\x0a\x03sin", b"\x0a\x03sim")[:-8]
        hash_ = 14695981039346656037
        for byte in body[:-1]:
            hash_ = (hash_ ^ byte) * 1099511628211 % 2**64
        return body + struct.pack("<Q", hash_)

    with pytest.raises((RuntimeError, NotImplementedError), match="no op 'sim'"):
        read(damaged(contents, other_op))
    with pytest.raises(ValueError, match="no program"):
        file = io.BytesIO()
        tt.save({"x": tt.ones(1)}, file)
        tt.jit.load(io.BytesIO(file.getvalue()))
    with pytest.raises(ValueError):
        read(contents[:-5])


def test_the_command_line_runs_a_file(tmp_path, capsys):
    g = tt.compile(lambda x, a: x * a + 1)
    g(tt.ones(3), 2.0)
    path = str(tmp_path / "program.safetensors")
    tt.jit.save(g, path)
    address = tt.current_session().address
    assert cli.main(["run", path, "--address", address, "--inputs", "x=1.0,2.0,3.0", "a=10.0"]) == 0
    assert capsys.readouterr().out.split() == ["[11.", "21.", "31.]"]
    np.save(tmp_path / "x.npy", np.array([1, 2, 4], np.float32))
    out = str(tmp_path / "out.safetensors")
    assert cli.main(["run", path, "--address", address, "--inputs", f"x={tmp_path / 'x.npy'}", "a=0.5",
                     "--output", out]) == 0
    assert tt.load(out)["output0"].tolist() == [1.5, 2, 3]
    assert cli.main(["run", path, "--address", address, "--show"]) == 0
    assert "mul(" in capsys.readouterr().out
    assert cli.main(["run", path, "--address", address, "--inputs", "x=1.0"]) == 1
    assert "missing 'a'" in capsys.readouterr().err


def damaged_arrays(folder):
    def header(text):
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text

    yield "empty", b""
    yield "cut", b"\x93NUM"
    yield "short", header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }\n") + b"1234"
    yield "huge", header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }\n")
    yield "tokens", header(b"{'descr': '<f4', 'shape': (\n")
    yield "text", b"hello"
    yield "zip", b"PK\x03\x04 and no more"
    yield "words", header(b"{'descr': '<U3', 'fortran_order': False, 'shape': (1,), }\n") + b"a\0\0\0" * 3
    yield "objects", header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n") + b"12345678"


def test_the_command_line_says_in_one_line_what_is_wrong(tmp_path, capsys):
    g = tt.compile(lambda x: tt.arange(3.)[x])
    g(tt.tensor([1, 1]))
    path = str(tmp_path / "program.safetensors")
    tt.jit.save(g, path)

    def refused(*words):
        status = cli.main(["run", path, "--address", tt.current_session().address, *words])
        said = capsys.readouterr()
        assert status == 1 and not said.out and said.err.startswith("teletensor run: "), said
        assert said.err.count("\n") <= 1 or "issued" in said.err, said.err
        return said.err

    for name, contents in damaged_arrays(tmp_path):
        file = tmp_path / f"{name}.npy"
        file.write_bytes(contents)
        refused("--inputs", f"x={file}")
    assert "No such file" in refused("--inputs", f"x={tmp_path}/none.npy")
    for wrong in ("x=99999999999999999999999", "x=a", "x=", "x", "y=1", f"{tmp_path}/none.safetensors"):
        refused("--inputs", wrong)
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 20)
    refused("--inputs", f"{tmp_path}/bad.safetensors")
    # Errors that the daemon finds, even if the results are not read.
    assert "out of range" in refused("--inputs", "x=7,7")
    refused("--inputs", "x=1,1", "--output", f"{tmp_path}/none/out.safetensors")
