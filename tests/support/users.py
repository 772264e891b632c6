"""For tests that need two users of the machine."""

import os

import pytest


def need_two_users():
    """Skips the test if the process cannot become another user that can access the files."""
    if os.getuid() != 0:
        pytest.skip("needs root, to be two users", allow_module_level=True)
    if not os.stat("/").st_mode & 0o001:
        pytest.skip("nobody but root can enter /", allow_module_level=True)
