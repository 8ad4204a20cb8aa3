"""Over TLS the registry answers the same, by the same deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_backends.errors import RegistryUnavailable
from kvmanager.aio import AsyncRegistry
from tests.kvmanager.members import Cluster, digests, soon
from tests.kvmanager.servers import Server, free_port


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of localhost, which vouches for itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made, key = tmp_path / "certificate", tmp_path / "key"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run(
        ["openssl", "req", "-x509", "-days", "2", *curve, *subject, *files],
        check=True,
        capture_output=True,
    )
    return made, key


@pytest.fixture
def tls_server(
    make_server: Callable[..., Server], certificate: tuple[Path, Path]
) -> tuple[Server, str]:
    made, key = certificate
    port = free_port()
    server = make_server(
        *("--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(made), "--tls-key-file", str(key)),
    )
    server.start(wait=False)
    assert server.process is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.process.wait(0.3)
        pytest.skip("this server was built without TLS")
    server.await_ready()
    return server, f"rediss://127.0.0.1:{port}?ssl_ca_certs={made}"


def test_lookups_over_tls_find_what_others_find(tls_server: tuple[Server, str]) -> None:
    server, url = tls_server
    with Cluster(server.url) as plain, Cluster(url) as over_tls:
        owner = plain.store(start=False)
        chain = digests(600)
        entries = owner.chain(chain)
        owner.write(entries)
        reader = over_tls.store(medium=owner.member.medium, start=False)
        asked, media = [*chain, *digests(2)], [owner.member.medium]
        expected = [entry.location for entry in entries] + [b""] * 2
        for _ in range(3):
            found = reader.registry.lookup(asked, media, soon(), why=False)
            assert found.locations == expected

        async def on_asyncio() -> list[bytes]:
            registry = AsyncRegistry(reader.registry)
            found = await registry.lookup(asked, media, soon(), why=False)
            await registry.close()
            return found.locations

        assert asyncio.run(on_asyncio()) == expected


def test_a_stopped_server_holds_nobody_up_over_tls(tls_server: tuple[Server, str]) -> None:
    server, url = tls_server
    with Cluster(url) as over_tls:
        store = over_tls.store(start=False)
        chain = digests(600)
        store.write(store.chain(chain))
        store.lookup(chain)
        server.freeze()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(RegistryUnavailable):
                store.registry.lookup(chain, [store.member.medium], soon(100), why=False)
            assert time.monotonic() - began < 1
        server.thaw()
        assert store.lookup(chain).prefix == len(chain)
