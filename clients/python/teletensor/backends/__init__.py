"""PyTorch's switches of its libraries.

TF32 in products and convolutions of float32 tensors on GPUs is an attribute of theirs, which the switches
give while calls are recorded. Others are kept and change nothing.
"""

from . import cuda, cudnn, mkldnn, mps

__all__ = ["cuda", "cudnn", "mkldnn", "mps"]
