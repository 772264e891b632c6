"""Scripted functions write in place as Python does: augmented assignment, elements, methods, lists; and `and`,
`or` and loops over iterators."""

import pytest
import teletensor as tt


def value_of(value):
    """Numbers that change in a loop become tensors."""
    if isinstance(value, tt.Tensor):
        return value.tolist() if value.dim() == 0 else (str(value.dtype), value.tolist())
    if isinstance(value, (tuple, list)):
        return [value_of(each) for each in value]
    return value


def same_as_python(function, *arguments):
    """The results of the scripted function, and its arguments afterwards, for two calls of one program."""
    scripted = tt.jit.script(function)
    for _ in range(2):
        mine = [a.clone() if isinstance(a, tt.Tensor) else a for a in arguments]
        his = [a.clone() if isinstance(a, tt.Tensor) else a for a in arguments]
        assert value_of(scripted(*mine)) == value_of(function(*his))
        assert value_of(mine) == value_of(his)
    assert scripted._latest is not None  # it has a program: no line of it ran in Python


def alias(x):
    y = x
    y += 1
    return x, y


def view(x):
    y = x * 1
    z = y[0]
    z += 5
    return y


def view_of_the_argument(x):
    x[1:] *= 3
    return x.sum()


def each_operator(x):
    x += 1
    x -= 3
    x *= 2
    x /= 4
    x **= 2
    x //= 0.5
    x %= 3
    return x


def bits(x):
    x &= 7
    x |= 8
    x ^= 3
    x <<= 2
    x >>= 1
    return x


def bump(t):
    t += 1


def by_a_helper(x):
    y = x * 2
    bump(y)
    bump(x)
    return y


def in_written_out_loop(x):
    y = x
    for i in range(3):
        y += i
    return x, y


def in_branch(x):
    y = x
    if x.sum() > 0:
        y *= 2
    else:
        y -= 1
    return x, y


def in_one_way_of_a_branch(x):
    y = x[0]
    if x.sum() > 0:
        y += 10
    return x * 1, y * 1


def in_nested_branches(x):
    if x.sum() > 0:
        if x[0] > 2:
            x += 100
        else:
            x[1] -= 100
    x += 1
    return x


def in_loop(x):
    n = x.sum() * 0
    while n < 3:
        x += 1
        n = n + 1
    return x, n


def in_loop_by_an_alias(x):
    y = x[1:]
    n = 0
    while n < x[0]:
        y += n
        n += 1
    return x, y, n


def in_nested_loops(x):
    i = 0
    while i < 2:
        j = 0
        while j < 3:
            x[j % 2] += i + j
            j += 1
        i += 1
    return x


def in_loop_over_a_tensors_range(x, n):
    total = x * 0
    for i in range(n):
        total += x * i
        if i == 1:
            x += 1
    return total, x


def condition_on_what_is_written(x):
    while x.sum() < 100:
        x *= 2
    return x


def numbers_are_numbers(x):
    k = 1
    n = k
    while k < 10:
        k += k
    m = k
    m += 1
    if x.sum() > 0:
        a = 1
    else:
        a = 2
    b = a
    b *= 10
    return n, k, m, a, b


def elements(x):
    y = x * 1
    y[0] = 9
    y[1:] = x[:-1]
    y[x > 1] = 0.5
    y[tt.tensor([0, 1])] -= 1
    return y


def place_of_the_data(x, i):
    x[i] += 10
    x[i] = x[i] * 2
    return x


def methods(x):
    x.add_(1)
    y = x[0]
    if x.sum() > 0:
        y.mul_(3)
    x.clamp_(max=5)
    return x * 1


def lists(x):
    a = [x]
    b = a
    b += [x * 2]
    b += (x * 3,)
    c = a + [x]
    c.append(x)
    return len(a), len(c), a[1], b


def tuples(x):
    a = (x,)
    b = a
    b += (x * 2,)
    return len(a), len(b)


def elements_of_lists(x):
    a = [x * 1, x * 2]
    a[0] += 1
    return a


def X():
    return tt.tensor([1.0, 2.0, 3.0])


