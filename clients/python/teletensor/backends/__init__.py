"""PyTorch's switches for its backend libraries.

Whether products and convolutions of float32 tensors use TF32 on GPUs is an attribute of these ops, which is
set from the switches when they are issued. All other switches are stored without effect.
"""

from . import cuda, cudnn, mkldnn, mps

__all__ = ["cuda", "cudnn", "mkldnn", "mps"]
