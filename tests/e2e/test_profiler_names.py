"""torch.profiler, torch.utils.benchmark and the programs of captured functions, under PyTorch's names."""

import gzip
import json

import pytest
from teletensor import profiler
from teletensor.utils import benchmark


def work(tt, n=3):
    for _ in range(n):
        y = (tt.ones(30, 30) @ tt.ones(30, 30)).exp()
    return y.sum().item()


def test_a_profile_has_the_daemon_s_ops_and_blocks(tt, tmp_path):
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], record_shapes=True) as p:
        with profiler.record_function("outer"):
            work(tt)

        @profiler.record_function("decorated")
        def function():
            return work(tt, 1)

        function()
        function()
    averages = {each.key: each for each in p.key_averages()}
    assert averages["outer"].count == 1 and averages["decorated"].count == 2
    assert averages["matmul"].count == 5 and averages["matmul"].self_cpu_time_total > 0
    assert averages["outer"].cpu_time_total > 0 == averages["outer"].self_cpu_time_total
    assert averages["decorated"].cpu_time * 2 == pytest.approx(averages["decorated"].cpu_time_total)
    table = p.key_averages().table(sort_by="self_cuda_time_total", row_limit=2, header="mine")
    assert table.startswith("mine") and "Self time total" in table and table.count("us") + table.count("ms") >= 3
    times = [each.self_cpu_time_total for each in p.key_averages()]
    longest = max(p.key_averages(), key=lambda each: each.self_cpu_time_total)
    assert table.splitlines()[3].startswith(longest.key) and len(times) > 2
    assert any("test_profiler_names.py" in each.key for each in p.key_averages(group_by_stack_n=1))
    assert [event.begin for event in p.events()] == sorted(event.begin for event in p.events())
    p.export_chrome_trace(tmp_path / "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    assert {"outer", "decorated", "matmul"} <= {event["name"] for event in events}
    for call, text in ((lambda: p.key_averages().table(sort_by="colour"), "sort_by must be one of"),
                       (lambda: p.key_averages().table(time_unit="h"), "time_unit must be one of")):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(NotImplementedError, match="shapes and overloads are not recorded"):
        p.key_averages(group_by_input_shape=True)


def test_a_schedule_records_its_steps(tt, tmp_path):
    found = []
    schedule = profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with profiler.profile(schedule=schedule, on_trace_ready=lambda p: found.append(
            {each.key: each.count for each in p.key_averages()})) as p:
        for step in range(9):
            work(tt, step + 1)
            p.step()
    assert [each["matmul"] for each in found] == [3 + 4, 7 + 8]
    with profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path / "logs"), "me")):
        work(tt)
    file, = (tmp_path / "logs").iterdir()
    assert file.name.startswith("me.") and file.name.endswith(".pt.trace.json") and json.loads(file.read_text())
    with pytest.raises(RuntimeError, match="the profile has no events yet"):
        profiler.profile().events()
    with pytest.raises(ZeroDivisionError), profiler.profile():
        _ = 1 / 0
    assert not profiler._running and work(tt) > 0


def test_the_clock_waits_for_the_daemon(tt, monkeypatch):
    waits = []
    session = tt.current_session()
    monkeypatch.setattr(type(session), "synchronize", lambda self: waits.append(self))
    made = benchmark.Timer("x.exp()", "x = y + 1", globals={"y": tt.ones(3)}, label="exp", num_threads=2).timeit(20)
    assert waits == [session] * 4 and made.number_per_run == 20  # at the begin and end of both blocks
    assert made.task_spec.setup == "x = y + 1" and "20 runs per measurement, 2 threads" in repr(made)


def test_blocks_of_runs(tt):
    seen = []
    made = benchmark.Timer("x + 1", globals={"x": tt.ones(10)}).blocked_autorange(
        lambda number, seconds: seen.append((number, seconds)), min_run_time=0.02)
    assert made.raw_times == [seconds for _, seconds in seen] and {n for n, _ in seen} == {made.number_per_run}
    assert sum(made.raw_times) >= 0.02 and made.median > 0 and made.iqr >= 0
    clock = iter(range(10**6))
    steady = benchmark.Timer("pass", timer=lambda: float(next(clock))).adaptive_autorange()
    assert steady.iqr == 0 and len(steady.times) >= 4
    with pytest.raises(ValueError, match="without times"):
        _ = benchmark.Measurement(1, [], benchmark.TaskSpec("x", "")).mean
    with pytest.raises(NotImplementedError, match=r"only statements of Python are supported, not of c\+\+"):
        benchmark.Timer("1", language="c++")
    with pytest.raises(NameError):
        benchmark.Timer("nothing_of_that_name").timeit(1)


