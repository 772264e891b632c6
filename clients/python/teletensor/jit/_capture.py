"""A capture: the function runs normally, and the commands that it issues become a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from .._calls.tree import flatten, unflatten
from .._core import Tensor
from .._script import capturing as _capturing
from .._tensors.arrays import array_of
from ._lines import Again, Lines
from ._symbols import Symbol

__all__ = ["Capture", "Entry", "capture", "contents"]


# Defers Ctrl-C until both the actions that a call repeats (such as an optimizer's count of steps) and its
# command are done.
_STEP = _core.Uninterrupted()


def contents(tensor: Tensor) -> bytes:
    """The row-major bytes of a tensor, for passes that compute a step in advance."""
    return array_of(tensor)[1].tobytes()


def _may_wait(core: Any) -> bool:
    """Returns whether this thread may wait for the session; not if it is in a mesh and lines of other ranks
    run later."""
    try:
        if core.before_wait is not None:
            core.before_wait()
    except RuntimeError:
        return False
    return True


class Capture:
    """The conditions and values, other than its tensors, on which a function under capture depends."""

    def __init__(self, traced: bool = False) -> None:
        self.traced = traced  # whether jit.trace captures it
        self.guards: list[Callable[[], bool]] = []  # conditions that a call checks first
        # facts about what the function read from Python, which are checked before the guards
        self.facts = _core.Guards()
        self.reads = _core.Reads(self.facts)
        self.actions: list[Callable[[], Any]] = []  # functions that a call then runs in order
        self.symbols: dict[int, Symbol] = {}
        self._groups: dict[int, dict[str, Any]] = {}
        self._fixed: set[int] = set()
        self._held: set[object] = set()
        self._endings: list[Callable[[], None]] = []

    def holds(self, key: object, get: Callable[[], Any]) -> bool:
        """Records that the program is valid only while get() returns what it returns now. Returns False if
        that was already recorded for this key."""
        if key in self._held:
            return False
        self._held.add(key)
        now = get()
        self.guards.append(lambda: bool(get() == now))
        return True

    def leaves(self, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        """Makes every call pass to put() the value that get() has at the end of the capture."""
        box: list[Any] = []
        self._endings.append(lambda: box.append(get()))
        self.actions.append(lambda: put(box[0]))

    def end(self) -> None:
        """Called when the function has ended."""
        for ending in self._endings:
            ending()

    def number(self, value: Any, get: Callable[[], Any], name: str) -> Symbol:
        """A number of which every call has its own value: get(), which is called at this position among the
        actions."""
        box = [value]

        def now() -> None:
            box[0] = get()

        self.actions.append(now)
        return Symbol(self, value, lambda: box[0], ("value", name))

    def fix(self, symbol: Symbol) -> None:
        """Restricts the program to this value of `symbol`."""
        if symbol.tag in self._fixed:
            return
        self._fixed.add(symbol.tag)
        get, value = symbol.get, symbol.value
        self.guards.append(lambda: get() == value)

    def group(self, options: dict[str, Any]) -> dict[str, Any]:
        found = self._groups.get(id(options))
        if found is None:
            found = self._groups[id(options)] = {}
            for key, value in options.items():
                found[key] = self._option(options, key, value)
        return found

    def _option(self, options: dict[str, Any], key: str, value: Any) -> Any:
        if isinstance(value, float):
            self.facts.number(options, key)
            return self.number(value, lambda: options[key], key)
        if isinstance(value, tuple) and all(isinstance(v, float) for v in value):
            self.facts.number(options, key)
            return tuple(
                self.number(v, lambda i=i: options[key][i], f"{key}.{i}")  # type: ignore[misc]
                for i, v in enumerate(value))
        self.reads.item(options, key)
        return value

    def advanced(self, optimizer: Any, options: dict[str, Any], parameters: list[Any],
                 numbers: Any) -> Any:
        parameters = list(parameters)
        box = [numbers]

        def advance() -> None:
            for parameter in parameters:
                box[0] = optimizer._advance(options, optimizer.state[parameter])

        self.actions.append(advance)
        if isinstance(numbers, tuple):
            name = type(optimizer).__name__
            return tuple(
                Symbol(self, v, lambda i=i: box[0][i], ("code", name))  # type: ignore[misc]
                for i, v in enumerate(numbers))
        if isinstance(numbers, (int, float)):
            return Symbol(self, numbers, lambda: box[0], ("counter", "step"))
        return numbers


class Entry:
    """A captured program, with the conditions, actions and results of its calls."""

    def __init__(self, held: Capture, traced: dict[str, Any], spec: Any, leaves: list[Any],
                 arguments: list[list[Any]], names: list[str],
                 same: list[tuple[int, Tensor]]) -> None:
        # arguments that the function may also read from outside: calls must pass the same tensors
        self.same = same
        self.program: _core.Program = traced["program"]
        self.loops: bool = traced["loops"]
        self.guards = held.guards
        self.facts = held.facts
        self.actions = held.actions
        symbols = [held.symbols[tag] for tag in traced["tags"]]
        self.numbers = [symbol.get for symbol in symbols]
        self.origins = [(*symbol.origin, symbol.get) for symbol in symbols]
        self.argument_names = names
        self.spec, self.leaves = spec, leaves
        self.tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.plain = spec is None and len(self.tensors) == 1
        self.arguments = arguments  # boxes into which a call puts its numbers
        self._set_backward(traced.get("backward"), traced)
        for i in self.tensors:
            leaves[i] = None

    def _set_backward(self, backward: _core.Program | None, facts: Any) -> None:
        self.backward = backward
        if backward is not None:
            self.saved: list[tuple[bool, int]] = [(bool(a), int(b)) for a, b in facts["saved"]]
            self.differentiated: list[int] = list(facts["differentiated"])
            self.wanted: list[int] = list(facts["wanted"])

    @classmethod
    def restored(cls, program: _core.Program, backward: _core.Program | None, facts: Any, spec: Any,
                 leaves: list[Any], tensors: list[int], names: list[str], loops: bool) -> Entry:
        """An entry from a file or a script, without guards and actions."""
        entry = cls.__new__(cls)
        entry.program, entry.loops = program, loops
        entry.same, entry.guards, entry.actions, entry.numbers, entry.origins = [], [], [], [], []
        entry.facts = _core.Guards()
        entry.argument_names = names
        entry.spec, entry.leaves, entry.tensors = spec, leaves, tensors
        entry.plain = spec is None and len(tensors) == 1
        entry.arguments = []
        entry._set_backward(backward, facts)
        return entry

    def ready(self, tensors: Sequence[Tensor], numbers: Sequence[Any]) -> bool:
        """Returns whether a call with these arguments may run the program."""
        # Loops, because a generator takes more time than what it checks here.
        if not self.facts.check() or not self.program.ready(tensors):
            return False
        for i, t in self.same:
            if tensors[i] is not t:
                return False
        for box, value in zip(self.arguments, numbers, strict=True):
            box[0] = value
        for guard in self.guards:
            if not guard():
                return False
        return True

    def next_numbers(self) -> list[Any]:
        """Runs the actions that a call repeats, and returns the numbers of the call."""
        for action in self.actions:
            action()
        numbers = []  # not by a comprehension, which is a function call
        for get in self.numbers:
            numbers.append(get())
        return numbers

    def run(self, tensors: Sequence[Tensor], lines: Lines | None = None) -> Any:
        """Runs the program; `lines` are used for second derivatives. Precondition: ready() has returned
        true."""
        if self.actions:
            with _STEP:
                numbers = self.next_numbers()
                if self.backward is None:
                    results = self.program.call(tensors, numbers)
                else:
                    results = self._recorded(tensors, numbers, lines)
        elif self.backward is None:
            results = self.program.call(tensors, self.next_numbers())
        else:
            results = self._recorded(tensors, self.next_numbers(), lines)
        return results[0] if self.plain and self.backward is None else self.tree(results)

    def tree(self, results: Sequence[Any]) -> Any:
        """The function's result, with `results` in place of its tensors."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.tensors, results, strict=True):
            leaves[i] = tensor
        return unflatten(leaves, self.spec)

    # Forward and backward are two programs, but one node on the tape.
    def _recorded(self, tensors: Sequence[Tensor], numbers: list[Any], lines: Lines | None
                  ) -> list[Tensor]:
        inputs = self.program.inputs(tensors)
        again = Again(self, inputs, numbers, lines)
        results = list(self.program.call(tensors, numbers, whole=True))
        outputs = self.program.outputs
        values = [results[outputs[o][1]] for o in self.differentiated]
        saved = [inputs[i] if is_input else results[i] for is_input, i in self.saved]
        count = len(saved)
        saved += tensors
        blanks = [(v._shape, v.dtype, v.device) for v in values]
        backward = self.backward
        assert backward is not None

        def run(node: Any, grads: list[Tensor | None]) -> list[Any]:
            if _core.grad_mode():
                return again.gradients([node._saved(slot) for slot in slots[count:]], grads)
            seeds = [_core.ops["full"](0, *blank) if g is None else g.contiguous()
                     for g, blank in zip(grads, blanks, strict=True)]
            kept = [node._saved(slot) for slot in slots[:count]]
            return list(backward.call(kept + seeds, numbers, whole=True))

        named, slots, _ = _core.function_node([inputs[w] for w in self.wanted], values, saved, run,
                                              "CompiledBackward")
        for o, tensor in zip(self.differentiated, named, strict=True):
            results[outputs[o][1]] = tensor
        return [inputs[i] if is_input else results[i] for is_input, i in outputs]


