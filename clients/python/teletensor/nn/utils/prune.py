"""Pruning: masks that set elements of parameters to 0. The parameter is renamed to name_orig, the mask is
the buffer name_mask, and `name` is their product, which is computed before each forward."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from ... import _api as tt, linalg
from ..._tensors.tensor import Tensor
from ..module import Module
from ._parameters import parameters_to_vector

__all__ = [
    "BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured",
    "PruningContainer", "RandomStructured", "RandomUnstructured", "custom_from_mask",
    "global_unstructured", "identity", "is_pruned", "l1_unstructured", "ln_structured",
    "random_structured", "random_unstructured", "remove",
]  # fmt: skip

M = TypeVar("M", bound=Module)


class BasePruningMethod(ABC):
    """Base class of the ways to choose a mask. Subclasses define compute_mask, and PRUNING_TYPE: which part
    of an already pruned tensor they consider ("unstructured": the remaining elements; "structured": the
    remaining channels along their `dim`; "global": the whole tensor)."""

    PRUNING_TYPE = ""
    _tensor_name: str

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask for a tensor (or for its importance scores), restricted to default_mask."""

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    def apply_mask(self, module: Module) -> Tensor:
        """The parameter multiplied by its mask."""
        original: Tensor = getattr(module, self._tensor_name + "_orig")
        mask: Tensor = getattr(module, self._tensor_name + "_mask")
        return mask.to(original.dtype) * original

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """Returns t with the elements that this method prunes set to 0; needs no module."""
        scores = t if importance_scores is None else importance_scores
        _check_scores(scores, t, "tensor t")
        return t * self.compute_mask(scores, tt.ones_like(t) if default_mask is None else default_mask)

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None,
        **kwargs: Any,
    ) -> BasePruningMethod:
        """Prunes module.name by a method that is constructed with the remaining arguments, in addition to
        earlier pruning. Returns the method, or the container of all methods. If it raises an error, nothing
        has changed."""
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        earlier = _find(module, name)
        if earlier is not None:
            old = earlier[1]
            container = old if isinstance(old, PruningContainer) else PruningContainer(old)
            method = PruningContainer(*container, method)
        tensor: Tensor = getattr(module, name)
        scores = tensor if importance_scores is None else importance_scores
        _check_scores(scores, tensor, f"parameter {name} of {module}")
        with tt.no_grad():
            before = tt.ones_like(tensor) if earlier is None else getattr(module, name + "_mask")
            mask = method.compute_mask(scores.detach(), before.detach().clone())
        if earlier is None:
            delattr(module, name)
            module.register_parameter(name + "_orig", tensor)  # type: ignore[arg-type]
        else:
            del module._own_hooks().before[earlier[0]]
        module.register_buffer(name + "_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def remove(self, module: Module) -> None:
        """Replaces the pruned tensor by a parameter with its present value."""
        name = self._tensor_name
        original = module._parameters[name + "_orig"]
        original.data = self.apply_mask(module).detach()
        for each in (name, name + "_orig", name + "_mask"):
            delattr(module, each)
        module.register_parameter(name, original)


class PruningContainer(BasePruningMethod):
    """Several methods that prune one tensor, one after the other."""

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if args:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Adds a method. TypeError if it is not a pruning method, ValueError if it prunes another
        tensor."""
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if self._tensor_name != method._tensor_name:
            raise ValueError(
                "Can only add pruning methods acting on the parameter named "
                f"'{self._tensor_name}' to PruningContainer {self}. Found '{method._tensor_name}'"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: int) -> BasePruningMethod:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of the last method, computed on the elements that the earlier masks leave."""
        method = self._pruning_methods[-1]
        if method.PRUNING_TYPE == "unstructured":
            part: Any = default_mask == 1
        elif method.PRUNING_TYPE == "structured":
            if not hasattr(method, "dim"):
                raise AttributeError(
                    'Pruning methods of PRUNING_TYPE "structured" need to have the attribute `dim` '
                    "defined."
                )
            dim = _dim_of(t, method.dim)
            others = [d for d in range(t.dim()) if d != dim]
            part = (*[slice(None)] * dim, default_mask.sum(others) != 0)
        elif method.PRUNING_TYPE == "global":
            part = ...
        else:
            raise ValueError(f"Unrecognized PRUNING_TYPE {method.PRUNING_TYPE}")
        mask = default_mask.to(t.dtype, copy=True)
        mask[part] = method.compute_mask(t[part], default_mask[part]).to(t.dtype)
        return mask


class Identity(BasePruningMethod):
    """Prunes nothing, but puts the parameter into the form of a pruned one."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _Amount(BasePruningMethod):
    """Base class of methods that prune a number or a fraction of the units."""

    _share: bool

    def __init__(self, amount: float) -> None:
        if not isinstance(amount, numbers.Real):
            raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
        self._share = not isinstance(amount, numbers.Integral)
        if amount < 0 or (self._share and amount > 1):
            raise ValueError(
                f"amount={amount} should either be a float in the range [0, 1] or a non-negative "
                "integer"
            )
        self.amount: float = amount

    def _count(self, units: int) -> int:
        """The number of units to prune. ValueError if there are fewer units."""
        if self._share:
            return round(self.amount * units)
        if self.amount > units:
            raise ValueError(
                f"amount={self.amount} should be smaller than the number of parameters to "
                f"prune={units}"
            )
        return int(self.amount)


class _Unstructured(_Amount):
    PRUNING_TYPE = "unstructured"

    @abstractmethod
    def _scores(self, t: Tensor) -> Tensor:
        """Importance scores: the elements with the lowest scores are pruned."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        count = self._count(t.numel())
        if count == 0:
            return default_mask.clone()
        least = tt.topk(self._scores(t).reshape(-1), count, largest=False).indices
        return default_mask.reshape(-1).index_fill(0, least, 0).reshape(default_mask.shape)


class RandomUnstructured(_Unstructured):
    """Prunes randomly chosen elements."""

    def _scores(self, t: Tensor) -> Tensor:
        return tt.rand_like(t)


class L1Unstructured(_Unstructured):
    """Prunes the elements with the smallest absolute values."""

    def _scores(self, t: Tensor) -> Tensor:
        return t.abs()


class _Structured(_Amount):
    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    @abstractmethod
    def _scores(self, t: Tensor, dim: int) -> Tensor:
        """One importance score for each channel: the channels with the lowest scores are pruned."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if t.dim() <= 1:
            raise ValueError(
                "Structured pruning can only be applied to multidimensional tensors. Found tensor of "
                f"shape {t.shape} with {t.dim()} dims"
            )
        dim = _dim_of(t, self.dim)
        units = t.shape[dim]
        count = self._count(units)
        if count == 0:
            return default_mask
        kept = tt.topk(self._scores(t, dim), units - count).indices
        return tt.zeros_like(t).index_fill(dim, kept.reshape(-1), 1) * default_mask.to(t.dtype)


class RandomStructured(_Structured):
    """Prunes randomly chosen channels along `dim`."""

    def _scores(self, t: Tensor, dim: int) -> Tensor:
        return tt.rand(t.shape[dim], device=t.device)


class LnStructured(_Structured):
    """Prunes the channels along `dim` with the smallest n-norm (a number, "fro" or "nuc")."""

    def __init__(self, amount: float, n: float | str, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _scores(self, t: Tensor, dim: int) -> Tensor:
        others = tuple(d for d in range(t.dim()) if d != dim)
        if self.n == "nuc":
            norms: Tensor = linalg.matrix_norm(t, "nuc", others if len(others) == 2 else (-2, -1))
            return norms
        order: Any = 2 if self.n == "fro" else self.n
        return linalg.vector_norm(t, order, others)


class CustomFromMask(BasePruningMethod):
    """Prunes the elements where `mask` is 0."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        _check_scores(self.mask, default_mask, "the tensor", "mask")
        return default_mask * self.mask.to(default_mask.dtype)


def _check_scores(scores: Tensor, t: Tensor, of: str, what: str = "importance_scores") -> None:
    if scores.shape != t.shape:
        raise AssertionError(
            f"{what} should have the same shape as {of}, got {scores.shape} vs {t.shape}"
        )


def _dim_of(t: Tensor, dim: int) -> int:
    if not -t.dim() <= dim < t.dim():
        raise IndexError(f"Invalid index {dim} for tensor of size {t.shape}")
    return dim % t.dim()


def _find(module: Module, name: str | None) -> tuple[int, BasePruningMethod] | None:
    """The pruning method of a tensor of the module (of the named one, if a name is given), and its key
    among the hooks."""
    for key, hook in module._own_hooks().before.items():
        if isinstance(hook, BasePruningMethod) and name in (None, hook._tensor_name):
            return key, hook
    return None


def identity(module: M, name: str) -> M:
    """Applies Identity to module.name."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: M, name: str, amount: float) -> M:
    """Applies RandomUnstructured to module.name."""
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: M, name: str, amount: float, importance_scores: Tensor | None = None
) -> M:
    """Applies L1Unstructured to module.name, by its own elements or by importance scores."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: M, name: str, amount: float, dim: int) -> M:
    """Applies RandomStructured to module.name."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: M, name: str, amount: float, n: float | str, dim: int,
    importance_scores: Tensor | None = None,
) -> M:  # fmt: skip
    """Applies LnStructured to module.name, by its own channels or by importance scores."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def custom_from_mask(module: M, name: str, mask: Tensor) -> M:
    """Applies CustomFromMask to module.name."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Prunes several tensors, given as pairs of module and name, as if they were one tensor."""
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    if importance_scores is not None and not isinstance(importance_scores, dict):
        raise TypeError("global_unstructured(): importance_scores must be of type dict")
    pairs, given = list(parameters), importance_scores or {}
    method = pruning_method(**kwargs)
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method '
            f"{pruning_method} of type {method.PRUNING_TYPE}"
        )
    method._tensor_name = "all"
    tensors = [getattr(module, name) for module, name in pairs]
    scores = [given.get(pair, tensor) for pair, tensor in zip(pairs, tensors, strict=True)]
    masks = [getattr(module, name + "_mask", tt.ones_like(tensor))
             for (module, name), tensor in zip(pairs, tensors, strict=True)]
    with tt.no_grad():
        mask = PruningContainer(method).compute_mask(
            parameters_to_vector(scores), parameters_to_vector(masks))
    begin = 0
    for (module, name), tensor in zip(pairs, tensors, strict=True):
        end = begin + tensor.numel()
        custom_from_mask(module, name, mask[begin:end].reshape(tensor.shape))
        begin = end


def remove(module: M, name: str) -> M:
    """Replaces the pruned tensor by a parameter with its present value. ValueError if it was not pruned."""
    found = _find(module, name)
    if found is None:
        raise ValueError(
            f"Parameter '{name}' of module {module} has to be pruned before pruning.remove"
        )
    del module._own_hooks().before[found[0]]
    found[1].remove(module)
    return module


def is_pruned(module: Module) -> bool:
    """Returns whether a tensor of the module, or of a submodule, is pruned."""
    return any(_find(each, None) is not None for each in module.modules())
