"""Compares state_dict and load_state_dict of modules with PyTorch's: methods that a class overrides, hooks,
versions, what is missing or unexpected, and the private attributes that libraries use."""

import copy
import io
import pickle
from collections import OrderedDict

import pytest


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def values(state):
    return {key: value.tolist() for key, value in state.items()}


def text(error, t):
    return str(error).replace("teletensor.", "torch.") if t.__name__ == "teletensor" else str(error)


def attempt(t, module, state, **options):
    """Returns the result or the error of load_state_dict, and the state afterwards."""
    try:
        result = module.load_state_dict(state, **options)
        said = repr(result), result.missing_keys, result.unexpected_keys
    except (RuntimeError, TypeError) as error:
        said = type(error).__name__, text(error, t)
    return said, values(module.state_dict())


def customised(t):
    """A class with its own _load_from_state_dict and _save_to_state_dict, alone and below other modules."""
    calls = []

    class Scaled(t.nn.Module):
        _version = 3

        def __init__(self):
            super().__init__()
            self.w = t.nn.Parameter(t.ones(2))

        def _load_from_state_dict(self, state, prefix, metadata, strict, missing, unexpected, errors):
            calls.append(("load", prefix, dict(metadata), strict, sorted(state)))
            if prefix + "w_old" in state:
                state[prefix + "w"] = state.pop(prefix + "w_old") * 10
            if metadata.get("version") == 2:
                errors.append(f"{prefix}: version 2")
            super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
            calls.append(("loaded", self.w.tolist(), list(missing), list(unexpected)))

        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "twice"] = self.w.detach() * 2

    net = t.nn.Sequential(Scaled(), t.nn.Linear(2, 1), t.nn.Sequential(Scaled()))
    for place in (net[1].weight, net[1].bias):
        t.nn.init.ones_(place)
    state = net.state_dict()
    seen = [list(state), dict(state._metadata)]
    seen.append(attempt(t, net, state))
    seen.append(attempt(t, net, {"0.w_old": t.zeros(2) + 1, "1.weight": t.zeros(1, 2), "2.0.w_old": t.zeros(3)}))
    older = copy.deepcopy(state)
    older._metadata["2.0"]["version"] = 2
    seen.append(attempt(t, net, older, strict=False))
    seen.append(attempt(t, Scaled(), {"w": t.zeros(2)}, assign=True))
    return seen, calls


def hooked(t):
    """The order and the arguments of all hooks, with the private ways to register them."""
    calls = []
    net = t.nn.Sequential(t.nn.Linear(1, 1), t.nn.BatchNorm1d(1))
    for place in net[0].parameters():
        t.nn.init.ones_(place)

    def note(name, result=None):
        return lambda *args: calls.append(
            (name, *(a for a in args if isinstance(a, (str, bool, list))),
             *(sorted(a) for a in args if isinstance(a, dict)), [type(a).__name__ for a in args][0])) or result

    net[0].register_state_dict_pre_hook(note("save before"))
    net[0].register_state_dict_post_hook(note("save after"))
    net[0]._register_state_dict_hook(note("save after, private"))
    handle = net._register_state_dict_hook(lambda m, state, prefix, metadata: {"only": state["0.bias"]})
    net[0]._register_load_state_dict_pre_hook(note("load before, private"))
    net[1]._register_load_state_dict_pre_hook(note("load before, with the module"), with_module=True)
    net[1].register_load_state_dict_pre_hook(note("load before"))
    net[0].register_load_state_dict_post_hook(lambda m, keys: calls.append(("load after", list(keys[0]))))
    net.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.remove("0.bias"))
    seen = [values(net.state_dict())]
    handle.remove()
    state = net.state_dict()
    del state["0.bias"]
    seen.append(attempt(t, net, state))
    seen += [len(net[0]._state_dict_hooks), len(net[0]._load_state_dict_pre_hooks), len(net._state_dict_pre_hooks)]
    net[0].register_state_dict_post_hook(lambda *args: 1)
    with pytest.raises(RuntimeError, match="state_dict post-hook must return None"):
        net.state_dict()
    net[0]._state_dict_hooks.clear()
    net[1]._load_state_dict_post_hooks[7] = lambda m, keys: keys
    with pytest.raises(AssertionError):
        net.load_state_dict(net.state_dict())
    return seen, calls


