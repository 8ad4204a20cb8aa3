"""Everything a server can say instead of an answer, in this library's words."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable

import pytest

from hicache_backends.errors import (
    HiCacheError,
    RegistryRefused,
    RegistryUnavailable,
)
from kvmanager import resp
from kvmanager.model import State
from tests.kvmanager.members import Cluster, digests, eventually, soon
from tests.kvmanager.servers import Server, free_port

SAID = {
    "LOADING Redis is loading the dataset in memory": RegistryUnavailable,
    "BUSY Redis is busy running a script.": RegistryUnavailable,
    "MASTERDOWN Link with MASTER is down": RegistryUnavailable,
    "READONLY You can't write against a read only replica.": RegistryUnavailable,
    "TRYAGAIN Multiple keys request during rehashing of slot": RegistryUnavailable,
    "CLUSTERDOWN The cluster is down": RegistryUnavailable,
    "MISCONF Redis is configured to save RDB snapshots": RegistryUnavailable,
    "NOREPLICAS Not enough good replicas to write.": RegistryUnavailable,
    "UNKILLABLE Sorry the script already executed write commands": RegistryUnavailable,
    "NOSCRIPT No matching script.": resp.NoScript,
    "OOM command not allowed when used memory > 'maxmemory'.": RegistryRefused,
    "NOAUTH Authentication required.": RegistryRefused,
    "WRONGPASS invalid username-password pair": RegistryRefused,
    "NOPERM this user has no permissions": RegistryRefused,
    "MOVED 3999 127.0.0.1:6381": RegistryRefused,
    "ASK 3999 127.0.0.1:6381": RegistryRefused,
    "CROSSSLOT Keys in request don't hash to the same slot": RegistryRefused,
    "WRONGTYPE Operation against a key holding the wrong kind of value": RegistryRefused,
    "NOPROTO unsupported protocol version": RegistryRefused,
    "DENIED Redis is running in protected mode": RegistryRefused,
    "EXECABORT Transaction discarded": RegistryRefused,
    "NOTBUSY No scripts in execution right now.": RegistryRefused,
    "ERR unknown command 'EVALSHA'": RegistryRefused,
    "ERR Error running script (call to f_1): @user_script:1: -OOM command": RegistryRefused,
    "ERR Protocol error: unauthenticated multibulk length": RegistryRefused,
    "SOMETHING that no version says yet": RegistryRefused,
}


@pytest.mark.parametrize("said", SAID)
def test_each_error_reply_has_its_class_and_keeps_its_words(said: str) -> None:
    with pytest.raises(SAID[said]) as raised:
        resp.parse(b"-" + said.encode() + b"\r\n")
    assert isinstance(raised.value, SAID[said])
    assert said in str(raised.value)


def test_no_error_code_is_left_without_a_translation(server_binary: str) -> None:
    listed = subprocess.run(["strings", server_binary], capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("binutils is not installed")
    codes = set(re.findall(rb"^-([A-Z]{3,})[ \r]", listed.stdout, re.MULTILINE))
    elsewhere = {  # replies to commands that the registry never sends
        b"BUSYGROUP", b"BUSYKEY", b"INPROG", b"INVALIDOBJ", b"IOERR", b"NOGOODPRIMARY",
        b"NOGOODSLAVE", b"NOGROUP", b"NOMASTERLINK", b"NOQUORUM", b"REDIRECT", b"UNBLOCKED",
    }  # fmt: skip
    assert codes - elsewhere - {code.encode() for code in resp.REPLIES} == set()


def test_replies_that_are_no_resp2_are_refused() -> None:
    for raw in (b"*1\r\n$1\r\na\r\n", b"HTTP/1.1 400\r\n", b"\r\n", b""):
        with pytest.raises(RegistryRefused):
            resp.parse(raw)


def test_a_full_server_refuses_writes_and_still_answers_lookups(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store()
    entries = store.chain(digests(10))
    store.write(entries)
    store.settled()
    with server.client() as client:
        client.config_set(
            "maxmemory", "1mb" if client.info("memory")["used_memory"] > 1 << 20 else 1
        )
        with pytest.raises(RegistryRefused, match="out of memory"):
            store.write(store.chain(digests(10)))
        assert store.lookup([entry.digest for entry in entries]).prefix == 10
        late = cluster.store()  # joins once there is room
        client.config_set("maxmemory", 0)
    late.settled()
    store.settled()
    assert store.lookup(list(store.pages)).prefix == 20


def test_a_password_is_asked_for_and_used(make_server: Callable[..., Server]) -> None:
    server = make_server("--requirepass", "sesame")
    server.start(wait=False)
    port = server.port
    with Cluster(f"redis://127.0.0.1:{port}") as cluster:
        eventually(lambda: refusal(cluster) is not None)
        assert "password" in str(refusal(cluster))
    with Cluster(f"redis://:wrong@127.0.0.1:{port}") as cluster:
        assert "wrong" not in str(refusal(cluster)).replace("is missing or wrong", "")
    with Cluster(f"redis://:sesame@127.0.0.1:{port}/3") as cluster:
        store = cluster.store()
        store.settled()
        keys = digests(2)
        store.write(store.chain(keys))
        assert store.lookup(keys).prefix == 2


def refusal(cluster: Cluster) -> RegistryRefused | None:
    try:
        cluster.store()
    except RegistryRefused as refused:
        return refused
    return None


def test_a_user_without_permission_is_refused_by_name(server: Server, cluster: Cluster) -> None:
    with server.client() as client:
        client.acl_setuser("guest", enabled=True, passwords=["+guest"], commands=["+ping"])
        try:
            with pytest.raises(RegistryRefused, match="permission"):
                cluster.store(url=f"redis://guest:guest@127.0.0.1:{server.port}")
        finally:
            client.acl_deluser("guest")


def test_a_read_only_replica_counts_as_down(make_server: Callable[..., Server]) -> None:
    primary = make_server().start()
    replica = make_server("--replicaof", f"127.0.0.1 {primary.port}").start()
    with replica.client() as client, Cluster(replica.url) as cluster:
        store = cluster.store()
        assert store.registry.state is State.DOWN
        with pytest.raises(RegistryUnavailable, match="READONLY"):
            store.lookup(digests(1))
        client.execute_command("REPLICAOF", "NO", "ONE")
        store.settled()


def test_a_node_of_a_cluster_says_so(make_server: Callable[..., Server]) -> None:
    server = make_server("--cluster-enabled", "yes", "--cluster-port", str(free_port())).start()
    with pytest.raises(HiCacheError, match="Cluster"), Cluster(server.url) as cluster:
        cluster.store().lookup(digests(1))


def test_scripts_that_the_server_forgot_are_loaded_again(server: Server, cluster: Cluster) -> None:
    store = cluster.store(start=False)
    with server.client() as client:
        for call in (
            lambda: store.registry.claim(digests(1), soon()),
            lambda: store.write(store.chain(digests(1))),
            lambda: store.lookup(digests(1)),
            lambda: store.registry.remove(list(store.pages.values()), soon()),
            lambda: store.registry.report_bad(os.urandom(16), b"there", soon()),
        ):
            client.script_flush()
            call()
    assert store.registry.stats()["failures"] == 0
