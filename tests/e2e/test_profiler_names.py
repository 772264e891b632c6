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
    every = p.key_averages().total_average()
    assert (every.key, every.count) == ("Total", sum(each.count for each in averages.values()))
    assert every.self_device_time_total == pytest.approx(p.key_averages().self_cpu_time_total)
    product = averages["matmul"]
    assert product.cuda_time_total == product.device_time_total == product.cpu_time_total
    assert product.device_time == product.cpu_time
    assert p.events()[0].self_cuda_time_total == p.events()[0].self_cpu_time_total <= p.events()[0].cuda_time
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
    with pytest.raises(NotImplementedError, match="no overloads"):
        p.key_averages(group_by_overload_name=True)


def test_events_are_grouped_by_shapes(tt):
    def some_work():
        for n in (3, 3, 5):
            x, w = tt.ones(n, 4), tt.ones(4, 5)
            tt.cat([x @ w, x @ w]).add(2.0).sum().item()

    with profiler.profile(record_shapes=True) as p:
        some_work()
        z = tt.ones(2, 2, requires_grad=True)
        (z @ z).sum().backward()
        z.grad.sum().item()
    found = {(each.key, str(each.input_shapes)): each for each in p.key_averages(group_by_input_shape=True)}
    assert found["matmul", "[[3, 4], [4, 5]]"].count == 4 and found["matmul", "[[5, 4], [4, 5]]"].count == 2
    assert found["cat", "[[3, 5], [3, 5]]"].count == 2  # the tensors of a list
    assert found["matmul", "[[2, 2], [2, 2]]"].count == 1 and found["matmul", "[]"].count == 2  # and those of backward
    assert any(shapes.startswith("[[6, 5], []") for key, shapes in found if key.startswith("add"))  # and a number
    table = p.key_averages(group_by_input_shape=True).table(max_shapes_column_width=12)
    assert "Input Shapes" in table and "[[3, 4], ..." in table
    assert "Input Shapes" not in p.key_averages().table()
    assert sum(each.count for each in p.key_averages() if each.key == "matmul") == 9
    assert any(event.input_shapes == [[3, 4], [4, 5]] for event in p.events())
    with profiler.profile() as p:
        some_work()
    averages = [each for each in p.key_averages(group_by_input_shape=True) if each.key == "matmul"]
    assert [(each.count, each.input_shapes) for each in averages] == [(6, [])]


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
    with pytest.raises(NotImplementedError, match="not of Language.CPP"):
        benchmark.Timer("1", language=benchmark.Language.CPP)
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
    compare.colorize()
    columns = str(compare)
    assert columns.count("\033[92m\033[1m") == 3 and columns.count("\033[31m\033[1m") == 1  # 250 against 2 ms
    compare.colorize(rowwise=True)
    rows = str(compare)
    assert rows.count("\033[92m\033[1m") == 3 and rows.count("\033[2m\033[91m") == 1  # 5.5 against 2 ms
    assert rows.replace("\033[92m\033[1m", "").replace("\033[2m\033[91m", "").replace("\033[0m", "").startswith(first)


def test_what_a_measurement_says():
    spec = benchmark.TaskSpec("x + 1", "a = 1\nb = 2", label="add", sub_label="small", description="ours", env="here")
    made = benchmark.Measurement(10, [1.0, 1.0, 1.1, 1.2], spec)
    assert (made.as_row_name, made.env, made.stmt, made.num_threads) == ("small", "here", "x + 1", 1)
    assert made.meets_confidence(0.2) and not made.meets_confidence(0.05) and made.significant_figures == 1
    assert benchmark.Measurement(1, [0.1234567], spec).significant_figures == 4
    assert spec.summarize() == "add: small\nours\nsetup:\n  a = 1\n  b = 2"
    assert benchmark.trim_sigfig(3.14159, 2) == 3.1 and benchmark.ordered_unique("abca") == ["a", "b", "c"]
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = made.colour
    with pytest.raises(NotImplementedError, match="use blocked_autorange"):
        benchmark.Timer("1").collect_callgrind()


def test_threads_are_set_for_a_block(tt):
    before = tt.get_num_threads()
    with pytest.raises(ZeroDivisionError), benchmark.set_torch_threads(before + 3):
        assert tt.get_num_threads() == before + 3
        _ = 1 / 0
    assert tt.get_num_threads() == before


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
    source = "def half(x):\n    while x > 1:\n        x = x / 2\n    return x\n"
    assert half.code == source and [node.kind() for node in half.graph.nodes()] == ["gt", "div"]
    assert half.graph.nodes()[1].sourceRange().endswith("shown_script.py:3")
    assert half(tt.tensor(6.0)).item() == 0.75 and half.code != source
    assert "div" in [node.kind() for node in half.graph.nodes()] and half.code.startswith("def half(v0: Tensor):")


def test_the_steps_of_a_source(tt):
    class Net(tt.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = tt.nn.Linear(3, 2)

        def forward(self, x, scale: float = 2.0):
            """Returns something."""
            first, second = self.fc(x).relu(), tt.cat([x, -x], dim=1)
            first *= scale
            if first.sum() > 0:
                first = first[0] - 1
            else:
                first = first.exp()
            for i in range(3):
                second = second + i
            return first, second

    net = tt.jit.script(Net())
    assert [node.kind() for node in net.graph.nodes()] == [
        "self.fc", "relu", "neg", "cat", "mul", "sum", "gt", "sub", "exp", "range", "add"]
    lines = str(net.graph).splitlines()
    assert lines[0] == "program forward(self, x, scale: float=2.0):" and lines[-1] == "  return (first, second)"
    assert any(line.startswith("  v3 = cat([x, v2], dim=1)  # ") for line in lines)
    assert any(line.startswith("    v7 = sub(first[0], 1)  # ") for line in lines) and "  if v6:" in lines
    assert net.code.startswith("def forward(self, x, scale: float=2.0):\n") and "Returns something" in net.code
    with pytest.raises(AttributeError, match="has not run yet: call it"):  # its source is not available
        _ = tt.jit.script(eval("lambda x: x")).graph