def capture(function: Callable[..., Any], core: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
            tensors: Sequence[Tensor], numbers: Sequence[int], name: str = "",
            names: Sequence[str] = (), by_trace: bool = False) -> tuple[Any, Entry | None]:
    """Runs function(*args, **kwargs); returns its result and the captured entry. The entry is None if the
    next call will differ because tensors that the function created are still referred to.

    `numbers` are the positions of leaves that become variables of the program. RuntimeError if the function
    cannot be captured.
    """
    held = Capture(by_trace)
    leaves, spec = flatten((list(args), kwargs))
    boxes: list[list[Any]] = []
    for place in numbers:
        box = [leaves[place]]
        boxes.append(box)
        label = names[place] if place < len(names) else f"number{place}"
        leaves[place] = Symbol(held, leaves[place], lambda box=box: box[0],  # type: ignore[misc]
                               ("argument", label))
    tensor_names = [name for name, leaf in zip(names, leaves, strict=False)
                    if isinstance(leaf, Tensor)]
    labels = [name for name, leaf in zip(names, leaves, strict=False)
              if isinstance(leaf, (Tensor, Symbol))]
    out_spec: Any = None
    held.reads.know(function)
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or _core.has_attributes(leaf):
            held.reads.know(leaf)

    def run(stand_ins: list[Tensor]) -> list[Any]:
        nonlocal leaves, out_spec
        given = iter(stand_ins)
        arguments, keywords = unflatten(
            [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)
        leaves = []
        try:
            result = held.reads.run(function, tuple(arguments), keywords)
        finally:
            held.reads.clear()
        held.end()
        del arguments, keywords, given, stand_ins
        out, out_spec = flatten(result)
        return list(out)

    # One native call from the start of the trace to its end, so that a signal handler cannot leave the
    # trace open.
    out, outside, traced = _core.capture(core, vars(_capturing), held, list(tensors), run, name,
                                         tensor_names)
    made = (leaf for leaf in out if isinstance(leaf, Tensor))
    outputs = traced["program"].outputs
    if any(_core.has_attributes(t) for t, (known, _) in zip(made, outputs, strict=True) if not known):
        raise RuntimeError("a captured function cannot return a tensor on which it has set attributes: "
                           "later calls make another; set them on the result")
    same = [(place, tensors[place]) for place in outside]
    for i, leaf in enumerate(out):
        if isinstance(leaf, Symbol):
            held.fix(leaf)
            out[i] = leaf.value
    for tag in traced["fixed_tags"]:
        held.fix(held.symbols[tag])
    for each in ("program", "backward"):
        if each in traced:
            traced[each].optimize(contents if _may_wait(core) else None)
    given = unflatten(out, out_spec)
    if not traced["settled"]:
        return given, None
    return given, Entry(held, traced, out_spec, list(out), boxes, labels, same)
