"""Clients whose training is compared bit by bit, whatever happens to their daemon."""

import re
import textwrap

from support.clients import client, finish

TRAIN = """
    import hashlib
    def train(rounds, seed, mark, snapshot, go_on):
        tt.manual_seed(seed)
        x = tt.tensor(np.linspace(-1, 1, 256, dtype=np.float32).reshape(64, 4))
        net = tt.nn.Sequential(tt.nn.Linear(4, 16), tt.nn.Tanh(), tt.nn.Dropout(0.1), tt.nn.Linear(16, 2))
        with tt.no_grad():
            for i, p in enumerate(net.parameters()):
                p.copy_(tt.linspace(-1, 1, p.numel()).reshape(p.shape) * (i + seed))
        opt = tt.optim.Adam(net.parameters(), lr=0.01)
        digest = hashlib.sha256()
        if snapshot: s.snapshot()
        for i in range(rounds):
            opt.zero_grad()
            hidden = net[:2](x)
            loss = (net[2:](hidden) ** 2).mean()
            if i % 3 == seed % 3:
                digest.update(np.float64(loss.item()).tobytes())  # waits in the middle of a step
            loss.backward()
            opt.step()
            if i == rounds // 8: print(mark, flush=True)
            if i == rounds // 2 and go_on:
                open(f"{go_on}.{seed}", "w").close()
                while not os.path.exists(go_on): time.sleep(0.01)
        for p in net.parameters(): digest.update(p.detach().numpy().tobytes())
        print("digest", digest.hexdigest(), flush=True)
"""


def trainer(daemon, seed, rounds, snapshot=False, go_on=""):
    """A client that trains and prints "begun" at an early point; with `snapshot`, after it has taken one. In
    the middle it creates a file `go_on`.SEED and waits for the file `go_on`."""
    code = textwrap.dedent(TRAIN) + f"train({rounds}, {seed}, 'begun', {snapshot}, {str(go_on)!r})\n"
    return client(code, daemon.unix)


def digest(process):
    """A digest of the bits of its losses and weights."""
    status, out, err = finish(process)
    assert status == 0, err
    return re.search("digest ([0-9a-f]+)", out).group(1)
