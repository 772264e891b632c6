"""A gRPC server in front of a daemon, for tests that change or watch what clients and daemon exchange."""

from concurrent import futures

import grpc


class GrpcProxy(grpc.GenericRpcHandler):
    """Listens on a free port, `address`, until its block ends; `channel` leads to the daemon at `daemon`.

    A class that derives from this one answers the calls in `service`. Each proxy has a connection of its own.
    """

    def __init__(self, daemon):
        self.channel = grpc.insecure_channel(daemon, [("grpc.use_local_subchannel_pool", 1)])
        self.server = grpc.server(futures.ThreadPoolExecutor(16), handlers=[self])
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.server.stop(None).wait()
        self.channel.close()
