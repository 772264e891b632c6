"""PyTorch's module paths for which this package has no file, such as `teletensor.distributions.normal`.

A path in the table becomes a module when a program imports it or reads it as an attribute of its parent.
Its names are taken from the modules of this package that define them. `teletensor.as_torch.x.y` is
`teletensor.x.y` itself, at every depth.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["FILES", "TABLE", "attribute", "register", "register_as_torch"]

_PACKAGE = __name__.partition(".")[0]
_AS_TORCH = f"{_PACKAGE}.as_torch."

# Modules of the package that are imported at their first use, not by the package itself.
FILES = frozenset(
    """
    _dynamo compiler cuda.amp distributed distributed.algorithms distributed.algorithms.ddp_comm_hooks
    distributed.algorithms.ddp_comm_hooks.default_hooks
    distributed.algorithms.ddp_comm_hooks.post_localSGD_hook
    distributed.algorithms.ddp_comm_hooks.powerSGD_hook distributed.algorithms.join
    distributed._functional_collectives distributed.checkpoint distributed.checkpoint.filesystem
    distributed.checkpoint.state_dict distributed.checkpoint.stateful
    distributed.device_mesh distributed.fsdp
    distributed.nn distributed.nn.functional distributed.optim distributed.pipelining
    distributed.tensor distributed.tensor.parallel futures hub jit.annotations masked multiprocessing
    nested nn.parallel onnx overrides profiler signal signal.windows torch_version types utils._pytree
    utils.benchmark utils.collect_env
""".split()
)

# Names, and the modules among the above that define them.
_LATER = {"nn.DataParallel": "nn.parallel", "jit.Future": "futures"}

# Path: the module that defines the names, and the names, with `theirs=ours` if they differ. Further modules
# follow after `;`.
_LINES = """
_C: _core device dtype; _tensors.generator Generator; _tensors.size Size;
    _tensors.memory_format layout memory_format; _names.legacy _log_api_usage_once
_tensor_str: _tensors.repr PRINT_OPTS set_printoptions
_utils: _names.legacy _flatten_dense_tensors _take_tensors _unflatten_dense_tensors
autograd.anomaly_mode: autograd detect_anomaly set_detect_anomaly
autograd.grad_mode: autograd enable_grad inference_mode no_grad set_grad_enabled
autograd.profiler: _tools.profile_events EventList;
    profiler ProfilerActivity profile=_AutogradProfile record_function
autograd.variable: autograd Variable
cuda.amp.autocast_mode: cuda.amp autocast custom_bwd custom_fwd
cuda.amp.grad_scaler: cuda.amp GradScaler; amp.grad_scaler OptState
distributions.bernoulli: distributions Bernoulli
distributions.beta: distributions Beta
distributions.binomial: distributions Binomial
distributions.categorical: distributions Categorical
distributions.cauchy: distributions Cauchy
distributions.chi2: distributions Chi2
distributions.constraint_registry: distributions.registry ConstraintRegistry biject_to transform_to
distributions.continuous_bernoulli: distributions ContinuousBernoulli
distributions.dirichlet: distributions Dirichlet
distributions.exp_family: distributions ExponentialFamily
distributions.exponential: distributions Exponential
distributions.fishersnedecor: distributions FisherSnedecor
distributions.gamma: distributions Gamma
distributions.generalized_pareto: distributions GeneralizedPareto
distributions.geometric: distributions Geometric
distributions.gumbel: distributions Gumbel
distributions.half_cauchy: distributions HalfCauchy
distributions.half_normal: distributions HalfNormal
distributions.independent: distributions Independent
distributions.inverse_gamma: distributions InverseGamma
distributions.kumaraswamy: distributions Kumaraswamy
distributions.laplace: distributions Laplace
distributions.lkj_cholesky: distributions LKJCholesky
distributions.log_normal: distributions LogNormal
distributions.logistic_normal: distributions LogisticNormal
distributions.lowrank_multivariate_normal: distributions LowRankMultivariateNormal
distributions.mixture_same_family: distributions MixtureSameFamily
distributions.multinomial: distributions Multinomial
distributions.multivariate_normal: distributions MultivariateNormal
distributions.negative_binomial: distributions NegativeBinomial
distributions.normal: distributions Normal
distributions.one_hot_categorical: distributions OneHotCategorical OneHotCategoricalStraightThrough
distributions.pareto: distributions Pareto
distributions.poisson: distributions Poisson
distributions.relaxed_bernoulli: distributions RelaxedBernoulli
distributions.relaxed_categorical: distributions RelaxedOneHotCategorical
distributions.studentT: distributions StudentT
distributions.transformed_distribution: distributions TransformedDistribution
distributions.uniform: distributions Uniform
distributions.von_mises: distributions VonMises
distributions.weibull: distributions Weibull
distributions.wishart: distributions Wishart
distributed._composable: distributed
distributed._composable.fsdp: distributed.fsdp CPUOffloadPolicy FSDPModule MixedPrecisionPolicy
    OffloadPolicy fully_shard register_fsdp_forward_method
distributed._tensor: distributed.tensor DTensor DeviceMesh Partial Placement Replicate Shard
    distribute_tensor empty full init_device_mesh ones rand randn zeros
distributed.constants: distributed default_pg_timeout
distributed.elastic: distributed
distributed.elastic.multiprocessing: distributed
distributed.elastic.multiprocessing.errors: distributed._record record
distributed.pipelining.schedules: distributed.pipelining Schedule1F1B ScheduleGPipe
distributed.tensor.device_mesh: distributed.device_mesh DeviceMesh init_device_mesh
distributed.tensor.parallel.style: distributed.tensor.parallel ColwiseParallel ParallelStyle
    PrepareModuleInput PrepareModuleInputOutput PrepareModuleOutput RowwiseParallel SequenceParallel
