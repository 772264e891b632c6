"""Captured functions notice what they read from Python by other ways than a plain attribute or item: methods
behind super(), the class of an object, defaults of functions, the order of a dict, names in text."""

import operator
import types
from collections import OrderedDict

import numpy as np
import pytest
import teletensor as tt

CASES = {}
G = 2.0


def case(make):
    CASES[make.__name__] = make
    return make


def put(owner, name, value):
    return lambda: setattr(owner, name, value)


@case
def a_method_behind_super():
    class Parent:
        def f(self, x):
            return x

    class Child(Parent):
        def f(self, x):
            return super().f(x) * 2

    return lambda x: Child().f(x), [put(Parent, "f", lambda self, x: x * 13)]


@case
def a_method_of_a_class_between():
    class Top:
        def f(self, x):
            return x

    class Left(Top):
        pass

    class Right(Top):
        def f(self, x):
            return super().f(x) + 1

    class Both(Left, Right):
        def f(self, x):
            return super().f(x) * 2

    return lambda x: Both().f(x), [put(Right, "f", lambda self, x: x * 5), put(Top, "f", lambda self, x: x * 3),
                                   put(Left, "f", lambda self, x: x * 7)]


@case
def the_forward_of_a_base_of_modules():
    class Base(tt.nn.Module):
        def forward(self, x):
            return x * 3

    class Net(Base):
        def forward(self, x):
            return super().forward(x) + 1

    return Net(), [put(Base, "forward", lambda self, x: x * 11)]


@case
def a_class_method_behind_super():
    class Parent:
        @classmethod
        def scale(cls):
            return 2.0

    class Child(Parent):
        @classmethod
        def scale(cls):
            return super().scale() + 1

    return lambda x: x * Child.scale(), [put(Parent, "scale", classmethod(lambda cls: 9.0))]


class First:
    k = 2.0

    def f(self, x):
        return x * self.k


class Second:
    k = 5.0

    def f(self, x):
        return x * self.k


@case
def the_class_of_an_object():
    it = First()
    return lambda x: it.f(x), [put(it, "__class__", Second), put(it, "__class__", First)]


@case
def isinstance_of_an_object():
    it = First()
    return (lambda x: x * 2 if isinstance(it, First) else x * 3), [put(it, "__class__", Second)]


@case
def the_type_of_an_object():
    it = First()
    return lambda x: x * len(type(it).__name__), [put(it, "__class__", Second)]


@case
def dunder_class_of_an_object():
    it = First()
    return lambda x: x * len(it.__class__.__name__), [put(it, "__class__", Second)]


@case
def the_class_of_a_module():
    class Other(tt.nn.Tanh):
        def forward(self, x):
            return x * 17

    m = tt.nn.Tanh()
    return lambda x: m(x), [put(m, "__class__", Other)]


@case
def an_attribute_of_a_metaclass():
    class Meta(type):
        K = 2.0

    class Made(metaclass=Meta):
        pass

    return lambda x: x * Made.K, [put(Meta, "K", 3.0)]


def _defaults():
    def helper(x, k=2.0, *, n=3.0):
        return x * k + n

    return helper


@case
def defaults_of_a_helper():
    helper = _defaults()
    return lambda x: helper(x), [put(helper, "__defaults__", (7.0,)), put(helper, "__kwdefaults__", {"n": 9.0}),
                                 put(helper, "__code__", (lambda x, k, *, n: x - k - n).__code__)]


@case
def defaults_of_the_function_itself():
    helper = _defaults()
    return helper, [put(helper, "__defaults__", (7.0,)), put(helper, "__kwdefaults__", {"n": 9.0}),
                    put(helper, "__code__", (lambda x, k, *, n: x - k - n).__code__)]


@case
def defaults_of_a_method():
    class Owner:
        def f(self, x, k=2.0):
            return x * k

    it = Owner()
    return lambda x: it.f(x), [put(Owner.f, "__defaults__", (5.0,))]


def objects():
    return [types.SimpleNamespace(a=1.0), types.SimpleNamespace(a=2.0)]


