"""The trace of a function of PyTorch tensors: its commands as one program of the daemon."""

from __future__ import annotations

import gc
import struct
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .. import _core
from ..jit._capture import contents

__all__ = ["PACKAGES", "Program", "Watch", "bridge", "copies", "exact", "line", "refuse_class", "trace",
           "wrote"]

PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


bridge: Any = None  # the extension; the package sets it


def _record(tensor: torch.Tensor) -> Any:
    return bridge.record(tensor)


def line() -> str:
    """The line of the program that is running, as "file:line: "; nothing if all code is PyTorch's."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*PACKAGES, "<")):
            return f"{code.co_filename}:{frame.f_lineno}: "
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def exact(leaf: Any) -> Any:
    """A value that is equal for equal leaves only: 0.0 is not -0.0."""
    if type(leaf) is float:
        return leaf.hex()
    return (leaf.real.hex(), leaf.imag.hex()) if type(leaf) is complex else leaf


def refuse_class(tensor: torch.Tensor) -> None:
    """NotImplementedError for a tensor that consists of other tensors."""
    if is_traceable_wrapper_subclass(tensor):
        raise NotImplementedError(
            f"{line()}a captured step cannot have tensors of the class {type(tensor).__name__}, such as "
            "the parameters of fully_shard and parallelize_module: call the step without capture")


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees the tensors of the operators that run in its block, and refuses a write to host memory that
    existed before, because a later call of the program would not do it, unless `lenient()`."""

    supports_higher_order_operators = True

    def __init__(self, lenient: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._lenient = lenient
        self._made: set[int] = set()  # storages in host memory that operators of the block have made
        # storages of the device: a reference that tells whether the storage exists, and its address
        self._storages: dict[int, tuple[Any, int]] = {}
        self.host: dict[int, torch.Tensor] = {}  # tensors in host memory from outside, by storage
        self.leaves: dict[int, torch.Tensor] = {}  # tensors whose gradient a backward sets
        self._foreign: set[int] = set()  # storages of the device that existed before the block
        self._read: dict[int, weakref.ref[torch.Tensor]] = {}  # tensors on storages in _foreign
        self._written: dict[int, weakref.ref[torch.Tensor]] = {}  # tensors of the device
        self._written_storages: set[int] = set()
        self._outer: Watch | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, torch.Tensor):
                self._sees(each, False)
        if isinstance(func, HigherOrderOperator):
            # torch.compile makes an operator of the program's own, which writes to arguments, one that
            # writes to copies of them. Others contain functions, whose operators would not be seen.
            if not func.name().startswith("auto_functionalized"):
                raise NotImplementedError(
                    f"{line()}PyTorch's operator {func.name()} runs functions of its own and cannot be a "
                    "part of a captured step; torch.where can replace torch.cond")
        else:
            self._check(func, args, kwargs)
        result = func(*args, **kwargs)
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._sees(each, True)
        return result

    def _sees(self, tensor: torch.Tensor, made: bool) -> None:
        refuse_class(tensor)
        if tensor.layout is not torch.strided:
            raise NotImplementedError(
                f"{line()}a captured step cannot have tensors of the layout {tensor.layout}, such as "
                "sparse gradients: use sparse=False, or call the step without capture")
        if tensor.device.type == "cpu":
            key = tensor.untyped_storage()._cdata
            if key not in self.host and key not in self._made:
                self.host[key] = tensor  # keeps the storage, so that its key stays its own
                if made:
                    self._made.add(key)
        elif tensor.device.type == "tt":
            storage = tensor.untyped_storage()
            known = self._storages.get(storage._cdata)
            if known is None or known[0].expired():
                address = _record(tensor)[0]
                self._storages[storage._cdata] = (StorageWeakRef(storage), address)
                (self._foreign.discard if made else self._foreign.add)(storage._cdata)
            if not made and storage._cdata in self._foreign:
                self._read[id(tensor)] = weakref.ref(tensor)
            # A backward makes aliases of leaves, which are not leaves of the program. It makes them with
            # grad mode off, so they are left out here.
            if not made and tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
                self.leaves.setdefault(id(tensor), tensor)

    def _check(self, func: Any, args: Any, kwargs: Any) -> None:
        arguments = func._schema.arguments
        given = [*zip(arguments, args), *((each, kwargs[each.name]) for each in arguments
                                          if each.name in kwargs)]
        for argument, value in given:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for each in tree_leaves(value):
                if isinstance(each, torch.Tensor) and each.device.type == "tt":
                    whole = each if each._base is None else each._base  # they count writes together
                    self._written[id(whole)] = weakref.ref(whole)
                    self._written_storages.add(each.untyped_storage()._cdata)
                if (isinstance(each, torch.Tensor) and each.device.type == "cpu"
                        and each.untyped_storage()._cdata not in self._made and not self._lenient()):
                    raise RuntimeError(
                        f"{line()}a captured step cannot write to a tensor in host memory ({func}): later "
                        "calls of the step would not repeat the write. Keep the tensor on the device; an "
                        "optimizer that has the option capturable=True or fused=True needs it, any other "
                        "one's step() must be called outside of the step")

    def __enter__(self) -> Any:
        global _watch
        self._outer, _watch = _watch, self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        global _watch
        _watch = self._outer
        super().__exit__(*error)

    def wrote(self, tensor: torch.Tensor) -> None:
        """Takes note of a write that is no operator of PyTorch, as that of a collective."""
        self._written_storages.add(tensor.untyped_storage()._cdata)

    def made(self, tensors: list[torch.Tensor]) -> None:
        """Takes the tensors for such that operators have made."""
        for each in tensors:
            self._sees(each, True)

    def read(self) -> list[torch.Tensor]:
        """The tensors of the device that existed before, that operators have read, and that still exist."""
        found = [weak() for weak in self._read.values()]
        return [tensor for tensor in found if tensor is not None]

    def outside(self) -> list[torch.Tensor]:
        """The tensors in host memory that existed before."""
        return [tensor for key, tensor in self.host.items() if key not in self._made]

    def written(self) -> list[torch.Tensor]:
        """The tensors of the device that operators have written to and that are still there."""
        found = [weak() for weak in self._written.values()]
        return [tensor for tensor in found if tensor is not None]

    def wrote_to(self, tensor: torch.Tensor) -> bool:
        """Returns whether an operator has written to the storage of a tensor that existed before."""
        return tensor.untyped_storage()._cdata in self._written_storages

    def living(self) -> list[tuple[Any, int]]:
        """The storages of the device that are still there: a weak reference and the address of each."""
        return [(weak, address) for weak, address in self._storages.values() if not weak.expired()]