distributed.tensor.placement_types: distributed.tensor Partial Placement Replicate Shard
functional: _functions atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes broadcast_tensors
    cartesian_prod cdist chain_matmul einsum istft meshgrid norm split stft tensordot unique
    unique_consecutive unravel_index
mps: _names.no_device device_count is_available
mtia: _names.no_device device_count is_available
nn._reduction: _names.legacy get_enum; nn.functional.losses legacy_get_string=_legacy_get_string
nn.parallel.data_parallel: nn.parallel DataParallel data_parallel
nn.parallel.distributed: nn.parallel DistributedDataParallel; nn._ddp_precision _MixedPrecision
nn.parallel.parallel_apply: nn.parallel parallel_apply
nn.parallel.replicate: nn.parallel replicate
nn.parallel.scatter_gather: nn.parallel gather scatter
nn.utils.clip_grad: nn.utils clip_grad_norm_ clip_grad_value_
nn.utils.convert_parameters: nn.utils parameters_to_vector vector_to_parameters
nn.utils.fusion: nn.utils fuse_conv_bn_eval fuse_conv_bn_weights fuse_linear_bn_eval fuse_linear_bn_weights
nn.utils.spectral_norm: nn.utils remove_spectral_norm spectral_norm
nn.utils.weight_norm: nn.utils remove_weight_norm weight_norm
optim.adadelta: optim Adadelta
optim.adagrad: optim Adagrad
optim.adamax: optim Adamax
optim.adamw: optim AdamW
optim.asgd: optim ASGD
optim.nadam: optim NAdam
optim.radam: optim RAdam
optim.rmsprop: optim RMSprop
optim.rprop: optim Rprop
optim.sparse_adam: optim SparseAdam
serialization: _files.serialize load save
utils.data._utils: utils.data
utils.data._utils.collate: utils.data default_collate default_convert
utils.data._utils.worker: utils.data WorkerInfo get_worker_info
utils.data.dataloader: utils.data BatchSampler DataLoader Dataset IterableDataset RandomSampler Sampler
    SequentialSampler default_collate default_convert get_worker_info
utils.hooks: nn._hooks RemovableHandle
utils.model_zoo: hub load_url=load_state_dict_from_url
xpu: _names.no_device device_count is_available
"""


def _rows() -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    for line in _LINES.replace("\n    ", " ").strip().splitlines():
        path, _, sources = line.partition(": ")
        parts = []
        for source in sources.split(";"):
            home, *names = source.split()
            pairs = (name.partition("=") for name in names)
            parts.append((home, {theirs: ours or theirs for theirs, _, ours in pairs}))
        yield path, parts


# Path: the modules that define its names, and for each name its name there.
TABLE = dict(_rows())


class _CallableModule(ModuleType):
    """A module with the name of one of its functions, such as nn.utils.weight_norm. An import puts the
    module in the function's place in its parent, so that calls of the function reach the module."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[self.__name__.rpartition(".")[2]](*args, **kwargs)


class _Finder(MetaPathFinder, Loader):
    """An import hook that is called for modules that no other finder has found."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != _PACKAGE:
            return None
        if rest in TABLE:
            return ModuleSpec(name, self, is_package=True)
        # importlib.util.find_spec() only asks whether a module exists: it gets None, and not an error.
        asks = sys._getframe(1).f_back
        imported = asks is not None and asks.f_code.co_name == "_find_and_load_unlocked"
        if imported and not rest.rpartition(".")[2].startswith("_"):
            from . import absent as _absent

            raise ModuleNotFoundError(f"No module named {name!r}: {_absent.HINT}", name=name)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        own = spec.name.rpartition(".")[2]
        has_it = any(own in names for _, names in TABLE[spec.name.removeprefix(_PACKAGE + ".")])
        return _CallableModule(spec.name) if has_it else None

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__.removeprefix(_PACKAGE + ".")
        names: dict[str, Any] = {}
        for home, wanted in TABLE[path]:
            names |= {theirs: getattr(_imported(home), ours) for theirs, ours in wanted.items()}
        module.__doc__ = f"What PyTorch has in torch.{path}."
        module.__dict__.update(names, __all__=sorted(names))
        from . import absent as _absent

        _absent.attach(vars(module))


class _AsTorchFinder(MetaPathFinder, Loader):
    """An import hook that is called before all others: the modules below `as_torch` are those of the
    package, which have a `__path__`, and the usual finder would run their files a second time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(_AS_TORCH) or importlib.util.find_spec(_real(name)) is None:
            return None
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        # The import system uses the module in sys.modules instead of the new one.
        sys.modules[module.__name__] = importlib.import_module(_real(module.__name__))


def _real(name: str) -> str:
    """The name of the package's module for one below `as_torch`."""
    return f"{_PACKAGE}.{name.removeprefix(_AS_TORCH)}"


def _imported(path: str) -> ModuleType:
    return importlib.import_module(f"{_PACKAGE}.{path}")


def attribute(module: str, name: str) -> Any:
    """The submodule or name that is imported at its first use as this attribute of the module; None if
    there is none."""
    path = f"{module}.{name}".removeprefix(_PACKAGE + ".")
    if path in _LATER:
        return getattr(_imported(_LATER[path]), name)
    return _imported(path) if path in TABLE or path in FILES else None


_finder = _Finder()
_as_torch_finder = _AsTorchFinder()


def register() -> None:
    """Makes the paths importable."""
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


def register_as_torch() -> None:
    """Makes the package's modules importable below `as_torch`, too."""
    if _as_torch_finder not in sys.meta_path:
        sys.meta_path.insert(0, _as_torch_finder)
