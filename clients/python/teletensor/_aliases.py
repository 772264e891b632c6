"""Other names that PyTorch has for elementwise functions, and its functions that work in place."""

from __future__ import annotations

__all__ = ["ALIASES", "INPLACE"]

# alias: name. Functions and methods, in place too where the name is.
ALIASES = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "fix": "trunc", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "not_equal": "ne",
}  # fmt: skip

# tt.abs_(x) and the like.
INPLACE = """
    abs acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh ceil clamp clip
    cos cosh deg2rad erf erfc exp exp2 expm1 fill floor frac gcd i0 lcm log log10 log1p log2 logit
    nan_to_num neg negative rad2deg reciprocal relu round rsqrt sigmoid sin sinc sinh sqrt square tan
    tanh trunc fix xlogy zero selu
""".split()