_watch: Watch | None = None  # the one whose block is running


def wrote(tensor: torch.Tensor) -> None:
    """Takes note of a collective's write to a tensor of the device."""
    if _watch is not None:
        _watch.wrote(tensor)


class Program:
    """A traced function: its program, and how its result is made of the program's."""

    def __init__(self, program: Any, kept: list[tuple[Any, int]], used: list[tuple[Any, int]], spec: Any,
                 leaves: list[tuple[Any, ...]]) -> None:
        self.program = program
        self.kept = [weak for weak, _ in kept]  # storages that each call gives new contents
        self._kept, self._used = kept, used
        self.spec, self.leaves = spec, leaves
        self.written: list[int] = []  # arguments that the function writes to
        self.text: str = program.text()
        self.step: Any = None

    def finish(self) -> None:
        """Prepares calls."""
        self.program.optimize(contents)
        self.step = _core.torch_step(self.program, [address for _, address in self._kept],
                                      [address for weak, address in self._used if not weak.expired()])
        self._kept, self._used = [], []

    def run(self, arguments: list[torch.Tensor]) -> tuple[bool, Any]:
        """(True, the function's result for these arguments); or (False, None), without an effect, if the
        program is not valid for them or for the state of the device. Precondition: finish()."""
        given = bridge.dense(arguments)
        made = bridge.run(self.step, given)
        if made is None:
            return False, None
        self.write_back(given, arguments)
        return True, self.tree(made, given)

    def write_back(self, own: list[torch.Tensor], arguments: list[torch.Tensor]) -> None:
        """Copies what the function has written to copies of its arguments into the arguments."""
        for i in self.written:
            if own[i] is not arguments[i]:
                arguments[i].copy_(own[i])
            else:
                bridge.written([own[i]])

    def same_result(self, other: Program) -> bool:
        """Returns whether the results of both functions are made alike."""

        def plain(leaf: tuple[Any, ...]) -> Any:
            return ("outside", _record(leaf[1])) if isinstance(leaf[1], torch.Tensor) else leaf

        return self.spec == other.spec and [*map(plain, self.leaves)] == [*map(plain, other.leaves)]

    def tree(self, made: list[torch.Tensor], arguments: list[torch.Tensor]) -> Any:
        """The function's result with these tensors."""
        return tree_unflatten([self._leaf(made, arguments, *each) for each in self.leaves], self.spec)

    def _leaf(self, made: list[torch.Tensor], arguments: list[torch.Tensor], kind: str, value: Any,
              shown: Any = None) -> Any:
        if kind == "value":
            return value
        tensor = made[value] if kind == "made" else arguments[value]
        dtype, size, stride, offset = shown
        if (tensor.dtype == dtype and tensor.shape == size and tensor.stride() == stride
                and tensor.storage_offset() == offset):
            return tensor
        return _view(tensor, shown)


