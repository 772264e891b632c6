"""A client in pure Python: asyncio, grpclib, and protoc's messages. It was written from docs/wire.md and docs/ops.json.

It shares no code with the project's clients and with the kit. It opens a thin session (docs/wire.md, "Thin clients"):
methods that issue commands wait for nothing, and a wrong call fails when a value that depends on it is read. A lost
connection is attached again, and what had not arrived is sent again.
"""

import asyncio
import contextlib
import json
import math
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from support.raw import messages

SESSION, PROGRAM, _, _ = messages()
OPS = json.loads((Path(__file__).resolve().parents[2] / "docs/ops.json").read_text(encoding="utf-8"))["ops"]
NUMBERS = {op["name"]: number for number, op in enumerate(OPS, 1)}  # of the client's table
PROTOCOL, PATIENCE, GATHER = 2, 60, 64
FORMATS = {1: "?", 2: "B", 3: "b", 4: "h", 5: "i", 6: "q", 9: "f", 10: "d", 13: "H", 14: "I", 15: "Q"}
FLOAT32 = 9
# Reasons after which a call is tried again, and what grpclib raises for a lost connection; also for a stream that the
# daemon has ended and the client has not, whose status it does not read.
PASSING = ("restart", "arriving", "resting", "streams")
LOST = (StreamTerminatedError, ProtocolError, ConnectionError, OSError, asyncio.TimeoutError)


class Refusal(Exception):
    """A call that ended with a status; `reason` is a word of docs/wire.md, or ""."""

    def __init__(self, status, text, reason):
        self.status, self.text, self.reason = status, text, reason
        super().__init__(f"{status.name}: {text} (reason {reason!r})")

    @property
    def passes(self):
        """Whether another attempt may succeed."""
        return self.status in (Status.UNAVAILABLE, Status.CANCELLED) or self.reason in PASSING


class LateError(Exception):
    """The failure of command `root`, with its code of google.rpc.Code."""

    def __init__(self, root, code, text):
        self.root, self.code, self.text = root, code, text
        super().__init__(f"command {root}: {text} (code {code})")


@dataclass(frozen=True)
class Tensor:
    """A handle of a tensor in the session of its client."""

    id: int


