"""Runs the tests of nodes in the onnx package: each operator of its sets, up to the newest version, as a
model of one node and as the model that defines the operator by other operators."""

import warnings

import numpy as np
import onnx
import pytest
import teletensor
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

warnings.filterwarnings("ignore")
CASES = {case.name: case for case in collect_testcases(None)}

# Prefixes of the cases that are not run here, with the reasons.
DIFFERENT = {
    "test_ai_onnx_ml_label_encoder": "text",
    "test_ai_onnx_ml_tree_ensemble": "trees",
    "test_image_decoder": "images in files",
    "test_regex_full_match": "text",
    "test_string_concat": "text",
    "test_string_split": "text",
    "test_strnormalizer": "text",
    "test_tfidfvectorizer": "text",
}
# Cases that draw random numbers, which differ from NumPy's: only types and shapes are compared.
RANDOM = ("test_bernoulli", "test_training_dropout")


@pytest.fixture(scope="module")
def session(shared_daemon):
    with teletensor.connect(shared_daemon.unix) as s:
        yield s


def plain(value):
    """(the values in a dtype that NumPy has, the name of the dtype)"""
    value = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    name = value.dtype.name
    if name.startswith(("float8", "float4", "bfloat16")):
        return value.astype(np.float32), name
    if name.startswith(("int4", "int2")):
        return value.astype(np.int8), name
    if name.startswith(("uint4", "uint2")):
        return value.astype(np.uint8), name
    return value, name


def given(value):
    if value is None or isinstance(value, list):
        return value and [given(each) for each in value]
    array, name = plain(value)
    return teletensor.tensor(array).to(teletensor.bfloat16) if name == "bfloat16" else array


def compare(found, wanted, case):
    if wanted is None or isinstance(wanted, (list, tuple)):
        assert (found is None) == (wanted is None)
        for a, b in zip(found or (), wanted or (), strict=True):
            compare(a, b, case)
        return
    wanted, name = plain(wanted)
    if isinstance(found, teletensor.Tensor):
        assert (found.dtype == teletensor.bfloat16) == (name == "bfloat16")
        found = (found.float() if name == "bfloat16" else found).numpy()
    assert found.shape == wanted.shape
    if wanted.dtype.kind in "OU":
        assert found.tolist() == wanted.tolist()
        return
    assert found.dtype == wanted.dtype
    if not case.startswith(RANDOM) or "zero_ratio" in case:
        rtol = 2**-6 if name == "bfloat16" else 1e-3
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=1e-3 if name == "float16" else 1e-5)


def run(name, path):
    case = CASES[name]
    path.write_bytes(case.model.SerializeToString())
    model = teletensor.onnx.load(path)
    for inputs, outputs in case.data_sets:
        found = model(*map(given, inputs))
        compare(found if len(model.outputs) > 1 else (found,), outputs, name)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(tuple(DIFFERENT))])
def test_node(session, tmp_path, name):
    run(name, tmp_path / "m.onnx")


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(tuple(DIFFERENT))])
def test_listed_difference_is_still_one(session, tmp_path, name):
    with pytest.raises(teletensor.onnx.OnnxError, match="operators that this version does not have"):
        run(name, tmp_path / "m.onnx")


def test_every_row_is_needed():
    assert all(any(name.startswith(prefix) for name in CASES) for prefix in DIFFERENT)
    assert len(CASES) - sum(name.startswith(tuple(DIFFERENT)) for name in CASES) >= 1740
