"""What operators ask of the registry, by a service's HTTP and by Redis itself: the same answers."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.identity import Namespace, page_digests
from kvmanager import keys
from kvmanager.cli.app import run
from kvmanager.cli.caller import Caller
from kvmanager.cli.events import parsed
from kvmanager.cli.over_http import OverHttp
from kvmanager.control.namespaces import id_of
from kvmanager.control.pins import MAX_PINS
from kvmanager.options import RegistryOptions
from tests.kvmanager.http_fixtures import server_binary, service
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, eventually, soon
from tests.kvmanager.members import Store as Process
from tests.kvmanager.reporters import Redis, Reporter
from tests.kvmanager.servers import Server, free_port

__all__ = ["server_binary", "service"]

HASHES = [f"hash {n}" for n in range(8)]
DIGESTS = page_digests(NAMESPACE.fingerprint, HASHES)
ID = id_of(keys.tag(NAMESPACE.fingerprint))


@dataclass
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Ask = Callable[..., Said]


@pytest.fixture(params=["http", "redis"])
def ask(
    request: pytest.FixtureRequest,
    server: Server,
    service: Service,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Ask:
    """Runs a command against the one or the other, and gives status, output and errors."""
    monkeypatch.setenv("KVMANAGER_ENDPOINT", service.url if request.param == "http" else server.url)

    def ask(*words: str) -> Said:
        capfd.readouterr()
        status = run([*words])
        return Said(status, *capfd.readouterr())

    return ask


@pytest.fixture
def process(server: Server, service: Service) -> Iterator[Process]:
    """A process with six pages of the prompt."""
    with Cluster(server.url) as cluster:
        made = cluster.store()
        made.write(made.chain(DIGESTS[:6]))
        looks_again(service, NAMESPACE)
        yield made


def looks_again(service: Service, namespace: Namespace) -> None:
    """The service forgets what it saw for other tests, by a change that changes nothing."""
    path = f"/v1/namespaces/{id_of(keys.tag(namespace.fingerprint))}"
    assert service.request("PATCH", path, b"{}", {"content-type": "application/json"})[0] == 200


def beginning_with(first: str, second: str) -> str:
    """An endpoint of two addresses: which of them a process asks first is by its number."""
    return f"{first},{second}" if os.getpid() % 2 == 0 else f"{second},{first}"


def one_line(said: Said, status: int, words: str) -> None:
    assert said.status == status, said
    assert re.fullmatch(rf"kvmanager: [^\n]*{words}[^\n]*\n", said.err), said.err


def test_locate_tells_how_much_of_a_prompt_a_server_has(ask: Ask, process: Process) -> None:
    for where in (("--model", NAMESPACE.model), ("--namespace", ID)):
        said = ask("locate", *HASHES, *where, "--json")
        assert said.status == 0, said.err
        (server,) = said.document["servers"]
        assert (server["server"], server["pages"]) == (process.member.server, 6)
    table = ask("locate", *HASHES, "--namespace", ID)
    assert re.search(r"server .* 6 ", table.out)


def test_locate_reads_hashes_of_a_file_and_finds_nothing_with_status_1(
    ask: Ask, process: Process, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt"
    prompt.write_text("\n".join(["somebody", "elses"]))
    said = ask("locate", "--file", str(prompt), "--namespace", ID, "--json")
    assert (said.status, said.document["servers"]) == (1, [])
    one_line(ask("locate", "--namespace", ID), 2, "page hashes")
    one_line(ask("locate", "x", "--file", "/no/such", "--namespace", ID), 2, "--file /no/such")
    one_line(ask("locate", "x"), 2, "say where to look")


def test_lists_tell_who_there_is_and_where_pages_lie(ask: Ask, process: Process) -> None:
    member = process.member
    own, medium = member.process.hex(), member.medium.hex()
    (found,) = ask("processes", "--json").document
    assert (found["process"], found["namespace"], found["alive"]) == (own, ID, True)
    (again,) = ask("processes", "--host", member.host, "--alive", "--json").document
    assert again["process"] == own
    assert ask("processes", "--gone", "--json").document == []
    assert [server["name"] for server in ask("servers", "--json").document] == [member.server]
    assert [host["name"] for host in ask("hosts", "--json").document] == [member.host]
    assert [store["process"] for store in ask("stores", "--json").document] == [own]
    assert [each["pages"] for each in ask("media", "--json").document] == [6]
    for command, named in (
        ("processes", own),
        ("servers", member.server),
        ("hosts", member.host),
        ("stores", member.store.hex()),
        ("media", medium),
    ):
        table = ask(command)
        assert table.status == 0
        assert named in table.out


def test_lists_of_any_length_are_whole(ask: Ask, server: Server, service: Service) -> None:
    others = [replace(NAMESPACE, model=f"model {n}") for n in range(3)]
    calm = RegistryOptions(timeout_ms=2000)
    with Cluster(server.url) as cluster:
        made = [cluster.store(namespace=o, options=calm) for o in others for _ in range(40)]
        looks_again(service, others[0])
        found = ask("processes", "--json").document  # a page of the service's holds 100
        assert {each["process"] for each in found} == {m.member.process.hex() for m in made}


def test_namespaces_are_listed_shown_set_and_cleared(ask: Ask, process: Process) -> None:
    (found,) = ask("namespaces", "list", "--json").document
    assert (found["id"], found["pages"]) == (ID, 6)
    assert ID in ask("namespaces", "list").out
    assert ask("namespaces", "list", "--tenant", "somebody", "--json").document == []
    assert NAMESPACE.revision in ask("namespaces", "show", ID).out
    said = ask("namespaces", "set", ID, "--mode", "read", "--ttl", "12h", "--json")
    assert (said.document["mode"], said.document["ttl_ms"]) == ("read", 12 * 3600 * 1000)
    assert re.search(r"read .*12h", ask("namespaces", "list").out)
    said = ask("namespaces", "set", ID, "--ttl", "none", "--json")
    assert (said.document["mode"], said.document["ttl_ms"]) == ("read", None)
    assert ask("namespaces", "set", ID, "--mode", "none", "--json").document["mode"] is None
    one_line(ask("namespaces", "set", ID), 2, "--mode, --ttl")
    one_line(ask("namespaces", "set", ID, "--ttl", "soon"), 2, "--ttl takes a time")
    assert ask("namespaces", "clear", ID, "--yes", "--json").document == {"epoch": 1}
    one_line(ask("namespaces", "show", "00" * 9), 1, "no such namespace")


@pytest.mark.parametrize("wrong", ["", "../tenants", "zz", "AB" * 9])
def test_an_id_that_cannot_be_one_is_that_of_nothing(wrong: str, ask: Ask) -> None:
    for words in (
        ("namespaces", "show", wrong),
        ("namespaces", "clear", wrong, "--yes"),
        ("namespaces", "pins", wrong),
        ("events", wrong),
        ("explain", wrong, "x"),
        ("locate", "x", "--namespace", wrong),
        ("mode", "off", "--namespace", wrong),
    ):
        one_line(ask(*words), 1, "no such namespace.*namespaces list")
    for words in (("drain", "--process", wrong), ("mode", "off", "--process", wrong)):
        one_line(ask(*words), 1, "no such process")


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_pages_are_voided_by_who_says_yes(
    ask: Ask, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pages() -> int:
        return int(ask("namespaces", "show", ID, "--json").document["pages"])

    one_line(ask("namespaces", "clear", ID), 2, "voids 6 pages .* say --yes")
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    one_line(ask("namespaces", "clear", ID, "--json"), 2, "say --yes")  # a program is not asked
    for answer, left in (("n", 6), ("y", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
        said = ask("namespaces", "clear", ID)
        assert (said.status, pages()) == (int(left > 0), left), said
    assert ask("namespaces", "clear", ID, "--yes", "--json").document == {"epoch": 2}


def test_pages_are_pinned_for_a_while(ask: Ask, process: Process, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt"
    prompt.write_text("\n".join(HASHES[:2]))
    said = ask("namespaces", "pin", ID, HASHES[2], "--file", str(prompt), "--for", "2h", "--json")
    assert said.document == {"pins": 3, "not_stored": []}
    found = ask("namespaces", "pins", ID, "--json").document
    assert {pin["digest"] for pin in found} == {digest.hex() for digest in DIGESTS[:3]}
    assert DIGESTS[0].hex() in ask("namespaces", "pins", ID).out
    assert ask("namespaces", "unpin", ID, HASHES[0], "--json").document == {"ended": 1}
    assert ask("namespaces", "unpin", ID, "--all", "--json").document == {"ended": 2}
    said = ask("namespaces", "pin", ID, HASHES[3], "zz", "--json")
    assert (said.status, said.document) == (0, {"pins": 2, "not_stored": ["zz"]})
    assert said.err == "kvmanager: pinned, but not stored: zz\n"
    digest = DIGESTS[3].hex()
    assert ask("namespaces", "unpin", ID, "--digest", digest, "--json").document == {"ended": 1}
    one_line(ask("namespaces", "unpin", ID), 2, "page hashes")
    one_line(ask("namespaces", "pin", ID, "x", "--for", "400d"), 2, "ttl_s")


def test_pins_of_any_length_are_split_and_what_fits_is_told(
    ask: Ask, process: Process, server: Server, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt"
    prompt.write_text("\n".join(f"page {n}" for n in range(700)))
    with server.client() as client:
        there = {n.to_bytes(16, "big"): b"99999999999" for n in range(MAX_PINS - 600)}
        client.hset(b"y" + keys.tag(NAMESPACE.fingerprint), mapping=there)
    said = ask("namespaces", "pin", ID, "--file", str(prompt))
    one_line(said, 2, "the first 512 of 700 pages are pinned.*at most 65536 pins")
    assert ask("namespaces", "unpin", ID, "--file", str(prompt), "--json").document == {
        "ended": 512
    }


def test_a_tenants_settings_are_changed_one_by_one(ask: Ask, process: Process) -> None:
    tenant = NAMESPACE.tenant
    said = ask("tenants", "set", tenant, "--quota", "5GiB", "--json").document
    assert (said["quota_bytes"], said["ttl_ms"]) == (5 << 30, None)
    said = ask("tenants", "set", tenant, "--ttl", "7d", "--mode", "read", "--json").document
    assert (said["quota_bytes"], said["ttl_ms"], said["mode"]) == (5 << 30, 7 * 86_400_000, "read")
    assert re.search(r"5 GiB .* 7d .*read", ask("tenants", "list").out)
    said = ask("tenants", "set", tenant, "--quota", "none", "--json").document
    assert (said["quota_bytes"], said["mode"]) == (None, "read")
    assert ask("tenants", "show", tenant, "--json").document == said
    assert ask("tenants", "reset", tenant).status == 0
    assert ask("tenants", "show", tenant, "--json").document["mode"] is None
    new = ask("tenants", "set", "new/one of ours", "--quota", "1MiB", "--json").document
    assert (new["tenant"], new["namespaces"]) == ("new/one of ours", 0)
    one_line(ask("tenants", "show", "nobody"), 1, "no such tenant")
    one_line(ask("tenants", "set", tenant), 2, "--quota")
    one_line(ask("tenants", "set", tenant, "--quota", "lots"), 2, "--quota")


def test_a_tenant_that_is_not_there_is_said_and_kept(ask: Ask, process: Process) -> None:
    yet = "kvmanager: no such tenant yet: nosuch; kept for when it comes\n"
    for words in (
        ("mode", "off", "--tenant", "nosuch"),
        ("tenants", "set", "nosuch", "--quota", "1GiB"),
    ):
        said = ask(*words)
        assert (said.status, said.err) == (0, yet)
    known = ask("tenants", "show", "nosuch", "--json").document
    assert (known["mode"], known["quota_bytes"]) == ("off", 1 << 30)
    assert (ask("tenants", "reset", "nosuch").status, ask("tenants", "reset", "nosuch").err) == (
        0,
        "kvmanager: nothing was set for the tenant nosuch\n",
    )
    assert ask("mode", "read", "--tenant", NAMESPACE.tenant).err == ""
    assert ask("tenants", "reset", NAMESPACE.tenant).err == ""


def test_a_quota_that_takes_pages_away_is_warned_of(ask: Ask, process: Process) -> None:
    tenant = NAMESPACE.tenant
    assert ask("tenants", "set", tenant, "--quota", "1GiB").err == ""
    said = ask("tenants", "set", tenant, "--quota", "8KiB")
    one_line(said, 0, "24 KiB are in use, above the quota of 8 KiB")
    for quota in ("1KiB", "0"):
        said = ask("tenants", "set", tenant, "--quota", quota, "--json")
        assert said.status == 0
        assert re.search("keeps nothing, and a page has 4 KiB\n.*24 KiB are in use", said.err)
        assert said.document["tenant"] == tenant


def test_a_drain_waits_until_processes_write_no_more(ask: Ask, process: Process) -> None:
    own = process.member.process.hex()
    said = ask("drain", "--host", process.member.host, "--wait", "--timeout", "20", "--json")
    assert (said.status, said.document["drained"]) == (0, True), said
    assert process.orders[-1].mode == "read"
    assert own in ask("drain", "--server", process.member.server, "--wait").out
    undone = ask("drain", "--process", own, "--undo", "--json").document["processes"][0]
    assert (undone["ordered"], undone["drained"]) == (None, False)  # the mode is still in force
    eventually(lambda: process.orders[-1].mode is None)
    one_line(ask("drain", "--host", "elsewhere"), 1, "no such process")
    for never in ("nan", "inf", "-1"):
        said = ask("drain", "--host", "a", "--wait", "--timeout", never)
        assert (said.status, "number of seconds" in said.err) == (2, True)
    one_line(ask("drain"), 2, "--process, --server, --host")
    one_line(ask("drain", "--host", "a", "--server", "b"), 2, "--process, --server, --host")


def test_a_drain_that_is_not_done_in_time_says_so(ask: Ask, server: Server) -> None:
    slow = RegistryOptions(timeout_ms=500, heartbeat_ms=30_000, ttl_ms=90_000)
    with Cluster(server.url) as cluster:
        own = cluster.store(options=slow).member.process.hex()
        said = ask("drain", "--process", own, "--wait", "--timeout", "0.2", "--json")
        assert (said.status, said.document["drained"]) == (1, False)
        assert ask("drain", "--process", own, "--json").status == 0  # nobody waits


def test_modes_are_ordered_of_processes_namespaces_and_tenants(ask: Ask, process: Process) -> None:
    own = process.member.process.hex()
    assert ask("mode", "read", "--process", own, "--json").document["ordered"] == "read"
    eventually(lambda: process.orders[-1].mode == "read")
    assert ask("mode", "none", "--process", own, "--json").document["ordered"] is None
    assert ask("mode", "off", "--namespace", ID, "--json").document["mode"] == "off"
    eventually(lambda: process.orders[-1].mode == "off")
    assert ask("mode", "none", "--namespace", ID).status == 0
    tenant = NAMESPACE.tenant
    assert ask("tenants", "set", tenant, "--quota", "1GiB").status == 0
    said = ask("mode", "read", "--tenant", tenant, "--json").document
    assert (said["mode"], said["quota_bytes"]) == ("read", 1 << 30)
    one_line(ask("mode", "read"), 2, "--process, --tenant, --namespace")
    one_line(ask("mode", "read", "--process", "00" * 16), 1, "no such process")


def test_what_was_counted_is_told_by_tenant_and_by_namespace(
    ask: Ask, server: Server, service: Service
) -> None:
    with Redis(server.url) as redis:
        reporter = Reporter(redis, tenant="counting")
        reporter.beat()
        counts = {"get.pages": 8, "get.hits": 6, "get.bytes": 6 << 20, "put.stored": 3}
        counts |= {"miss.evicted": 2, "evicted.capacity": 4, "evicted.ttl": 1}
        counts |= {"exists.pages": 40, "exists.found": 10, "refused.quota": 7, "refused.mode": 2}
        reporter.report(counts, pages=5, breaker="down")
    looks_again(service, reporter.namespace)
    namespace = id_of(reporter.tag)
    for by, name in (("tenant", "counting"), ("namespace", namespace)):
        (row,) = ask("stats", "--by", by, "--json").document
        assert (row["name"], row["counters"]) == (name, counts)
        table = ask("stats", "--by", by).out
        assert re.search(
            rf"{name} .* 10 of 40: 25 % .* 6 of 8: 75 % .* 6 MiB .* 3 .* 9 .* 5 .*evicted 2", table
        )
    assert re.search(r"counting .*miss.evicted .* 2 ", ask("stats", "--counters").out)
    assert re.search(r" 5 .* 5 MiB .*down .*1\.0 ", ask("processes").out)


def test_pages_are_explained_one_by_one(
    ask: Ask, process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmanager.cli.explain.PAGES_AT_ONCE", 3)  # several questions
    prompt = tmp_path / "prompt"
    prompt.write_text("\n".join(HASHES))
    said = ask("explain", ID, "--file", str(prompt), "--json")
    assert [page["hash"] for page in said.document] == HASHES
    assert [page["reason"] for page in said.document] == [None] * 6 + ["never_written"] * 2
    assert {copy["server"] for page in said.document[:6] for copy in page["copies"]} == {
        process.member.server
    }
    table = ask("explain", ID, HASHES[0], HASHES[7]).out
    assert re.search(rf"{HASHES[0]} .*{process.member.server} on {process.member.host}", table)
    assert re.search(rf"{HASHES[7]} .*never_written", table)
    elsewhere = ask("explain", ID, HASHES[0], "--medium", "00" * 16, "--json").document
    assert elsewhere[0]["reason"] is not None
    one_line(ask("explain", "00" * 9, "x"), 1, "no such namespace")
    one_line(ask("explain", ID, "x", "--medium", "here"), 2, "media")


def test_events_begin_with_what_there_is(ask: Ask, process: Process) -> None:
    said = ask("events", ID, "--json")
    assert said.status == 0, said.err
    told = [json.loads(line) for line in said.out.splitlines()]
    kinds = [event["event"] for event in told]
    assert (kinds[0], kinds[-1]) == ("snapshot", "live")
    pages = [
        d for e in told if e["event"] == "pages" for some in e["stores"].values() for d in some
    ]
    assert sorted(pages) == sorted(digest.hex() for digest in DIGESTS[:6])
    assert told[-1]["sequence"]
    lines = ask("events", ID).out.splitlines()
    assert re.fullmatch(r"- snapshot .*epoch 0, 1 media, 1 stores", lines[0])
    assert re.fullmatch(r"- pages medium [\w-]{8}, \d digests", lines[1])
    assert re.fullmatch(r"\d+-\d+ live epoch 0", lines[-1])


def test_events_go_on_from_a_sequence(ask: Ask, process: Process) -> None:
    live = [json.loads(line) for line in ask("events", ID, "--json").out.splitlines()][-1]
    process.write(process.chain(DIGESTS[6:], parent=DIGESTS[5]))
    said = ask("events", ID, "--json", "--from", live["sequence"])
    added = [e for e in map(json.loads, said.out.splitlines()) if e["event"] == "added"]
    assert [d for event in added for d in event["digests"]] == [d.hex() for d in DIGESTS[6:]]


def test_what_there_is_not_is_one_line_and_status_1(ask: Ask, process: Process) -> None:
    one_line(ask("events", "00" * 9), 1, "no such namespace")


def test_events_are_followed_through_the_end_of_a_service(
    server: Server, service: Service, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of a service that ends is taken up at another one, where it stopped."""
    first = Service(server.url).start()
    seen: list[dict[str, Any]] = []
    lines, enough = threading.Condition(), threading.Event()

    def echo(text: str, err: bool = False) -> None:
        if enough.is_set():
            raise SystemExit
        with lines:
            seen.extend([] if err else [json.loads(text)])
            lines.notify_all()

    def until(kind: str) -> None:
        with lines:
            assert lines.wait_for(lambda: kind in [event["event"] for event in seen], 20), seen

    monkeypatch.setattr("kvmanager.cli.events.typer.echo", echo)
    monkeypatch.setattr("kvmanager.cli.events.AGAIN_S", 0.05)
    endpoint = beginning_with(first.url, service.url)
    words = ["events", ID, "--follow", "--json", "--endpoint", endpoint]
    following = threading.Thread(target=run, args=(words,), daemon=True)
    following.start()
    until("live")
    first.kill()
    process.write(process.chain(DIGESTS[6:], parent=DIGESTS[5]))
    until("added")
    kinds = [event["event"] for event in seen]
    assert kinds.count("snapshot") == 1  # it went on, and did not begin anew
    enough.set()
    process.registry.clear_namespace(soon())
    following.join(20)
    assert not following.is_alive()