def versions(t):
    """Loads states without num_batches_tracked, as old files have them."""
    seen = []
    nn = t.nn
    makers = [lambda: nn.BatchNorm1d(2), lambda: nn.BatchNorm2d(2, affine=False), lambda: nn.BatchNorm3d(2),
              lambda: nn.SyncBatchNorm(2), lambda: nn.InstanceNorm1d(2, track_running_stats=True),
              lambda: nn.InstanceNorm2d(2), lambda: nn.BatchNorm1d(2, track_running_stats=False),
              lambda: nn.Sequential(nn.Sequential(nn.BatchNorm1d(2))), lambda: nn.InstanceNorm3d(2, affine=True),
              lambda: nn.LazyBatchNorm1d(), lambda: nn.LazyInstanceNorm1d(track_running_stats=True, affine=True)]
    for make in makers:
        lazy = "Lazy" in type(make()).__name__
        state = (nn.BatchNorm1d(2) if lazy else make()).state_dict()
        seen.append(dict(make().state_dict()._metadata))
        for key in [key for key in state if key.endswith("num_batches_tracked")]:
            del state[key]
        seen.append(attempt(t, make(), state))
        seen.append(attempt(t, make(), dict(state)))
        for version in (1, 2):
            dated = OrderedDict(state)
            dated._metadata = {"": {"version": version}, "0.0": {"version": version}}
            seen.append(attempt(t, make(), dated))
        if not lazy:
            seen.append(attempt(t, make(), {"running_mean": t.ones(2), "running_var": t.ones(2)}))
    counted = nn.BatchNorm1d(2)
    counted(t.ones(3, 2))
    seen.append(attempt(t, counted, {"weight": t.zeros(2)}, strict=False))
    return seen


def failures(t):
    """Texts, their order, and what has been copied nevertheless."""
    seen = []
    net = t.nn.Sequential(t.nn.Linear(2, 1), t.nn.ReLU(), t.nn.Linear(1, 1))
    net.register_buffer("count", t.zeros(()))
    net.register_buffer("gone", None)
    net.register_buffer("own", t.zeros(1), persistent=False)
    for place in net.parameters():
        t.nn.init.ones_(place)
    state = net.state_dict()
    for change in ({"0.weight": t.zeros(3), "2.bias": t.zeros(1)}, {"count": t.zeros(1) + 4}, {"more": t.ones(1)},
                   {"1.weight": t.ones(1), "3.weight": t.ones(1), "own": t.ones(1), "gone": t.ones(1)},
                   {"_extra_state": t.ones(1)}, {"0.weight": t.zeros(2), "x.y.z": t.ones(1), "2.q": t.ones(1)}):
        for strict in (True, False):
            seen.append(attempt(t, net, {**state, **change}, strict=strict))
    for missing in ({}, {"2.weight": t.zeros(1, 1)}, {"count": t.ones(())}):
        for strict in (True, False):
            seen.append(attempt(t, net, missing, strict=strict))
    seen.append(attempt(t, net, [1]))
    return seen


def kept(t):
    """Types and attributes of state_dicts, and copies of them."""
    net = t.nn.Sequential(t.nn.BatchNorm1d(1))
    state = net.state_dict()
    seen = [type(state).__name__, isinstance(state, OrderedDict), state._metadata, type(state._metadata).__name__,
            copy.deepcopy(state)._metadata, copy.copy(state)._metadata]
    file = io.BytesIO()
    t.save({"net": state, "flat": OrderedDict(b=1, a=2)}, file)
    file.seek(0)
    loaded = t.load(file)
    seen += [type(loaded["net"]).__name__, loaded["net"]._metadata]
    seen += [loaded["flat"], hasattr(loaded["flat"], "_metadata")]
    file = io.BytesIO()
    t.save(state, file)
    file.seek(0)
    loaded = t.load(file)
    seen += [type(loaded).__name__, list(loaded), loaded._metadata, type(loaded._metadata).__name__]
    state.move_to_end("0.weight")
    seen += [state.popitem(last=False)[0], list(state)]
    mine = {"kept": 1}
    seen += [net.state_dict(destination=mine, prefix="p.") is mine, list(mine), hasattr(mine, "_metadata")]
    return seen


