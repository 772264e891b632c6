"""The stores of tt.distributed: their contents, waiting calls, and damaged files."""

import datetime
import os
import random
import signal
import subprocess
import sys
import threading

import pytest
import teletensor.distributed as dist
from support.clients import finish, wait_line
from support.daemon import wait_until

KINDS = ("hash", "file", "prefix", "prefix of a file", "nested", "tcp", "prefix of tcp")


def make(kind, path):
    if kind == "hash":
        return dist.HashStore()
    if kind == "file":
        return dist.FileStore(path, 1)
    if "tcp" in kind:  # on the daemon that TELETENSOR_STORE names
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        return store if kind == "tcp" else dist.PrefixStore("p", store)
    if kind == "nested":
        return dist.PrefixStore("a", dist.PrefixStore("b", dist.HashStore()))
    return dist.PrefixStore("p", dist.HashStore() if kind == "prefix" else dist.FileStore(str(path)))


@pytest.fixture(autouse=True)
def place(shared_daemon, monkeypatch):
    monkeypatch.setenv("TELETENSOR_STORE", shared_daemon.unix)


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    return make(request.param, tmp_path / "store")


def test_values(store):
    store.set("text", "ä")
    store.set("bytes", b"\0\xff")
    store.set("empty", "")
    assert [store.get(key) for key in ("text", "bytes", "empty")] == ["ä".encode(), b"\0\xff", b""]
    assert store.add("count", 5) == 5 and store.add("count", -7) == -2 and store.get("count") == b"-2"
    store.append("log", "a")
    store.append("log", b"b")
    assert store.multi_get(["log", "empty"]) == [b"ab", b""]
    store.multi_set(["x", "y"], ["1", b"2"])
    assert store.multi_get(["y", "x"]) == [b"2", b"1"]
    assert store.num_keys() == 7
    assert store.check(["x", "y"]) and not store.check(["x", "z"])
    assert store.delete_key("x") and not store.delete_key("x") and not store.check(["x"])
    store.wait(["y"])


def test_compare_set(store):
    assert store.compare_set("k", "wrong", "new") == b"wrong" and not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "", "other") == b"first"
    assert store.compare_set("k", "first", "second") == b"second" and store.get("k") == b"second"


def test_a_key_that_does_not_come(store):
    assert store.timeout == datetime.timedelta(seconds=300)
    store.set_timeout(datetime.timedelta(milliseconds=20))
    assert store.timeout == datetime.timedelta(milliseconds=20)
    with pytest.raises(dist.DistStoreError, match="wait timeout after 20ms, keys: a"):
        store.get("a")
    store.set("a", "1")
    with pytest.raises(dist.DistStoreError, match="wait timeout after 30ms, keys: a, b"):
        store.wait(["a", "b"], datetime.timedelta(milliseconds=30))
    assert issubclass(dist.DistStoreError, RuntimeError)


def test_bad_arguments(store):
    for call in (lambda: store.set(1, "x"), lambda: store.set("k", 1), lambda: store.get(b"k"),
                 lambda: store.wait("key"), lambda: store.check("key"), lambda: store.append("k", None),
                 lambda: store.compare_set("k", 1, "x"), lambda: store.delete_key(None)):
        with pytest.raises(TypeError, match="store must be|must be a list"):
            call()
    with pytest.raises(ValueError, match="2 keys and 1 values"):
        store.multi_set(["a", "b"], ["1"])
    with pytest.raises(ValueError, match="above 0"):
        store.set_timeout(0)
    store.set("k", "text")
    with pytest.raises(dist.DistStoreError, match="k. is not a number.*text"):
        store.add("k", 1)
    with pytest.raises(TypeError, match="not dict"):
        dist.PrefixStore("p", {})
    assert store.num_keys() == 1


def test_threads_wait_for_each_other(store):
    found, threads = [], []
    for number in range(4):
        def work(number=number):
            store.set(f"from {number}", str(number))
            found.append(sorted(store.multi_get([f"from {each}" for each in range(4)])))
            for _ in range(50):
                store.add("total", 1)
        threads.append(threading.Thread(target=work))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[b"0", b"1", b"2", b"3"]] * 4 and store.get("total") == b"200"


