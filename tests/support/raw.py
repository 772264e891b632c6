"""Clients that use the protocol by hand, with protoc's classes for the project's .proto files, in order to
misbehave."""

import contextlib
import functools
import importlib
import queue
import sys
import tempfile
from pathlib import Path

import grpc
import numpy as np

PROTO = Path(__file__).resolve().parents[2] / "proto/teletensor/v1"
OPS = ("neg", "mul", "sum", "cat", "div", "sgd_step")  # the op with number n in a frame is OPS[n - 1]
SERVICE, ADMIN, STORE = "/teletensor.v1.Compute/", "/teletensor.v1.Admin/", "/teletensor.v1.Store/"


@functools.cache
def messages():
    """(session_pb2, program_pb2, admin_pb2, store_pb2), generated outside the package name `teletensor`."""
    from grpc_tools import protoc

    folder = tempfile.mkdtemp(prefix="tt-proto-")
    package = Path(folder) / "ttwire"
    package.mkdir()
    (package / "__init__.py").touch()
    names = [p.name for p in PROTO.glob("*.proto")]
    for name in names:
        text = (PROTO / name).read_text(encoding="utf-8")
        (package / name).write_text(text.replace("teletensor/v1/", "ttwire/"), encoding="utf-8")
    status = protoc.main(["protoc", f"-I{folder}", f"--python_out={folder}",
                          *[f"ttwire/{name}" for name in names]])
    assert status == 0
    sys.path.append(folder)
    return tuple(importlib.import_module(f"ttwire.{n}_pb2") for n in ("session", "program", "admin", "store"))


def nothing(data):
    return data


def authorization(token):
    """The metadata of a caller with this token."""
    return (("authorization", f"Bearer {token}"),)


