"""Symbol: a Python number that a capture tracks, so that its value is not written into the program."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    from ._capture import Capture

__all__ = ["Symbol"]

Number = int | float


class Symbol:
    """A number of which every call has its own value; arithmetic with it results in further such numbers.
    If its value decides something (a comparison, a size, `float()`), the program is valid only for this
    value, and another value is captured again."""

    __slots__ = ("_capture", "get", "origin", "tag", "value")

    def __init__(self, capture: Capture, value: Number, get: Callable[[], Number],
                 origin: tuple[str, str] = ("code", "")) -> None:
        self.origin = origin  # how a file describes it: ("argument" | "value" | "counter", name)
        self._capture = capture
        self.value = value
        self.get = get
        self.tag: int = _core.new_tag()
        capture.symbols[self.tag] = self

    def __repr__(self) -> str:
        return repr(self._fixed())

    def _fixed(self) -> Number:
        self._capture.fix(self)
        return self.value

    def _made(self, value: Any, get: Callable[[], Any]) -> Any:
        kind = type(value)
        if kind in (int, float):
            return Symbol(self._capture, value, get)
        self._capture.guards.append(lambda: bool(get() == value))  # the result is not a real number
        return value

    def _power(self, base: Any, exponent: Any, get: Callable[[], Any]) -> Any:
        value = base ** exponent
        if not (type(base) is float and type(exponent) is int):
            # The type depends on the values: of a negative power, or of the root of a negative number.
            kind = type(value)
            self._capture.guards.append(lambda: type(get()) is kind)
        return self._made(value, get)

    def _unary(self, op: Callable[[Any], Any]) -> Any:
        return self._made(op(self.value), lambda: op(self.get()))

    def _binary(self, op: Callable[[Any, Any], Any], other: Any, swapped: bool = False) -> Any:
        if isinstance(other, Symbol):
            given, get = other.value, other.get
        elif isinstance(other, (int, float)):
            given = other

            def get() -> Number:
                return given
        else:
            return NotImplemented
        own = self.get
        left, right = (given, self.value) if swapped else (self.value, given)

        def now() -> Any:
            return op(get(), own()) if swapped else op(own(), get())

        return self._power(left, right, now) if op is operator.pow else self._made(op(left, right), now)

    def __neg__(self) -> Any:
        return self._unary(operator.neg)

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Any:
        return self._unary(abs)

    def _test(self, op: Callable[[Any, Any], Any], other: Any) -> Any:
        if not isinstance(other, (int, float, Symbol)):
            return NotImplemented
        get = other.get if isinstance(other, Symbol) else None
        given = other.value if isinstance(other, Symbol) else other
        outcome = op(self.value, given)
        own = self.get
        self._capture.guards.append(
            lambda: op(own(), given if get is None else get()) == outcome)
        return outcome

    def __eq__(self, other: object) -> Any:
        return self._test(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._test(operator.ne, other)

    def __lt__(self, other: Any) -> Any:
        return self._test(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._test(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._test(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._test(operator.ge, other)

    def __hash__(self) -> int:
        return hash(self._fixed())

    def __bool__(self) -> bool:
        outcome = bool(self.value)
        own = self.get
        self._capture.guards.append(lambda: bool(own()) == outcome)
        return outcome

    def __float__(self) -> float:
        return float(self._fixed())

    def __int__(self) -> int:
        return int(self._fixed())

    def __index__(self) -> int:
        return operator.index(self._fixed())  # type: ignore[arg-type]

    def __round__(self, digits: int | None = None) -> Any:
        return self._unary(lambda v: round(v, digits))

    def __trunc__(self) -> Any:
        return self._unary(math.trunc)

    def __floor__(self) -> Any:
        return self._unary(math.floor)

    def __ceil__(self) -> Any:
        return self._unary(math.ceil)


def _add(name: str, op: Callable[[Any, Any], Any]) -> None:
    def forward(self: Symbol, other: Any) -> Any:
        return self._binary(op, other)

    def backward(self: Symbol, other: Any) -> Any:
        return self._binary(op, other, swapped=True)

    setattr(Symbol, f"__{name}__", forward)
    setattr(Symbol, f"__r{name}__", backward)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _add(_name, getattr(operator, _name))
_core.set_symbol_type(Symbol)
