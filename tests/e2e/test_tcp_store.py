"""TCPStore and the daemon's Store service: names of stores, limits, cuts, restarts, hostile callers."""

import contextlib
import datetime
import random
import secrets
import signal
import subprocess
import sys
import threading

import grpc
import pytest
import teletensor.distributed as dist
from support.clients import finish, wait_asleep, wait_line, wait_stopped
from support.daemon import HANG, wait_until
from support.http import samples, scrape
from support.proxy import Proxy
from support.raw import STORE, Raw

pytestmark = pytest.mark.usefixtures("invariants")
KEEPS = ("--lease", "300", "--restart", "60")


@pytest.fixture
def daemon(start_daemon, monkeypatch):
    """A daemon that keeps its stores, which TELETENSOR_STORE names."""
    daemon = start_daemon(*KEEPS)
    monkeypatch.setenv("TELETENSOR_STORE", daemon.unix)
    return daemon


def opened(**more):
    return dist.TCPStore("127.0.0.1", 4711, timeout=60, **more)


def process(code, *arguments):
    code = "import sys, teletensor.distributed as dist\n" + code
    return subprocess.Popen([sys.executable, "-c", code, *arguments], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def test_processes_meet(daemon):
    """The master waits for all processes; each process waits for the keys of the others."""
    code = """
rank = int(sys.argv[1])
store = dist.TCPStore("127.0.0.1", 4711, 3, rank == 0, timeout=60)
store.set(f"from {rank}", "x" * 100_000)
store.add("done", 0)
store.wait([f"from {each}" for each in range(3)])
for _ in range(50): store.add("total", 1)
while store.add("total", 0) < 150: pass
found = store.num_keys(), store.host, store.port
store.add("done", 1)
if rank == 0:  # the store ends with its master
    while store.add("done", 0) < 3: pass
print(*found)
"""
    ranks = [process(code, str(rank)) for rank in (2, 1, 0)]
    assert [finish(rank)[:2] for rank in ranks] == [(0, "6 127.0.0.1 4711\n")] * 3
    with pytest.raises(dist.DistStoreError, match="no process has made the store 127.0.0.1:4711"):
        dist.TCPStore("127.0.0.1", 4711, timeout=0.1)  # it went with its master


def test_a_master_begins_anew(daemon):
    old = opened(is_master=True)
    old.set("k", "old")
    other = opened()
    assert other.get("k") == b"old"
    waits = []
    thread = threading.Thread(target=lambda: waits.append(pytest.raises(dist.DistStoreError, other.get, "none")))
    thread.start()
    new = opened(is_master=True)
    thread.join()
    assert "was begun anew" in str(waits[0].value)
    assert new.num_keys() == 0 and not opened().check(["k"])
    with pytest.raises(dist.DistStoreError, match="begun anew"):
        other.set("k", "lost")
    del old  # the end of the old store does not end the new one
    new.set("k", "new")
    assert opened(is_master=True, multi_tenant=True).get("k") == b"new"


def test_the_master_waits_for_the_others(daemon):
    with pytest.raises(dist.DistStoreError, match=r"Timed out after 0.2 seconds waiting for clients. 1/2"):
        dist.TCPStore("127.0.0.1", 4711, 2, True, timeout=0.2)
    assert dist.TCPStore("127.0.0.1", 4711, 2, True, wait_for_workers=False).num_keys() == 0


def test_arguments(daemon):
    for call, error in ((lambda: dist.TCPStore(1, 2), TypeError),
                        (lambda: dist.TCPStore("host", 0), ValueError),
                        (lambda: dist.TCPStore("host", 65536, is_master=True), ValueError),
                        (lambda: dist.TCPStore("host", 1, timeout=0), ValueError),
                        (lambda: dist.TCPStore("host", 1, master_listen_fd=3), NotImplementedError)):
        with pytest.raises(error):
            call()
    one, two = (dist.TCPStore("127.0.0.1", 0, is_master=True) for _ in range(2))
    assert one.port != two.port and 0 < one.port < 65536
    one.set_timeout(datetime.timedelta(seconds=7))
    assert one.timeout == datetime.timedelta(seconds=7) and two.timeout == datetime.timedelta(seconds=300)


def test_limits(daemon):
    store = opened(is_master=True)
    store.set("k" * 4095, "v")  # "/" is before it
    store.set("fits", "v" * (1 << 20))
    for call in (store.get, store.delete_key, lambda key: store.set(key, ""), lambda key: store.wait([key])):
        with pytest.raises(dist.DistStoreError, match="1 to 4096 bytes, not 4097"):
            call("k" * 4096)
    with pytest.raises(dist.DistStoreError, match="at most 1048576 bytes, not 1048577"):
        store.set("k", "v" * ((1 << 20) + 1))
    with pytest.raises(dist.DistStoreError, match="would have 1048577 bytes"):
        store.append("fits", "v")
    with pytest.raises(dist.DistStoreError, match="at most 64 MiB, which are full"):
        for number in range(65):
            store.set(f"big {number}", "v" * (1 << 20))
    assert store.delete_key("big 1")
    store.set("big 1", "v" * (1 << 20))
    keys = [f"big {number}" for number in range(5)]
    assert [len(value) for value in store.multi_get(keys)] == [1 << 20] * 5  # more than fits into one answer
    assert store.compare_set("fits", "w" * ((1 << 20) - 1), "x") == b"v" * (1 << 20)
    with pytest.raises(dist.DistStoreError, match="at most 1048576 bytes together"):
        store.compare_set("fits", "v" * (1 << 20), "x")


def test_many_keys(daemon):
    store = opened(is_master=True)
    keys = [f"key {number} of this test, which is not short" for number in range(20_000)]
    store.multi_set(keys, [str(number) for number in range(20_000)])
    assert store.num_keys() == 20_000 and store.check(keys) and not store.check([*keys, "none"])
    assert store.multi_get(keys)[-1] == b"19999"
    store.wait(keys)


def test_a_killed_client_leaves_no_wait(daemon):
    """The slots of a killed client's waiting calls are free: their number is bounded."""
    store = opened(is_master=True)
    code = """
import threading
store = dist.TCPStore("127.0.0.1", 4711)
for i in range(20): threading.Thread(target=store.get, args=(f"none {i}",), daemon=True).start()
store.set("waits", "1")
print("waits", flush=True)
import time; time.sleep(600)
"""
    client = process(code)
    wait_line(client, "waits")
    wait_until(lambda: store.check(["waits"]), what="it waits")
    client.send_signal(signal.SIGKILL)
    finish(client)
    store.set("none 1", "there")
    assert store.get("none 1") == b"there"


def test_ctrl_c_ends_a_wait(daemon):
    store = opened(is_master=True)
    client = process("""
store = dist.TCPStore("127.0.0.1", 4711)
store.set("begins", "1")
try:
    print("begins", flush=True)
    store.get("none")
except KeyboardInterrupt: print("interrupted", store.get("begins"), flush=True)
""")
    wait_line(client, "begins")
    wait_asleep(client)
    client.send_signal(signal.SIGINT)
    assert finish(client)[1].strip().endswith("interrupted b'1'")
    assert store.check(["begins"])


@pytest.mark.parametrize("how", ("terminate", "kill"))
def test_the_daemon_starts_again(daemon, how):
    """Answered changes are kept, a waiting call continues to wait, and each change is made once."""
    store = opened(is_master=True)
    store.set("a", "1")
    store.append("log", "x")
    found, adding = [], True

    def add():
        while adding:
            store.add("n", 1)
            found.append(1)
    waits = threading.Thread(target=lambda: found.append(store.get("later")))
    adds = threading.Thread(target=add)
    waits.start()
    adds.start()
    for _ in range(3):
        before = len(found)
        wait_until(lambda before=before: len(found) > before + 5, what="it counts")
        if how == "terminate":
            assert daemon.terminate() == 0
        else:
            daemon.kill()
        daemon.restart()
    adding = False
    adds.join()
    assert store.add("n", 0) == len(found)
    store.set("later", "came")
    waits.join()
    assert found[-1] == b"came" and store.multi_get(["a", "log"]) == [b"1", b"x"]


def test_a_short_timeout_is_for_waits_alone(daemon):
    """A daemon that is busy for ten times the timeout still makes a change."""
    store, found = opened(is_master=True), []
    store.set_timeout(0.02)
    daemon.process.send_signal(signal.SIGSTOP)
    wait_stopped(daemon)
    change = threading.Thread(target=lambda: found.append(store.add("n", 1)))
    change.start()
    change.join(0.2)
    daemon.process.send_signal(signal.SIGCONT)
    change.join()
    assert found == [1]
    with pytest.raises(dist.DistStoreError, match="wait timeout after 20ms, keys: none"):
        store.get("none")


def test_connections_that_are_cut(daemon, monkeypatch):
    """The connection is cut after any number of bytes of the client or the daemon: each change is made
    once."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    with contextlib.closing(Proxy(daemon.socket)) as proxy:
        monkeypatch.setenv("TELETENSOR_STORE", proxy.address)
        store = opened(is_master=True)
        proxy.cut_each(lambda: chance.randrange(300, 3000), both=True)
        for number in range(1, 201):
            assert store.add("n", 1) == number
            store.append("log", "x")
            assert store.compare_set("turn", str(number - 1) if number > 1 else "", str(number)) == b"%d" % number
        assert store.get("log") == b"x" * 200 and proxy.connections > 20
        proxy.cut_each(None)


def test_users_do_not_meet(start_daemon, new_token, monkeypatch):
    daemon = start_daemon(*KEEPS)
    monkeypatch.setenv("TELETENSOR_STORE", daemon.tcp)
    with pytest.raises(dist.DistStoreError, match="open: this needs a token"):
        opened(is_master=True)
    tokens = {user: new_token(daemon, user) for user in ("alice", "bob")}
    monitor, stores = new_token(daemon, "monitor", "metrics"), {}
    for user, token in tokens.items():
        monkeypatch.setenv("TELETENSOR_TOKEN", token)
        stores[user] = opened(is_master=True)
        stores[user].set("whose", user)
    assert stores["alice"].get("whose") == b"alice" and stores["bob"].num_keys() == 1
    # Bob has the number of Alice's store but is still refused.
    stores["bob"]._store._generation = stores["alice"]._store._generation
    with pytest.raises(dist.DistStoreError, match="begun anew"):
        stores["bob"].get("whose")
    monkeypatch.setenv("TELETENSOR_TOKEN", monitor)
    with pytest.raises(dist.DistStoreError, match="not for the role metrics"):
        opened(is_master=True)


def test_a_store_is_nobodys_without_a_name(start_daemon, monkeypatch):
    monkeypatch.setenv("TELETENSOR_STORE", start_daemon(anonymous="a store for callers without a name").tcp)
    with pytest.raises(dist.DistStoreError, match="needs an authenticated user: connect through"):
        opened(is_master=True)


def test_which_daemon(start_daemon, new_token, monkeypatch):
    """The daemon of a store is that of TELETENSOR_STORE, of host:port, or of the session, in this order."""
    import teletensor as tt

    first, own = start_daemon(), start_daemon()
    monkeypatch.delenv("TELETENSOR_STORE", raising=False)
    host, _, port = first.tcp.rpartition(":")
    with tt.connect(own.unix):
        monkeypatch.setenv("TELETENSOR_TOKEN", new_token(first, "alice"))
        there = dist.TCPStore(host, int(port), is_master=True)
        assert there._store._place.address == first.tcp
        here = dist.TCPStore("127.0.0.1", 1, is_master=True)
        assert here._store._place.address == own.unix
        monkeypatch.delenv("TELETENSOR_TOKEN")
        monkeypatch.setenv("TELETENSOR_STORE", own.unix)
        assert dist.TCPStore(host, int(port), is_master=True)._store._place.address == own.unix


def test_hostile_requests(daemon):
    """Invalid bytes, and valid messages with random fields, give an error by name, and the daemon continues
    to serve."""
    chance = secrets.SystemRandom()
    with Raw(daemon.unix) as raw:
        pb = raw.store_pb
        store = raw.unary(STORE + "Open", pb.StoreOpenRequest(name="s", way=pb.StoreOpenRequest.NEW, generation=5),
                          pb.StoreOpenReply)
        ref = pb.StoreRef(name="s", generation=store.generation)

        def code(method, request, timeout=HANG):
            call = raw.channel.unary_unary(STORE + method, lambda data: data, lambda data: data)
            data = request if isinstance(request, bytes) else request.SerializeToString()
            try:
                call(data, timeout=timeout)
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        status = grpc.StatusCode
        assert code("Set", pb.StoreSetRequest(store=ref, entries=[pb.StoreEntry()])) == status.INVALID_ARGUMENT
        assert code("Get", pb.StoreGetRequest(store=ref, keys=[b""], wait=True)) == status.INVALID_ARGUMENT
        assert code("Get", pb.StoreGetRequest(store=ref, keys=[b"\xff\0"], wait=True), 1) == status.DEADLINE_EXCEEDED
        assert code("Get", pb.StoreGetRequest(store=ref, wait=True, values=True)) == status.OK
        assert code("Set", pb.StoreSetRequest(store=ref, entries=[pb.StoreEntry(key=b"k" * 5000)])) \
            == status.INVALID_ARGUMENT
        assert code("Set", pb.StoreSetRequest(store=ref, entries=[
            pb.StoreEntry(key=b"k", value=b"v" * (1 << 21))])) == status.RESOURCE_EXHAUSTED
        assert code("Open", pb.StoreOpenRequest(name="s", way=99, generation=1)) == status.INVALID_ARGUMENT
        assert code("Open", pb.StoreOpenRequest(name="n" * 300, way=1, generation=1)) == status.INVALID_ARGUMENT
        assert code("Count", pb.StoreCountRequest(store=pb.StoreRef(name="s", generation=6))) == status.ABORTED
        assert code("Count", pb.StoreCountRequest(store=pb.StoreRef(name="t"))) == status.NOT_FOUND
        for method in pb.DESCRIPTOR.services_by_name["Store"].methods_by_name:
            assert code(method, b"") != status.OK
            for _ in range(30):
                found = code(method, chance.randbytes(chance.randrange(1, 60)), 1)  # some are calls that wait
                assert found not in (status.UNAVAILABLE, status.UNKNOWN)
        assert code("Set", pb.StoreSetRequest(store=ref, entries=[pb.StoreEntry(key=b"k")])) == status.OK


def test_waits_are_bounded_and_cost_no_thread(daemon):
    """With 2,000 waiting calls the daemon has as many threads as without them."""
    def threads():
        with open(f"/proc/{daemon.pid}/status", encoding="ascii") as file:
            return int(next(line for line in file if line.startswith("Threads")).split()[1])

    def waits():
        return samples(scrape(daemon))["teletensor_store_waits", ()]

    with Raw(daemon.unix) as raw:
        pb = raw.store_pb
        raw.unary(STORE + "Open", pb.StoreOpenRequest(name="s", way=pb.StoreOpenRequest.NEW, generation=5),
                  pb.StoreOpenReply)
        ref = pb.StoreRef(name="s", generation=5)
        assert waits() == 0
        raws = [Raw(daemon.unix) for _ in range(20)]
        before, calls = threads(), []
        for each in raws:  # 100 calls at once a connection
            get = each.channel.unary_unary(STORE + "Get", lambda m: m.SerializeToString(), pb.StoreGetReply.FromString)
            calls += [get.future(pb.StoreGetRequest(store=ref, keys=[b"k"], wait=True, values=True), timeout=HANG)
                      for _ in range(99)]
        wait_until(lambda: waits() == len(calls), what="all calls wait")
        assert threads() <= before + 8
        raw.unary(STORE + "Set", pb.StoreSetRequest(store=ref, entries=[pb.StoreEntry(key=b"k", value=b"v")]),
                  pb.StoreSetReply)
        assert {bytes(call.result().values[0]) for call in calls} == {b"v"}
        for each in raws:
            each.close()
