"""A plugin of pytest that writes the result of each test at once, as a line of JSON in the file
TELETENSOR_TEST_RESULTS."""

import json
import os


def pytest_runtest_logreport(report):
    if os.environ.get("PYTEST_XDIST_WORKER") or (report.when != "call" and report.passed):
        return  # a process of pytest-xdist, which sends its reports to the main process
    line = {"name": report.nodeid, "outcome": report.outcome}
    if report.failed:
        line["text"] = report.longreprtext[-3000:]
    with open(os.environ["TELETENSOR_TEST_RESULTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