@case
def max_by_attrgetter():
    them = objects()
    return lambda x: x * max(them, key=operator.attrgetter("a")).a, [put(them[0], "a", 3.0), put(them[0], "a", 0.5)]


@case
def map_of_attrgetter():
    them = objects()
    return lambda x: x * sum(map(operator.attrgetter("a"), them)), [put(them[0], "a", 3.0)]


@case
def sorted_by_attrgetter_of_a_path():
    them = [types.SimpleNamespace(b=each) for each in objects()]
    return (lambda x: x * sorted(them, key=operator.attrgetter("b.a"))[0].b.a), [put(them[0].b, "a", 3.0)]


@case
def the_text_of_an_object():
    it = types.SimpleNamespace(a=1.0)
    return lambda x: x * len(repr(it)), [put(it, "a", 1.125)]


@case
def the_text_of_an_object_in_a_format():
    it = types.SimpleNamespace(a=1.0)
    return lambda x: x * len(f"{it}") + len(str(it)), [put(it, "a", 1.125)]


@case
def the_order_of_a_dict():
    d = {"a": 2.0, "b": 3.0}
    return lambda x: x * list(d.values())[0], [lambda: d.__setitem__("a", d.pop("a"))]


@case
def the_order_of_an_iterated_dict():
    d = {"a": 2.0, "b": 3.0}

    def function(x):
        for name in d:
            x = x * 2 + d[name]
        return x

    return function, [lambda: d.__setitem__("a", d.pop("a"))]


@case
def the_order_of_an_ordered_dict():
    d = OrderedDict(a=2.0, b=3.0)
    return lambda x: x * next(iter(list(d.values()))), [lambda: d.move_to_end("a"), lambda: d.move_to_end("a")]


@case
def the_order_of_keywords():
    d = {"a": 2.0, "b": 3.0}

    def of(**given):
        return list(given.values())[0]

    return lambda x: x * of(**d), [lambda: d.__setitem__("a", d.pop("a"))]


@case
def a_mapping_proxy():
    d = {"a": 4.0}
    proxy = types.MappingProxyType(d)
    return lambda x: x * proxy["a"], [lambda: d.__setitem__("a", 18.0)]


@case
def a_method_of_a_mapping_proxy():
    d = {"a": 4.0}
    proxy = types.MappingProxyType(d)
    return (lambda x: x * proxy.get("a") * sum(proxy.values()) * len(proxy)), [
        lambda: d.__setitem__("a", 18.0), lambda: d.__setitem__("b", 2.0)]


@case
def a_global_by_globals():
    return lambda x: x * globals()["G"], [lambda: globals().__setitem__("G", 3.0),
                                          lambda: globals().__setitem__("G", 2.0)]


@case
def a_global_by_eval():
    return lambda x: x * eval("G"), [lambda: globals().__setitem__("G", 3.0),
                                     lambda: globals().__setitem__("G", 2.0)]


@case
def an_object_in_an_array():
    array = np.array([types.SimpleNamespace(a=2.0)], dtype=object)
    return lambda x: x * array[0].a, [put(array[0], "a", 3.0),
                                      lambda: array.__setitem__(0, types.SimpleNamespace(a=5.0))]


@pytest.mark.parametrize("name", CASES)
def test_what_is_replaced_is_seen(name):
    function, changes = CASES[name]()
    compiled, x = tt.compile(function), tt.full((2,), 2.0)
    for change in (lambda: None, lambda: None, *changes):
        change()
        for _ in range(2):
            assert compiled(x).tolist() == function(x).tolist()
    calls = compiled._entries
    for _ in range(3):
        compiled(x)
    assert compiled._entries == calls  # nothing changes, nothing is captured


def test_names_in_the_body_of_a_class():
    def function(x):
        class Local:
            k = G
            double = k * 2

        return x * Local.double

    compiled, x = tt.compile(function), tt.ones(2)
    for value in (2.0, 3.0, 2.0):
        globals()["G"] = value
        assert compiled(x).tolist() == function(x).tolist() == [value * 2] * 2
