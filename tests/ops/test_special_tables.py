"""Compares special functions of float32, which use tables, with those of float64, which are computed
directly."""

import numpy as np
import pytest

NAMES = ["lgamma", "digamma", "i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
         "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
         "spherical_bessel_j0", "airy_ai", *(f"polygamma {n}" for n in (1, 2, 3, 7, 8))]
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-38, 1e-45, *(s * 2.0**e for e in range(-9, 10) for s in (1, -1))]


def arguments():
    rng = np.random.default_rng(0)
    wide = np.exp2(rng.uniform(-10, 9, 20000)) * rng.choice([-1, 1], 20000)
    around = [np.nextafter(np.float32(x), np.float32(to)) for x in EDGES for to in (np.inf, -np.inf)]
    return np.concatenate([wide, rng.uniform(-20, 20, 20000), EDGES, around]).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_within_a_rounding(tt, name):
    name, _, order = name.partition(" ")
    place = tt.special if hasattr(tt.special, name) else tt
    x = tt.tensor(arguments())
    call = (lambda x: tt.polygamma(int(order), x)) if order else getattr(place, name)
    found, exact = call(x).numpy(), call(x.double()).numpy()
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    np.testing.assert_array_equal(found[np.isinf(rounded)], rounded[np.isinf(rounded)])
    finite = np.isfinite(rounded)
    off = np.abs(found[finite] - exact[finite]) / np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert off.max() < 0.53  # 0.5 is the rounding error alone
    np.testing.assert_array_equal(np.signbit(found[finite]), np.signbit(rounded[finite]))


def test_neighbours_change_nothing(tt):
    """A vector of elements uses polynomials of the same degree; the bits must be those of a single
    element."""
    x = tt.tensor(np.concatenate([np.linspace(-2, 2, 500), EDGES]).astype(np.float32))
    for name in ("chebyshev_polynomial_t", "shifted_chebyshev_polynomial_w", "hermite_polynomial_h",
                 "laguerre_polynomial_l", "legendre_polynomial_p"):
        call = getattr(tt.special, name)
        for n in (0, 1, 2, 5, 6, 7, 8, 9, 31):
            degrees = tt.tensor([float(n), 3.0]).expand(len(x), 2)
            np.testing.assert_array_equal(call(x, n).numpy(), call(tt.stack([x, x], 1), degrees)[:, 0].numpy())
