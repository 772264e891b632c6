"""Arrow Flight, for comparison with bulk transfers: a server in a separate process, over TCP.

    python tests/bench/flight.py        serves one stream of bytes; prints its port in the first line

`Peer` starts the server and measures puts and gets of 64 MiB of floats.
"""

import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

SIZE = 64 << 20
BATCH = 1 << 20  # floats; of batches from 256 KiB to 64 MiB, 4 MiB were the fastest here


class Server(flight.FlightServerBase):
    """Keeps the data of the last put."""

    table = None

    def do_put(self, context, descriptor, reader, writer):
        self.table = reader.read_all()

    def do_get(self, context, ticket):
        return flight.RecordBatchStream(self.table)


class Peer:
    """A server and a client of it."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
        port = int(self.process.stdout.readline())
        self.client = flight.connect(f"grpc+tcp://127.0.0.1:{port}")
        self.table = pa.table({"x": pa.array(np.ones(SIZE // 4, np.float32))})
        self.put()

    def put(self):
        """The speed in GB/s, until the server has all data."""
        begin = time.perf_counter()
        writer, reader = self.client.do_put(flight.FlightDescriptor.for_path("x"), self.table.schema)
        writer.write_table(self.table, max_chunksize=BATCH)
        writer.done_writing()
        while reader.read() is not None:
            pass
        writer.close()
        return SIZE / (time.perf_counter() - begin) / 1e9

    def get(self):
        """The speed in GB/s, into Arrow's own arrays, which are not concatenated."""
        begin = time.perf_counter()
        table = self.client.do_get(flight.Ticket(b"x")).read_all()
        took = time.perf_counter() - begin
        assert table.num_rows == SIZE // 4
        return SIZE / took / 1e9

    def close(self):
        self.client.close()
        self.process.terminate()
        self.process.wait()


def main():
    with Server("grpc+tcp://127.0.0.1:0") as server:
        print(server.port, flush=True)
        server.serve()


if __name__ == "__main__":
    main()
