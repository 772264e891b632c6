"""Compares PyTorch's module paths and the names in them with teletensor's: which exist, with which
parameters and results."""

import importlib
import inspect
import sys
import warnings

import numpy as np
import pytest
from teletensor._names import paths as _paths

warnings.filterwarnings("ignore", category=FutureWarning)
PATHS = sorted([*_paths.TABLE, *_paths.FILES])
# Names in these modules that PyTorch has and teletensor does not have.
MISSING = {
    "compiler": """PrecompileError cudagraph_mark_warmup_incomplete get_default_backend keep_portable_guards_unsafe
        keep_tensor_guards_unsafe list_backends load_cache_artifacts load_compiled_function nested_compile_region
        nonstrict_trace precompile save_cache_artifacts set_default_backend set_enable_guard_collectives set_stance
        skip_all_guards_unsafe skip_guard_on_all_nn_modules_unsafe skip_guard_on_globals_unsafe
        skip_guard_on_inbuilt_nn_modules_unsafe substitute_in_graph wrap_numpy config""",
    "autograd.grad_mode": "enforce_grad_layout_policy set_multithreading_enabled",
    "autograd.variable": "VariableMeta",
    "cuda.amp": "amp_definitely_not_available",
    "distributions.relaxed_bernoulli": "LogitRelaxedBernoulli",
    "distributions.relaxed_categorical": "ExpRelaxedCategorical",
    "functional": "lu pca_lowrank svd_lowrank",
    "overrides": """enable_reentrant_dispatch get_ignored_functions get_overridable_functions get_testing_overrides
        is_tensor_method_or_property redispatch_function resolve_name wrap_torch_function""",
    "autograd.profiler": """EnforceUnique KinetoStepTracker MemRecordsAcc emit_itt emit_nvtx load_nvprof
        parse_nvprof_trace FunctionEvent""",
    "profiler": """CuspyConfig DeviceType ExecutionTraceObserver PerformanceMetricsConfig ProfilerActivityConfig
        kineto_available""",
    "nn.parallel.parallel_apply": "get_a_var",
    "nn.parallel.scatter_gather": "scatter_kwargs",
    "onnx": "ExportableModule InputObserver ONNXProgram OnnxExporterError export is_in_onnx_export",
    "types": "Storage",
    "utils._pytree": """Context DumpableContext FlattenFn FromDumpableContextFn PyTreeSpec ToDumpableContextFn
        UnflattenFn is_structseq is_structseq_class is_structseq_instance treespec_dumps treespec_loads
        treespec_pprint""",
}
# Types of devices that no daemon has: their modules have the functions by which programs ask whether there
# is a device.
NO_DEVICE = ("mps", "mtia", "xpu")
# Names that PyTorch does not have.
OURS = {
    "distributed": {"Mesh", "PerRank", "Rank", "admit", "connect_mesh", "members"},
    "distributed.checkpoint": {"state_dict"},
    "distributed.fsdp": {"ShardedParameter"}, "distributed.nn": {"recv", "send"},
    "distributed.nn.functional": {"recv", "send"}, "nested": {"NestedTensor"},
    "onnx": {"OnnxError", "OnnxModel", "load"},
}  # fmt: skip
# Modules with the functional forms of optimizers, which teletensor does not have.
FUNCTIONAL = {"adadelta", "adagrad", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop"}
# Options of how PyTorch writes the files of a checkpoint, which have no effect here.
FILE_OPTIONS = {
    "_extension_registry", "_extensions", "cache_staged_state_dict", "identifier", "overwrite", "per_thread_copy_ahead",
    "serialization_format", "single_file_per_rank", "sync_files", "thread_count"}  # fmt: skip
# Parameters that PyTorch has and a function of teletensor does not have.
PARAMETERS = {
    "autograd.profiler.profile": {"_profiler_extensions"},
    "distributed.init_process_group": {"_ranks", "enable_reconfigure"},
    "distributed.checkpoint.CheckpointException": {"failures", "msg"},
    "distributed.checkpoint.load": {"no_dist", "planner"},
    "distributed.checkpoint.save": {"no_dist", "planner", "use_collectives"},
    "distributed.checkpoint.state_dict.StateDictOptions": {"dsd_fqn_modifiers", "flatten_optimizer_state_dict"},
    **dict.fromkeys((f"distributed.{path}FileSystem{what}" for path in ("checkpoint.", "checkpoint.filesystem.")
                     for what in ("Reader", "Writer")), FILE_OPTIONS),
    "distributed.DeviceMesh": {
        "_init_backend", "_layout", "_rank", "_rank_map", "_root_mesh", "backend_override", "preserve_rank_order"},
    **dict.fromkeys(("distributed.fsdp.MixedPrecisionPolicy", "distributed._composable.fsdp.MixedPrecisionPolicy"),
                    {"param_dtype_override_fn"}),
    **dict.fromkeys(("distributed.fsdp.fully_shard", "distributed._composable.fsdp.fully_shard"), {"dp_mesh_dims"}),
    "distributed.pipelining.PipelineStage": {
        "dw_builder", "get_mesh", "group", "input_args", "input_grads", "output_args", "output_grads"},
    "utils.collect_env.SystemEnv": {
        "caching_allocator_config", "clang_version", "cmake_version", "conda_packages", "cuda_compiled_version",
        "cuda_module_loading", "cuda_runtime_version", "cudnn_version", "gcc_version", "hip_compiled_version",
        "hip_runtime_version", "is_cuda_available", "is_debug_build", "is_xnnpack_available", "is_xpu_available",
        "miopen_runtime_version", "nvidia_driver_version", "nvidia_gpu_models", "pip_version", "rocm_compiled_version",
        "torch_version"},
    **dict.fromkeys((f"distributed.pipelining.{path}Schedule{name}" for path in ("", "schedules.")
                     for name in ("1F1B", "GPipe")), {"args_chunk_spec", "kwargs_chunk_spec", "output_merge_spec"}),
    "nn.parallel.DistributedDataParallel": {
        "delay_all_reduce_named_params", "param_to_hook_all_reduce",
        "skip_all_reduce_unused_params", "bucket_cap_mb_list", "batched_grad_copy", "forward_sync_buffers",
        "lazy_bucket_allocation"},
    "serialization.load": {"pickle_module"},
    "serialization.save": {"pickle_module", "pickle_protocol", "_use_new_zipfile_serialization",
                           "_disable_byteorder_record"},
    "_dynamo.disable": {"wrapping"},
    "functional.stft": {"align_to_window"},
    "functional.split": {"split_size_or_sections", "tensor"}, "autograd.grad_mode.enable_grad": {"orig_func"},
    "autograd.grad_mode.no_grad": {"orig_func"}, "autograd.grad_mode.inference_mode": {"orig_func"},
    "autograd.grad_mode.set_grad_enabled": {"mode"},
    "utils.data._utils.worker.WorkerInfo": {"rng", "worker_method"},
    "utils.hooks.RemovableHandle": {"hooks_dict", "extra_dict"},
    "multiprocessing.ProcessContext": {"error_files"},
}  # fmt: skip


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def parameters(function):
    try:
        found = inspect.signature(function).parameters.values()
        return {p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)} - {"self"}
    except (TypeError, ValueError):
        return set()


