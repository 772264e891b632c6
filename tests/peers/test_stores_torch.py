"""Checks that the same calls on the stores of PyTorch and of teletensor return the same values."""

import datetime
import inspect
import random
import re
import threading

import pytest
import teletensor.distributed as ours
import torch.distributed as theirs


@pytest.fixture(autouse=True)
def place(shared_daemon, monkeypatch):
    monkeypatch.setenv("TELETENSOR_STORE", shared_daemon.unix)


def made(dist, kind, folder):
    if "tcp" in kind:
        store = dist.TCPStore("127.0.0.1", 0, 1, True)
        return store if kind == "tcp" else dist.PrefixStore("p", store)
    if kind == "file":
        return dist.FileStore(str(folder / dist.__name__), 1)
    return dist.HashStore() if kind == "hash" else dist.PrefixStore("p", dist.HashStore())


@pytest.mark.parametrize("kind", ("hash", "prefix", "file", "tcp", "prefix of tcp"))
def test_any_calls(kind, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    stores = [made(dist, kind, tmp_path) for dist in (ours, theirs)]
    acts = ["set", "get", "add", "check", "delete_key"]
    if kind != "file":  # PyTorch's FileStore does not have these, or counts its internal keys
        acts += ["compare_set", "append", "num_keys"]
    for _ in range(300):
        act, key = chance.choice(acts), f"k{chance.randrange(5)}"
        value = str(chance.randrange(5))
        arguments = {
            "set": (key, value), "get": (key,), "add": (f"n{key}", chance.randrange(-3, 9)), "check": ([key],),
            "delete_key": (key,), "append": (key, value), "num_keys": (),
            "compare_set": (key, chance.choice(["", value]), str(chance.randrange(5))),
        }[act]
        if act == "get" and not stores[1].check([key]):
            continue
        found = [getattr(store, act)(*arguments) for store in stores]
        if (kind, act) == ("file", "delete_key"):
            continue  # PyTorch's FileStore returns True for a key that did not exist
        assert found[0] == found[1], (act, arguments)


@pytest.mark.parametrize("kind", ("hash", "prefix", "file", "tcp", "prefix of tcp"))
def test_a_key_that_does_not_come(kind, tmp_path):
    for dist in (ours, theirs):
        store = made(dist, kind, tmp_path)
        store.set_timeout(datetime.timedelta(milliseconds=50))
        assert store.timeout == datetime.timedelta(milliseconds=50)
        with pytest.raises(RuntimeError, match="(?i)timeout"):
            store.get("nothing")
        with pytest.raises(RuntimeError, match="(?i)timeout"):
            store.wait(["nothing"], datetime.timedelta(milliseconds=50))


@pytest.mark.parametrize("dist", (ours, theirs), ids=("ours", "theirs"))
def test_a_master_and_its_workers(dist):
    """The master waits until all processes have arrived, and the other processes wait for the master."""
    stores = {}

    def begin(master, port):
        stores[master] = dist.TCPStore("127.0.0.1", port, 2, master, datetime.timedelta(seconds=60))
    probe = dist.TCPStore("127.0.0.1", 0, None, True)
    port = probe.port
    del probe
    threads = [threading.Thread(target=begin, args=(master, port)) for master in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stores[False].set("k", "v")
    assert stores[True].get("k") == b"v" and stores[True].num_keys() == stores[False].num_keys() == 2
    assert (stores[True].host, stores[True].port) == ("127.0.0.1", port)
    del stores[True]


def test_signatures():
    """TCPStore has PyTorch's parameters in the same order. docs/distributed.md lists the calls that are
    missing."""
    text = theirs.TCPStore.__init__.__doc__
    names = re.findall(r"(\w+): ", text.partition("->")[0])[1:]
    assert list(inspect.signature(ours.TCPStore.__init__).parameters)[1:] == names, text
    for kind in ("TCPStore", "HashStore", "FileStore", "PrefixStore"):
        missing = {name for name in dir(getattr(theirs, kind)) if not name.startswith("_")} - set(
            dir(getattr(ours, kind)))
        assert missing <= {"barrier", "clone", "list_keys", "queue_len", "queue_pop", "queue_push"}, (kind, missing)
