"""What is said when a tensor of PyTorch or an array of NumPy stands where a teletensor.Tensor is expected: both
types with their packages, and the function that converts one."""

import operator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

TORCH = r"torch\.(nn\.)?(Tensor|Parameter); tt\.from_torch\(x\) makes a teletensor\.Tensor of it$"
NUMPY = r"numpy\.ndarray; tt\.from_numpy\(x\) makes a teletensor\.Tensor of it$"

ARGUMENTS = {
    "a module": lambda tt, x: tt.nn.Linear(2, 2)(x),
    "a convolution": lambda tt, x: tt.nn.Conv1d(2, 1, 1)(x),
    "an activation": lambda tt, x: tt.nn.ReLU()(x),
    "an op": lambda tt, x: tt.relu(x),
    "an operand of an op": lambda tt, x: tt.matmul(tt.ones(2, 2), x),
    "a function": lambda tt, x: tt.nn.functional.mse_loss(tt.ones(2), x),
    "a keyword": lambda tt, x: tt.nn.functional.mse_loss(input=x, target=tt.ones(2)),
    "the target of a loss": lambda tt, x: tt.nn.CrossEntropyLoss()(tt.ones(1, 2), x),
    "a function in Python": lambda tt, x: tt.std(x),
    "a condition": lambda tt, x: tt.where(x, tt.ones(2), tt.ones(2)),
    "a list": lambda tt, x: tt.cat([tt.ones(2), x]),
    "the first of a list": lambda tt, x: tt.stack([x, tt.ones(2)]),
    "several tensors": lambda tt, x: tt.broadcast_tensors(tt.ones(2), x),
    "out": lambda tt, x: tt.add(tt.ones(2), tt.ones(2), out=x),
    "a parameter of an optimizer": lambda tt, x: tt.optim.SGD([x], lr=0.1),
    "a parameter of a module": lambda tt, x: tt.nn.Module().register_parameter("w", x),
    "a buffer of a module": lambda tt, x: tt.nn.Module().register_buffer("w", x),
}
OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "pow", "eq", "lt", "ge", "iadd", "imul",
             "ipow"]


@pytest.mark.parametrize("place", ARGUMENTS)
@pytest.mark.parametrize("make, text", [(lambda: torch.ones(2, 2), TORCH), (lambda: torch.tensor(1), TORCH),
                                        (lambda: torch.nn.Parameter(torch.ones(2)), TORCH),
                                        (lambda: np.ones((2, 2), "f4"), NUMPY)],
                         ids=["torch", "a number of torch", "a parameter", "numpy"])
def test_arguments(tt, place, make, text):
    with pytest.raises(TypeError, match=text) as error:
        ARGUMENTS[place](tt, make())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("make", [lambda: torch.ones(2, 2), lambda: torch.tensor(1), lambda: torch.tensor(1.5)])
def test_operators(tt, name, make):
    apply = getattr(operator, name)
    with pytest.raises(TypeError, match=TORCH):
        apply(tt.ones(2, 2), make())
    if not name.startswith("i"):
        with pytest.raises(TypeError, match=TORCH):
            apply(make(), tt.ones(2, 2))


def test_arrays_are_operands(tt):
    assert (tt.ones(2) + np.ones(2)).tolist() == (np.ones(2) + tt.ones(2)).tolist() == [2, 2]


def test_indices(tt):
    for index in (torch.tensor([1]), (0, torch.tensor([0]))):
        with pytest.raises(IndexError, match=TORCH):
            tt.ones(3, 3)[index]
        with pytest.raises(IndexError, match=TORCH):
            tt.ones(3, 3)[index] = 1
    x = tt.arange(3.0)
    x[torch.tensor(0)] = 5  # an integer without a dimension is a number, as for NumPy
    assert x[torch.tensor(0)].item() == 5 and x[torch.tensor(-1)].item() == 2
    assert tt.arange(3)[np.array([1])].tolist() == [1]


@pytest.mark.parametrize("method", ["add_", "mul_", "copy_", "addcmul_"])
def test_methods_in_place(tt, method):
    with pytest.raises(TypeError, match=TORCH):
        getattr(tt.ones(2), method)(*[torch.ones(2)] * (2 if method == "addcmul_" else 1))


def test_other_types_are_named_as_in_pytorch(tt):
    with pytest.raises(TypeError, match=r"relu\(\): argument 'x' must be Tensor, not list$"):
        tt.relu([1.0])
    with pytest.raises(TypeError, match=r"cat\(\): element 1 of argument 'tensors' must be Tensor, not int$"):
        tt.cat([tt.ones(1), 2])

    class Tensor:
        pass

    with pytest.raises(TypeError, match="not Tensor$"):
        tt.relu(Tensor())