def attributes(t):
    """Private attributes of modules that libraries read, clear and override."""
    seen = []
    net = t.nn.Sequential(t.nn.Linear(1, 1), t.nn.BatchNorm1d(1))
    net.register_forward_hook(lambda *args: seen.append("after"))
    net.register_forward_hook(lambda *args, **kwargs: seen.append("always"), always_call=True, with_kwargs=True)
    net.register_forward_pre_hook(lambda *args: seen.append("before"), with_kwargs=True)
    net.register_full_backward_hook(lambda *args: None)
    names = ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
             "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_state_dict_hooks",
             "_load_state_dict_pre_hooks"]
    seen += [len(getattr(net[0], name)) for name in names]
    seen += [len(getattr(net, name)) for name in names[:3]]
    net(t.ones(3, 1))
    net._forward_hooks.clear()
    net._forward_pre_hooks = OrderedDict()
    net._backward_hooks.clear()
    net(t.ones(3, 1))
    net._forward_hooks[1] = lambda module, args, result: result * 0
    seen.append(net(t.ones(3, 1)).tolist())
    net.register_buffer("own", t.ones(1), persistent=False)
    seen += [net._non_persistent_buffers_set == {"own"}, "own" in net.state_dict()]
    net._non_persistent_buffers_set.discard("own")
    seen += ["own" in net.state_dict(), len(net._non_persistent_buffers_set), net[1]._version, net._version]

    class Called(t.nn.Linear):
        def _call_impl(self, *args, **kwargs):
            return super()._call_impl(*args, **kwargs) * 0 + 5

        def __setstate__(self, state):
            seen.append("own state")
            super().__setstate__(state)

    called = copy.deepcopy(Called(1, 1))
    seen += [called(t.ones(1)).tolist(), called._call_impl(t.ones(1)).tolist()]
    return seen


def prefixes(t):
    """The keys of a state_dict of DistributedDataParallel without its prefix."""
    inner = t.nn.Sequential(t.nn.BatchNorm1d(1), t.nn.Linear(1, 1))
    state = t.nn.Sequential(OrderedDict(module=inner)).state_dict()
    state["kept"] = t.ones(1)
    strip = t.nn.modules.utils.consume_prefix_in_state_dict_if_present
    strip(state, "module.")
    plain = {"module.w": 1, "other.module.w": 2, "b": 3}
    strip(plain, "module.")
    return list(state), list(state._metadata.items()), list(plain.items())


def weight_norms(t):
    """A state of the older weight_norm, loaded into the parametrization."""
    net = t.nn.utils.parametrizations.weight_norm(t.nn.Linear(2, 1, bias=False))
    said = attempt(t, net, {"weight_g": t.ones(1, 1) * 5, "weight_v": t.tensor([[3.0, 4.0]])})
    return said, net.weight.tolist()


@pytest.mark.parametrize("program", [customised, hooked, versions, failures, kept, attributes, prefixes, weight_norms],
                         ids=lambda program: program.__name__)
def test_as_pytorch(tt, torch, program):
    assert program(tt) == program(torch)


def test_states_of_pytorch_keep_their_versions(tt, torch):
    theirs = torch.nn.BatchNorm1d(2).state_dict()
    ours = tt.from_torch(theirs)
    assert isinstance(ours, OrderedDict) and ours._metadata == theirs._metadata
    assert tt.to_torch(ours)._metadata == theirs._metadata
    tt.allow_pickle()
    assert pickle.loads(pickle.dumps(ours))._metadata == theirs._metadata
