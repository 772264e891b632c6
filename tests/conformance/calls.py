"""Calls of ops that are guessed from their signatures, right or wrong."""

import re

from .thin import FLOAT32

# A value for an attribute of each type.
GUESSES = {"bool": True, "int": 1, "float": 1.0, "int[]": [1, 1], "str": "mean", "dtype": FLOAT32, "device": 0}


def operands_of(signature, tensor):
    """An operand for each operand of the signature, all of them this tensor."""
    inside = signature[signature.index("(") + 1:signature.rindex(") ->")]
    kinds = [text.split(" ")[0] for text in re.split(r", (?![^\[]*\])", inside) if text]
    return [[tensor, tensor] if kind == "Tensor[]" else tensor
            for kind in kinds if kind.rstrip("?") in ("Tensor", "Tensor[]", "Operand")]
