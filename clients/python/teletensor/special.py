"""Special functions under the names of torch.special."""

from __future__ import annotations

from typing import Any

from ._calls import checked as _checked, out as _out
from ._core import Tensor, ops
from ._functions import log_softmax, logsumexp, mvlgamma, polygamma, round, softmax

__all__ = [
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t",
    "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "digamma", "entr",
    "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln",
    "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e", "i1", "i1e",
    "laguerre_polynomial_l", "legendre_polynomial_p", "log1p", "log_ndtr", "log_softmax", "logit",
    "logsumexp", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
    "modified_bessel_k1", "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "sinc", "softmax", "spherical_bessel_j0", "xlog1py", "xlogy",
    "zeta",
]  # fmt: skip

digamma: Any = ops["digamma"]
psi = digamma
erf: Any = ops["erf"]
erfc: Any = ops["erfc"]
erfinv: Any = ops["erfinv"]
exp2: Any = ops["exp2"]
expit: Any = ops["sigmoid"]
expm1: Any = ops["expm1"]
gammainc: Any = ops["igamma"]
gammaincc: Any = ops["igammac"]
gammaln: Any = ops["lgamma"]
i0: Any = ops["i0"]
log1p: Any = ops["log1p"]
logit: Any = ops["logit"]
sinc: Any = ops["sinc"]
xlogy: Any = ops["xlogy"]
multigammaln = mvlgamma

airy_ai: Any = ops["special_airy_ai"]
bessel_j0: Any = ops["special_bessel_j0"]
bessel_j1: Any = ops["special_bessel_j1"]
bessel_y0: Any = ops["special_bessel_y0"]
bessel_y1: Any = ops["special_bessel_y1"]
chebyshev_polynomial_t: Any = ops["special_chebyshev_polynomial_t"]
chebyshev_polynomial_u: Any = ops["special_chebyshev_polynomial_u"]
chebyshev_polynomial_v: Any = ops["special_chebyshev_polynomial_v"]
chebyshev_polynomial_w: Any = ops["special_chebyshev_polynomial_w"]
entr: Any = ops["special_entr"]
erfcx: Any = ops["special_erfcx"]
hermite_polynomial_h: Any = ops["special_hermite_polynomial_h"]
hermite_polynomial_he: Any = ops["special_hermite_polynomial_he"]
i0e: Any = ops["special_i0e"]
i1: Any = ops["special_i1"]
i1e: Any = ops["special_i1e"]
laguerre_polynomial_l: Any = ops["special_laguerre_polynomial_l"]
legendre_polynomial_p: Any = ops["special_legendre_polynomial_p"]
log_ndtr: Any = ops["special_log_ndtr"]
modified_bessel_k0: Any = ops["special_modified_bessel_k0"]
modified_bessel_k1: Any = ops["special_modified_bessel_k1"]
ndtr: Any = ops["special_ndtr"]
ndtri: Any = ops["special_ndtri"]
scaled_modified_bessel_k0: Any = ops["special_scaled_modified_bessel_k0"]
scaled_modified_bessel_k1: Any = ops["special_scaled_modified_bessel_k1"]
shifted_chebyshev_polynomial_t: Any = ops["special_shifted_chebyshev_polynomial_t"]
shifted_chebyshev_polynomial_u: Any = ops["special_shifted_chebyshev_polynomial_u"]
shifted_chebyshev_polynomial_v: Any = ops["special_shifted_chebyshev_polynomial_v"]
shifted_chebyshev_polynomial_w: Any = ops["special_shifted_chebyshev_polynomial_w"]
spherical_bessel_j0: Any = ops["special_spherical_bessel_j0"]
xlog1py: Any = ops["special_xlog1py"]
zeta: Any = ops["special_zeta"]


def modified_bessel_i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, order 0."""
    return ops["i0"](input)


def modified_bessel_i1(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, order 1."""
    return ops["special_i1"](input)


_checked.attach(globals(), __all__)
_out.attach(globals(), _out.SPECIAL)
