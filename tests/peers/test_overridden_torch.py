"""Tests programs that override, call or read the private methods and attributes of PyTorch's layers, schedules,
optimizers and distributions.

Each function does so with both libraries (teletensor under PyTorch's names): the results must be equal.
"""

import importlib
import math
import types
import warnings

import numpy as np
import pytest


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def filled(t, module):
    """The module with the same weights in both libraries."""
    with t.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(t.from_numpy(values(*parameter.shape, seed=i) * 0.3))
    return module


def blocks_of_an_encoder_layer(t):
    """Layers that keep their attention weights, and ones with a gated feed-forward block."""
    class Layer(t.nn.TransformerEncoderLayer):
        def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
            x, self.seen = self.self_attn(x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask,
                                          need_weights=True, average_attn_weights=False)
            return self.dropout1(x)

        def _ff_block(self, x):
            return super()._ff_block(x) * x.sigmoid()

    results = []
    for norm_first in (False, True):
        layer = filled(t, Layer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first))
        encoder = t.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        mask = t.nn.Transformer.generate_square_subsequent_mask(3)
        results += [encoder(t.from_numpy(values(2, 3, 8)), mask=mask), encoder.layers[1].seen]
    return results


def blocks_of_a_decoder_layer(t):
    class Layer(t.nn.TransformerDecoderLayer):
        def _mha_block(self, x, mem, attn_mask, key_padding_mask, is_causal=False):
            return super()._mha_block(x, mem * 2, attn_mask, key_padding_mask, is_causal)

        def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
            return super()._sa_block(x, attn_mask, key_padding_mask) + x

        def _ff_block(self, x):
            return -super()._ff_block(x)

    layer = filled(t, Layer(8, 2, 16, dropout=0.0))
    return t.nn.TransformerDecoder(layer, 2)(t.from_numpy(values(3, 2, 8)), t.from_numpy(values(4, 2, 8, seed=1)))


def a_convolution_with_standardised_weights(t):
    class Standardised(t.nn.Conv2d):
        def forward(self, x):
            w = self.weight
            w = w - w.mean((1, 2, 3), keepdim=True)
            return self._conv_forward(x, w / w.std((1, 2, 3), keepdim=True), self.bias)

    class Cast(t.nn.Conv1d):
        def _conv_forward(self, x, weight, bias):
            return super()._conv_forward(x, weight.to(x.dtype), bias.to(x.dtype))

    x = t.from_numpy(values(2, 3, 5, 5))
    return [filled(t, Standardised(3, 4, 3, padding=1, padding_mode=mode))(x) for mode in ("zeros", "reflect")], filled(
        t, Cast(3, 2, 2))(t.from_numpy(values(2, 3, 5)).double())


def a_convolution_whose_padding_differs_by_axis(t):
    """Image generators make textures that repeat in one direction by a new _conv_forward of each layer."""
    def repeat_x(self, input, weight, bias):
        sides = self._reversed_padding_repeated_twice
        input = t.nn.functional.pad(input, (*sides[:2], 0, 0), mode="circular")
        input = t.nn.functional.pad(input, (0, 0, *sides[2:]))
        return t.nn.functional.conv2d(input, weight, bias, self.stride, 0, self.dilation, self.groups)

    layer = filled(t, t.nn.Conv2d(1, 2, 3, padding=(1, 2)))
    layer._conv_forward = types.MethodType(repeat_x, layer)
    same = t.nn.Conv1d(1, 1, 4, padding="same", padding_mode="circular")
    return layer(t.from_numpy(values(1, 1, 4, 5))), same._reversed_padding_repeated_twice


def a_transposed_convolution_with_its_own_forward(t):
    class Scaled(t.nn.ConvTranspose2d):
        def forward(self, x, output_size=None):
            extra = self._output_padding(x, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation)
            return t.nn.functional.conv_transpose2d(x, self.weight * 2, self.bias, self.stride, self.padding, extra,
                                                    self.groups, self.dilation)

    layer, x = filled(t, Scaled(1, 2, 3, stride=2)), t.from_numpy(values(1, 1, 2, 3))
    return layer(x), layer(x, output_size=(6, 7))


