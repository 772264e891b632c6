"""A proxy in front of a daemon that alters answers: what the kit is to find."""

import grpc
from support.grpc_proxy import GrpcProxy
from teletensor._conformance.caller import ADMIN, COMPUTE, plain
from teletensor._conformance.schema import Schema

STREAMS = {"Run": "stream_stream", "Upload": "stream_unary", "Download": "unary_stream"}


def passed_on(context):
    return [(key, value) for key, value in context.invocation_metadata()
            if key.startswith("teletensor-") or key == "authorization"]


class Liar(GrpcProxy):
    """`lie(name, values)` alters a message that the daemon sends, a dictionary, in place.

    `ending(code, text, word)` gives what a call ends with instead. With `garble` each Progress has bytes at its
    end that are no message. `frames` collects the frames that clients send.
    """

    def __init__(self, address, lie=None, ending=None, garble=False):
        self.schema, self.lie, self.ending, self.garble = Schema(), lie, ending, garble
        self.frames = []
        super().__init__(address)

    def service(self, details):
        if not details.method.startswith((COMPUTE, ADMIN)):
            return None
        name = details.method.rpartition("/")[2]
        kind = STREAMS.get(name, "unary_unary")
        outward = getattr(self.channel, kind)(details.method, plain, plain)
        handler = getattr(grpc, f"{kind}_rpc_method_handler")

        def one(request, context):
            try:
                return self.altered(details.method, outward(request, metadata=passed_on(context)))
            except grpc.RpcError as error:
                return self.end(context, error)

        def several(request, context):
            call = outward(self.noted(request) if name == "Run" else request, metadata=passed_on(context))
            context.add_callback(call.cancel)
            try:
                for data in call:
                    yield self.altered(details.method, data)
            except grpc.RpcError as error:
                self.end(context, error)
        return handler(several if kind.endswith("_stream") else one)

    def noted(self, frames):
        for frame in frames:
            self.frames.append(frame)
            yield frame

    def altered(self, method, data):
        _, message = self.schema.calls[method]
        if self.garble and message == "Progress":
            return data + b"\x2a\x7f"
        if self.lie is None:
            return data
        values = self.schema.decode(message, data)
        self.lie(message, values)
        return self.schema.encode(message, values)

    def end(self, context, error):
        code, text = error.code(), error.details() or ""
        word = dict(error.trailing_metadata() or ()).get("teletensor-reason", "")
        if self.ending is not None:
            code, text, word = self.ending(code, text, word)
        if word:
            context.set_trailing_metadata((("teletensor-reason", word),))
        context.abort(code, text)
