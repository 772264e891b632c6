"""Compares teletensor.cuda without a device with torch.cuda without one."""

import pytest

QUERIES = ("is_available", "device_count", "is_initialized", "memory_allocated", "max_memory_allocated",
           "memory_reserved", "max_memory_reserved", "empty_cache", "memory_stats", "current_device",
           "get_device_name", "get_device_properties", "get_device_capability", "mem_get_info", "synchronize",
           "current_stream", "default_stream", "init", "ipc_collect", "Stream", "initial_seed", "get_rng_state")


def answer(call):
    """The result of a call, or its error."""
    try:
        result = call()
    except RuntimeError:
        return RuntimeError
    return dict(result) if isinstance(result, dict) else result


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("PyTorch has a device here")
    return torch


@pytest.mark.parametrize("name", QUERIES)
def test_query(tt, torch, name):
    assert answer(getattr(tt.cuda, name)) == answer(getattr(torch.cuda, name))


@pytest.mark.parametrize("text", [
    "cuda.manual_seed(3)", "cuda.manual_seed_all(3)", "cuda.set_device(-1)", "cuda.set_device(0)",
    "cuda.device(-1).__enter__()", "cuda.stream(None).__enter__()", "ones(1).cuda()", "cuda.get_device_name(0)",
    "backends.cuda.matmul.allow_tf32", "backends.cudnn.benchmark", "backends.cudnn.deterministic",
    "backends.cudnn.enabled", "backends.cudnn.allow_tf32", "backends.mps.is_available()",
    "backends.mkldnn.is_available()",
])
def test_expression(tt, torch, text):
    ours, theirs = ({"m": m} for m in (tt, torch))
    assert answer(lambda: eval("m." + text, ours)) == answer(lambda: eval("m." + text, theirs))


def test_names(tt, torch):
    for space in ("cuda", "backends.cuda", "backends.cudnn"):
        ours, theirs = tt, torch
        for part in space.split("."):
            ours, theirs = getattr(ours, part), getattr(theirs, part)
        assert not [name for name in ours.__all__ if not hasattr(theirs, name)]