@pytest.mark.parametrize("path", PATHS)
def test_names(torch, path):
    theirs = importlib.import_module(f"torch.{path}")
    ours = importlib.import_module(f"teletensor.{path}")
    assert ours.__doc__
    unknown = {name for name in ours.__all__ if not hasattr(theirs, name)}
    assert unknown == OURS.get(path, set())
    public = {name for name in getattr(theirs, "__all__", ()) if not isinstance(getattr(theirs, name), type(inspect))}
    missing = {name for name in public if not hasattr(ours, name)} - FUNCTIONAL
    elsewhere = ("_", "distributed", "serialization", "jit.annotations", "utils.hooks", "nn.utils", "utils.data._utils")
    if path not in NO_DEVICE and not path.startswith(elsewhere):
        assert missing == set(MISSING.get(path, "").split()) & missing
        assert not set(MISSING.get(path, "").split()) - missing - {"config", "precompile"}
    for name in set(ours.__all__) - unknown:
        wanted, have = parameters(getattr(theirs, name)), parameters(getattr(ours, name))
        if path in ("multiprocessing", "_C") or inspect.isclass(getattr(ours, name)) and not wanted:
            continue
        home = path if f"{path}.{name}" in PARAMETERS else "distributed" if path.startswith("distributed.") else (
            "nn.parallel" if path.startswith("nn.parallel") else path)
        lacking = wanted - have - PARAMETERS.get(f"{home}.{name}", set()) - ({"out"} if path == "functional" else set())
        assert not lacking or "layout" in lacking, (name, lacking)


