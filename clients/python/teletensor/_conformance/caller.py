"""Calls of the services with the kit's own messages, over grpcio's generic calls."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from .._connection.credentials import credentials_of
from .schema import Schema

__all__ = ["ADMIN", "COMPUTE", "Caller", "Refusal", "Run", "plain"]

COMPUTE, ADMIN = "/teletensor.v1.Compute/", "/teletensor.v1.Admin/"
Metadata = Sequence[tuple[str, str]]
Values = dict[str, Any]  # a message


class Refusal(Exception):
    """A call that ended with a status: `code` by name, `text`, and the word of "teletensor-reason"."""

    def __init__(self, error: grpc.RpcError) -> None:
        self.code: str = error.code().name
        self.text: str = error.details() or ""
        self.reason = str(dict(error.trailing_metadata() or ()).get("teletensor-reason", ""))
        super().__init__(f"{self.code}: {self.text}" + (f" (reason {self.reason})" if self.reason else ""))


def plain(data: bytes) -> bytes:
    """The serializer of generic calls."""
    return data


class Caller:
    """One channel to a daemon. `bearer`: a token of a user; the default is that of the environment.

    A call that has no answer after `patience` seconds fails.
    """

    def __init__(self, address: str, bearer: str | None = None, patience: float = 240) -> None:
        self.schema, self.patience = Schema(), patience
        self._made_with = address, bearer, patience
        credentials = credentials_of(address, bearer)
        # Without the probe for bandwidth a stream that is not read takes no more than 64 KiB.
        self.channel: Any = credentials.channel([
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1),
            ("grpc.http2.bdp_probe", 0)])
        self.bearer = credentials.metadata()

    def another(self) -> Caller:
        """A second channel to the same daemon."""
        return Caller(*self._made_with)

    def close(self) -> None:
        """Closes the channel."""
        self.channel.close()

    def unary(self, name: str, request: Values | None = None, metadata: Metadata = (),
              service: str = COMPUTE) -> Values:
        """The reply of a unary call, a dictionary as the request."""
        call = self.channel.unary_unary(service + name, plain, plain)
        message, answer = self.schema.calls[service + name]
        data = self.schema.encode(message, request or {})
        try:
            reply = call(data, metadata=(*self.bearer, *metadata), timeout=self.patience)
        except grpc.RpcError as error:
            raise Refusal(error) from None
        return self.schema.decode(answer, reply)

    def upload(self, chunks: Iterable[Values], metadata: Metadata) -> Values:
        """Sends chunks, dictionaries; the reply's number of the upload."""
        call = self.channel.stream_unary(COMPUTE + "Upload", plain, plain)
        data = [self.schema.encode("UploadChunk", chunk) for chunk in chunks]
        try:
            reply = call(iter(data), metadata=(*self.bearer, *metadata), timeout=self.patience)
        except grpc.RpcError as error:
            raise Refusal(error) from None
        return self.schema.decode("UploadReply", reply)

    def cut_upload(self, chunks: Iterable[Values],
                   metadata: Metadata) -> tuple[Any, queue.SimpleQueue[bytes | None]]:
        """An upload whose stream is cancelled behind these chunks, before it is complete."""
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self.channel.stream_unary(COMPUTE + "Upload", plain, plain).future(
            iter(outgoing.get, None), metadata=(*self.bearer, *metadata))
        for chunk in chunks:
            outgoing.put(self.schema.encode("UploadChunk", chunk))
        return call, outgoing

    def download(self, request: Values, metadata: Metadata, upto: int | None = None) -> Values:
        """The chunks of a download as one dictionary, with all of the data or its first `upto` bytes."""
        call = self.channel.unary_stream(COMPUTE + "Download", plain, plain)
        whole: Values = {}
        try:
            stream = call(self.schema.encode("DownloadRequest", request),
                          metadata=(*self.bearer, *metadata), timeout=self.patience)
            for data in stream:
                chunk = self.schema.decode("DownloadChunk", data)
                parts = whole.get("data", b"") + chunk.get("data", b"")
                whole = {**chunk, **whole, "data": parts}
                if upto is not None and len(parts) >= upto:
                    whole["data"] = parts[:upto]
                    stream.cancel()
                    break
        except grpc.RpcError as error:
            raise Refusal(error) from None
        return whole

    def run(self, metadata: Metadata) -> Run:
        """Opens Run."""
        return Run(self, metadata)


class Run:
    """A Run stream: frames go out as bytes, progress comes in as dictionaries."""

    def __init__(self, caller: Caller, metadata: Metadata) -> None:
        self.schema = caller.schema
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = caller.channel.stream_stream(COMPUTE + "Run", plain, plain)
        self.call = call(iter(self.outgoing.get, None), metadata=(*caller.bearer, *metadata),
                         timeout=caller.patience)

    def send(self, frame: bytes | Values) -> None:
        """A frame: its bytes, or a dictionary."""
        self.outgoing.put(frame if isinstance(frame, bytes) else self.schema.encode("Frame", frame))

    def read(self) -> Values | None:
        """The next Progress; Refusal where the server has ended the stream, None where it is over."""
        try:
            return self.schema.decode("Progress", next(self.call))
        except StopIteration:
            return None
        except grpc.RpcError as error:
            raise Refusal(error) from None

    def cut(self) -> None:
        """Ends the stream as a lost connection does."""
        self.outgoing.put(None)
        self.call.cancel()
