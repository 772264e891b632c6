"""Writes docs/names.md: which of PyTorch's public names teletensor has, and which not.

Needs PyTorch (`make test-peers`' environment): .venv-peers/bin/python docs/generate_names.py
"""

import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import teletensor as tt
import torch

SPACES = ["torch", "torch.Tensor", "torch.nn.functional", "torch.linalg", "torch.fft",
          "torch.special", "torch.nn", "torch.optim", "torch.optim.lr_scheduler", "torch.nn.init",
          "torch.nn.utils", "torch.func", "torch.sparse", "torch.masked", "torch.nested",
          "torch.autograd",
          "torch.distributions", "torch.utils.data", "torch.jit", "torch.testing", "torch.profiler",
          "torch.utils.benchmark", "torch.distributed", "torch.distributed.checkpoint",
          "torch.distributed.fsdp", "torch.distributed.tensor",
          "torch.distributed.tensor.parallel"]  # fmt: skip
# PyTorch's packages whose modules are compared.
PACKAGES = ["torch", "torch.backends", "torch.cuda", "torch.distributed", "torch.nn", "torch.utils"]
# Why a namespace lacks names; shown before them.
REASONS = {
    "torch.distributed":
        "The options and classes of backends (`ProcessGroupNCCL`, `AllreduceOptions`, `Reducer`, "
        "`BackendConfig`), the methods of `ProcessGroup` that issue collectives, and the registration"
        " of backends and rendezvous handlers are not there, because the daemons exchange the tensors"
        " and there is nothing to choose: use the functions. `DistNetworkError` and `QueueEmptyError`"
        " are errors that nothing here raises. Of the [modules](#modules-that-are-not-there), `rpc` "
        "and `remote_device` would run code in other processes, which the daemon replaces; `launcher`"
        " and the rest of `elastic` are the classes of torchrun's agent, which `teletensor launch` "
        "does not have; `checkpoint.planner` and `checkpoint.metadata` are the parts of PyTorch's "
        "format of files; `fsdp.wrap` is for FSDP1; and `utils`, `c10d_logger` and "
        "`algorithms._checkpoint` are PyTorch's own helpers.",
}
# Names that belong to other parts of PyTorch: symbolic shapes, storages, backends' own entry points.
SKIPPED_PREFIXES = (
    "Sym", "sym_", "cudnn_", "miopen_", "mkldnn_", "fbgemm_", "quantize", "q_", "fake_quant",
    "quantized_", "Storage", "to_mkldnn", "is_mkldnn", "int_repr", "dequantize",
    "sparse_resize_", "resize_as_sparse_", "is_xla", "is_xpu", "is_mps", "is_maia", "is_ipu", "is_mtia",
    "is_vulkan", "is_nested", "is_quantized", "to_padded",
    "rename", "refine_names", "align_", "has_names", "names", "module_load", "jiterator",
)  # fmt: skip


CLASSES = {
    "Generator", "Tensor", "Size", "device", "dtype", "finfo", "iinfo", "no_grad", "enable_grad",
    "inference_mode", "set_grad_enabled", "autocast",
}  # fmt: skip


def public(space):
    """Functions and classes of a namespace that its documentation would list."""
    owner = torch.Tensor if space == "torch.Tensor" else importlib.import_module(space)
    for name in sorted(dir(owner)):
        if name.startswith(("_", *SKIPPED_PREFIXES)):
            continue
        value = getattr(owner, name, None)
        if inspect.ismodule(value) or (space != "torch.Tensor" and not callable(value)):
            continue
        if inspect.isclass(value):
            if space == "torch" and name not in CLASSES:
                continue
            if not value.__module__.startswith("torch"):
                continue
        elif getattr(value, "__module__", None) in ("typing", "typing_extensions", "functools"):
            continue
        yield name


def ours(space):
    if space == "torch.Tensor":
        return tt.Tensor
    place = tt
    for part in space.split(".")[1:]:
        place = getattr(place, part, None)
    return place


def modules(package):
    """Public modules of a package, and whether teletensor has them."""
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not found.name.startswith("_") and found.name != "torch":
            path = f"{package}.{found.name}".replace("torch", "teletensor", 1)
            yield path, importlib.util.find_spec(path) is not None


def main():
    version = torch.__version__.split("+")[0]
    lines = ["# PyTorch's names", "",
             f"Made by `docs/generate_names.py` against PyTorch {version}; do not edit.", "",
             "| Namespace | have | have not |", "|---|---|---|"]  # fmt: skip
    missing = {}
    for space in SPACES:
        place = ours(space)
        everything = list(public(space))
        missing[space] = [n for n in everything if place is None or not hasattr(place, n)]
        lines.append(f"| {space} | {len(everything) - len(missing[space])} | {len(missing[space])} |")
    for space, names in missing.items():
        if names:
            lines += ["", f"## Not in {space.replace('torch', 'teletensor', 1)}", ""]
            lines += [REASONS[space], ""] if space in REASONS else []
            lines += [", ".join(f"`{n}`" for n in names)]  # fmt: skip
    absent = [path for package in PACKAGES for path, there in modules(package) if not there]
    lines += ["", "## Modules that are not there", "", ", ".join(f"`{path}`" for path in absent)]
    (Path(__file__).resolve().parent / "names.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