NAMES = """
nn.init._calculate_fan_in_and_fan_out nn.init._calculate_correct_fan nn.DataParallel nn.SyncBatchNorm
nn.Module.compile nn.Module.share_memory jit.ignore jit.unused jit.Final jit.is_scripting jit.is_tracing
jit.annotate jit.export jit.interface jit.script_if_tracing jit.ScriptModule jit.ScriptFunction amp.custom_fwd
amp.custom_bwd _assert _assert_async set_default_tensor_type spmm _C._log_api_usage_once _tensor_str.PRINT_OPTS
cuda.FloatTensor cuda.LongTensor cuda.HalfTensor cuda.ByteTensor optim.lr_scheduler._LRScheduler
utils.data.DistributedSampler distributions.utils._standard_normal utils._pytree._register_pytree_node
""".split()


@pytest.mark.parametrize("name", NAMES)
def test_single_names(tt, torch, name):
    def found(root):
        place = root
        for part in name.split("."):
            place = getattr(place, part)
        return place

    lacking = parameters(found(torch)) - parameters(found(tt))
    others = {"_assert_async", "jit.script_if_tracing", "utils._pytree._register_pytree_node"}
    assert not lacking or name in others, lacking


# Each line is evaluated with both libraries: the results, or the types of the errors, must be equal.
LINES = """
p.tree_flatten({"b": [1, (2, None)], "a": 3})[0], p.tree_leaves([1, {"x": (2,)}], is_leaf=lambda x: isinstance(x,\
 dict))
p.tree_map(lambda a, b: a + b, {"x": 1, "y": [2]}, {"y": [20], "x": 10})
p.tree_map(lambda a, b: a + len(b), [1, 2], [(1, 2), (3,)])
p.tree_map(lambda a, b: a, [1, 2], [1])
p.tree_map(lambda a, b: a, [1, 2], (1, 2))
p.tree_map(lambda a, b: a, {"x": 1}, {"y": 1})
p.tree_map_only(int, lambda a: -a, [1, 2.5, "x"]), p.tree_map_only((int, str), lambda a: a * 2, [1, 2.5, "x"])
p.tree_all(lambda a: a > 0, [1, 2]), p.tree_any_only(int, lambda a: a > 5, [1, "x"]), p.tree_is_leaf(None),\
 p.tree_is_leaf(())
p.tree_unflatten([1], p.tree_structure([1, 2]))
p.tree_structure([1, (2,)]) == p.tree_structure([5, (None,)]), p.tree_structure([1]) == p.tree_structure((1,))
p.tree_structure({"a": [1, 2]}).num_leaves, p.tree_structure({"a": [1, 2]}).num_nodes, p.tree_structure([1]).is_leaf()
[(p.keystr(path), leaf) for path, leaf in p.tree_leaves_with_path({"a": [1, 2], "b": (3,)})]
p.tree_map_with_path(lambda path, x: p.keystr(path) + str(x), {"a": [1, 2]})
p.key_get({"a": [1, 2]}, p.tree_leaves_with_path({"a": [1, 2]})[1][0])
p.is_namedtuple(collections.namedtuple("P", "x")), p.is_namedtuple((1, 2))
type(p.tree_map(lambda x: x, collections.OrderedDict(a=1))).__name__, p.tree_map(lambda x: x * 2,\
 collections.deque([1], 3)).maxlen
p.tree_map(lambda x: x + 1, collections.defaultdict(list, a=1)).default_factory,\
 p.tree_flatten(collections.namedtuple("P", "x y")(1, [2]))[0]
p.register_pytree_node(list, None, None)
[getattr(w, n)(7, sym=s).double() for n in ("bartlett", "blackman", "cosine", "exponential", "gaussian", "hamming",\
 "hann", "kaiser", "nuttall", "general_hamming") for s in (True, False)]
w.general_cosine(5, a=[0.3, 0.4, 0.3]), w.exponential(5, center=0.0, tau=2.0, sym=False), w.hann(0), w.hann(1),\
 w.gaussian(6, std=0.7, dtype=t.float64)
w.exponential(5, center=0.0)
w.gaussian(5, std=-1.0)
w.kaiser(5, beta=-1.0)
w.hann(-1)
w.hann(3, dtype=t.int64)
w.general_cosine(3, a=[])
t.spmm(t.ones(2, 3), t.arange(6.0).view(3, 2)), t.nn.init._calculate_fan_in_and_fan_out(t.ones(2, 3, 4)),\
 t.nn.init._calculate_correct_fan(t.ones(2, 3), "fan_out")
t.nn.init._calculate_fan_in_and_fan_out(t.ones(2))
t._assert(True, "x"), t._assert_async(t.tensor(1)), t._C._log_api_usage_once("x"), t._tensor_str.PRINT_OPTS.precision
t._assert(False, "x")
t._assert_async(t.tensor(0))
t.set_default_tensor_type(t.DoubleTensor), t.ones(1).dtype, t.set_default_tensor_type("torch.FloatTensor"),\
 t.ones(1).dtype
t.set_default_tensor_type(t.LongTensor)
t.set_default_tensor_type("torch.NoTensor")
isinstance(t.ones(1), t.cuda.FloatTensor), isinstance(t.ones(1), t.FloatTensor), t.ones(1).type(t.LongTensor).dtype
t.distributions.utils.broadcast_all(1, t.ones(2)), t.distributions.utils.probs_to_logits(t.tensor([0.2, 1.0])),\
 t.distributions.utils.logits_to_probs(t.tensor([0.2, 1.0]))
t.distributions.utils.tril_matrix_to_vec(t.arange(9.0).view(3, 3)),\
 t.distributions.utils.vec_to_tril_matrix(t.arange(1.0, 7.0)),\
 t.distributions.utils.tril_matrix_to_vec(t.arange(9.0).view(3, 3), 1),\
 t.distributions.utils.tril_matrix_to_vec(t.arange(9.0).view(3, 3), -1)
t.distributions.utils.vec_to_tril_matrix(t.arange(5.0))
t.distributions.utils.broadcast_all("x")
[list(t.utils.data.DistributedSampler(range(7), 3, r, shuffle=False,\
 drop_last=d)) for r in range(3) for d in (False, True)]
[len(t.utils.data.DistributedSampler(range(7), 3, r, drop_last=d)) for r in range(3) for d in (False, True)]
list(t.utils.data.DistributedSampler(range(2), 5, 4, shuffle=False))
t.utils.data.DistributedSampler(range(7), 3, 3)
t.utils.data.DistributedSampler(range(7), 3)
t.jit.is_scripting(), t.jit.is_tracing(), t.compiler.is_compiling(), t.jit.annotate(int, 3)
isinstance(t.nn.Linear(1, 1), t.jit.ScriptModule), isinstance(len, t.jit.ScriptFunction)
isinstance(t.jit.trace(t.nn.Linear(1, 1), t.ones(1, 1)), t.jit.ScriptModule), isinstance(t.jit.trace(double,\
 t.ones(1, 1)), t.jit.ScriptFunction)
t.overrides.is_tensor_like(t.ones(1)), t.overrides.is_tensor_like(3), t.overrides.has_torch_function((t.ones(1), 3))
t.distributed.is_available(), t.distributed.is_initialized(), t.distributed.is_gloo_available(),\
 t.distributed.is_torchelastic_launched()
t.distributed.get_rank()
t.distributed.all_reduce(t.ones(1))
t.distributed.init_process_group("gloo")
t.nn.parallel.DistributedDataParallel(t.nn.Linear(1, 1))
t.nn.DataParallel(t.nn.Linear(2, 1))(t.ones(3, 2)).shape, list(t.nn.DataParallel(t.nn.Linear(2, 1)).state_dict())
[type(m).__name__ for m in t.nn.SyncBatchNorm.convert_sync_batchnorm(t.nn.Sequential(t.nn.BatchNorm2d(3),\
 t.nn.Linear(1, 1))).modules()]
t.nn.SyncBatchNorm(2)(t.arange(12.0).view(3, 2, 2)), t.nn.SyncBatchNorm(2)(t.arange(6.0).view(3, 2))
t.nn.SyncBatchNorm(2)(t.ones(2))
issubclass(t.optim.lr_scheduler.StepLR, t.optim.lr_scheduler._LRScheduler),\
 t.utils.model_zoo.load_url is t.hub.load_state_dict_from_url
t.hub.load("x", "y", source="nowhere")
t._dynamo.config.suppress_errors, setattr(t._dynamo.config, "cache_size_limit", 64)
t._dynamo.config.nothing
[t.profiler.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=3)(i).name for i in range(14)]
[t.profiler.schedule(wait=0, warmup=0, active=1)(i).name for i in range(3)]
[t.profiler.schedule(wait=2, warmup=0, active=1, skip_first=1, skip_first_wait=1)(i).name for i in range(7)]
t.profiler.schedule(wait=-1, warmup=0, active=1)
t.profiler.schedule(wait=0, warmup=0, active=1)(-1)
b.select_unit(2e-5), b.select_unit(3.0), b.unit_to_english("ms")
b.Measurement(10, [1.0, 2.0, 4.0], b.TaskSpec("x", "pass")).median, b.Measurement(10, [1.0, 2.0, 4.0],\
 b.TaskSpec("x", "pass")).mean
b.Measurement(10, [1.0, 2.0, 4.0], b.TaskSpec("x", "pass")).iqr, b.Measurement(10, [1.0, 2.0], b.TaskSpec("x",\
 "")).times
len(b.Measurement.merge([b.Measurement(1, [1.0], b.TaskSpec(s, "")) for s in "xyx"])), b.TaskSpec("x", "",\
 label="l", sub_label="s").title
b.Timer("1", timer=lambda: 0.0).timeit(5).raw_times, b.Timer("x + 1", globals={"x": 2}).timeit(3).number_per_run
b.Timer(len)
b.Timer("1").repeat()
b.Compare([1])
sorted(t.multiprocessing.get_all_sharing_strategies()), t.multiprocessing.get_sharing_strategy()
""".strip().splitlines()


