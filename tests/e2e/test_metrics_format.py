"""The formats of /metrics, and what every process exports by Prometheus' conventions."""

import re
import time

from support.http import ask, samples, scrape

# The `Accept` headers of Prometheus 2 and 3.
SCRAPER = ("application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
           "text/plain;version=0.0.4;q=0.3,*/*;q=0.2")
SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*\})? (\S+)')


def test_a_scraper_gets_openmetrics(start_daemon, tt):
    """Each line is one of OpenMetrics 1.0: families one after the other, counters with `_total`, and an end."""
    daemon = start_daemon()
    with tt.connect(daemon.unix):
        assert tt.ones(2).sum().item() == 2.0
        reply = ask(daemon.http, "/metrics", token=daemon.monitor, headers={"Accept": SCRAPER})
    assert reply.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert "Accept" in reply.headers["Vary"]
    *lines, end, rest = reply.text.split("\n")
    assert (end, rest) == ("# EOF", "")
    family, kinds, found = None, {}, 0
    for line in lines:
        if line.startswith("# HELP "):
            _, _, family, help_ = line.split(" ", 3)
            assert family not in kinds and '"' not in help_, line
            kinds[family] = None
        elif line.startswith("# TYPE "):
            _, _, name, kinds[family] = line.split(" ")
            assert name == family and kinds[family] in ("counter", "gauge"), line
        else:
            name, _, value = SAMPLE.fullmatch(line).groups()
            assert name == family + ("_total" if kinds[family] == "counter" else ""), line
            float(value)
            found += 1
    assert found > 30 and {"counter", "gauge"} == set(kinds.values())


def test_others_get_prometheus_text(start_daemon):
    daemon = start_daemon()
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "text/plain;version=0.0.4"}):
        reply = ask(daemon.http, "/metrics", token=daemon.monitor, headers=headers)
        assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "# TYPE process_cpu_seconds_total counter" in reply.text and "# EOF" not in reply.text


def test_the_process(start_daemon):
    before = time.time()
    daemon = start_daemon()

    def figures():
        found = samples(scrape(daemon))
        return {name: value for (name, labels), value in found.items() if name.startswith("process_")}
    first, second = figures(), figures()
    limit = re.search(r"Max open files +(\d+)", open(f"/proc/{daemon.process.pid}/limits", encoding="ascii").read())
    assert first["process_max_fds"] == int(limit[1]) > first["process_open_fds"] > 5
    assert 0 < first["process_cpu_seconds_total"] <= second["process_cpu_seconds_total"]
    assert first["process_virtual_memory_bytes"] > first["process_resident_memory_bytes"] > 1 << 20
    # The time of the boot is told in whole seconds.
    assert before - 2 <= first["process_start_time_seconds"] == second["process_start_time_seconds"] <= time.time() + 2