def _view(tensor: torch.Tensor, shown: Any) -> torch.Tensor:
    """A view of the elements of a tensor's storage that `shown` describes."""
    dtype, size, stride, offset = shown
    made = torch.empty(0, dtype=dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), offset, size, stride)


def _generator_state() -> tuple[int, int]:
    from . import _device

    seed, used = struct.unpack("<QQ", bytes(_device.default_generator.get_state().tolist()))
    return seed, used


class _Results:
    """The leaves of a traced function's result, sorted by where their memory comes from."""

    def __init__(self, arguments: list[torch.Tensor]) -> None:
        self._places = {_record(each)[0]: i for i, each in enumerate(arguments)}
        self.made: dict[int, Any] = {}  # by storage: its contents
        self.plan: list[tuple[Any, ...]] = []

    def add(self, leaf: Any) -> None:
        """Takes the next leaf."""
        if not isinstance(leaf, torch.Tensor):
            self.plan.append(("value", leaf))
            return
        if leaf.device.type != "tt":
            raise RuntimeError("a captured step cannot return a tensor in host memory: its later calls "
                               "would not compute it")
        if leaf.is_conj() or leaf.is_neg():
            leaf = leaf.resolve_conj().resolve_neg()
        record = _record(leaf)
        storage = record[0]
        shown = (leaf.dtype, leaf.shape, leaf.stride(), leaf.storage_offset())
        _core.torch_operand(*record)  # a storage without contents gets some
        contents = _core.torch_made(storage)
        if storage in self._places:
            self.plan.append(("argument", self._places[storage], shown))
        elif contents is not None:
            self.made.setdefault(storage, contents)
            self.plan.append(("made", list(self.made).index(storage), shown))
        else:
            self.plan.append(("value", leaf.detach()))


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors with these elements, each dense in a storage of its own."""
    with torch.no_grad():
        # not clone(), whose contents have the tensor's shape
        made = [torch.empty_like(each).copy_(each) for each in tensors]
    for each in made:
        _core.torch_operand(*_record(each))  # a tensor without elements has no contents so far
    return made


def trace(function: Callable[..., Any], arguments: list[torch.Tensor], watch: Watch
          ) -> tuple[Any, Program]:
    """Runs function(*arguments), whose operators become a program. Returns the result, without history, and
    the program. Precondition: the arguments are from copies().

    Storages from the trace that are still in use afterwards are outputs of the program, whose calls give
    them new contents. RuntimeError if the function cannot be captured.
    """
    seed, begun = _generator_state()
    before = bridge.set_strict(True)
    try:
        _core.torch_begin(seed, begun, [_record(each)[0] for each in arguments])
        with watch:
            result = function(*arguments)
        leaves, spec = tree_flatten(result)
        results = _Results(arguments)
        leaf = None
        for leaf in leaves:
            results.add(leaf)
        del result, leaves, leaf
        gc.collect()
        _core.torch_sweep()
        living = watch.living()
        kept = [each for each in living if _core.torch_made(each[1]) is not None]
        used = [each for each in living if _core.torch_made(each[1]) is None]
        addresses = {address for _, address in kept}
        # A result that something else holds as well gets memory of its own in each call.
        fresh = [_core.ops["clone"](contents) if storage in addresses else contents
                 for storage, contents in results.made.items()]
        outputs = [_core.torch_made(address) for _, address in kept] + fresh
        traced = _core.torch_end(outputs, _generator_state()[1] - begun)
    finally:
        bridge.set_strict(before)
        _core.abandon_trace(_core.torch_session())
    program = Program(traced["program"], kept, used, spec, results.plan)
    program.written = [i for i, each in enumerate(arguments) if watch.wrote_to(each)]
    return program.tree([_tensor_of(each) for each in fresh], arguments), program


def _tensor_of(contents: Any) -> torch.Tensor:
    """A new tensor of bytes whose storage has these contents."""
    made = torch.empty(_core.torch_bytes(contents), dtype=torch.uint8, device="tt")
    _core.torch_put(_record(made)[0], contents)
    return made
