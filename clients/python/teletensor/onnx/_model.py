"""tt.onnx.load and the model object that it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _api as tt
from .._core import Tensor
from .._sessions.session import current_session
from ..jit import _files
from ..jit._compiled import Compiled, trace
from ._file import FLOAT_TYPES, NUMPY, OnnxError, Value, read
from ._narrow import FLOATS, INTEGERS
from ._run import Interpreter
from ._values import NotCaptured

__all__ = ["OnnxModel", "load"]


class OnnxModel:
    """An ONNX model on the daemon: the result of `tt.onnx.load`.

    A call takes the model's inputs, by position or by name, as tensors or as values that `tt.tensor`
    accepts. It returns the only output, or a tuple of the outputs. Each set of shapes is captured at its
    first call, as `tt.compile` does, and a later call is one small message. A model in which computed
    values decide what is computed next (NonZero, Loop on a condition, sizes that are inputs) runs node by
    node. The model belongs to the session that was the current one when it was loaded.

    `inputs` and `outputs` are the names of the inputs and outputs; `weights` are the constants on the
    daemon by name.
    """

    def __init__(self, interpreter: Interpreter, name: str, path: str = "") -> None:
        model = interpreter.model
        self.name, self._path = name, path
        self._values = [v for v in model.graph.inputs if v.name not in model.graph.constants]
        self._defaults = {v.name: v for v in model.graph.inputs if v.name in model.graph.constants}
        self._interpreter = interpreter
        self._session = current_session()
        self._compiled = Compiled(interpreter.run, name)
        self._captures = all(v.kind == "tensor" for v in [*self._values, *model.graph.outputs])

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        return tuple(v.name for v in self._values)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return tuple(v.name for v in self._interpreter.model.graph.outputs)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The constants with more than 1,024 elements, by name: tensors of the session."""
        return dict(self._interpreter.weights)

    def __repr__(self) -> str:
        outputs = self._interpreter.model.graph.outputs
        return (
            f"<teletensor.onnx.OnnxModel {self.name!r}({', '.join(map(_declared, self._values))}) -> "
            f"{', '.join(map(_declared, outputs))}>"
        )

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the output, or a tuple of the outputs. OnnxError if an input has a name, dtype or shape
        that the model does not declare, and if a node fails; the state of the session is then unchanged."""
        with self._session.as_current():
            given = self._given(args, kwargs)
            try:
                return self._run(given)
            except OnnxError as error:
                raise OnnxError(f"{self._path}: {error}" if self._path else str(error)) from error.__cause__

    def _run(self, given: dict[str, Any]) -> Any:
        if self._captures:
            try:
                return self._compiled(**given)
            except NotCaptured:
                self._captures = False
        return self._interpreter.run(**given)

    def save(self, f: Any, /, *examples: Any, **named: Any) -> None:
        """Writes a file that `tt.jit.load`, `teletensor run` and the C++ client can run, for inputs with
        the shapes and dtypes of these examples, or without examples for the shapes that the model declares.

        OnnxError if an axis is dynamic and there are no examples, and if computed values decide what the
        model computes next.
        """
        with self._session.as_current():
            if not examples and not named:
                named = {value.name: _zeros(value) for value in self._values}
            given = self._given(examples, named)
            try:
                traced = trace(self._interpreter.run, name=self.name, example_kwarg_inputs=given)
            except NotCaptured as error:
                raise OnnxError(f"{self.name} cannot be saved: {error.node}: {error}") from None
            _files.save(traced, f)

    # ---- inputs

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self.inputs
        if len(args) > len(names):
            raise OnnxError(f"{self.name} has {len(names)} inputs, {len(args)} are given")
        given = dict(zip(names, args)) | {}
        for name, value in kwargs.items():
            if name in given:
                raise OnnxError(f"{self.name}: input {name!r} is given twice")
            if name not in names and name not in self._defaults:
                raise OnnxError(f"{self.name} has no input {name!r}; its inputs are {', '.join(names)}")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise OnnxError(f"{self.name}: input {', '.join(missing)} is missing")
        sizes: dict[str, int] = {}
        values = {v.name: v for v in self._values} | self._defaults
        return {name: self._checked(values[name], value, sizes) for name, value in given.items()}

    def _checked(self, declared: Value, value: Any, sizes: dict[str, int]) -> Any:
        if "sequence" in declared.kind or "optional" in declared.kind:
            if isinstance(value, (list, tuple)):
                return [None if each is None else _tensor(each, "") for each in value]
            return None if value is None else _tensor(value, declared.type)
        where = f"{self.name}: input {declared.name!r}"
        try:
            if _decides(declared, value):
                return int(np.array(value, NUMPY[declared.type]))
            found = _tensor(value, declared.type)
        except (TypeError, ValueError, RuntimeError) as error:
            raise OnnxError(f"{where}: {error}") from error
        if declared.type == "string":
            return found
        if (
            declared.type
            and declared.type not in FLOATS
            and declared.type not in INTEGERS
            and (found.dtype.name != declared.type)
        ):
            raise OnnxError(f"{where} is {declared.type}, not {found.dtype.name}")
        if declared.shape is not None:
            _check_shape(where, declared.shape, tuple(found.shape), sizes)
        if declared.type in FLOATS or declared.type in INTEGERS:
            from ._values import Narrow

            self._captures = False
            return Narrow(declared.type, found)
        return found


def _decides(declared: Value, value: Any) -> bool:
    """Returns whether the value is a 0-d integer from the host: it then becomes a constant of the program,
    so that it may decide what the model computes."""
    return (
        not isinstance(value, Tensor)
        and declared.shape in ([], None)
        and declared.type in ("bool", "int32", "int64")
        and np.ndim(value) == 0
        and (isinstance(value, (bool, int)) or np.asarray(value).dtype == NUMPY[declared.type])
    )


def _check_shape(
    where: str, declared: list[int | str | None], shape: tuple[int, ...], sizes: dict[str, int]
) -> None:
    shown = "[" + ", ".join("?" if d is None else str(d) for d in declared) + "]"
    if len(shape) != len(declared):
        raise OnnxError(f"{where} has shape {shown}, not {list(shape)}")
    for wanted, have in zip(declared, shape):
        known = sizes.setdefault(wanted, have) if isinstance(wanted, str) else wanted
        if known is not None and known != have:
            note = f" with {wanted} = {known}" if isinstance(wanted, str) else ""
            raise OnnxError(f"{where} has shape {shown}{note}, not {list(shape)}")


def _tensor(value: Any, declared: str) -> Any:
    """Converts a value to a tensor; Python numbers get the declared type, and strings become an array of
    objects."""
    if isinstance(value, Tensor):
        return value
    if declared == "string":
        return np.asarray(value, object)
    if isinstance(value, (np.ndarray, np.generic)):
        return tt.tensor(value)
    if declared in NUMPY or declared in FLOAT_TYPES:
        return tt.tensor(value, dtype=getattr(tt, declared))
    return tt.tensor(value)


def _zeros(value: Value) -> Tensor:
    if value.shape is None or any(not isinstance(size, int) for size in value.shape):
        raise OnnxError(f"input {_declared(value)} has dynamic axes: save it with an example of each input")
    return tt.zeros(
        [int(size) for size in value.shape if size is not None], dtype=getattr(tt, value.type or "float32")
    )


def _declared(value: Value) -> str:
    shape = (
        ""
        if value.shape is None
        else "[" + ", ".join("?" if d is None else str(d) for d in value.shape) + "]"
    )
    kind = "" if value.kind == "tensor" else f"{value.kind} of "
    return f"{value.name}: {kind}{value.type or 'any'}{shape}"


def load(f: str | os.PathLike[str]) -> OnnxModel:
    """Reads a model from an .onnx file with operators of versions 7 to 28 of ONNX's operator set, and puts
    its weights on the daemon. A model of an older version must have only operators whose rules are those of
    version 7, such as Relu. Needs neither the onnx package nor protobuf.

    Weights in external files are read from the folder of `f` only. The limits of a model file are 2 GiB,
    2^20 nodes, and graphs nested 32 deep; memory is allocated only for data that the file really contains.

    OnnxError, a ValueError, for a damaged file, a file that refers to files outside of its folder or has a
    cycle, and for unsupported operators, all of which are listed with their nodes. OSError if a file cannot
    be read.
    """
    path = os.fspath(f)
    model = read(path)
    version = model.opsets.get("", OLDEST)
    known = version >= OLDEST or (version >= 1 and all(node.op in _UNCHANGED for node in model.graph.nodes))
    if not known or version > NEWEST:
        raise OnnxError(f"{path}: version {version} of ONNX's operators; {OLDEST} to {NEWEST} are "
                        "supported")
    try:
        return OnnxModel(Interpreter(model), model.graph.name or os.path.basename(path), path)
    except OnnxError as error:
        raise OnnxError(f"{path}: {error}") from None


OLDEST, NEWEST = 7, 28
# Operators whose rules have been the same since version 1.
_UNCHANGED = {"Abs", "Ceil", "Exp", "Floor", "Identity", "Log", "Neg", "Not", "Reciprocal", "Relu", "Shape",
              "Sigmoid", "Size", "Sqrt", "Tanh", "Transpose"}
