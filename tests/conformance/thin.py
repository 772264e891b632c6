"""A thin client: a small one, without any rule of the ops, written from docs/wire.md and the protos.

It asks the daemon for the declarations of its ops, counts commands and ids, and keeps frames until
they need not be sent again. A refusal is a late error, which `value()` and `check()` raise.
"""

import os
import re
import struct

from teletensor._conformance.caller import Caller, Refusal
from teletensor._conformance.runner import PROTOCOL, ids_of

FORMATS = {1: "?", 2: "B", 3: "b", 4: "h", 5: "i", 6: "q", 9: "f", 10: "d", 13: "H", 14: "I", 15: "Q"}
FLOAT32 = 9


class LateError(Exception):
    """The failure of command `root`, with its code of google.rpc.Code."""

    def __init__(self, root, code, text):
        self.root, self.code, self.text = root, code, text
        super().__init__(f"command {root}: {text} (code {code})")


def attributes_of(signature):
    """[(name, type)] of the attributes in a signature."""
    inside = signature[signature.index("(") + 1:signature.rindex(") ->")]
    found = []
    for text in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", inside):
        kind, _, rest = text.strip().partition(" ")
        kind = kind.removesuffix("?")
        if kind not in ("Tensor", "Tensor[]", "Operand"):
            found.append((rest.partition("=")[0], kind))
    return found


class Handle(int):
    """A tensor of the session: its id."""


