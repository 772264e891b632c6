"""ONNX models compute what NumPy computes and become programs; a fault of a file, an input or a node is one
error that describes it."""

import os
import subprocess

import numpy as np
import pytest
from fuzz import onnx_files as fuzz
from support import onnx_files as files
from support.daemon import ROOT
from teletensor import cli


@pytest.fixture
def load(tt, tmp_path):
    """load(bytes of a model) -> the model, of tmp_path / "m.onnx" """
    def loaded(data):
        (tmp_path / "m.onnx").write_bytes(data)
        return tt.onnx.load(tmp_path / "m.onnx")
    return loaded


def expected(x, w):
    return np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"]


def one_node(op, inputs="x", outputs="y", shape=("n",), constants=(), dtype="float32", version=17, **attributes):
    """A model of one node named "only"."""
    made = files.graph([files.node(op, inputs, outputs, "only", **attributes)], [files.value("x", dtype, list(shape))],
                       [files.value(name, dtype) for name in outputs.split()], constants)
    return files.model(made, version)


def test_a_model_runs_by_position_and_by_name(load):
    data, w = files.perceptron()
    model = load(data)
    assert model.inputs == ("x",) and model.outputs == ("y",)
    assert repr(model) == "<teletensor.onnx.OnnxModel 'perceptron'(x: float32[n, 5]) -> y: float32[n, 3]>"
    for rows in (1, 4, 4):
        x = np.random.default_rng(rows).standard_normal((rows, 5)).astype(np.float32)
        np.testing.assert_allclose(model(x).numpy(), expected(x, w), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(model(x=x.tolist()).numpy(), model(x).numpy())
    assert model._compiled._entries == 2  # one program a shape


def test_names_that_python_has_too(tt, load, tmp_path):
    made = files.graph([files.node("Sub", "self f", "y")], [files.value("self"), files.value("f")], [files.value("y")])
    model = load(files.model(made))
    assert model(**{"self": [3.0], "f": [1.0]}).tolist() == [2]
    model.save(tmp_path / "p.safetensors", **{"self": [3.0], "f": [1.0]})
    loaded = tt.jit.load(tmp_path / "p.safetensors")
    assert loaded(**{"self": tt.ones(1), "f": tt.zeros(1)}).tolist() == [1]


def test_large_constants_are_tensors_of_the_session(tt, load):
    data, w = files.perceptron(hidden=400)
    model = load(data)
    assert set(model.weights) == {"w1", "w2"}
    np.testing.assert_array_equal(model.weights["w1"].numpy(), w["w1"])


def test_a_saved_model_has_the_same_bits(tt, load, tmp_path):
    data, _ = files.perceptron(hidden=400)
    model = load(data)
    x = tt.arange(10.0).reshape(2, 5) / 10
    wanted = model(x)
    model.save(tmp_path / "p.safetensors", x)
    loaded = tt.jit.load(tmp_path / "p.safetensors")
    assert loaded.arguments == ["x"] and set(loaded.weights) == {"w1", "w2"}
    assert loaded(x).tolist() == wanted.tolist()
    with pytest.raises(tt.onnx.OnnxError, match=r"x: float32\[n, 5\] has dynamic axes"):
        model.save(tmp_path / "q.safetensors")
    fixed = load(files.perceptron(batch=2)[0])
    fixed.save(tmp_path / "q.safetensors")
    assert tt.jit.load(tmp_path / "q.safetensors")(x).shape == (2, 3)


def test_a_saved_model_runs_in_cpp(tt, shared_daemon, load, tmp_path):
    example = ROOT / "build/release/bin/teletensor-run"
    if not example.exists():
        pytest.skip("the example is not built here")
    model = load(files.perceptron(batch=2)[0])
    model.save(tmp_path / "p.safetensors")
    wanted = model(tt.arange(10.0).reshape(2, 5)).reshape(-1).tolist()
    done = subprocess.run([example, shared_daemon.unix, tmp_path / "p.safetensors", "1", "0,1,2,3,4,5,6,7,8,9:2,5"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("result"))
    assert [float(v) for v in line.split()[1:]] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("given", "text"), [
    ({}, "input x is missing"),
    ({"z": [1.0]}, "has no input 'z'; its inputs are x"),
    ({"x": np.ones((2, 5))}, "input 'x' is float32, not float64"),
    ({"x": np.ones((2, 4), np.float32)}, r"input 'x' has shape \[n, 5\], not \[2, 4\]"),
    ({"x": np.ones(5, np.float32)}, r"has shape \[n, 5\], not \[5\]"),
    ({"x": object()}, "input 'x': "),
])
def test_inputs_that_do_not_fit(tt, load, given, text):
    model = load(files.perceptron()[0])
    with pytest.raises(tt.onnx.OnnxError, match=text):
        model(**given)
    assert model(np.ones((1, 5), np.float32)).shape == (1, 3)


def test_a_dynamic_axis_has_one_size(tt, load):
    made = files.graph([files.node("Add", "a b", "y")], [files.value("a", shape=["n"]), files.value("b", shape=["n"])],
                       [files.value("y")])
    model = load(files.model(made))
    assert model([1.0], [2.0]).tolist() == [3]
    with pytest.raises(tt.onnx.OnnxError, match=r"'b' has shape \[n\] with n = 2, not \[1\]"):
        model([1.0, 2.0], [2.0])
    with pytest.raises(tt.onnx.OnnxError, match="has 2 inputs, 3 are given"):
        model([1.0], [2.0], [3.0])
    with pytest.raises(tt.onnx.OnnxError, match="'a' is given twice"):
        model([1.0], a=[2.0])


def test_sizes_fold_on_the_host(load):
    """A chain from Shape to Reshape, as exporters write it, adds no step to the program."""
    nodes = [files.node("Shape", "x", "s"), files.node("Gather", "s zero", "n", axis=0),
             files.node("Unsqueeze", "n axis", "n1"), files.node("Concat", "n1 rest", "to", axis=0),
             files.node("Reshape", "x to", "y")]
    constants = [files.tensor("zero", np.array(0)), files.tensor("axis", np.array([0])),
                 files.tensor("rest", np.array([-1]))]
    made = files.graph(nodes, [files.value("x", shape=["n", 2, 3])], [files.value("y")], constants)
    model = load(files.model(made))
    assert model(np.ones((4, 2, 3), np.float32)).shape == (4, 6)
    assert len(model._compiled.program) <= 1


def test_values_that_decide_run_node_by_node(tt, load, tmp_path):
    model = load(one_node("NonZero"))
    for _ in range(2):
        assert model([0.0, 2.0, 3.0]).tolist() == [[1, 2]]
    with pytest.raises(tt.onnx.OnnxError, match=r"cannot be saved: node 'only' \(NonZero\)"):
        model.save(tmp_path / "p", [1.0, 0.0])
    assert not (tmp_path / "p").exists()


def test_a_number_that_decides_is_a_constant_of_the_program(tt, load, tmp_path):
    branch = [files.graph([files.node(op, "x", name)], outputs=[files.value(name)]) for op, name in (
        ("Neg", "a"), ("Abs", "b"))]
    nodes = [files.node("Equal", "rate fast", "c"),
             files.node("If", "c", "y", then_branch=branch[0], else_branch=branch[1])]
    made = files.graph(nodes, [files.value("x", shape=["?"]), files.value("rate", "int64", [])], [files.value("y")],
                       [files.tensor("fast", np.array(16))])
    model = load(files.model(made))
    for rate, wanted in ((16, [-1, 2]), (8, [1, 2]), (np.int64(16), [-1, 2]), (8, [1, 2])):
        assert model([1.0, -2.0], rate).tolist() == wanted
    assert model._captures
    model.save(tmp_path / "p", [1.0, -2.0], 16)
    assert tt.jit.load(tmp_path / "p")(tt.tensor([1.0, -2.0])).tolist() == [-1, 2]
    assert model([1.0, -2.0], tt.tensor(8)).tolist() == [1, 2] and not model._captures
    with pytest.raises(tt.onnx.OnnxError, match="'rate' is int64, not float32"):
        model([1.0], tt.tensor(1.5))


def test_branches_loops_and_functions(load):
    data = fuzz.good()[0]
    model = load(data)
    x = np.arange(8, dtype=np.float32).reshape(2, 4) / 8
    d, h, p = model(x)
    np.testing.assert_array_equal(d.numpy(), -x)
    np.testing.assert_allclose(h.numpy(), np.minimum(8 * x[:1], 0.5))
    np.testing.assert_allclose(p.numpy().sum(1), 1, rtol=1e-6)


def test_a_function_takes_attributes(load):
    """A reference to an attribute of a function also works in an inner graph, and with a default."""
    inner = files.graph([files.node("LeakyRelu", "v", "a", alpha=files.Reference("slope"))], [], [files.value("a")])
    other = files.graph([files.node("Identity", "v", "b")], [], [files.value("b")])
    leak = files.function("Leak", "v go", "w", [files.node("If", "go", "w", then_branch=inner, else_branch=other)],
                          defaults=[files.attribute("slope", 0.5)])
    made = files.graph([files.node("Leak", "x yes", "y", domain="own"),
                        files.node("Leak", "x yes", "z", domain="own", slope=0.25)],
                       [files.value("x")], [files.value("y"), files.value("z")], [files.tensor("yes", np.array(True))])
    model = load(files.model(made, functions=[leak], domains=["own"]))
    assert [each.tolist() for each in model([-4.0, 4.0])] == [[-2, 4], [-1, 4]]


OLDER = [  # versions in which an input of today was an attribute, or a default was another one
    ("Squeeze", 7, {"axes": [0]}, [[1, 2]], [1, 2]),
    ("Unsqueeze", 7, {"axes": [0, 2]}, [1, 2], [[[1], [2]]]),
    ("ReduceSum", 7, {"axes": [0], "keepdims": 0}, [[1, 2], [3, 4]], [4, 6]),
    ("ReduceMean", 13, {"axes": [-1]}, [[1, 2], [3, 4]], [[1.5], [3.5]]),
    ("Clip", 7, {"min": 1.5, "max": 2.5}, [1, 2, 3], [1.5, 2, 2.5]),
    ("Clip", 7, {"max": 2.5}, [1, 2, 3], [1, 2, 2.5]),
    ("Pad", 7, {"pads": [1, 2], "value": 7.0}, [1, 2], [7, 1, 2, 7, 7]),
    ("Pad", 7, {"pads": [1, 1], "mode": "reflect"}, [1, 2, 3], [2, 1, 2, 3, 2]),
    ("Slice", 7, {"starts": [1], "ends": [2**31 - 1], "axes": [0]}, [1, 2, 3], [2, 3]),
    ("Softmax", 11, {}, [[[0, 0], [0, 0]]], [[[0.25, 0.25], [0.25, 0.25]]]),
    ("Hardmax", 11, {}, [[[1, 2], [4, 3]]], [[[0, 0], [1, 0]]]),
    ("Dropout", 7, {}, [1, 2], [1, 2]),
    ("Flatten", 7, {"axis": 0}, [[1, 2]], [[1, 2]]),
    ("Upsample", 7, {"scales": [2.0]}, [1, 2], [1, 1, 2, 2]),
    ("Cast", 7, {"to": 7}, [1.5, -1.5], [1, -1]),
]


@pytest.mark.parametrize(("op", "version", "attributes", "x", "wanted"), OLDER)
def test_older_versions_of_operators(load, op, version, attributes, x, wanted):
    x = np.array(x, np.float32)
    model = load(one_node(op, shape=x.shape, version=version, **attributes))
    assert model(x).tolist() == wanted


def test_a_loop_has_an_end(tt, load, monkeypatch):
    from teletensor.onnx import _run

    monkeypatch.setattr(_run, "MAX_STEPS", 1000)
    body = files.graph([files.node("Identity", "go", "again")],
                       [files.value("i", "int64", []), files.value("go", "bool", [])],
                       [files.value("again", "bool", [])])
    made = files.graph([files.node("Loop", "-", "", "endless", body=body), files.node("Neg", "x", "y")],
                       [files.value("x")], [files.value("y")])
    with pytest.raises(tt.onnx.OnnxError, match="more than 1000 nodes in one call"):
        load(files.model(made))([1.0])


def test_all_missing_operators_are_named(tt, load):
    nodes = [files.node("Mystery", "x", "a", "first"), files.node("Mystery", "a", "b", "second"),
             files.node("Else", "b", "c", "third", domain="com.other"), files.node("Relu", "c", "y")]
    made = files.graph(nodes, [files.value("x")], [files.value("y")])
    with pytest.raises(tt.onnx.OnnxError, match=r"does not have: Mystery \(node 'first', 'second'\); "
                                                r"com.other.Else \(node 'third'\)"):
        load(files.model(made, domains=["com.other"]))


@pytest.mark.parametrize(("data", "text"), [
    (one_node("Relu", weight=1), r"node 'only' \(Relu\): unknown attributes weight"),
    (one_node("Relu", "x x"), "2 inputs, at most 1 are known"),
    (one_node("Reshape"), "shape is missing"),
    (one_node("Add", "x x", version=1), "version 1 of ONNX's operators; 7 to 28 are supported"),
    (one_node("Add", "x x", version=6), "version 6 of ONNX's operators; 7 to 28 are supported"),
    (one_node("Relu", version=29), "version 29 of ONNX's operators; 7 to 28 are supported"),
    (one_node("Relu", "q"), "reads 'q', which no input, constant or earlier node gives"),
    (one_node("Relu", outputs="x"), "computes 'x', which another node has already computed"),
    (files.model(files.graph([files.node("Add", "x b", "a"), files.node("Neg", "a", "b")], [files.value("x")],
                             [files.value("b")])), "the graph has a cycle"),
    (files.model(files.graph([], [files.value("x")], [files.value("y")])), "no node computes the output 'y'"),
    (b"", "the model has no graph"),
    (b"\x08", "not an ONNX model, or it is damaged"),
    (b"PK\x03\x04 a zip file", "not an ONNX model, or it is damaged|the model has no graph"),
    (one_node("Relu", constants=[files.tensor("w", np.ones(3, np.float32), f9=b"\0" * 11)]),
     "tensor 'w': 11 bytes, its shape needs 12"),
    (one_node("Relu", constants=[b"\x08" + b"\xff" * 8 + b"\x7f" + files.tensor("w", np.ones(1, np.float32))]),
     "tensor 'w'"),
])
def test_files_that_are_refused(tt, load, data, text):
    with pytest.raises(tt.onnx.OnnxError, match=text) as caught:
        load(data)
    assert "m.onnx" in str(caught.value) and isinstance(caught.value, ValueError)


def test_functions_that_never_end_or_grow(tt, load):
    def of(functions, first):
        made = files.graph([files.node(first, "x", "y", domain="own")], [files.value("x")], [files.value("y")])
        return files.model(made, functions=functions, domains=["own"])

    circle = [files.function(a, "v", "w", [files.node(b, "v", "w", domain="own")]) for a, b in ("AB", "BC", "CA")]
    with pytest.raises(tt.onnx.OnnxError, match="calls itself"):
        load(of(circle, "A"))
    doubling = [files.function(f"F{i}", "v", "w", [files.node(f"F{i + 1}", "v", "u", domain="own"),
                                                   files.node(f"F{i + 1}", "u", "w", domain="own")])
                for i in range(25)]
    end = files.function("F25", "v", "w", [files.node("Neg", "v", "w")])
    with pytest.raises(tt.onnx.OnnxError, match="more than 1048576 nodes"):
        load(of([*doubling, end], "F0"))
    nested = files.graph([files.node("Neg", "x", "y")], outputs=[files.value("y")])
    for _ in range(40):
        nested = files.graph([files.node("If", "x", "y", then_branch=nested)], [files.value("x")], [files.value("y")])
    with pytest.raises(tt.onnx.OnnxError, match="nested more than 32 deep"):
        load(files.model(nested))


def test_weights_in_other_files(tt, load, tmp_path):
    (tmp_path / "sub").mkdir()
    w = np.arange(2000, dtype=np.float32)
    (tmp_path / "sub" / "w.bin").write_bytes(b"head" + w.tobytes())

    def of(**facts):
        return load(one_node("Add", "x w", shape=(2000,), constants=[files.external("w", w, **facts)]))

    assert of(location="sub/w.bin", offset=4, length=8000)(w).tolist() == (2 * w).tolist()
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_bytes(w.tobytes())
    (tmp_path / "link").symlink_to(outside)
    os.mkfifo(tmp_path / "fifo")
    for facts, text in (
            ({"location": f"../{outside.name}"}, "outside of the model's folder"),
            ({"location": str(outside)}, "outside of the model's folder"),
            ({"location": "link"}, "outside of the model's folder"),
            ({"location": ""}, "outside of the model's folder"),
            ({"location": "sub"}, "cannot be read|not a regular file"),
            ({"location": "missing"}, "cannot be read"),
            ({"location": "sub/w.bin", "offset": 8}, "cannot be read: bytes 8 to 8008 of it, which has 8004"),
            ({"location": "sub/w.bin", "offset": -4}, "bytes -4 to"),
            ({"location": "sub/w.bin", "offset": "x"}, "is not a number"),
            ({"location": "sub/w.bin", "length": 4}, "4 bytes, its shape needs 8000")):
        with pytest.raises(tt.onnx.OnnxError, match=text):
            of(**facts)
    outside.unlink()


def test_a_pipe_is_no_file(tt, tmp_path):
    os.mkfifo(tmp_path / "fifo.onnx")
    with pytest.raises((tt.onnx.OnnxError, OSError), match="regular file"):
        tt.onnx.load(tmp_path / "fifo.onnx")
    with pytest.raises(FileNotFoundError):
        tt.onnx.load(tmp_path / "none.onnx")


def test_a_failing_node_is_named(tt, load):
    w = files.tensor("w", np.ones((3, 2), np.float32))
    model = load(one_node("MatMul", "x w", shape=("n", "m"), constants=[w]))
    text = r"m\.onnx: node 'only' \(MatMul\) of \(float32\[2, 4\], float32\[3, 2\]\): "
    with pytest.raises(tt.onnx.OnnxError, match=text):
        model(np.ones((2, 4), np.float32))
    assert model(np.ones((2, 3), np.float32)).tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("op", ["Add", "Div", "Less", "MatMul"])
def test_two_dtypes_are_refused_where_onnx_has_one(tt, load, op):
    model = load(one_node(op, "x w", shape=(2,), constants=[files.tensor("w", np.ones(2, np.int64))]))
    with pytest.raises(tt.onnx.OnnxError, match=r"the inputs have dtypes .*float32 and .*int64"):
        model(np.ones(2, np.float32))


@pytest.mark.parametrize("op", ["ConstantOfShape", "Range", "Tile"])
def test_sizes_without_bounds_take_no_memory_here(tt, load, op):
    """The model asks for 2^46 elements: the daemon refuses them, the client allocates none, and the session
    continues."""
    big = files.tensor("big", np.array([2**46]))
    zero, one = files.tensor("zero", np.array(0)), files.tensor("one", np.array(1))
    inputs = {"ConstantOfShape": "big", "Range": "zero big one"}.get(op, "zero1 big")
    zero1 = files.tensor("zero1", np.zeros(1, np.float32))
    made = files.graph([files.node(op, inputs, "y")], [], [files.value("y")], [big, zero, one, zero1])
    with pytest.raises((MemoryError, tt.onnx.OnnxError)):
        load(files.model(made))().reshape(-1)[:1].numpy()
    assert (tt.ones(2) * 1).tolist() == [1, 1]


def test_a_file_cut_at_every_byte(tt, load):
    for data in fuzz.good():
        data = data.replace(np.ones(1600, np.float32).tobytes(), b"")
        for end in range(0, len(data), 1 if len(data) < 2000 else 7):
            try:
                load(data[:end])
            except tt.onnx.OnnxError:
                pass


def test_files_that_are_not_what_they_say(tt):
    """Runs tests/fuzz/onnx_files.py briefly; `make fuzz` runs it for minutes."""
    tried, ran = fuzz.run(seed=1, count=400)
    assert tried == 400 and 0 < ran < tried


def test_the_command(tt, shared_daemon, load, tmp_path, capsys):
    data, w = files.perceptron()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    x = np.ones((2, 5), np.float32)
    np.save(tmp_path / "x.npy", x)
    command = ["onnx", "run", str(path), "--address", shared_daemon.unix]
    given = ["--input", f"x={tmp_path}/x.npy"]
    assert cli.main([*command, *given, "--output", f"{tmp_path}/y", "--save", f"{tmp_path}/p"]) == 0
    np.testing.assert_allclose(tt.load(tmp_path / "y")["y"].numpy(), expected(x, w), rtol=1e-4)
    assert cli.main([*command, *given]) == 0
    printed = capsys.readouterr().out
    assert cli.main(["run", f"{tmp_path}/p", "--address", shared_daemon.unix, "--inputs", f"x={tmp_path}/x.npy"]) == 0
    assert capsys.readouterr().out == printed
    assert cli.main([*command, "--input", "z=1.0"]) == 1
    assert "teletensor onnx run: perceptron has no input 'z'" in capsys.readouterr().err
    assert cli.main([*command, "--input", "x"]) == 1
    assert "--input: 'x' is not NAME=VALUE" in capsys.readouterr().err
    path.write_bytes(data[:100])
    assert cli.main([*command, *given]) == 1
    assert "damaged" in capsys.readouterr().err
