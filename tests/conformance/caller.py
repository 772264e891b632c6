"""Calls of the services with the kit's own messages, over grpcio's generic calls."""

import queue

import grpc

from .schema import Schema

COMPUTE, ADMIN = "/teletensor.v1.Compute/", "/teletensor.v1.Admin/"
PATIENCE = 240  # seconds; what has not come by then never will


class Refusal(Exception):
    """A call that ended with a status: `code` by name, `text`, and the word of "teletensor-reason"."""

    def __init__(self, error):
        self.code, self.text = error.code().name, error.details() or ""
        self.reason = dict(error.trailing_metadata() or ()).get("teletensor-reason", "")
        super().__init__(f"{self.code}: {self.text}" + (f" (reason {self.reason})" if self.reason else ""))


def plain(data):
    return data


class Caller:
    """One channel to a daemon: "HOST:PORT" or "unix:/path"; `bearer`: a token of a user."""

    def __init__(self, address, bearer=None):
        self.schema = Schema()
        self.channel = grpc.insecure_channel(address, [
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)])
        self.bearer = (("authorization", f"Bearer {bearer}"),) if bearer else ()

    def close(self):
        self.channel.close()

    def unary(self, name, request=None, metadata=(), service=COMPUTE):
        """The reply of a unary call, a dictionary as the request."""
        call = self.channel.unary_unary(service + name, plain, plain)
        data = self.schema.encode(f"{name}Request" if f"{name}Request" in self.schema.messages else name,
                                  request or {})
        try:
            reply = call(data, metadata=(*self.bearer, *metadata), timeout=PATIENCE)
        except grpc.RpcError as error:
            raise Refusal(error) from None
        return self.schema.decode(f"{name}Reply", reply)

    def upload(self, chunks, metadata):
        """Sends chunks, dictionaries; the reply's number of the upload."""
        call = self.channel.stream_unary(COMPUTE + "Upload", plain, plain)
        data = [self.schema.encode("UploadChunk", chunk) for chunk in chunks]
        try:
            reply = call(iter(data), metadata=(*self.bearer, *metadata), timeout=PATIENCE)
        except grpc.RpcError as error:
            raise Refusal(error) from None
        return self.schema.decode("UploadReply", reply)

    def cut_upload(self, chunks, metadata):
        """An upload whose stream is cancelled behind these chunks, before it is complete."""
        outgoing = queue.SimpleQueue()
        call = self.channel.stream_unary(COMPUTE + "Upload", plain, plain).future(
            iter(outgoing.get, None), metadata=(*self.bearer, *metadata))
        for chunk in chunks:
            outgoing.put(self.schema.encode("UploadChunk", chunk))
        return call, outgoing

    def download(self, request, metadata):
        """All chunks of a download as one dictionary, whose data is that of all."""
        call = self.channel.unary_stream(COMPUTE + "Download", plain, plain)
        whole = {}
        try:
            for data in call(self.schema.encode("DownloadRequest", request),
                             metadata=(*self.bearer, *metadata), timeout=PATIENCE):
                chunk = self.schema.decode("DownloadChunk", data)
                parts = whole.get("data", b"") + chunk.get("data", b"")
                whole = {**chunk, **whole, "data": parts}
        except grpc.RpcError as error:
            raise Refusal(error) from None
        return whole

    def run(self, metadata):
        return Run(self, metadata)


class Run:
    """A Run stream: frames go out as bytes, progress comes in as dictionaries."""

    def __init__(self, caller, metadata):
        self.schema, self.outgoing = caller.schema, queue.SimpleQueue()
        call = caller.channel.stream_stream(COMPUTE + "Run", plain, plain)
        self.call = call(iter(self.outgoing.get, None), metadata=(*caller.bearer, *metadata),
                         timeout=PATIENCE)

    def send(self, frame):
        """A frame: its bytes, or a dictionary."""
        self.outgoing.put(frame if isinstance(frame, bytes) else self.schema.encode("Frame", frame))

    def read(self):
        """The next Progress; Refusal where the server has ended the stream, None where it is over."""
        try:
            return self.schema.decode("Progress", next(self.call))
        except StopIteration:
            return None
        except grpc.RpcError as error:
            raise Refusal(error) from None

    def cut(self):
        self.outgoing.put(None)
        self.call.cancel()