class ThinClient:
    def __init__(self, address, bearer=None, lease=60, **hello):
        self.caller = Caller(address, bearer)
        described = self.caller.unary("Describe", {"declarations": True})
        self.ops = {op["name"]: (number, op) for number, op in enumerate(described["ops"], 1)}
        self.attach, self.instance = 1, os.urandom(16)
        self.hello = self.caller.unary("Hello", {
            "protocol_min": PROTOCOL, "protocol_max": PROTOCOL, "client_version": "thin",
            "instance_id": self.instance, "attach_counter": self.attach, "lease_seconds": lease, "thin": True,
            "ops": [{"name": op["name"], "revision": op["revision"]} for op in described["ops"]], **hello})
        if not self.hello.get("thin"):
            raise RuntimeError("the daemon is too old for thin clients")
        self.metadata = (("teletensor-token", self.hello["token"]),)
        self.epoch = self.hello["server_epoch"]
        self.seq = self.next_id = 1  # of the next command, of the next handle
        self.pending, self.sent = [], []  # commands not yet sent; (last seq, frame) not yet received
        self.first_id = 1  # of the frame that is being gathered
        self.number = self.completed = 0
        self.fetched, self.errors, self.raised = {}, {}, {}
        self.limits = self.hello["limits"]
        self.credit_upto, self.credit_bytes = self.limits["credit_upto"], self.limits["credit_bytes"]
        self.bytes = 0  # of frames, so far
        self.run = self.caller.run(self.metadata)

    def close(self):
        self.run.cut()
        self.caller.unary("Close", {}, self.metadata)
        self.caller.close()

    # ---- commands

    def add(self, command, made=0):
        """Gathers a command, which takes `made` ids. Its number."""
        self.pending.append(command)
        self.seq += 1
        self.next_id += made
        return self.seq - 1

    def distance(self, handle):
        return self.next_id - handle

    def constant(self, values, shape=None, dtype=FLOAT32):
        shape = [len(values)] if shape is None else shape
        data = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        self.add({"constant": {"dtype": dtype, "shape": shape, "data": data}}, 1)
        return Handle(self.next_id - 1)

    def call(self, op, *operands, made=None, record=True, inplace=False, attributes=()):
        """The handles that the op makes. `operands`: handles, numbers, None, and lists of handles.

        `attributes`: those of the start of the signature's list; the others have their defaults.
        """
        number, declared = self.ops[op]
        command = {"op": number, "record": record, "inplace": inplace, "arguments": [], "attributes": [],
                   "integers": [], "reals": [], "texts": [], "counts": []}
        for operand in operands:
            if isinstance(operand, list):
                command["counts"].append(len(operand))
            for each in operand if isinstance(operand, list) else [operand]:
                command["arguments"].append(self.argument(each, command))
        declarations = attributes_of(declared["signature"])
        for (_, kind), value in zip(declarations, attributes, strict=False):
            command["attributes"].append(attribute(kind, value, command))
        if made is None:
            made = 0 if inplace or declared.get("updates") else declared.get("results", 0)
        if made < 0:
            raise TypeError(f"{op}: how many tensors it makes depends on the call; give `made`")
        if made != (0 if inplace else 1):
            command["made"] = made
        first = self.next_id
        self.add({name: value for name, value in command.items() if value or name == "made"}, made)
        return [Handle(first + i) for i in range(made)]

    def op(self, name, *operands, **options):
        """The one tensor that the op makes."""
        return self.call(name, *operands, **options)[0]

    def argument(self, value, command):
        if value is None:
            return 0
        if isinstance(value, Handle):
            return 2 * self.distance(value)
        if isinstance(value, bool):
            return 3 if value else 1
        if isinstance(value, int):
            command["integers"].append(value)
            return 5
        command["reals"].append(float(value))
        return 7

    def require_grad(self, handle):
        self.add({"set_flag": {"what": 0, "handle": self.distance(handle), "on": True}})

    def backward(self, root, inputs):
        """The gradients of `root`, one for each of `inputs`."""
        first = self.next_id
        self.add({"backward": {"roots": [self.distance(root)], "seeds": [0],  # 0: ones
                               "inputs": [self.distance(each) for each in inputs],
                               "has_inputs": True, "made": len(inputs)}}, len(inputs))
        return [Handle(first + i) for i in range(len(inputs))]

    def release(self, handles):
        self.add({"release": {"handles": [self.distance(each) for each in handles]}})

    def forgive(self, root):
        """Raise: what the late error of command `root` has touched has its last good values again."""
        return self.add({"raise": {"root": root}})

    # ---- answers

    def ask(self, handle, **fetch):
        seq = self.add({"fetch": {"handle": self.distance(handle), **fetch}})
        return seq

    def answer(self, seq):
        self.flush()
        while seq not in self.fetched:
            self.read()
        found = self.fetched.pop(seq)
        if found.get("code"):
            raise LateError(found.get("root", 0), found["code"], found.get("text", ""))
        return found

    def value(self, handle):
        """The elements of a small tensor, flat."""
        found = self.answer(self.ask(handle))
        kind = FORMATS[found["dtype"]]
        data = found.get("data", b"")
        return list(struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data))

    def describe(self, handles):
        """Returns dtype, shape and description (device, strides, requires_grad) of each handle, with one message."""
        asked = [self.ask(handle, describe=True) for handle in handles]
        found = [self.answer(seq) for seq in asked]
        return [(each["dtype"], each.get("shape", []), each["description"]) for each in found]

    def finish(self):
        """Returns when everything has run."""
        self.flush()
        while self.completed < self.seq - 1:
            self.read()

    # ---- the stream

    def flush(self):
        """Sends what is gathered, in frames within the limits and the credits."""
        while self.pending:
            commands, first_id = self.pending[:self.limits["max_frame_commands"]], self.first_id
            self.pending = self.pending[len(commands):]
            self.first_id += sum(ids_of(command) for command in commands)
            first = self.seq - len(self.pending) - len(commands)
            last = first + len(commands) - 1
            frame = self.caller.schema.encode("Frame", {
                "first_seq": first, "first_id": first_id, "ack_upto": self.number,
                "attach_counter": self.attach, "commands": commands})
            self.bytes += len(frame)
            while last > self.credit_upto or self.bytes > self.credit_bytes:
                self.read()
            self.sent.append((last, frame))
            self.send(frame)

    def send(self, frame):
        self.run.send(frame)

    def read(self):
        """Takes in the next Progress; a stream that was lost is taken up again."""
        try:
            progress = self.run.read()
        except Refusal as refusal:
            if refusal.code not in ("UNAVAILABLE", "CANCELLED"):
                raise
            progress = None
        if progress is None:
            return self.reattach()
        self.number = max(self.number, progress.get("number", 0))
        self.completed = max(self.completed, progress.get("completed_upto", 0))
        self.credit_upto = max(self.credit_upto, progress.get("credit_upto", 0))
        self.credit_bytes = max(self.credit_bytes, progress.get("credit_bytes", 0))
        self.forget(progress.get("completed_upto", 0))
        for each in progress.get("fetched", ()):
            self.fetched[each["seq"]] = each
        for each in progress.get("errors", ()):
            self.errors[each["root"]] = LateError(each["root"], each["code"], each.get("text", ""))
        for each in progress.get("raised", ()):
            self.raised[each["seq"]] = each.get("rebinds", [])

    def forget(self, upto):
        self.sent = [(last, frame) for last, frame in self.sent if last > upto]

    def reattach(self):
        self.run.cut()
        self.attach += 1
        reply = self.caller.unary("Attach", {
            "instance_id": self.instance, "attach_counter": self.attach, "server_epoch": self.epoch,
            "progress_upto": self.number, "completed_upto": self.completed}, self.metadata)
        self.epoch = reply["server_epoch"]
        self.run = self.caller.run((*self.metadata, ("teletensor-attach", str(self.attach))))
        self.forget(reply.get("received_upto", 0))
        for _, frame in self.sent:
            self.send(frame)


def attribute(kind, value, command):
    """The number of an attribute, whose integers, reals and texts go into the command's pools."""
    if value is None:
        return 0
    if kind == "bool":
        return 1 + 8 * bool(value)
    if kind == "int":
        command["integers"].append(value)
        return 2
    if kind == "float":
        command["reals"].append(value)
        return 3
    if kind == "int[]":
        command["integers"].extend(value)
        return 4 + 8 * len(value)
    if kind == "str":
        command["texts"].append(value)
        return 5
    return (6 if kind == "dtype" else 7) + 8 * value
