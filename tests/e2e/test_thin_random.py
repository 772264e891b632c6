"""Random commands of thin clients: whatever they say, their session and the daemon continue."""

import random

import pytest
from conformance.calls import GUESSES, operands_of
from conformance.thin import Handle, LateError, ThinClient, attributes_of
from support.daemon import Daemon, wait_until
from support.raw import Raw

BOOL, INT64 = 1, 6
STEPS = 400


class Random:
    """Makes commands about tensors of all kinds, of which some have failed and some never were."""

    def __init__(self, client, seed):
        self.client, self.random = client, random.Random(seed)
        self.handles = [client.constant([self.random.uniform(-2, 2) for _ in range(count)], shape)
                        for count, shape in ((9, [3, 3]), (3, [3]), (1, []), (6, [2, 3]))]
        for handle in self.handles:
            client.require_grad(handle)
        self.handles += [client.constant([1, 0, 2], [3], INT64), client.constant([True, False, True], [3], BOOL)]
        self.kept = len(self.handles)

    def handle(self):
        if self.random.random() < 0.95:
            return self.random.choice(self.handles)
        return Handle(self.random.randrange(1, self.client.next_id))

    def distance(self):
        if self.random.random() < 0.02:
            return self.random.randrange(1 << 40)
        return self.client.distance(self.handle())

    def operand(self):
        return self.handle() if self.random.random() < 0.9 else self.random.choice([None, 1, 2.5, True])

    def call(self):
        name = self.random.choice(list(self.client.ops))
        declared = self.client.ops[name][1]
        operands = [[self.handle() for _ in each] if isinstance(each, list) else self.operand()
                    for each in operands_of(declared["signature"], None)]
        attributes = [self.random.randrange(-2, 4) if kind == "int" else self.random.choice([GUESSES[kind], None])
                      for _, kind in attributes_of(declared["signature"])]
        inplace = self.random.random() < 0.25
        made = 0 if inplace or declared.get("updates") else abs(declared.get("results", 0))
        if self.random.random() < 0.1:
            made = self.random.randrange(4)
        if self.random.random() < 0.1:
            operands = operands[:-1]
        if self.random.random() < 0.5:
            attributes = attributes[:self.random.randrange(len(attributes) + 1)]
        self.handles += self.client.call(name, *operands, attributes=attributes, made=made, inplace=inplace)

    def backward(self):
        inputs = [self.distance() for _ in range(self.random.randrange(3))]
        made = len(inputs) if self.random.random() < 0.8 else self.random.randrange(4)
        first = self.client.next_id
        self.client.add({"backward": {
            "roots": [self.distance()], "seeds": [0], "inputs": inputs, "has_inputs": bool(inputs), "made": made,
            "retain_graph": self.random.random() < 0.7}}, made)
        self.handles += [Handle(first + i) for i in range(made)]

    def other(self):
        number = self.random.randrange
        self.client.add(*self.random.choice([
            ({"set_flag": {"what": number(3), "handle": self.distance(), "on": number(2) == 1}}, 0),
            ({"set_grad": {"handle": self.distance(), "grad": self.distance()}}, 0),
            ({"set_data": {"handle": self.distance(), "other": self.distance()}}, 0),
            ({"saved": {"node": number(self.client.seq), "slot": self.random.choice([0, 1, 256])}}, 1),
            ({"forget": {"node": number(self.client.seq)}}, 0),
            ({"keep": {"name": f"k{number(3)}", "handle": self.distance()}}, 0),
            ({"uploaded": {"dtype": 9, "shape": [2], "upload": number(5)}}, 1),
            ({"publish": {"name": "random", "handle": self.distance(), "writable": number(2) == 1}}, 0),
            ({"undefine": {"program": number(3)}}, 0),
            ({"raise": {"root": next(iter(self.client.errors), number(self.client.seq))}}, 0),
            ({"release": {"handles": [self.distance()]}}, 0),
        ]))

    def look(self):
        """Values and descriptions of the last tensors: an answer for each."""
        asked = [self.client.ask(handle, **self.random.choice([{}, {"describe": True}]))
                 for handle in self.handles[-5:]]
        for seq in asked:
            try:
                self.client.answer(seq)
            except LateError as error:
                assert error.code and error.root, error
        self.client.finish()

    def step(self, number):
        self.random.choices([self.call, self.backward, self.other], [7, 1, 2])[0]()
        if number % 20 == 0:
            self.look()
            del self.handles[self.kept:-40]


@pytest.fixture(scope="module")
def daemon():
    running = Daemon("--session-memory", "64MiB")
    yield running
    problem = running.stop()
    assert not problem, problem


@pytest.mark.parametrize("seed", range(12))
def test_random_commands(daemon, seed):
    client = ThinClient(daemon.unix)
    commands = Random(client, seed)
    for number in range(STEPS):
        commands.step(number)
    commands.look()
    assert client.value(client.op("neg", client.constant([1.5]))) == [-1.5]
    client.close()
    with Raw(daemon.unix) as raw:
        wait_until(lambda: not any(raw.used().values()), what="memory of the session back at 0")
