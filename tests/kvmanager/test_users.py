"""The users that the README makes: what they may do suffices, and is no more."""

from __future__ import annotations

import inspect
import json
import re
import secrets
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest
import redis

from kvmanager import core, keys, scripts, upkeep, wire
from kvmanager.control import leases, sweep
from kvmanager.control.sweep import Sweep
from tests.kvmanager import test_registry
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, digests, eventually, soon
from tests.kvmanager.servers import Server

README = Path(__file__).parents[2] / "README.md"
LUA = resources.files(scripts)
MODULES = (wire, upkeep, sweep, core, leases)
"""What a process runs by itself."""
CALLED = re.compile(r"p?call\('([A-Z]+)'")


def rules(user: str) -> list[str]:
    """What the README says of a user, behind its name."""
    line = next(
        line for line in README.read_text().splitlines() if line.startswith(f"ACL SETUSER {user} ")
    )
    return line.split()[3:]


@pytest.fixture
def users(server: Server) -> Iterator[Callable[[str], str]]:
    """Makes a user of the README; the endpoint for it."""

    def make(user: str) -> str:
        with server.client() as client:
            client.execute_command("ACL SETUSER", user, "reset", *rules(user))
        return f"redis://{user}:password@127.0.0.1:{server.port}"

    yield make
    with server.client() as client:
        client.execute_command("ACL DELUSER", "kv-process", "kv-service")


ABOUT_MEMBERS = [
    test
    for name, test in vars(test_registry).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["cluster"]
]


@pytest.mark.parametrize("test", ABOUT_MEMBERS, ids=lambda test: test.__name__)
def test_a_process_may_do_all_that_the_registry_promises(
    users: Callable[[str], str], server: Server, test: Callable[[Cluster], None]
) -> None:
    with server.client() as client:  # somebody listens to events
        client.hset(b"n" + keys.tag(NAMESPACE.fingerprint), "events_until", 1 << 40)
    with Cluster(users("kv-process")) as cluster:
        test(cluster)


def test_no_test_of_the_registry_is_left_out() -> None:
    assert len(ABOUT_MEMBERS) > 15


def test_every_command_of_a_process_is_allowed() -> None:
    """Those of its scripts and those that it sends without one."""
    allowed = {rule[1:].split("|")[0].upper() for rule in rules("kv-process") if rule[0] == "+"}
    source = "".join(map(inspect.getsource, MODULES))
    names = {name for name in re.findall(r"\"(\w+)\"", source) if (LUA / f"{name}.lua").is_file()}
    assert {"beat", "publish", "sweep_stores", "lease", "figures"} <= names
    sent = set(re.findall(r"command\(b\"([A-Z]+)\"", source))
    for name in names:
        sent |= set(CALLED.findall(scripts.script(name).source.decode()))
    assert sent <= allowed, sent - allowed


def test_a_process_may_sweep(users: Callable[[str], str]) -> None:
    with Cluster(users("kv-process")) as cluster:
        store = cluster.store()
        store.settled()
        store.write(store.chain(digests(20)))
        store.registry.clear_namespace(soon())
        eventually(lambda: bool(store.orders and store.orders[-1].epoch == 1))
        store.settled()
        work = Sweep(store.registry.core.wire.tag)
        while store.registry.driver.run(work.step(), soon()):
            pass
        assert work.counters["keys"]


@pytest.mark.parametrize("user", ["kv-process", "kv-service"])
def test_what_is_not_the_registrys_is_out_of_reach(
    users: Callable[[str], str], server: Server, user: str
) -> None:
    with server.client() as client:
        client.set("secret", "x")
        client.set("session:{1}", "x")
    with redis.Redis.from_url(users(user)) as client:
        assert client.ping()
        for denied in (
            ("GET", "secret"),
            ("GET", "session:{1}"),
            ("SET", "other", "x"),
            ("DEL", "secret"),
            ("EVALSHA", secrets.token_hex(20), "1", "secret"),
            ("KEYS", "*"),
            ("FLUSHALL",),
            ("FLUSHDB",),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("SHUTDOWN", "NOSAVE"),
            ("REPLICAOF", "NO", "ONE"),
            ("MONITOR",),
            ("SAVE",),
            ("SUBSCRIBE", "channel"),
            ("CLUSTER", "FORGET", "x"),
            ("SCRIPT", "FLUSH"),
        ):
            with pytest.raises((redis.exceptions.NoPermissionError, redis.ResponseError)) as error:
                client.execute_command(*denied)
            assert "permission" in str(error.value).lower(), denied


def test_the_service_needs_no_more_than_its_user(users: Callable[[str], str]) -> None:
    service = Service(users("kv-service")).start()
    try:
        assert service.get("/readyz")[0] == 200
        with Cluster(service.url) as members:
            store = members.store()
            store.settled()
            pages = digests(20)
            store.write(store.chain(pages))
            assert store.lookup(pages).prefix == len(pages)
            paths = json.loads(service.get("/openapi.json")[1])["paths"]
            for path, methods in paths.items():
                if "get" in methods and "{" not in path and path != "/v1/events":
                    status, said = service.get(path)
                    assert status < 500, (path, said)
    finally:
        service.stop()
