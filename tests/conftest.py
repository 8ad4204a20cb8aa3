"""What all tests share."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from hicache_storage.log import PACKAGES

# a busy machine is no failure
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    """A command that runs inside a test configures logging for its whole process."""
    loggers = [logging.getLogger(name) for name in PACKAGES]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def need_program(name: str) -> str:
    """Its path. A program that is missing is a skip at home and a failure in CI."""
    path = shutil.which(name)
    if path is None:
        message = f"{name} is not installed"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path
