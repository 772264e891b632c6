"""Starts processes that are the ranks of a world."""

import contextlib
import json

import numpy as np
from teletensor._connection.transport import open_transport
from teletensor._tools.admin import Admin

from support.clients import client, finish
from support.daemon import wait_until

BEGIN = """
    import json
    dist = tt.distributed
    R, N = {rank}, {ranks}
    dist.init_process_group(rank=R, world_size=N, init_method="tcp://{name}", timeout={timeout})
    def tell(*values):
        print(json.dumps(values), flush=True)
"""


def start_rank(address, rank, ranks, code, name="test:1", timeout=600):
    """Starts a process that runs `code` as this rank."""
    lines = "\n".join("    " + line for line in code.strip().splitlines())
    return client(BEGIN.format(rank=rank, ranks=ranks, name=name, timeout=timeout) + lines, address)


def start(address, ranks, code, name="test:1", timeout=600):
    """Starts a process for each rank. `address` is that of the daemon for all ranks, or a list that is
    assigned to the ranks in turn."""
    addresses = [address] if isinstance(address, str) else address
    return [start_rank(addresses[rank % len(addresses)], rank, ranks, code, name, timeout) for rank in range(ranks)]


def groups(daemon):
    """The groups of this user's sessions on a daemon, as `teletensor groups` lists them."""
    with contextlib.closing(open_transport(daemon.unix)) as transport:
        return Admin(transport).groups()


def wait_in_collective(daemon, rank, number=1):
    """Waits until the daemon's only group has begun its `number`-th collective, in which this rank waits."""
    def waits():
        (group,) = groups(daemon)
        return group["collectives"] >= number and any(
            member["waits"] for member in group["members"] if member["rank"] == rank)
    wait_until(waits, what=f"rank {rank} waits in collective {number}")


def told(processes):
    """The values that each process has printed in its last line."""
    found = []
    for process in processes:
        status, out, err = finish(process)
        assert status == 0, err
        found.append(json.loads(out.splitlines()[-1]))
    return found


def tried(lines):
    """Code of a rank that evaluates each line, and makes `texts` of its error, or "nothing". The session's late errors
    are cleared."""
    return f"""
texts = []
for line in {list(lines)!r}:
    try:
        eval(line)
        texts.append("nothing")
    except Exception as e:
        texts.append(f"{{type(e).__name__}}: {{e}}")
    s.clear_errors()
"""


def check_refused(refused, texts):
    """Checks that the text of each line, which `tried` has made, begins as `refused` says."""
    wrong = [(line, text) for line, text in zip(refused, texts, strict=True) if not text.startswith(refused[line])]
    assert not wrong, "\n".join(map(str, wrong))


def close(a, b):
    """Checks that two checkpoints of plain lists have the same names and nearly the same numbers."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], 1e-4, 1e-5, err_msg=name)