VALUES = [[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [5.0, 1.0, 0.0]]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("function", [
    alias, view, view_of_the_argument, each_operator, by_a_helper, in_written_out_loop, in_branch,
    in_one_way_of_a_branch, in_nested_branches, in_loop, in_loop_by_an_alias, in_nested_loops,
    elements, methods, lists, tuples, elements_of_lists])
def test_written_as_in_python(function, recorded):
    with tt.set_grad_enabled(recorded):
        for values in VALUES:
            same_as_python(function, tt.tensor(values))


@pytest.mark.parametrize(("function", "arguments"), [
    (bits, ([5, 9],)), (place_of_the_data, ([1.0, 2.0, 3.0], 1)), (place_of_the_data, ([1.0, 2.0, 3.0], -1)),
    (condition_on_what_is_written, ([1.0, 2.0, 3.0],)), (condition_on_what_is_written, ([100.0],))])
def test_other_values(function, arguments):
    same_as_python(function, *map(tt.tensor, arguments))


def test_a_loop_over_a_tensors_range_writes():
    for n in (0, 1, 4):
        x, y = X().clone(), X().clone()
        got = tt.jit.script(in_loop_over_a_tensors_range)(x, tt.tensor(n))
        assert value_of(list(got)) == value_of(list(in_loop_over_a_tensors_range(y, n)))
        assert value_of(x) == value_of(y)


def test_numbers_stay_numbers():
    for x in (X(), -X()):
        got = tt.jit.script(numbers_are_numbers)(x)
        assert [int(v) for v in got] == [int(v) for v in numbers_are_numbers(x)]


class Counter(tt.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", tt.zeros(1))
        self.weight = tt.nn.Parameter(tt.ones(3))

    def forward(self, x):
        self.seen += x.sum()
        if x.sum() > 3:
            self.seen *= 2
        return x * self.seen


def test_attributes_are_written():
    mine, his = Counter(), Counter()
    scripted = tt.jit.script(mine)
    for x in (X(), -X(), X()):
        assert value_of(scripted(x)) == value_of(his(x))
        assert mine.seen.tolist() == his.seen.tolist()


def learned(x, w):
    y = x * w
    y += x
    y[0] *= 2
    if y.sum() > 0:
        z = y * 3
        z -= w
    else:
        z = y * 1
        z += w
    return z.sum()


def learned_across(x, w):
    y = x * w
    if y.sum() > 0:
        y += w
    return (y * y).sum()


@pytest.mark.parametrize("function", [learned, learned_across])
def test_gradients_through_writes(function):
    scripted = tt.jit.script(function)
    for x in (X(), -X()):
        results = []
        for call in (scripted, function):
            w = tt.tensor([2.0, -1.0, 0.5], requires_grad=True)
            call(x, w).backward()
            results.append(w.grad.tolist())
        assert results[0] == results[1]


def leaf(x):
    x += 1
    return x


def no_cast(x):
    x *= 0.5
    return x


def no_growth(x):
    x += tt.ones(2, 3)
    return x


@pytest.mark.parametrize(("function", "x", "text"), [
    (leaf, lambda: tt.ones(3, requires_grad=True), "leaf Variable"),
    (no_cast, lambda: tt.tensor([1, 2]), "can't be cast"), (no_growth, X, "shape")])
def test_errors_of_writes(function, x, text):
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(tt.jit.ScriptError, match=rf"test_script_writes.py:{line}:\d+: script: .*{text}"):
        tt.jit.script(function)(x())


def list_in_branch(x):
    a = [x]
    if x.sum() > 0:
        a += [x]
    return a


def append_in_loop(x):
    a = [x]
    n = x.sum() * 0
    while n < 3:
        a.append(x)
        n = n + 1
    return a


def list_of_the_caller(a, x):
    a += [x]
    return x


KEPT = []


def list_of_the_module(x):
    KEPT.append(x)
    return x


def carried_and_written(x):
    y = x[0:1]
    n = 0
    while n < x.sum() * 0 + 3:
        y += 1
        x = x * 2
        n += 1
    return x, y


def result_of_a_branch(x):
    if x.sum() > 0:
        y = x
    else:
        y = x * 2
    y += 1
    return x, y


def condition_writes(x):
    while x.add_(1).sum() < 10:
        pass
    return x


def item_of_a_list(x):
    a = [1, x]
    a[0] += 1
    return a


@pytest.mark.parametrize(("function", "line", "text"), [
    (list_in_branch, 3, "changes a list from before"), (append_in_loop, 4, "changes a list from before"),
    (list_of_the_module, 1, "changes a list"), (carried_and_written, 3, "memory of another one"),
    (result_of_a_branch, 5, "another variable's tensor"), (condition_writes, 1, "the condition of this loop writes"),
    (item_of_a_list, 2, "only variables and elements of tensors")])
def test_what_is_refused(function, line, text):
    """A construct that a program cannot run as Python does is an error with a place, not another value."""
    first = function.__code__.co_firstlineno + line
    with tt.no_grad(), pytest.raises(tt.jit.ScriptError, match=rf"test_script_writes.py:{first}.*{text}"):
        tt.jit.script(function)(X().clone())
    with tt.no_grad(), pytest.raises(tt.jit.ScriptError, match="changes a list"):
        tt.jit.script(list_of_the_caller)([X()], X())


# ---------------------------------------------------------------- and, or, iterators


def default_number(x, n):
    return x * (n or 3)


def operands(x, y, n):
    return (n and x), (n or y), (0 or n or 5), (1 and n), (None or x)


def guards(x, y):
    if y is not None and y.dim() == 1:
        return x + y
    if y is None or y.dim() == 0:
        return x
    return x * 2


def division(x, n):
    if n > 0 and 10 % n == 0:
        x = x * n
    if n == 0 or 10 % n > 0:
        x = x + 1
    return x


def chained(x, n):
    if 0 < n < 10 // n:
        return x
    return -x


def on_tensors(x, i):
    if i < 3 and x[i] > 1:
        return x * 2
    if not (i < 3) or x[i] < 0:
        return x * 3
    return x * 4


def loop_guard(x):
    i = 0
    while i < 3 and x[i] < 3:
        i += 1
    return i


def value_of_tensors(x, y):
    a = x and y
    b = x or y
    return a, b


def iterators(x):
    total = x * 0
    for i, v in enumerate([1, 2, 3]):
        total = total + i * v
    for a, b in zip([1, 2], (3, 4)):
        total = total + a * b
    for v in reversed([1, 5]):
        total = total * v + 1
    for i, row in enumerate(x.reshape(3, 1)):
        total = total + row * i
    for k, v in {"a": 1, "b": 2}.items():
        total = total + v * len(k)
    return total


def starred(x):
    a, *b = x, 1, 2
    *c, d = (1, 2, 3)
    *e, f = (x,)
    return a, b, c, d, e, f


def test_and_and_or():
    script = tt.jit.script
    for n in (0, 2, 5):
        assert value_of(script(default_number)(X(), n)) == value_of(default_number(X(), n))
        assert value_of(script(operands)(X(), X()[0], n)) == value_of(operands(X(), X()[0], n))
        assert value_of(script(division)(X(), n)) == value_of(division(X(), n))
    for y in (None, X(), X().sum(), tt.ones(1, 3)):
        assert value_of(script(guards)(X(), y)) == value_of(guards(X(), y))
    assert value_of(script(chained)(X(), -1)) == value_of(-X()) and value_of(script(chained)(X(), 2)) == value_of(X())
    with tt.no_grad():
        for i in range(5):  # beyond the end: x[i] must not be read
            at = tt.tensor(i)
            assert value_of(script(on_tensors)(X(), at)) == value_of(on_tensors(X(), i))
        assert script(loop_guard)(X()).item() == 2 and script(loop_guard)(X() / 2).item() == 3
        for a in (0.0, 2.0):
            x, y = tt.tensor(a), tt.tensor(5.0)
            assert value_of(script(value_of_tensors)(x, y)) == value_of(value_of_tensors(x, y))


def test_iterators_and_stars():
    assert value_of(tt.jit.script(iterators)(X())) == value_of(iterators(X()))
    assert value_of(tt.jit.script(starred)(X())) == value_of(starred(X()))


def not_iterable(x):
    for i in 3:
        x = x + i
    return x


def counts(x):
    for i in iter(int, 1):
        x = x + i
    return x


def two_lengths(x):
    if x.sum() > 0:
        return x, 1
    return x, 2


def too_few(x):
    a, *b, c = (x,)
    return a, b, c


@pytest.mark.parametrize(("function", "line", "text"), [
    (not_iterable, 1, "not iterable"), (counts, 1, "rounds of a loop on Python values"),
    (two_lengths, 1, r"give \(a tensor, 1\) and \(a tensor, 2\)"), (too_few, 1, "1 values for 3 names")])
def test_iterators_that_are_refused(function, line, text):
    first = function.__code__.co_firstlineno + line
    with pytest.raises(tt.jit.ScriptError, match=rf"test_script_writes.py:{first}:\d+: script: .*{text}"):
        tt.jit.script(function)(X())