def test_a_table_compares():
    def made(label, sub, description, threads, *times):
        spec = benchmark.TaskSpec("x", "", label=label, sub_label=sub, description=description, num_threads=threads)
        return benchmark.Measurement(1, list(times), spec)

    compare = benchmark.Compare([made("mm", "10", "ours", 1, 1e-3), made("mm", "10", "theirs", 1, 2e-3, 9e-3)])
    compare.extend_results([made("mm", "20", "ours", 1, 0.25), made("mm", "10", "ours", 1, 3e-3),
                            made("add", "10", "ours", 4, 1e-6)])
    compare.trim_significant_figures()
    compare.highlight_warnings()
    first, second = str(compare).split("Times are in ")[:2]
    rows = [[cell.strip() for cell in line.split("|")] for line in first.splitlines() if "|" in line]
    assert rows == [["", "ours", "theirs"], ["10", "2 (!)", "5.5 (!)"], ["20", "250", ""]]
    assert " mm " in first and "1 threads: ---" in first and second.startswith("milliseconds (ms).")
    assert "4 threads: ---" in second and str(compare).rstrip().endswith("microseconds (us).")
    with pytest.raises(NotImplementedError, match="plain text"):
        compare.colorize()


def test_programs_are_shown(tt, tmp_path):
    def step(x, w):
        return (x @ w).relu().sum()

    compiled = tt.compile(step)
    assert not hasattr(compiled, "graph") and not hasattr(compiled, "code")
    with pytest.raises(AttributeError, match="step has not run yet: call it"):
        _ = compiled.graph
    x, w = tt.ones(2, 3), tt.ones(3, 2)
    before = compiled(x, w)
    assert [node.kind() for node in compiled.graph.nodes()] == ["matmul", "relu", "sum"]
    assert "test_profiler_names.py" in compiled.graph.nodes()[0].sourceRange()
    assert repr(compiled.graph) == str(compiled.graph) == str(compiled.program)
    assert compiled.code == (
        "def step(x: Tensor, w: Tensor):\n  v2 = matmul(x, w)\n  v3 = relu(v2)\n  v4 = sum(v3)\n  return v4\n")
    scope = {"Tensor": tt.Tensor, "matmul": tt.matmul, "relu": tt.relu, "sum": tt.sum}
    exec(compiled.code, scope)
    assert tt.equal(scope["step"](x, w), before)
    assert "loop:" in str(compiled.graph_for(x, w)) and "loop:" not in str(compiled.graph)
    assert tt.compile(lambda v: v + 1).graph_for(x).nodes()[-1].kind() == "add"
    net = tt.jit.trace(tt.nn.Linear(3, 2), x)
    assert net.code.startswith("def Linear(input: Tensor") and "linear(" in net.code
    tt.jit.save(net, tmp_path / "net.st")
    assert [node.kind() for node in tt.jit.load(tmp_path / "net.st").graph.nodes()] == ["linear"]
    compile(tt.jit.trace(lambda v: v * 2, x).code, "code", "exec")  # a lambda has a name in it, too

    class Network(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.graph = "of my own"

        def forward(self, v):
            return v * 2

    own = tt.compile(Network())
    assert own.graph == "of my own" and own(x).sum().item() == 12 and "mul(" in own.code


def test_scripted_programs_are_shown(tt, tmp_path, monkeypatch):
    import importlib

    (tmp_path / "shown_script.py").write_text(
        "def half(x):\n    while x > 1:\n        x = x / 2\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    half = tt.jit.script(importlib.import_module("shown_script").half)
    assert not hasattr(half, "graph") and half(tt.tensor(6.0)).item() == 0.75
    assert "div" in [node.kind() for node in half.graph.nodes()] and half.code.startswith("def half(v0: Tensor):")
