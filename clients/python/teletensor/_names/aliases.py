"""PyTorch's alternative names of elementwise functions, and the in-place forms of elementwise functions."""

from __future__ import annotations

__all__ = ["ALIASES", "INPLACE"]

# Alias to name. Each alias becomes a function and a method, and in-place forms as well if the name has
# them.
ALIASES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "fix": "trunc", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "not_equal": "ne",
}  # fmt: skip

# Functions such as tt.abs_(x).
INPLACE = """
    abs acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil clamp clip
    cos cosh deg2rad erf erfc exp exp2 expm1 fill floor frac gcd i0 lcm log log10 log1p log2 logit
    nan_to_num neg negative rad2deg reciprocal relu round rsqrt sigmoid sin sinc sinh sqrt square tan
    tanh trunc fix xlogy zero selu
""".split()
