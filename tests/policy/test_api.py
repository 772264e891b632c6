"""Checks that public Python names are exported on purpose and documented."""

import importlib
import inspect
import pkgutil
import types
import typing

import pytest
import teletensor
from teletensor import _core


def public_modules():
    yield teletensor
    for found in pkgutil.walk_packages(teletensor.__path__, "teletensor."):
        if any(part.startswith("_") for part in found.name.split(".")):
            continue
        try:
            yield importlib.import_module(found.name)
        except ImportError:  # the library for which the adapter is written is not installed
            if not found.name.startswith(("teletensor.integrations.", "teletensor.torch")):
                raise


MODULES = list(public_modules())
_core.set_text_prefix("teletensor")  # importing as_torch has changed it
# Methods that are described in the documentation of NumPy, PyTorch or Python.
INHERITED = (int, float, str, dict, list, tuple, Exception)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_exports(module):
    exported = getattr(module, "__all__", None)
    assert exported is not None, "no __all__"
    assert len(set(exported)) == len(exported)
    missing = [name for name in exported if not hasattr(module, name)]
    assert not missing
    public = {
        name for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", module.__name__) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    }
    assert public <= set(exported), f"defined here, public by name, not exported: {public}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_documented(module):
    assert module.__doc__, "the module has no docstring"
    bare = []
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if typing.get_origin(value) or getattr(value, "__module__", "").startswith("multiprocessing"):
            continue  # a type for annotations, which Python's documentation describes
        if (inspect.isclass(value) or callable(value)) and not inspect.getdoc(value):
            bare.append(name)
        if inspect.isclass(value):
            bare += [
                f"{name}.{method}" for method, member in vars(value).items()
                if not method.startswith("_") and callable(member) and not inspect.getdoc(member)
                and not any(hasattr(base, method) for base in value.__mro__[1:])
            ]
    assert not bare, f"without a docstring: {bare}"


def test_the_surface_of_pytorch_is_there():
    """Checks the names that the guide and the examples use."""
    names = """
        tensor empty zeros ones full arange linspace eye rand randn randint manual_seed no_grad
        exp log sin cos tanh sigmoid relu sqrt pow abs clamp where sum mean max min argmax argmin
        prod var std any all norm logsumexp softmax log_softmax matmul cat stack split chunk
        gather index_select one_hot sort topk cumsum tril triu save load connect
        float32 float64 float16 bfloat16 int32 int64 uint8 bool cuda autograd nn optim
    """.split()
    missing = [name for name in names if not hasattr(teletensor, name)]
    assert not missing
