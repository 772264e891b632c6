"""Clients and servers of a protocol number, after its recorded contract (proto/released).

Their messages are of classes that protobuf makes of the contract, so a client sends nothing that the contract lacks,
and a server knows nothing beyond it.
"""

import functools
import types
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields

from .grpc_proxy import GrpcProxy
from .raw import Raw, nothing

FOLDER = Path(__file__).resolve().parents[2] / "proto/released"
PACKAGE = "teletensor.v1"
METADATA = ("teletensor-", "authorization")


@functools.cache
def contract(number):
    """The pool of descriptors of this protocol number."""
    files = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / f"protocol-{number}.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def classes(number):
    """An object with the class of each message as an attribute."""
    pool, found = contract(number), {}
    for name in ("admin", "program", "session"):
        file = pool.FindFileByName(f"teletensor/v1/{name}.proto")
        for each in file.message_types_by_name.values():
            found[each.name] = message_factory.GetMessageClass(each)
    return types.SimpleNamespace(**found)


def unknown(message):
    """Whether the message, or one within it, has fields that its class lacks."""
    if len(unknown_fields.UnknownFieldSet(message)):
        return True
    inner = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner += value if field.is_repeated else [value]
    return any(map(unknown, inner))


class Client(Raw):
    """A client of this protocol number. It knows no other number."""

    def __init__(self, address, number):
        super().__init__(address)
        self.number = number
        self.session_pb = self.program_pb = self.admin_pb = classes(number)

    def hello(self, **fields):
        return super().hello(**{"protocol_min": self.number, "protocol_max": self.number, **fields})


class Server(GrpcProxy):
    """A server of this protocol number: a proxy that reduces a daemon to the contract of the number.

    It refuses other numbers in Hello, and fields in streams that the contract lacks, as a daemon of that number did;
    it ignores such fields in unary requests, has no other calls, and leaves fields out of answers. `hellos` are the
    requests, as they came; `frames` the frames; `violations` the messages that were refused.
    """

    def __init__(self, address, number):
        self.number, self.pool = number, contract(number)
        self.hellos, self.frames, self.violations = [], [], []
        super().__init__(address)

    def service(self, details):
        service, _, name = details.method.removeprefix("/").partition("/")
        if service.startswith("grpc.health"):
            return self.passed_on(details.method, nothing, nothing, False, False)
        try:
            call = self.pool.FindServiceByName(service).methods_by_name[name]
        except KeyError:
            return None  # UNIMPLEMENTED
        asked, answer = map(message_factory.GetMessageClass, (call.input_type, call.output_type))

        def request(data, context):
            message = asked.FromString(data)
            if call.client_streaming:
                if unknown(message):
                    self.violations.append(str(message))
                    raise ValueError(f"{name}: a message has a field that protocol {self.number} lacks")
                if name == "Run":
                    self.frames.append(message)
                return data
            message.DiscardUnknownFields()
            if name == "Hello":
                self.hello(message, context)
            return message.SerializeToString()

        def reply(data):
            message = answer.FromString(data)
            message.DiscardUnknownFields()
            if name == "Describe":
                message.protocol_min = message.protocol_max = self.number
            return message.SerializeToString()

        return self.passed_on(details.method, request, reply, call.client_streaming, call.server_streaming)

    def hello(self, message, context):
        self.hellos.append(type(message).FromString(message.SerializeToString()))
        if not message.protocol_min <= self.number <= message.protocol_max:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION,
                          f"the client speaks protocol {message.protocol_min} to {message.protocol_max}, "
                          f"server 0.0.0 speaks {self.number}")
        message.protocol_min = message.protocol_max = self.number

    def passed_on(self, method, request, reply, streams_in, streams_out):
        """The handler of a call, which makes the same call of the daemon."""
        shape = f"{('unary', 'stream')[streams_in]}_{('unary', 'stream')[streams_out]}"
        outward = getattr(self.channel, shape)(method, nothing, nothing)

        def begun(data, context):
            if request is nothing:
                sent = data
            elif streams_in:
                sent = (request(each, context) for each in data)
            else:
                sent = request(data, context)
            return outward, sent, [pair for pair in context.invocation_metadata() if pair[0].startswith(METADATA)]

        def ended(context, error):
            if self.violations:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown field: {self.violations[0]}")
            context.set_trailing_metadata(tuple(
                pair for pair in error.trailing_metadata() or () if pair[0].startswith(METADATA)))
            context.abort(error.code(), error.details() or "")

        def one(data, context):
            call, sent, metadata = begun(data, context)
            try:
                return reply(call(sent, metadata=metadata))
            except grpc.RpcError as error:
                return ended(context, error)

        def several(data, context):
            call, sent, metadata = begun(data, context)
            answers = call(sent, metadata=metadata)
            context.add_callback(answers.cancel)
            try:
                for each in answers:
                    yield reply(each)
            except grpc.RpcError as error:
                ended(context, error)

        return getattr(grpc, f"{shape}_rpc_method_handler")(several if streams_out else one)