class _Authorized(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor,
                  grpc.StreamUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds a token to each call."""

    def __init__(self, token):
        self._metadata = authorization(token)

    def _call(self, go_on, details, request):
        return go_on(details._replace(metadata=(*(details.metadata or ()), *self._metadata)), request)

    intercept_unary_unary = intercept_unary_stream = _call
    intercept_stream_unary = intercept_stream_stream = _call


class Raw:
    """One channel, with a token or without one. Calls take and return protoc's classes, or bytes."""

    def __init__(self, address, *options, token=None):
        self._channel = self.channel = grpc.insecure_channel(address, [
            ("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1), *options])
        if token is not None:
            self.channel = grpc.intercept_channel(self._channel, _Authorized(token))
        self.session_pb, self.program_pb, self.admin_pb, self.store_pb = messages()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        self._channel.close()

    def unary(self, path, request, reply_class, metadata=None):
        call = self.channel.unary_unary(path, nothing, reply_class.FromString)
        return call(request.SerializeToString(), metadata=metadata, timeout=60)

    def hello(self, **fields):
        pb = self.session_pb
        request = pb.HelloRequest(protocol_min=2, protocol_max=2, client_version="test",
                                  instance_id=b"0123456789abcdef", attach_counter=1,
                                  ops=[pb.Op(name=n, revision=1) for n in fields.pop("ops", OPS)])
        for name, value in fields.items():
            setattr(request, name, value)
        return self.unary(SERVICE + "Hello", request, pb.HelloReply)

    def describe(self):
        return self.unary(SERVICE + "Describe", self.session_pb.DescribeRequest(),
                          self.session_pb.DescribeReply)

    def used(self):
        """The bytes that all sessions use, by device."""
        reply = self.unary(ADMIN + "Memory", self.admin_pb.MemoryRequest(), self.admin_pb.MemoryReply)
        return {d.device: d.used for d in reply.devices}

    def sessions(self):
        return self.unary(ADMIN + "Sessions", self.admin_pb.SessionsRequest(),
                          self.admin_pb.SessionsReply).sessions

    def kill(self, session):
        """Ends the session with this id."""
        self.unary(ADMIN + "Kill", self.admin_pb.KillRequest(session=session), self.admin_pb.KillReply)

    def session(self, **hello):
        return RawSession(self, self.hello(**hello))

    def upload(self, token, chunks):
        """Uploads chunks, which are UploadChunk fields or bytes. Returns the reply, or grpc.RpcError."""
        pb = self.session_pb
        call = self.channel.stream_unary(SERVICE + "Upload", nothing, pb.UploadReply.FromString)
        data = [c if isinstance(c, bytes) else pb.UploadChunk(**c).SerializeToString() for c in chunks]
        return call(iter(data), metadata=metadata(token), timeout=60)

    def download(self, token, seq, offset=0):
        pb = self.session_pb
        call = self.channel.unary_stream(SERVICE + "Download", nothing, pb.DownloadChunk.FromString)
        request = pb.DownloadRequest(seq=seq, offset=offset).SerializeToString()
        return call(request, metadata=metadata(token), timeout=60)


def metadata(token):
    return (("teletensor-token", token),)


class RawSession:
    """A session with its Run stream, or without one (`stream`). Frames are counted as by a correct client."""

    def __init__(self, raw, reply, stream=True):
        self.raw, self.reply, self.token = raw, reply, reply.token
        self.seq = self.next_id = 1
        self.attaches = 1
        if stream:
            self.stream()

    def stream(self, attach=None):
        """Opens a Run stream, which replaces the previous one."""
        self._outgoing = outgoing = queue.SimpleQueue()
        run = self.raw.channel.stream_stream(SERVICE + "Run", nothing,
                                             self.raw.session_pb.Progress.FromString)
        more = () if attach is None else (("teletensor-attach", str(attach)),)
        self.call = run(iter(outgoing.get, None), metadata=metadata(self.token) + more)

    def cut(self):
        """Cuts the stream without notifying the session."""
        self._outgoing.put(None)
        self.call.cancel()

    def attach(self, attach=None, progress_upto=0, instance=b"0123456789abcdef", epoch=None):
        """Calls Attach; returns the reply, or grpc.RpcError. The existing stream is fenced."""
        pb = self.raw.session_pb
        self.attaches = attach or self.attaches + 1
        return self.raw.unary(SERVICE + "Attach", pb.AttachRequest(
            instance_id=instance, attach_counter=self.attaches, progress_upto=progress_upto,
            server_epoch=self.reply.server_epoch if epoch is None else epoch),
            pb.AttachReply, metadata(self.token))

    def resume(self, **attach):
        """Calls Attach and opens a new stream."""
        reply = self.attach(**attach)
        self.stream(self.attaches)
        return reply

    def end(self):
        """Ends the session by Close."""
        pb = self.raw.session_pb
        self.raw.unary(SERVICE + "Close", pb.CloseRequest(), pb.CloseReply, metadata(self.token))

    def command(self, **fields):
        return self.raw.program_pb.Command(**fields)

    def constant(self, values, **fields):
        """A constant, of float32 unless `fields` say otherwise."""
        array = np.asarray(values, np.float32)
        pb = self.raw.program_pb
        return self.command(constant=pb.Constant(**{
            "dtype": "DTYPE_FLOAT32", "shape": array.shape, "data": array.tobytes(), **fields}))

    def fetch(self, handle, bulk=False):
        """A Fetch of the handle with this id, which is counted from the next id at its own position."""
        pb = self.raw.program_pb
        return lambda next_id: self.command(fetch=pb.Fetch(handle=next_id - handle, bulk=bulk))

    def frame(self, *commands, **fields):
        """Sends a frame that follows the last one; callables among the commands get the next id at their
        position."""
        built, next_id = [], self.next_id
        for c in commands:
            c = c(next_id) if callable(c) else c
            built.append(c)
            kind = c.WhichOneof("other")
            next_id += c.made if c.HasField("made") else int(kind in ("constant", "uploaded", "saved") or
                                                             kind is None and not c.inplace)
        frame = self.raw.session_pb.Frame(**{
            "first_seq": self.seq, "first_id": self.next_id, "attach_counter": 1, "commands": built,
            **fields})
        self.seq, self.next_id = self.seq + len(built), next_id
        return frame.SerializeToString()

    def send(self, frame):
        self._outgoing.put(frame)

    def run(self, *commands, **fields):
        self.send(self.frame(*commands, **fields))

    def progress(self):
        """The next progress message; grpc.RpcError if the server has ended the stream."""
        return next(self.call)

    def fetched(self):
        """The next fetched value."""
        while True:
            message = self.progress()
            if message.fetched:
                return message.fetched[0]

    def refusal(self):
        """The status with which the server ends the stream."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return error.code(), error.details()
        return self.call.code(), self.call.details()

    def close(self):
        with contextlib.suppress(grpc.RpcError):
            self._outgoing.put(None)
            self.call.cancel()