def test_prefixes_keep_keys_apart():
    whole = dist.HashStore()
    one, two = dist.PrefixStore("one", whole), dist.PrefixStore("two", whole)
    one.set("k", "1")
    two.set("k", "2")
    assert (one.get("k"), two.get("k"), whole.get("one/k")) == (b"1", b"2", b"1")
    assert one.underlying_store is whole and one.num_keys() == 2
    one.set_timeout(7)
    assert whole.timeout == datetime.timedelta(seconds=7)


RANK = """
import sys
import teletensor.distributed as dist
store = dist.FileStore(sys.argv[1], 3)
for i in range(100):
    store.add("total", 1)
store.add("done", 1)
store.set(sys.argv[2], "x" * 100000)
store.wait(["0", "1", "2"])
while store.get("done") != b"3": pass
print(store.get("total"), store.num_keys(), flush=True)
"""


def test_processes_share_a_file_and_the_last_removes_it(tmp_path):
    path = tmp_path / "store"
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(path), str(rank)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(3)]
    for rank in ranks:
        assert finish(rank)[:2] == (0, "b'300' 5\n")
    assert not path.exists()


def test_a_process_that_is_killed_leaves_whole_records(tmp_path):
    path = str(tmp_path / "store")
    store = dist.FileStore(path)
    code = ("import sys, teletensor.distributed as dist\nstore = dist.FileStore(sys.argv[1])\n"
            "print('begins', flush=True)\nwhile True: store.append('log', 'x' * 1000); store.add('count', 1)")
    process = subprocess.Popen([sys.executable, "-c", code, path], text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    wait_line(process, "begins")
    wait_until(lambda: store.check(["count"]) and int(store.get("count")) > 20, what="it writes")
    process.send_signal(signal.SIGKILL)
    finish(process)
    count, length = int(store.get("count")), len(store.get("log"))
    assert length in (count * 1000, count * 1000 + 1000)
    assert dist.FileStore(path).multi_get(["count"]) == [str(count).encode()]


def test_files_that_end_anywhere(tmp_path):
    """A file that is cut at any byte is a store with the records before that byte, and takes new ones."""
    path = tmp_path / "store"
    store = dist.FileStore(path)
    for i in range(5):
        store.set(f"k{i}", str(i) * i)
    store.delete_key("k1")
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        cut = dist.FileStore(path)
        there = [i for i in range(5) if cut.check([f"k{i}"])]
        assert there == list(range(len(there))), size
        assert all(cut.get(f"k{i}") == (str(i) * i).encode() for i in there)
        cut.set("new", "value")
        assert dist.FileStore(path).get("new") == b"value"


def test_files_of_something_else(tmp_path):
    path = tmp_path / "other"
    for content in (b"teletensor", b"", b"\0" * 100, b"teletensor store?" + b"\0" * 30, os.urandom(64)):
        path.write_bytes(content)
        if content in (b"", b"teletensor"):  # begun, and not finished
            dist.FileStore(path).set("k", "v")
            continue
        with pytest.raises(dist.DistStoreError, match="is not the file of a FileStore"):
            dist.FileStore(path)
        assert path.read_bytes() == content
    with pytest.raises(OSError):
        dist.FileStore(tmp_path / "no folder" / "store")
    with pytest.raises(IsADirectoryError):
        dist.FileStore(tmp_path)


def test_a_file_that_is_removed_is_another_store(tmp_path):
    path = tmp_path / "store"
    store = dist.FileStore(path)
    store.set("k", "v")
    os.unlink(path)
    assert not store.check(["k"])
    store.set("k", "w")
    assert dist.FileStore(path).get("k") == b"w"


@pytest.mark.parametrize("kind", KINDS)
def test_any_calls_are_those_of_a_dict(kind, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, model, path = random.Random(seed), {}, tmp_path / "store"
    store = make(kind, path)
    for _ in range(300):
        key, value = f"k{chance.randrange(6)}", str(chance.randrange(100)).encode()
        act = chance.randrange(5)
        if act == 0:
            store.set(key, value)
            model[key] = value
        elif act == 1:
            assert store.delete_key(key) == (model.pop(key, None) is not None)
        elif act == 2:
            model[key] = str(int(model.get(key, b"0")) + 3).encode()
            assert store.add(key, 3) == int(model[key])
        elif act == 3:
            expected = chance.choice([model.get(key, b""), b"99999"])
            if model.get(key, b"") == expected:
                model[key] = value
            assert store.compare_set(key, expected, value) == model.get(key, expected)
        elif key in model:
            assert store.get(key) == model[key]
        assert store.num_keys() == len(model)