def double(x):
    return x * 2


def plain(value):
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):
        return np.round(np.asarray(value.detach().tolist(), dtype=object).astype(float), 5).tolist() \
            if value.is_floating_point() else value.tolist()
    text = str(value)
    return text.rpartition(".")[2] if text.startswith(("torch.", "teletensor.")) else value


def outcome(line, t, name):
    import collections

    scope = {"t": t, "np": np, "collections": collections, "double": double}
    if "p." in line:
        scope["p"] = importlib.import_module(f"{name}.utils._pytree")
    if "w." in line:
        scope["w"] = importlib.import_module(f"{name}.signal.windows")
    if "b." in line:
        scope["b"] = importlib.import_module(f"{name}.utils.benchmark")
    for path in ("profiler", "utils.model_zoo", "_dynamo", "multiprocessing", "overrides", "nn.parallel"):
        importlib.import_module(f"{name}.{path}")
    try:
        return plain(eval(line, scope))
    except Exception as error:
        return type(error).__name__
    finally:
        t.set_default_dtype(t.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", LINES)
def test_lines(tt, torch, line, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    # PyTorch's DataParallel takes the device of teletensor.torch if another test of this process has imported it.
    monkeypatch.setattr(sys.modules["torch.nn.parallel.data_parallel"], "_get_available_device_type", lambda: None)
    assert outcome(line, tt, "teletensor") == outcome(line, torch, "torch")


def collectives(t, place):
    d = importlib.import_module(f"{t.__name__}.distributed")
    d.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    try:
        x = t.arange(4.0)
        yield d.is_initialized(), d.get_rank(), d.get_world_size(), d.get_backend()
        yield d.get_process_group_ranks(d.group.WORLD)
        for op in ("SUM", "PRODUCT", "MIN", "MAX"):
            d.all_reduce(x, getattr(d.ReduceOp, op))
            yield x.tolist()
        work = d.all_reduce(x, async_op=True)
        yield work.wait(), d.broadcast(x, 0), d.barrier(), d.reduce(x, dst=0), x.tolist()
        into = [t.zeros(4)]
        d.all_gather(into, x)
        flat = t.zeros(4)
        d.all_gather_into_tensor(flat, x)
        yield into[0].tolist(), flat.tolist()
        objects = [None]
        d.all_gather_object(objects, {"a": [1]})
        listed = ["x", 2]
        d.broadcast_object_list(listed, 0)
        out = [None]
        d.scatter_object_list(out, ["only"], 0)
        gathered = [None]
        d.gather_object("me", gathered, 0)
        yield objects, listed, out, gathered
        y = t.zeros(4)
        d.scatter(y, [x], 0)
        z = [t.zeros(4)]
        d.gather(x, z, 0)
        yield y.tolist(), z[0].tolist()
        outs = [t.zeros(4)]
        # some builds of gloo do not have all_to_all
        d.all_to_all(outs, [x]) if t.__name__ != "torch" else outs[0].copy_(x)
        yield outs[0].tolist()
        for wrong in (lambda: d.send(x, 0), lambda: d.new_group([1]),
                      lambda: d.init_process_group("gloo", init_method=f"file://{place}2", rank=0, world_size=1)):
            try:
                yield wrong()
            except Exception as error:
                yield type(error).__name__
        group = d.new_group([0])
        yield d.get_world_size(group), d.get_rank(group)
        net = t.nn.parallel.DistributedDataParallel(t.nn.Linear(4, 1))
        net.load_state_dict({"module.weight": t.ones(1, 4), "module.bias": t.zeros(1)})
        with net.no_sync():
            net(x[None]).sum().backward()
        net(x[None]).sum().backward()
        yield net.module.weight.grad.tolist(), list(net.state_dict())
        sampler = t.utils.data.DistributedSampler(range(3), shuffle=False)
        yield list(sampler), sampler.num_replicas, sampler.rank
    finally:
        d.destroy_process_group()
    yield d.is_initialized()


@pytest.mark.filterwarnings("ignore")
def test_a_world_of_one(tt, torch, tmp_path):
    ours = list(collectives(tt, tmp_path / "ours"))
    assert ours == list(collectives(torch, tmp_path / "theirs"))


class Twice:
    @staticmethod
    def made(t, custom_fwd, custom_bwd):
        class F(t.autograd.Function):
            @staticmethod
            @custom_fwd
            def forward(ctx, x, more):
                ctx.save_for_backward(x)
                return x.mm(x) + more["y"]

            @staticmethod
            @custom_bwd
            def backward(ctx, g):
                x, = ctx.saved_tensors
                Twice.seen = str(x.mm(x).dtype).split(".")[1]
                return g.mm(x.t()).to(x.dtype), None
        return F


@pytest.mark.parametrize("cast", [None, "float32", "float16"])
@pytest.mark.parametrize("on", [True, False])
def test_custom_fwd_and_bwd(tt, torch, cast, on):
    results = []
    for t in (tt, torch):
        dtype = cast and getattr(t, cast)
        kind = Twice.made(t, t.amp.custom_fwd(device_type="cpu", cast_inputs=dtype),
                          t.amp.custom_bwd(device_type="cpu"))
        x = t.eye(2, requires_grad=True)
        with t.autocast("cpu", enabled=on):
            out = kind.apply(x, {"y": t.ones(2, 2), "n": 1})
        out.float().sum().backward()
        results.append((str(out.dtype).split(".")[1], out.tolist(), Twice.seen, x.grad.tolist()))
    assert results[0] == results[1]
    with pytest.raises(TypeError):
        tt.amp.custom_fwd(lambda ctx: ctx)


def test_functions_that_give_way(tt, torch):
    class Like:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return NotImplemented if not args else (func.__name__, [kind.__name__ for kind in types], args[1:])

    class More(Like):
        pass

    for t in (tt, torch):
        o = importlib.import_module(f"{t.__name__}.overrides")

        def twice(x, y=0, o=o):
            if o.has_torch_function((x, y)):
                return o.handle_torch_function(twice, (x, y), x, y=y)
            return x * 2

        assert twice(3) == 6 and twice(Like()) == ("twice", ["Like"], ())
        assert twice(Like(), More()) == ("twice", ["More", "Like"], ()) and o.is_tensor_like(Like())
        with pytest.raises(TypeError, match="no implementation found"):
            o.handle_torch_function(twice, (Like(),))


def test_a_module_compiles_itself(tt, torch):
    for t, options in ((tt, {}), (torch, {"backend": "eager"})):
        net = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.Tanh())
        x = t.ones(1, 2)
        before = net(x)
        net.compile(**options)
        calls = []
        net.register_forward_hook(lambda *args, calls=calls: calls.append(1))
        for _ in range(3):
            assert t.allclose(net(x), before)
        net.load_state_dict({name: t.zeros_like(value) for name, value in net.state_dict().items()})
        assert net(x).abs().sum().item() == 0 and net.share_memory() is net
        import copy

        assert copy.deepcopy(net)(x).tolist() == [[0, 0]]
