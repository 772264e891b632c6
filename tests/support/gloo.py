"""Runs one program as the ranks of a world, in PyTorch with gloo and in teletensor, and collects the results
of each rank."""

import os
import subprocess
import sys

import numpy as np

from support.clients import finish
from support.daemon import HANG

RANKS = 3

BEGIN = f"""
import datetime, os, sys
import numpy as np
library, rank, ranks, where, dtype, target = sys.argv[1:7]
rank, ranks = int(rank), int(ranks)
if library == "torch":
    import torch as L
    L.set_num_threads(1)
    dist, method = L.distributed, "file://" + where
else:
    import teletensor as L
    session = L.connect(os.environ["TT_TEST_ADDRESS"])
    session.__enter__()
    dist, method = L.distributed, "tcp://" + dtype
dist.init_process_group(
    "gloo", init_method=method, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds={HANG}))
found = {{}}
"""

END = """
dist.barrier()
np.savez(target, **found)
dist.destroy_process_group()
"""


def results(program, library, dtype, folder, addresses=("",)):
    """The results of each rank. The addresses are assigned to the ranks in turn."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + program + END, library, str(rank), str(RANKS),
             str(folder / f"{library}-{dtype}"), dtype, str(folder / f"{library}-{dtype}-{rank}.npz")],
            env={**environment, "TT_TEST_ADDRESS": addresses[rank % len(addresses)]},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            status, output, _ = finish(process)
            assert status == 0, output[-4000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found = []
    for rank in range(RANKS):
        with np.load(folder / f"{library}-{dtype}-{rank}.npz") as file:
            found.append(dict(file))
    return found
