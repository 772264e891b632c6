"""freeze, optimize_for_inference, trace_module and the other names of torch.jit for deployed modules."""

import copy

import pytest


@pytest.fixture
def net(tt):
    class Net(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = tt.nn.Linear(3, 2)
            self.tied = self.fc.weight
            self.register_buffer("shift", tt.ones(2))
            self.register_buffer("calls", tt.zeros(()))
            self.scale = 2.0

        def forward(self, x):
            return self.fc(x) * self.scale + self.shift

        def weighted(self, w):
            return w * self.fc.weight

    return Net().eval()


@pytest.mark.parametrize("how", ["script", "trace"])
def test_a_frozen_module_is_a_copy_with_constants(tt, net, how):
    x = tt.randn(4, 3)
    before = net(x).detach()
    captured = tt.jit.script(net) if how == "script" else tt.jit.trace(net, x)
    frozen = tt.jit.freeze(captured)
    assert isinstance(frozen, tt.jit.ScriptModule)
    assert not list(frozen.parameters()) and not list(frozen.buffers()) and not frozen.state_dict()
    assert frozen.tied is frozen.fc.weight and frozen.scale == 2.0
    assert ("linear" if how == "trace" else "self.fc") in [node.kind() for node in frozen.graph.nodes()]
    with tt.no_grad():
        for p in net.parameters():
            p.zero_()
        net.shift.zero_()
    net.scale = 7.0
    result = frozen(x)
    assert tt.allclose(result, before) and not result.requires_grad
    assert captured(x).abs().sum().item() == 0 and captured(x).requires_grad
    assert len(list(net.parameters())) == 2
    assert tt.allclose(frozen(x[:2]), before[:2])  # other shapes


@pytest.mark.parametrize("how", ["script", "trace"])
def test_layers_stay_exact(tt, how):
    layers = [
        (tt.nn.LSTM(3, 4, 2), (5, 2, 3)), (tt.nn.Sequential(tt.nn.Conv2d(1, 2, 3), tt.nn.BatchNorm2d(2)), (1, 1, 5, 5)),
        (tt.nn.TransformerEncoderLayer(4, 2, 8), (3, 1, 4)),
        (tt.nn.utils.parametrizations.weight_norm(tt.nn.Linear(3, 3)), (2, 3)),
    ]
    for layer, shape in layers:
        class Net(tt.nn.Module):
            def __init__(self, layer=layer):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return self.layer(x)

        net, x = Net().eval(), tt.randn(*shape)
        frozen = tt.jit.optimize_for_inference(tt.jit.script(net) if how == "script" else tt.jit.trace(net, x))
        found, wanted = frozen(x), net(x)
        if isinstance(wanted, tuple):
            found, wanted = found[0], wanted[0]
        assert tt.allclose(found, wanted), layer
        assert not list(frozen.parameters()) + list(frozen.buffers()), layer


def test_kept_attributes_and_files(tt, net, tmp_path):
    x = tt.randn(4, 3)
    traced = tt.jit.trace(net, x)
    kept = tt.jit.freeze(traced, ["fc.bias", "shift", "scale"])
    assert [name for name, _ in kept.named_parameters()] == ["fc.bias"]
    assert [name for name, _ in kept.named_buffers()] == ["shift"]
    kept.fc.bias.data.add_(1)
    assert tt.allclose(kept(x), net(x) + 2)
    tt.jit.save(tt.jit.freeze(traced), tmp_path / "net.st")
    loaded = tt.jit.load(tmp_path / "net.st")
    assert tt.jit.freeze(loaded) is loaded is tt.jit.optimize_for_inference(loaded)
    assert tt.allclose(loaded(x), net(x))


def test_what_cannot_be_frozen(tt, net):
    for call in (tt.jit.freeze, tt.jit.optimize_for_inference):
        for wrong in (net, tt.jit.script(lambda x: x), 3):
            with pytest.raises(RuntimeError, match="expects a ScriptModule as input"):
                call(wrong)
    with pytest.raises(RuntimeError, match="Unknown name: fc.nothing"):
        tt.jit.freeze(tt.jit.script(net), ["fc.nothing"])
    scripted = tt.jit.script(net.train())
    with pytest.raises(RuntimeError, match=r"call .eval\(\) on your module"):
        tt.jit.freeze(scripted)
    tt.jit.optimize_for_inference(scripted)
    assert not net.training  # as in PyTorch


def test_methods_are_traced(tt, net):
    x, w = tt.randn(1, 3), tt.randn(2, 3)
    traced = tt.jit.trace_module(net, {"forward": x, "weighted": (w,)}, check_trace=False)
    assert isinstance(traced, tt.jit.ScriptModule) and isinstance(traced.weighted, tt.jit.ScriptFunction)
    assert tt.allclose(traced(x), net(x)) and tt.allclose(traced.weighted(w), net.weighted(w))
    assert [node.kind() for node in traced.weighted.graph.nodes()] == ["mul"]
    frozen = tt.jit.freeze(traced, ["weighted"])
    wanted = net.weighted(w).detach()
    with tt.no_grad():
        net.fc.weight.zero_()
    assert tt.allclose(frozen.weighted(w), wanted) and traced.weighted(w).abs().sum().item() == 0
    named = tt.jit.trace_module(net, {"weighted": {"w": w}}, example_inputs_is_kwarg=True)
    assert named.weighted(w=w).shape == (2, 3) and named(x).shape == (1, 2)
    for module, inputs, said in ((3, {}, "expected torch.nn.Module"), (net, 3, "expected a dictionary"),
                                 (net, {"nothing": x}, "no attribute 'nothing'")):
        with pytest.raises(AttributeError, match=said):
            tt.jit.trace_module(module, inputs)
    with pytest.raises(TypeError, match="colour"):
        tt.jit.trace_module(net, {}, colour=1)


def test_tasks_and_switches(tt):
    jobs = [tt.jit.fork(tt.add, tt.ones(2), other=n) for n in range(3)]
    assert [tt.jit.wait(job).tolist() for job in jobs] == [[1, 1], [2, 2], [3, 3]]
    assert isinstance(jobs[0], tt.jit.Future)
    with pytest.raises(ZeroDivisionError):
        tt.jit.fork(lambda: 1 / 0)
    before = tt.jit.set_fusion_strategy([("STATIC", 3)])
    assert tt.jit.set_fusion_strategy(before) == [("STATIC", 3)] and before == [("STATIC", 2), ("DYNAMIC", 10)]
    with pytest.raises(ValueError, match="got: X"):
        tt.jit.set_fusion_strategy([("X", 1)])
    assert not tt.jit.onednn_fusion_enabled()
    tt.jit.enable_onednn_fusion(True)
    assert tt.jit.onednn_fusion_enabled()
    tt.jit.enable_onednn_fusion(False)
    with tt.jit.optimized_execution(False):
        assert tt.jit.script(tt.nn.Identity())(tt.ones(1)).item() == 1


@pytest.mark.parametrize("how", ["script", "trace", "compile"])
def test_methods_of_the_module_return_what_was_captured(tt, net, how):
    x = tt.randn(4, 3)
    captured = {"script": tt.jit.script, "trace": lambda net: tt.jit.trace(net, x), "compile": tt.compile}[how](net)
    assert captured.train() is captured and net.training and captured.training
    assert captured.eval().to("cpu").requires_grad_(False) is captured and not net.training
    assert not net.fc.weight.requires_grad
    assert captured.double() is captured and captured(x.double()).dtype == tt.float64
    seen = []
    assert captured.apply(lambda part: seen.append(part)) is captured and seen[-1] is net
    assert captured.get_submodule("fc") is net.fc and isinstance(captured.state_dict(), dict)
    frozen = tt.jit.freeze(captured.float().eval())
    assert tt.allclose(frozen(x), net(x)) and str(frozen.inlined_graph) == str(frozen.graph)


def test_captured_functions_save_themselves(tt, net, tmp_path):
    x = tt.randn(4, 3)
    traced = tt.jit.trace(net, x)
    traced.save(tmp_path / "net.st")
    loaded = tt.jit.load(tmp_path / "net.st")
    loaded.save(tmp_path / "again.st")
    assert tt.allclose(tt.jit.load(tmp_path / "again.st")(x), net(x))
    with pytest.raises(RuntimeError, match="has not been captured yet: call it"):
        tt.jit.script(net).save(tmp_path / "never.st")
    net.save = lambda path: f"mine: {path}"  # the module's own method has priority
    assert traced.save("here") == "mine: here"


@pytest.mark.parametrize("how", ["compile", "script"])
def test_copies_of_captured_modules(tt, net, how):
    """A copy has parameters of its own, and is captured at its next call."""
    captured = tt.compile(net) if how == "compile" else tt.jit.script(net)
    x = tt.ones(2, 3)
    first = captured(x)
    other = copy.deepcopy(captured)
    assert type(other) is type(captured) and other(x).tolist() == first.tolist()
    with tt.no_grad():
        next(iter(other.parameters())).add_(1.0)
    assert other(x).tolist() != first.tolist() and captured(x).tolist() == first.tolist()
