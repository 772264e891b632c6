"""All rows of the op table."""

import rows_complex
import rows_fft
import rows_linalg
import rows_nn
import rows_pointwise
import rows_reductions
import rows_shapes
import rows_special
import rows_structure

ROWS = [
    *rows_pointwise.ROWS,
    *rows_reductions.ROWS,
    *rows_structure.ROWS,
    *rows_shapes.ROWS,
    *rows_linalg.ROWS,
    *rows_fft.ROWS,
    *rows_complex.ROWS,
    *rows_nn.ROWS,
]

ROWS += rows_special.ROWS

# Ops that are not tested by samples of a call: op -> where they are tested.
COVERED_ELSEWHERE = {
    **dict.fromkeys(("rand", "randn", "randint", "randperm", "uniform", "normal", "random_from", "bernoulli",
                     "bernoulli_p", "dropout", "multinomial"), "test_random.py"),
    **dict.fromkeys(("sgd_step", "adam_step", "adamax_step", "nadam_step", "radam_step", "adagrad_step", "adadelta_step",
                     "rmsprop_step", "rprop_step", "asgd_step", "amp_unscale"), "test_optimizers.py"),
    "empty": "test_random.py", "to_device": "e2e/test_seed_examples.py", "data": "e2e/test_differences.py",
}

COVERED_ELSEWHERE |= dict.fromkeys(("poisson", "binomial"), "test_generators.py")

# Functions that Python composes from several ops of the catalog.
COMPOSITES = {
    "flip", "zeros", "ones",
    *rows_fft.NAMES,
    *rows_linalg.NAMES,
    *rows_shapes.COMPOSITES,
}  # fmt: skip
# Differentiable ops whose gradient no call from Python uses by itself: op -> reason.
NO_GRADIENT_SAMPLES = {"full": "of its value, which Python gives as a number; vjps use it",
                       **dict.fromkeys(("special_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_t",
                                        "special_hermite_polynomial_h", "special_hermite_polynomial_he",
                                        "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
                                        "special_spherical_bessel_j0"),
                                       "PyTorch has no gradient: e2e/test_no_derivative.py"),
                       "nextafter": "differences of neighbours are rounding errors: e2e/test_no_derivative.py"}
