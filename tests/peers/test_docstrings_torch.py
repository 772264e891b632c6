"""Checks that the examples in PyTorch's docstrings print the same in teletensor as in PyTorch."""

import os
import sys
import warnings
from pathlib import Path

import pytest
import teletensor
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docstrings import difference, documented

torch.set_num_threads(1)


def ours(name):
    place = teletensor
    for part in name.split("."):
        place = getattr(place, part, None)
    return place


DOCUMENTED = {name: text for name, text in documented() if ours(name) is not None}
RANDOM = "draws from a generator of its own"
ALIASES = "the memory is the daemon's: see docs/differences.md"
LAZY = "conj() and imag of a conjugate are computed, not marked"
UNINITIALISED = "not initialised"
REASONS = {
    RANDOM: """acosh atanh bernoulli normal poisson special.multigammaln Generator.seed Generator.get_state
        nn.CrossEntropyLoss nn.Embedding nn.EmbeddingBag nn.LayerNorm nn.Module.to nn.functional.gumbel_softmax
        nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool2d_with_indices
        nn.functional.fractional_max_pool3d nn.functional.fractional_max_pool3d_with_indices
        nn.init.kaiming_normal_ nn.init.kaiming_uniform_ nn.init.normal_ nn.init.orthogonal_ nn.init.sparse_
        nn.init.trunc_normal_ nn.init.uniform_ nn.init.xavier_normal_ nn.init.xavier_uniform_""",
    ALIASES: """as_tensor asarray from_dlpack from_numpy frombuffer Tensor.view
        autograd.graph.saved_tensors_hooks""",
    LAZY: "conj resolve_conj resolve_neg",
    UNINITIALISED: "empty_like empty_strided Tensor.new_empty Tensor.new_empty_strided nn.utils.skip_init",
    "prints an object whose class has another name": """vmap nn.LinearCrossEntropyLoss Generator.manual_seed
        Generator.set_state autograd.graph.register_multi_grad_hook""",
    "distributions have no modules of their own": "distributions.Independent",
    "torch.fx": "func.functionalize",
    "no dense dimensions beside blocks": "Tensor.to_sparse_bsc Tensor.to_sparse_bsr",
    "no storage objects, and denormal numbers everywhere": "is_storage set_flush_denormal",
    "a DataLoader of nothing": "optim.lr_scheduler.OneCycleLR",
    "no device cuda": "set_default_device",
    "no complex32": "set_default_dtype",
    "the order of equal elements": "sort",
    "rank of a broadcast batch": "linalg.lstsq",
    "equal but for the last digit of numbers near 0": "fft.hfft2 fft.hfftn linalg.lu_solve",
}
DIFFERENT = {name: why for why, names in REASONS.items() for name in names.split()}


@pytest.fixture(scope="module", autouse=True)
def session(shared_daemon, tmp_path_factory):
    here = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("examples"))  # some examples write files
    with teletensor.connect(shared_daemon.unix) as s, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield s
    os.chdir(here)


@pytest.fixture(autouse=True)
def defaults():
    yield
    for library in (torch, teletensor):
        library.set_default_dtype(library.float32)
        library.set_default_device(None)
        library.set_grad_enabled(True)
        library.use_deterministic_algorithms(False)
        library.set_float32_matmul_precision("highest")
        library.set_printoptions(profile="default")


@pytest.mark.parametrize("name", sorted(set(DOCUMENTED) - set(DIFFERENT)))
def test_example(name):
    assert difference(teletensor, DOCUMENTED[name]) is None


def test_what_differs_is_listed():
    assert set(DIFFERENT) <= set(DOCUMENTED) and len(DOCUMENTED) > 350
