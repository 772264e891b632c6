"""The metrics and the administrator's rows of groups, of other daemons and of stores."""

import pytest
from support.clients import finish, wait_line
from support.daemon import wait_until
from support.daemons import peer_flags, start_daemons
from support.http import ask, samples, scrape
from support.proxy import Proxy
from support.ranks import start_rank
from teletensor import distributed as dist

pytestmark = pytest.mark.usefixtures("invariants")


def measured(daemon):
    return samples(scrape(daemon))


def test_ranks_and_their_open_collectives(start_daemon, tmp_path):
    daemons, go = start_daemons(start_daemon, 2), tmp_path / "go"
    processes = [start_rank(daemon.unix, rank, 2, f"""
print("joined", flush=True)
x, y = tt.ones(2), tt.ones(3)
if R == 0:
    dist.all_reduce(x); dist.all_reduce(y)
    print("begun", flush=True)
    (x.sum() + y.sum()).item()
else:
    while not os.path.exists({str(go)!r}):
        time.sleep(0.05)
    dist.all_reduce(x); dist.all_reduce(y)
    x.tolist(), y.tolist()
dist.barrier()
""") for rank, daemon in enumerate(daemons)]
    wait_line(processes[0], "begun")
    wait_line(processes[1], "joined")
    wait_until(lambda: measured(daemons[0])["teletensor_open_collectives", ()] == 2)
    for daemon, waits in zip(daemons, (1, 0), strict=True):
        now = measured(daemon)
        assert now["teletensor_groups", (("state", "running"),)] == 1
        assert now["teletensor_group_ranks", (("waits", "yes"),)] == waits
        assert now["teletensor_group_ranks", (("waits", "no"),)] == 1 - waits
        assert now["teletensor_open_collectives", ()] == 2 * waits
    go.touch()
    for process in processes:
        assert finish(process)[0] == 0
    for daemon in daemons:
        wait_until(lambda daemon=daemon: measured(daemon)["teletensor_group_ranks", (("waits", "no"),)] == 0)
        assert measured(daemon)["teletensor_open_collectives", ()] == 0


def test_peers_are_counted(start_daemon):
    """Each byte of a payload is in the counters of both daemons, and each cut adds one connection."""
    proxies = []

    def through(address):
        proxies.append(Proxy(address, tcp=True))
        return proxies[-1].address
    first, second = start_daemons(start_daemon, 2, through=through)

    def of(daemon, peer, what):
        return measured(daemon)["teletensor_peer_" + what, (("peer", peer),)]
    wait_until(lambda: of(first, "b", "connected") == of(second, "a", "connected") == 1)
    before = [of(first, "b", "sent_bytes_total"), of(second, "a", "received_bytes_total")]
    processes = [start_rank(daemon.unix, rank, 2, """
x = tt.zeros(1 << 18)
dist.send(x, 1) if R == 0 else dist.recv(x, 0)
x.sum().item()
dist.barrier()
""") for rank, daemon in enumerate((first, second))]
    for process in processes:
        assert finish(process)[0] == 0
    moved = [of(first, "b", "sent_bytes_total") - before[0], of(second, "a", "received_bytes_total") - before[1]]
    assert all(1 << 20 <= bytes < (1 << 20) + 20_000 for bytes in moved), moved
    made = of(first, "b", "connections_total")
    for count in range(2):
        for proxy in proxies:
            proxy.cut()
        wait_until(lambda count=count: of(first, "b", "connections_total") == made + 1 + count
                   and of(first, "b", "connected") == 1)
    assert of(first, "b", "losses_total") == of(second, "a", "losses_total") == 0
    for proxy in proxies:
        proxy.close()


def test_a_peer_that_is_given_up_is_counted(start_daemon):
    first, second = start_daemons(start_daemon, 2, "--peer-patience", "0.2")
    wait_until(lambda: measured(first)["teletensor_peer_connected", (("peer", "b"),)] == 1)
    second.kill()
    start_daemon.running.remove(second)
    wait_until(lambda: measured(first)["teletensor_peer_losses_total", (("peer", "b"),)] == 1)
    assert measured(first)["teletensor_peer_connected", (("peer", "b"),)] == 0


def test_a_daemon_that_is_refused_is_counted(start_daemon):
    listens = start_daemon(*peer_flags("b", "a=127.0.0.1:0"))
    start_daemon(*peer_flags("aa", f"b={listens.peers}"))  # calls again and again
    wait_until(lambda: measured(listens)["teletensor_refused_peers_total", ()] >= 2)
    assert r'"\"aa\" is not in --peers' in listens.log


def test_stores_are_measured(start_daemon, new_token, monkeypatch):
    daemon = start_daemon()
    root, user = new_token(daemon, "root", "admin"), new_token(daemon, "ann")

    def state(token):
        return ask(daemon.http, "/api/state", token=token).json

    def numbers():
        found = samples(ask(daemon.http, "/metrics", token=root).text)
        return [found["teletensor_" + name, ()] for name in ("stores", "store_bytes", "store_waits")]
    monkeypatch.setenv("TELETENSOR_STORE", daemon.unix)
    monkeypatch.setenv("TELETENSOR_TOKEN", user)
    assert numbers() == [0, 0, 0]
    store = dist.TCPStore("127.0.0.1", 4711, is_master=True)
    store.set("k", "v" * 5000)
    stores, bytes, waits = numbers()
    assert (stores, waits) == (1, 0) and 5000 < bytes < 10_000
    assert state(root)["stores"] == {"count": 1, "bytes": bytes, "waits": 0} and state(root)["peers"] == []
    assert "stores" not in state(user) and "peers" not in state(user)
    with pytest.raises(dist.DistStoreError):
        store.set_timeout(1)
        store.get("not there")
    del store
    wait_until(lambda: numbers() == [0, 0, 0])
