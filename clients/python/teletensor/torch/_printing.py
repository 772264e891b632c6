"""Tensors of the device as text, with one read."""

from __future__ import annotations

from typing import Any

__all__ = ["install"]


def install(torch: Any) -> None:
    """Has PyTorch format a copy in host memory: else it reads a number at a time."""
    strings = torch._tensor_str
    original = strings._tensor_str

    def on_host(tensor: Any, indent: int) -> Any:
        if tensor.device.type == "tt":
            with torch.no_grad():
                tensor = _edges(torch, tensor.detach()) if _is_large(strings, tensor) else tensor.cpu()
        return original(tensor, indent)

    strings._tensor_str = on_host


def _is_large(strings: Any, tensor: Any) -> bool:
    return bool(tensor.numel() > strings.PRINT_OPTS.threshold)


def _edges(torch: Any, tensor: Any) -> Any:
    """A tensor of the same shape in host memory, which has what is printed of a large one."""
    edge = torch._tensor_str.PRINT_OPTS.edgeitems
    corner, places = tensor, []
    for dim, size in enumerate(tensor.shape):
        if size > 2 * edge:
            kept = torch.tensor([*range(edge), *range(size - edge, size)])
            corner = torch.cat([corner.narrow(dim, 0, edge), corner.narrow(dim, size - edge, edge)], dim)
        else:
            kept = torch.arange(size)
        places.append(kept)
    whole = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape).clone()
    return whole.index_put_(torch.meshgrid(*places, indexing="ij"), corner.cpu())
