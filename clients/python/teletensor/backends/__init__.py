"""PyTorch's switches of its libraries.

A switch that allows less precise products is kept and changes nothing: the result of an instruction depends
on its operands and dtypes alone. One that would have to change results is refused.
"""

from . import cuda, cudnn, mkldnn, mps

__all__ = ["cuda", "cudnn", "mkldnn", "mps"]