class Link:
    """The connection to a daemon at "host:port" or "unix:/path", without TLS."""

    def __init__(self, address, bearer=None):
        if address.startswith("unix:"):
            self.channel = Channel(path=address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            self.channel = Channel(host, int(port))
        self.metadata = {"authorization": f"Bearer {bearer}"} if bearer else {}

    def open(self, name, cardinality, request, reply, **metadata):
        """The stream of a call, for `async with`. Metadata names have `_` for `-`."""
        more = {key.replace("_", "-"): str(value) for key, value in metadata.items()}
        return self.channel.request(f"/teletensor.v1.Compute/{name}", cardinality, request, reply,
                                    timeout=None if name == "Run" else PATIENCE, metadata={**self.metadata, **more})

    async def unary(self, name, request):
        """The reply of a call with one message."""
        reply = getattr(SESSION, f"{name}Reply")
        async with self.refusals(self.open(name, Cardinality.UNARY_UNARY, type(request), reply)) as stream:
            await stream.send_message(request, end=True)
            return await stream.recv_message()

    @contextlib.asynccontextmanager
    async def refusals(self, call):
        """The call's stream; a status becomes a Refusal with its reason."""
        stream = None
        try:
            async with call as stream:
                yield stream
        except GRPCError as error:
            reason = (stream.trailing_metadata or {}).get("teletensor-reason", "") if stream else ""
            raise Refusal(error.status, error.message or "", reason) from None


class Client:
    """A session of a daemon, for one task. `await Client.open(...)`, then methods, then `await close()`."""

    @classmethod
    async def open(cls, address, bearer=None, lease=60):
        """Connects and opens a session that outlives its connection by `lease` seconds."""
        self = cls()
        self.link = Link(address, bearer)
        self.instance, self.attach = os.urandom(16), 1
        hello = await self.link.unary("Hello", SESSION.HelloRequest(
            protocol_min=PROTOCOL, protocol_max=PROTOCOL, client_version="pure", instance_id=self.instance,
            attach_counter=self.attach, lease_seconds=lease, thin=True,
            ops=[{"name": op["name"], "revision": op["revision"]} for op in OPS]))
        if not hello.thin:
            raise RuntimeError("the daemon is too old for thin clients")
        self.link.metadata["teletensor-token"] = hello.token
        self.epoch, self.lease, self.limits = hello.server_epoch, hello.lease_seconds, hello.limits
        self.credit_upto, self.credit_bytes = hello.limits.credit_upto, hello.limits.credit_bytes
        self.seq = self.next_id = 1  # of the next command, of the next handle
        self.pending, self.first_id = [], 1  # commands that are not sent; id before them
        self.sent, self.bytes = [], 0  # (last command, frame) that may have to be sent again
        self.number = self.completed = self.uploads = 0
        self.fetched, self.errors, self.recording = {}, {}, True
        await self.run()
        return self

    async def close(self):
        """Ends the session."""
        await self.cut()
        await self.link.unary("Close", SESSION.CloseRequest())
        self.link.channel.close()

    # ---- commands

    def add(self, made=0, command=None, **fields):
        """Gathers a command that makes handles, and returns its number and the handles."""
        self.pending.append(command or PROGRAM.Command(**fields))
        first = self.next_id
        self.seq += 1
        self.next_id += made
        return self.seq - 1, [Tensor(first + place) for place in range(made)]

    def distance(self, tensor):
        return self.next_id - tensor.id if tensor else 0

    async def tensor(self, values, shape=None, dtype=FLOAT32):
        """A tensor of these elements on the daemon's host; without a shape it has one dimension."""
        data = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        shape = [len(values)] if shape is None else shape
        if len(data) <= self.limits.inline_bytes:
            command = {"constant": {"dtype": dtype, "shape": shape, "data": data}}
        else:
            command = {"uploaded": {"dtype": dtype, "shape": shape, "upload": await self.upload(data)}}
        return self.add(1, **command)[1][0]

    def call(self, op, *operands, made=1, **attributes):
        """The handles that an op makes. Operands: tensors, numbers, None, and lists of tensors."""
        declared = OPS[NUMBERS[op] - 1]
        made = 0 if declared["updates"] else made
        command = PROGRAM.Command(op=NUMBERS[op], record=self.recording)
        for operand in operands:
            if isinstance(operand, list):
                command.counts.append(len(operand))
            for each in operand if isinstance(operand, list) else [operand]:
                command.arguments.append(self.argument(each, command))
        names = [each["name"] for each in declared["attributes"]]
        last = max((names.index(name) + 1 for name in attributes), default=0)  # those behind it have their defaults
        for each in declared["attributes"][:last]:
            value = attributes.get(each["name"], each.get("default"))
            command.attributes.append(attribute(each["type"], value, command))
        if made != 1:
            command.made = made
        return self.add(made, command)[1]

    def op(self, name, *operands, **attributes):
        """The one tensor that an op makes."""
        return self.call(name, *operands, **attributes)[0]

    def argument(self, value, command):
        if value is None or isinstance(value, Tensor):
            return 2 * self.distance(value)
        if isinstance(value, bool):
            return 3 if value else 1
        if isinstance(value, int):
            command.integers.append(value)
            return 5
        command.reals.append(value)
        return 7

    def require_grad(self, tensor):
        """Says that gradients with respect to the tensor are wanted."""
        self.add(set_flag={"handle": self.distance(tensor), "on": True})

    def gradients(self, root, inputs, seed=None):
        """The gradients of `root`, one for each input; without a seed the gradient of the root is ones."""
        return self.add(len(inputs), backward={
            "roots": [self.distance(root)], "seeds": [self.distance(seed)], "has_inputs": True,
            "inputs": [self.distance(each) for each in inputs], "made": len(inputs)})[1]

    @contextlib.contextmanager
    def no_grad(self):
        """Ops inside are not recorded for gradients."""
        before, self.recording = self.recording, False
        try:
            yield
        finally:
            self.recording = before

    def release(self, tensors):
        """Frees tensors, which must not be used afterwards."""
        self.add(release={"handles": [self.distance(each) for each in tensors]})

    def forgive(self, failure):
        """Acknowledges a LateError: what the failed commands wrote in place has its last good values again."""
        self.add(**{"raise": {"root": failure.root}})

    # ---- answers

    async def fetch(self, tensor, **options):
        seq, _ = self.add(fetch={"handle": self.distance(tensor), **options})
        await self.flush()
        while seq not in self.fetched:
            await self.read()
        found = self.fetched.pop(seq)
        if found.code:
            raise LateError(found.root, found.code, found.text)
        return found

    async def describe(self, tensor):
        """The dtype and the shape of a tensor, without its elements."""
        found = await self.fetch(tensor, describe=True)
        return found.dtype, list(found.shape)

    async def value(self, tensor):
        """The elements of a tensor in row-major order; raises LateError."""
        dtype, shape = await self.describe(tensor)
        kind, count = FORMATS[dtype], math.prod(shape)
        if struct.calcsize(kind) * count <= self.limits.inline_bytes:
            data = (await self.fetch(tensor)).data
        else:
            data = await self.download(tensor)
        return list(struct.unpack(f"<{count}{kind}", data))

    async def finish(self):
        """Returns when all commands have run; raises the first LateError that was not raised by it before."""
        await self.wait(self.seq - 1)
        failures = sorted(root for root, error in self.errors.items() if error is not None)
        if failures:
            error, self.errors[failures[0]] = self.errors[failures[0]], None
            raise error

    async def wait(self, upto):
        await self.flush()
        while self.completed < upto:
            await self.read()

    # ---- the stream

    async def run(self):
        """Opens Run of the present attach."""
        call = self.link.open("Run", Cardinality.STREAM_STREAM, SESSION.Frame, SESSION.Progress,
                              teletensor_attach=self.attach)
        self.running = self.link.refusals(call)
        self.stream = await self.running.__aenter__()
        await self.stream.send_request()

    async def cut(self):
        """Ends Run, as the loss of a connection does."""
        with contextlib.suppress(*LOST, Refusal, GRPCError, RuntimeError, asyncio.CancelledError):
            await self.stream.cancel()
        with contextlib.suppress(*LOST, Refusal, GRPCError, RuntimeError, asyncio.CancelledError):
            await self.running.__aexit__(None, None, None)

    async def flush(self):
        """Sends what is gathered, in frames within the limits, as the credits allow."""
        while self.pending:
            commands, weight = [], 0
            while self.pending and len(commands) < GATHER:
                weight += self.pending[0].ByteSize() + 8 + ids_of(self.pending[0])
                if commands and weight > min(self.limits.max_frame_items, self.limits.max_frame_bytes // 2):
                    break
                commands.append(self.pending.pop(0))
            last = self.seq - len(self.pending) - 1
            frame = SESSION.Frame(first_seq=last - len(commands) + 1, first_id=self.first_id, ack_upto=self.number,
                                  attach_counter=self.attach, commands=commands)
            self.first_id += sum(ids_of(command) for command in commands)
            self.bytes += frame.ByteSize()
            while last > self.credit_upto or self.bytes > self.credit_bytes:
                await self.read()
            self.sent.append((last, frame))
            with contextlib.suppress(*LOST, GRPCError, Refusal):  # which `read` is told of
                await self.stream.send_message(frame)

    async def read(self):
        """Takes in the next Progress. A lost connection is attached again."""
        try:
            progress = await self.stream.recv_message()
            if progress is None:
                raise ConnectionError("Run has ended")
        except GRPCError as error:
            reason = (self.stream.trailing_metadata or {}).get("teletensor-reason", "")
            refusal = Refusal(error.status, error.message or "", reason)
            if not refusal.passes:
                raise refusal from None
            return await self.reattach()
        except LOST:  # or the daemon has ended the session, which Attach tells
            return await self.reattach()
        for name in ("number", "credit_upto", "credit_bytes"):
            setattr(self, name, max(getattr(self, name), getattr(progress, name)))
        self.completed = max(self.completed, progress.completed_upto)
        self.forget(self.completed)
        for each in progress.fetched:
            self.fetched[each.seq] = each
        for each in progress.errors:
            self.errors.setdefault(each.root, LateError(each.root, each.code, each.text))
        return None

    def forget(self, upto):
        """Drops frames that need not be sent again."""
        self.sent = [(last, frame) for last, frame in self.sent if last > upto]

    async def again(self, attempt):
        """Repeats an attempt until it succeeds, is refused for good, or the lease is over."""
        end, pause = time.monotonic() + self.lease, 0.01
        while True:
            try:
                return await attempt()
            except (*LOST, Refusal) as error:
                if isinstance(error, Refusal) and not error.passes or time.monotonic() + pause > end:
                    raise
            await asyncio.sleep(pause)
            pause *= 1.5

    async def reattach(self):
        """Attaches to the session on a new connection, and sends again what has not arrived."""
        async def attempt():
            await self.cut()
            self.attach += 1
            reply = await self.link.unary("Attach", SESSION.AttachRequest(
                instance_id=self.instance, attach_counter=self.attach, server_epoch=self.epoch,
                progress_upto=self.number, completed_upto=self.completed, uploads=self.uploads))
            self.epoch = reply.server_epoch
            await self.run()
            self.forget(reply.received_upto)
            for _, frame in self.sent:
                await self.stream.send_message(frame)
        await self.again(attempt)

    # ---- transfers

    async def upload(self, data):
        """Sends the bytes of a tensor; its number for the command Uploaded. A cut upload is continued."""
        self.uploads += 1
        key, started = self.uploads, False

        async def attempt():
            nonlocal started
            staged = await self.link.unary("Staged", SESSION.StagedRequest(key=key)) if started else None
            started = True
            if staged and staged.upload:
                return staged.upload
            begin = staged.received if staged else 0
            call = self.link.open("Upload", Cardinality.STREAM_UNARY, SESSION.UploadChunk, SESSION.UploadReply,
                                  teletensor_upload=key)
            size = self.limits.max_chunk_bytes
            async with self.link.refusals(call) as stream:
                for at in range(begin, max(len(data), begin + 1), size):
                    await stream.send_message(SESSION.UploadChunk(
                        bytes=len(data) if at == begin else 0, offset=at, data=data[at:at + size]),
                        end=at + size >= len(data))
                return (await stream.recv_message()).upload
        return await self.again(attempt)

    async def download(self, tensor):
        """The bytes of a tensor of any size. A cut download is continued."""
        seq, _ = self.add(fetch={"handle": self.distance(tensor), "bulk": True})
        await self.wait(seq)
        data, total = bytearray(), None

        async def attempt():
            nonlocal total
            call = self.link.open("Download", Cardinality.UNARY_STREAM, SESSION.DownloadRequest, SESSION.DownloadChunk)
            async with self.link.refusals(call) as stream:
                await stream.send_message(SESSION.DownloadRequest(seq=seq, offset=len(data)), end=True)
                async for chunk in stream:
                    total = chunk.bytes or total
                    if chunk.offset != len(data):
                        raise ValueError(f"a download continued at byte {chunk.offset}, not {len(data)}")
                    data.extend(chunk.data)
            if len(data) != total:
                raise ConnectionError("a download ended early")
        await self.again(attempt)
        self.add(taken={"fetch": seq})
        return bytes(data)


def ids_of(command):
    """How many ids a command takes."""
    if command.HasField("made"):
        return command.made
    kind = command.WhichOneof("other")
    if kind is None:
        return 0 if command.inplace else 1
    return command.backward.made if kind == "backward" else int(kind in ("constant", "uploaded"))


def attribute(kind, value, command):
    """The number of an attribute, whose integers, reals and texts go into the command's pools."""
    if value is None:
        return 0
    if kind == "bool":
        return 1 + 8 * bool(value)
    if kind == "int":
        command.integers.append(value)
        return 2
    if kind == "float":
        command.reals.append(value)
        return 3
    if kind == "int[]":
        command.integers.extend(value)
        return 4 + 8 * len(value)
    if kind == "str":
        command.texts.append(value)
        return 5
    return (6 if kind == "dtype" else 7) + 8 * value
