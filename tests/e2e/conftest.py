"""Fixtures of the tests that look at the dashboard."""

import pytest
from support import browser as browsers


@pytest.fixture
def browser():
    if browsers.missing():
        pytest.skip(f"not installed: {browsers.missing()} (deploy/packages-browser.txt)")
    made = browsers.Browser()
    yield made
    made.close()


@pytest.fixture
def admin(start_daemon, new_token):
    """(daemon, a token of an admin)"""
    daemon = start_daemon("--slow-ms", "50")
    return daemon, new_token(daemon, "root", "admin")
