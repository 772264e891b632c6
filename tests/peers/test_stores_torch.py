"""The same calls on the stores of PyTorch and of teletensor give the same values."""

import datetime
import random

import pytest
import teletensor.distributed as ours
import torch.distributed as theirs


def made(dist, kind, folder):
    if kind == "file":
        return dist.FileStore(str(folder / dist.__name__), 1)
    return dist.HashStore() if kind == "hash" else dist.PrefixStore("p", dist.HashStore())


@pytest.mark.parametrize("kind", ("hash", "prefix", "file"))
def test_any_calls(kind, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    stores = [made(dist, kind, tmp_path) for dist in (ours, theirs)]
    acts = ["set", "get", "add", "check", "delete_key"]
    if kind != "file":  # PyTorch's FileStore has none of these, or counts its own keys
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
            continue  # PyTorch's FileStore says True for a key that was not there
        assert found[0] == found[1], (act, arguments)


@pytest.mark.parametrize("kind", ("hash", "prefix", "file"))
def test_a_key_that_does_not_come(kind, tmp_path):
    for dist in (ours, theirs):
        store = made(dist, kind, tmp_path)
        store.set_timeout(datetime.timedelta(milliseconds=50))
        assert store.timeout == datetime.timedelta(milliseconds=50)
        with pytest.raises(RuntimeError, match="(?i)timeout"):
            store.get("nothing")
        with pytest.raises(RuntimeError, match="(?i)timeout"):
            store.wait(["nothing"], datetime.timedelta(milliseconds=50))
