"""Every example in the client's docstrings runs as it is written."""

import doctest
import importlib
import pkgutil

import pytest
import teletensor

MODULES = [teletensor.__name__] + [
    found.name for found in pkgutil.walk_packages(teletensor.__path__, "teletensor.")
    if not found.name.endswith(("_core", "_catalog", "_wire", "as_torch"))  # the last one changes texts
    and not found.name.startswith(("teletensor.integrations.", "teletensor.torch"))  # which need other packages
]
FINDER = doctest.DocTestFinder(exclude_empty=True)
WITH_EXAMPLES = [
    (name, test.name)
    for name in MODULES
    for test in FINDER.find(importlib.import_module(name), name)
    if test.examples
]


def test_there_are_examples():
    assert len(WITH_EXAMPLES) >= 10


@pytest.mark.parametrize("module, item", WITH_EXAMPLES, ids=[item for _, item in WITH_EXAMPLES])
def test_example(tt, module, item):
    for test in FINDER.find(importlib.import_module(module), module, extraglobs={"tt": tt}):
        if test.name == item:
            report = []
            doctest.DocTestRunner(verbose=False).run(test, out=report.append)
            assert not report, "".join(report)
