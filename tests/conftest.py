"""What all tests share."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

# a busy machine is no failure
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def need_program(name: str) -> str:
    """Its path. A program that is missing is a skip at home and a failure in CI."""
    path = shutil.which(name)
    if path is None:
        message = f"{name} is not installed"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path