def parts_of_other_layers(t):
    lstm = t.nn.LSTM(2, 3, 2, bidirectional=True)
    table = t.nn.Embedding(4, 2, padding_idx=1)
    with t.no_grad():
        table.weight.fill_(3)
    table._fill_padding_idx_with_zero()
    slope = t.nn.PReLU(2, init=0.5)
    with t.no_grad():
        slope.weight.fill_(3)
    slope.reset_parameters()

    class Any(t.nn.InstanceNorm1d):
        def _check_input_dim(self, input):
            assert input.dim() == 3

    return (lstm._flat_weights_names, [w.shape for w in lstm._flat_weights], table.weight, slope.weight, slope.init,
            Any(3)(t.from_numpy(values(2, 3, 4))))


def a_schedule_after_pytorchs_pattern(t):
    """Schedules of many repositories are copies of PyTorch's: they warn outside of step()."""
    scheduler = importlib.import_module(f"{t.__name__}.optim.lr_scheduler")

    class WarmUp(scheduler._LRScheduler):
        def __init__(self, optimizer, length, last_epoch=-1):
            self.length = length
            super().__init__(optimizer, last_epoch)

        def get_lr(self):
            if not self._get_lr_called_within_step:
                warnings.warn("To get the last learning rate, please use `get_last_lr()`.", stacklevel=2)
            if self._is_initial:
                return [base / 100 for base in self.base_lrs]
            return [base * min(1.0, self.last_epoch / self.length) for base in self.base_lrs]

    optimizer = t.optim.SGD([t.ones(1, requires_grad=True)], lr=0.5)
    schedule, rates = WarmUp(optimizer, 4), []
    for _ in range(3):
        optimizer.step()
        schedule.step()
        rates += [schedule.get_last_lr()[0], schedule._step_count]
    schedule._step_count += 1
    schedule.step(2.5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        schedule.get_lr()
    return rates, schedule.get_last_lr(), schedule.last_epoch, len(said), sorted(schedule.state_dict())


def epochs_that_are_given(t):
    """`step(epoch)`, also with a fraction, of every schedule."""
    s, results = importlib.import_module(f"{t.__name__}.optim.lr_scheduler"), []
    makers = [lambda o: s.StepLR(o, 2), lambda o: s.MultiStepLR(o, [1, 3, 3], 0.5), lambda o: s.ExponentialLR(o, 0.9),
              lambda o: s.ConstantLR(o, 0.5, 3), lambda o: s.LinearLR(o, 0.2, 0.9, 4),
              lambda o: s.PolynomialLR(o, 4, 2.0),
              lambda o: s.CosineAnnealingLR(o, 5, 0.01), lambda o: s.CosineAnnealingWarmRestarts(o, 2, 2),
              lambda o: s.LambdaLR(o, lambda e: 0.5 ** e), lambda o: s.MultiplicativeLR(o, lambda e: 0.9),
              lambda o: s.OneCycleLR(o, 0.3, total_steps=9), lambda o: s.CyclicLR(o, 0.1, 0.4, 2)]
    for make in makers:
        optimizer = t.optim.SGD([t.ones(1, requires_grad=True)], lr=0.2, momentum=0.9)
        schedule = make(optimizer)
        for epoch in (1, 3, 2.5, None, 7):
            optimizer.step()
            schedule.step() if epoch is None else schedule.step(epoch)
            results.append((schedule.get_last_lr()[0], schedule.last_epoch))
    return results


def a_plateau_that_reports(t):
    class Reporting(t.optim.lr_scheduler.ReduceLROnPlateau):
        def _reduce_lr(self, epoch):
            self.reports = [*getattr(self, "reports", []), epoch]
            super()._reduce_lr(epoch)

    optimizer = t.optim.SGD([t.ones(1, requires_grad=True)], lr=0.5)
    schedule, states = Reporting(optimizer, patience=1, cooldown=1), []
    for value in (1.0, 2.0, 2.0, 2.0, 0.5, 3.0, 3.0, 3.0):
        schedule.step(value)
        states.append((schedule.in_cooldown, optimizer.param_groups[0]["lr"], schedule.best))
    schedule._reset()
    return states, schedule.reports, schedule.best, schedule.num_bad_epochs


def an_optimizer_with_a_new_option(t):
    """Optimizers give groups of older checkpoints the defaults of newer options in __setstate__."""
    class Signed(t.optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        def __setstate__(self, state):
            super().__setstate__(state)
            for group in self.param_groups:
                group.setdefault("scale", 3.0)

        def step(self, closure=None):
            with t.no_grad():
                for group in self.param_groups:
                    for p in group["params"]:
                        p.add_(p.grad.sign(), alpha=-group["lr"] * group["scale"])

    x = t.ones(2, requires_grad=True)
    (x * x).sum().backward()
    optimizer = Signed([x])
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    return x, sorted(optimizer.param_groups[0])


def a_distribution_of_its_own(t):
    """Bijected and truncated distributions use the shape of samples and the instance that expand() fills."""
    d = importlib.import_module(f"{t.__name__}.distributions")

    class Triangle(d.Distribution):
        arg_constraints = {"top": d.constraints.positive}
        support = d.constraints.nonnegative

        def __init__(self, top, validate_args=None):
            self.top = top
            super().__init__(top.shape, validate_args=validate_args)

        def expand(self, batch_shape, _instance=None):
            new = self._get_checked_instance(Triangle, _instance)
            new.top = self.top.expand(batch_shape)
            super(Triangle, new).__init__(batch_shape, validate_args=False)
            new._validate_args = self._validate_args
            return new

        def rsample(self, sample_shape=()):
            return t.full(self._extended_shape(sample_shape), 0.25).sqrt() * self.top

        def log_prob(self, value):
            return math.log(2) + value.log() - 2 * self.top.log()

    class Child(Triangle):
        def __init__(self):
            super().__init__(t.ones(2))

    wide = Triangle(t.tensor([1.0, 2.0])).expand((3, 2))
    with pytest.raises(NotImplementedError, match="defines a custom __init__"):
        Child().expand((3, 2))
    return wide.sample((4,)), wide.sample_n(2), wide.log_prob(t.ones(3, 2)), wide.batch_shape, wide._extended_shape()


def classes_below_the_layers(t):
    """Bayesian and quantised layers derive from the classes below PyTorch's layers."""
    part = lambda path: importlib.import_module(f"{t.__name__}.nn.modules.{path}")  # noqa: E731
    pair = part("utils")._pair

    class Ones(part("conv")._ConvNd):
        def __init__(self, i, o, size):
            super().__init__(i, o, pair(size), pair(1), pair(1), pair(1), False, pair(0), 1, True, "circular")

        def forward(self, x):
            x = t.nn.functional.pad(x, self._reversed_padding_repeated_twice, "circular")
            return t.nn.functional.conv2d(x, t.ones_like(self.weight), t.ones_like(self.bias), self.stride)

    class Any(part("batchnorm")._BatchNorm):
        def _check_input_dim(self, input):
            pass

    class Focal(part("loss")._WeightedLoss):
        def forward(self, x, y):
            loss = t.nn.functional.cross_entropy(x, y, weight=self.weight, reduction="none")
            loss = (1 - (-loss).exp()) ** 2 * loss
            return loss.mean() if self.reduction == "mean" else loss.sum()

    x = t.from_numpy(values(2, 3, 4, 4))
    norm = part("batchnorm")._NormBase(3)
    return (Ones(3, 2, 3)(x), repr(Ones(3, 2, 3)), Any(3)(x), Any(3)(x[:, :, 0, 0]), repr(Any(3)), norm.running_var,
            Focal(t.tensor([1.0, 2.0]), reduction="sum")(t.tensor([[1.0, 2], [3, 1]]), t.tensor([0, 1])),
            isinstance(t.nn.Dropout2d(), part("dropout")._DropoutNd), isinstance(norm, part("batchnorm")._BatchNorm))


def names_of_private_modules(t):
    """What older libraries import: groups of gradients, losses by number, copies of layers, fills."""
    part = lambda path: importlib.import_module(f"{t.__name__}.{path}")  # noqa: E731
    util, reduction, init = part("_utils"), part("nn._reduction"), part("nn.init")
    sizes, transformer = part("nn.modules.utils"), part("nn.modules.transformer")
    parts = [t.ones(2), t.zeros(2, 2), t.ones(1, dtype=t.int64), t.ones(3)]
    flat = util._flatten_dense_tensors(parts[:2])
    with pytest.raises(ValueError, match="not a valid value"):
        reduction.get_enum("some")
    return (flat, util._unflatten_dense_tensors(flat, parts[:2]), list(util._take_tensors(parts, 20)),
            [reduction.get_enum(name) for name in ("none", "mean", "sum")],
            [reduction.legacy_get_string(*args, False) for args in ((None, None), (False, True), (True, False))],
            init._no_grad_normal_(t.ones(2), 3.0, 0.0), init._no_grad_fill_(t.ones(2), 4),
            sizes._reverse_repeat_tuple((1, 2), 2), sizes._list_with_default([None, 2], [3, 4, 5]),
            len(transformer._get_clones(t.nn.Linear(1, 1), 3)), transformer._get_activation_fn("gelu")(t.ones(1)),
            [transformer._get_seq_len(t.ones(2, 3, 4), first) for first in (True, False)],
            part("nn.modules.module")._addindent("a\nb", 2))


def modules_named_like_their_functions(t):
    """The function is still called by its name after a program has imported the module."""
    norm = importlib.import_module(f"{t.__name__}.nn.utils.weight_norm")
    spectral = importlib.import_module(f"{t.__name__}.nn.utils.spectral_norm")
    parallel = importlib.import_module(f"{t.__name__}.nn.parallel.data_parallel")
    first, second = filled(t, t.nn.Linear(2, 2)), filled(t, t.nn.Linear(2, 2))
    t.nn.utils.weight_norm(first)
    norm.weight_norm(second, dim=None)
    names = sorted(first.state_dict()), second.weight_g.shape, first.weight, second.weight
    norm.remove_weight_norm(first)
    return (names, sorted(first.state_dict()), sorted(t.nn.utils.spectral_norm(t.nn.Linear(2, 2)).state_dict()),
            callable(spectral.remove_spectral_norm), parallel.DataParallel is t.nn.DataParallel)


def functions_that_may_write_to_their_input(t):
    """Functions that quantise derive from InplaceFunction."""
    class Rounded(importlib.import_module(f"{t.__name__}.autograd.function").InplaceFunction):
        @staticmethod
        def forward(ctx, input, inplace=False):
            if inplace:
                ctx.mark_dirty(input)
            return (input if inplace else input.clone()).round_()

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    x = t.tensor([0.4, 1.6], requires_grad=True)
    y = x * 2
    z = Rounded.apply(y, True) + Rounded.apply(x)
    z.sum().backward()
    return y, z, x.grad


def an_optimizer_with_a_required_option(t):
    base = importlib.import_module(f"{t.__name__}.optim.optimizer")

    class Plain(base.Optimizer):
        def __init__(self, params, lr=base.required, differentiable=False):
            super().__init__(params, {"lr": lr, "differentiable": differentiable})

        @base._use_grad_for_differentiable
        def step(self, closure=None):
            self._cuda_graph_capture_health_check()
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"])

    x, y = t.ones(2, requires_grad=True), t.ones(1, requires_grad=True)
    (x.sum() * y).sum().backward()
    with pytest.raises(ValueError, match="didn't specify a value of required optimization parameter lr"):
        Plain([x])
    Plain([{"params": [x], "lr": 0.5}, {"params": [y], "lr": 0.25}]).step()
    return x, y, repr(base.required)


def samples_in_one_request(t):
    """Datasets with __getitems__ give a whole batch at once, also through a Subset."""
    data = importlib.import_module(f"{t.__name__}.utils.data")

    class Squares(data.Dataset):
        def __len__(self):
            return 7

        def __getitem__(self, i):
            return i * i

        def __getitems__(self, indices):
            return [-i for i in indices]

    class Lists(data.Dataset):
        def __getitem__(self, i):
            return [10 * each for each in i] if isinstance(i, list) else 10 * i

    part = data.Subset(Squares(), [5, 3, 1])
    return [list(data.DataLoader(each, 2)) for each in (Squares(), part)], part[0], data.Subset(Lists(), [4, 2])[[1, 0]]


PROGRAMS = [modules_named_like_their_functions, classes_below_the_layers, names_of_private_modules,
            functions_that_may_write_to_their_input,
            an_optimizer_with_a_required_option, samples_in_one_request,
            blocks_of_an_encoder_layer, blocks_of_a_decoder_layer, a_convolution_with_standardised_weights,
            a_convolution_whose_padding_differs_by_axis, a_transposed_convolution_with_its_own_forward,
            parts_of_other_layers, a_schedule_after_pytorchs_pattern, epochs_that_are_given, a_plateau_that_reports,
            an_optimizer_with_a_new_option, a_distribution_of_its_own]


def flat(value):
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in (key, *flat(item))]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flat(item)]
    if hasattr(value, "detach"):
        return [str(value.dtype).partition(".")[2], *value.shape, *value.detach().flatten().tolist()]
    return [value]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore:The epoch parameter", "ignore::UserWarning", "ignore::FutureWarning")
def test_results_are_pytorchs(tt, program):
    import torch

    ours, theirs = flat(program(tt)), flat(program(torch))
    assert [x for x in ours if not isinstance(x, float)] == [x for x in theirs if not isinstance(x, float)]
    assert [x for x in ours if isinstance(x, float)] == pytest.approx(
        [x for x in theirs if isinstance(x, float)], rel=1e-4, abs=1e-5)
