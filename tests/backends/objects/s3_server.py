"""A local S3: moto's server as a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.processes import free_port

KEYS = {"key": "testing", "secret": "testing"}


def require(module: str) -> None:
    """Skip where the module is not installed; in CI that is a failure."""
    if importlib.util.find_spec(module) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{module} is not installed, and CI must test with it")
        pytest.skip(f"{module} is not installed")


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a fresh server with the bucket `pages`."""
    require("moto")
    require("s3fs")
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        _await(f"{endpoint}/moto-api/", server)
        import fsspec

        options = s3_options(endpoint)
        fsspec.filesystem("s3", skip_instance_cache=True, **options).mkdir("pages")
        yield endpoint
    finally:
        server.kill()
        server.wait()


def s3_options(endpoint: str) -> dict[str, object]:
    """Arguments of s3fs for that server."""
    return {**KEYS, "endpoint_url": endpoint, "client_kwargs": {"region_name": "eu-west-1"}}


def fresh_prefix() -> str:
    return f"s3://pages/{uuid.uuid4().hex}"


def _await(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        assert server.poll() is None, "the S3 server ended"
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - our own server
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the S3 server does not answer")