def test_an_outage_is_said_once(
    process: Process, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(server.url).start()
    said: list[str] = []
    tries = 0

    def echo(text: str, err: bool = False) -> None:
        if err:
            said.append(text)
        elif '"live"' in text:
            service.kill()

    def sleep(_: float) -> None:
        nonlocal tries
        tries += 1
        if tries == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("kvmanager.cli.events.typer.echo", echo)
    monkeypatch.setattr("kvmanager.cli.events.time.sleep", sleep)
    run(["events", ID, "--follow", "--json", "--endpoint", service.url])
    assert (tries, len([line for line in said if "trying again" in line])) == (4, 1)


def test_events_are_read_as_the_standard_says() -> None:
    stream = [
        ": hello",
        "",
        "id: 1-0",
        "event: added",
        'data: {"a":1}',
        "",
        "event:x",
        "",
        "data:{}",
    ]
    (event,) = parsed(iter(stream))
    assert (event.kind, event.sequence, event.data) == ("added", "1-0", {"a": 1})


def test_a_service_that_is_not_there_is_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for endpoint in (f"http://127.0.0.1:{free_port()}", f"redis://127.0.0.1:{free_port()}"):
        status = run(["locate", "x", "--model", "m", "--endpoint", endpoint])
        one_line(Said(status, *capfd.readouterr()), 2, "127.0.0.1")
    status = run(["locate", "x", "--model", "m", "--endpoint", "ftp://h", "--json"])
    said = Said(status, *capfd.readouterr())
    one_line(said, 2, "redis://")
    assert "redis://" in said.document["error"]


def test_tokens_come_from_a_file_and_are_never_shown(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    token, lines = tmp_path / "router", tmp_path / "tokens"
    assert (
        run(["token", "--role=router", "--tenant=*", f"--save={token}", f"--tokens={lines}"]) == 0
    )
    service = Service(server.url, "--tokens", str(lines)).start()
    try:
        words = ["locate", "x", "--model", "m", "--endpoint", service.url]
        assert run([*words, "--token-file", str(token)]) == 1  # allowed, and nothing found
        wrong = tmp_path / "wrong"
        wrong.write_text("hunter2hunter2hunter2")
        capfd.readouterr()
        status = run([*words, "--token-file", str(wrong)])
        said = Said(status, *capfd.readouterr())
        one_line(said, 2, "401")
        assert "hunter2" not in said.out + said.err
    finally:
        service.stop()


class Counting(BaseHTTPRequestHandler):
    """A manager that cannot help, and counts who asks."""

    asked: list[str]

    def _refuse(self) -> None:
        self.asked.append(self.command)
        body = b'{"error":"unavailable","detail":"Redis does not answer"}'
        self.send_response(503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = _refuse  # noqa: N815 - its base's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
        pass


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_another_manager_is_asked_where_that_does_no_harm(service: Service, method: str) -> None:
    handler = type("Handler", (Counting,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as broken:
        threading.Thread(target=broken.serve_forever, args=(0.05,), daemon=True).start()
        urls = beginning_with(f"http://127.0.0.1:{broken.server_port}", service.url)
        status, _ = OverHttp(urls, None, 10).request(method, "/healthz", None)
        broken.shutdown()
    assert handler.asked == [method]  # type: ignore[attr-defined]  # of the class made above
    assert status == (503 if method == "POST" else 200 if method == "GET" else 405)
    nobody = f"http://127.0.0.1:{free_port()}"
    urls = beginning_with(nobody, service.url)
    found = OverHttp(urls, None, 10).request(method, "/healthz", None)
    assert found[0] in (200, 405)  # not sent yet, so it may go elsewhere


def test_a_route_that_a_service_does_not_have_is_said(service: Service) -> None:
    from hicache_backends.errors import RegistryRefused

    with pytest.raises(RegistryRefused, match="status 404"):
        Caller(OverHttp(service.url, None, 10)).get("/v1/of/another/version")


def test_in_this_process_the_extra_is_needed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], server: Server
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    status = run(["locate", "x", "--model", "m", "--endpoint", server.url])
    one_line(Said(status, *capfd.readouterr()), 2, r"hicache-storage\[kvmanager\]")
