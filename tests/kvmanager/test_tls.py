"""Over TLS the registry answers the same, by the same deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from kvmanager.aio import AsyncRegistry
from kvmanager.model import State
from tests.kvmanager.deployments import await_cluster
from tests.kvmanager.members import FAST, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server, free_port
from tests.kvmanager.test_users import rules


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
    port = free_port()
    server = started(make_server(*tls_settings(port, certificate)))
    return server, f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate[0]}"


def tls_settings(port: int, certificate: tuple[Path, Path]) -> tuple[str, ...]:
    made, key = map(str, certificate)
    files = ("--tls-cert-file", made, "--tls-key-file", key, "--tls-ca-cert-file", made)
    return ("--tls-port", str(port), "--tls-auth-clients", "no", *files)


def started(server: Server) -> Server:
    server.start(wait=False)
    assert server.process is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.process.wait(0.3)
        pytest.skip("this server was built without TLS")
    server.await_ready()
    return server


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
        store = over_tls.store(start=False, options=replace(FAST, timeout_ms=20_000))
        chain = digests(600)
        store.write(store.chain(chain))
        store.lookup(chain)
        server.freeze()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(RegistryUnavailable):
                store.registry.lookup(chain, [store.member.medium], soon(100), why=False)
            assert time.monotonic() - began < 2
        server.thaw()
        assert store.lookup(chain).prefix == len(chain)


def add_user(server: Server) -> None:
    with server.client() as client:
        client.execute_command("ACL SETUSER", "kv-process", "reset", *rules("kv-process"))


def test_a_user_comes_by_way_of_sentinels_that_have_users_too_over_tls(
    make_server: Callable[..., Server], certificate: tuple[Path, Path]
) -> None:
    port = free_port()
    server = started(make_server(*tls_settings(port, certificate)))
    add_user(server)
    place = free_port()
    conf = server.directory / "sentinel.conf"
    lines = [
        "port 0",
        f"dir {server.directory}",
        f"logfile {server.directory}/sentinel.log",
        "tls-replication yes",
        *(f"{name[2:]} {value}" for name, value in pairs(tls_settings(place, certificate))),
        f"sentinel monitor kv 127.0.0.1 {port} 1",
        "user kv-finder on >finds resetchannels -@all +sentinel|get-master-addr-by-name",
        "user default off",
    ]
    conf.write_text("\n".join(lines) + "\n")
    sentinel = subprocess.Popen([server.binary, str(conf), "--sentinel"])
    url = (
        f"rediss-sentinel://kv-process:password@127.0.0.1:{place}/kv?ssl_ca_certs={certificate[0]}"
        "&sentinel_username=kv-finder&sentinel_password=finds"
    )
    try:
        with Cluster(url) as members:
            assert_works(members)
        with pytest.raises(RegistryRefused, match="password"):
            Store(url.replace("finds", "guesses"), medium=b"m" * 16)
    finally:
        sentinel.kill()
        sentinel.wait()


def test_a_user_finds_the_nodes_of_a_cluster_over_tls(
    make_server: Callable[..., Server], certificate: tuple[Path, Path]
) -> None:
    port = free_port()
    cluster = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    settings = (*cluster, "--tls-cluster", "yes")  # else Redis 7 tells the port without TLS
    server = started(make_server(*tls_settings(port, certificate), *settings))
    add_user(server)
    with server.client() as client:
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
    await_cluster(server)
    url = f"rediss-cluster://kv-process:password@127.0.0.1:{port}?ssl_ca_certs={certificate[0]}"
    with Cluster(url) as members:
        assert_works(members)


def pairs(settings: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(settings[::2], settings[1::2], strict=True)


def assert_works(members: Cluster) -> None:
    store = members.store()
    eventually(lambda: store.registry.state is State.UP)
    chain = digests(30)
    store.write(store.chain(chain))
    assert store.lookup(chain).prefix == len(chain)
