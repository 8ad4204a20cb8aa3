"""`kvmanager namespaces`: whose pages there are, what is set for them, pins."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from hicache_backends.errors import ConfigError
from kvmanager.cli.caller import asking, segment
from kvmanager.cli.locate import Hashes, HashesFile, hashes_of
from kvmanager.cli.options import HERE, AsJson, Endpoint, NamespaceId, TenantName, TokenFile
from kvmanager.cli.output import print_figures, print_json, print_table
from kvmanager.cli.units import NONE, lasting, moment, seconds, size, ttl_ms

app = typer.Typer(no_args_is_help=True, help="List namespaces, clear them, pin their pages.")

Ttl = Annotated[
    str | None, typer.Option(help=f"Pages unused for so long go: 30m, 12h, 7d; {NONE}: no more.")
]


class Mode(str, Enum):
    """What processes may do."""

    OFF = "off"
    READ = "read"
    READ_WRITE = "read_write"
    NONE = NONE

    @property
    def order(self) -> str | None:
        """As the service takes it."""
        return None if self is Mode.NONE else self.value


@app.command("list")
def list_namespaces(
    tenant: TenantName = None,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List all namespaces."""
    with asking(endpoint, token_file) as service:
        found = service.every("/v1/namespaces", "namespaces")
    found = [each for each in found if tenant in (None, each["tenant"])]
    if as_json:
        print_json(found)
        return
    columns = ("id", "tenant", "model", "revision", "pool", "pages", "size", "stores", "pins")
    print_table("", (*columns, "mode", "ttl", "seen"), [_row(each) for each in found])


@app.command()
def show(
    namespace: NamespaceId,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one: its identity, what is set, its media."""
    with asking(endpoint, token_file) as service:
        found = service.get(_path(namespace))
    if as_json:
        print_json(found)
        return
    media = found.pop("media")
    figures = {**found.pop("identity"), **found}
    figures |= {"bytes": size(figures["bytes"]), "seen_s": moment(figures["seen_s"])}
    print_figures("", figures, as_json=False)
    rows = [
        (m["medium"], m["shared"], m["pages"], size(m["bytes"]), moment(m["seen_s"])) for m in media
    ]
    print_table("", ("medium", "shared", "pages", "size", "seen"), rows)


@app.command("set")
def set_namespace(
    namespace: NamespaceId,
    mode: Annotated[
        Mode | None, typer.Option(help="What its processes may do; none: as the tenant's.")
    ] = None,
    ttl: Ttl = None,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Set mode and time to live of one; they win over those of its tenant."""
    asked: dict[str, Any] = {}
    if mode is not None:
        asked["mode"] = mode.order
    if ttl is not None:
        asked["ttl_ms"] = ttl_ms(ttl)
    if not asked:
        raise ConfigError("say what to set: --mode, --ttl")
    with asking(endpoint, token_file) as service:
        found = service.call("PATCH", _path(namespace), asked)
    kept = {name: found[name] for name in ("id", "mode", "ttl_ms", "tenant_mode", "tenant_ttl_ms")}
    print_figures("", found if as_json else kept, as_json=as_json)


@app.command()
def clear(
    namespace: NamespaceId,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Void all pages of one, everywhere. Processes drop theirs at their next heartbeat."""
    with asking(endpoint, token_file) as service:
        found = service.call("POST", _path(namespace, "clear"))
    print_figures("", found, as_json=as_json)


@app.command()
def pins(
    namespace: NamespaceId,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the pages that are pinned."""
    with asking(endpoint, token_file) as service:
        found = service.every(_path(namespace, "pins"), "pins")
    if as_json:
        print_json(found)
    else:
        rows = [(each["digest"], moment(each["until_s"])) for each in found]
        print_table("", ("digest", "until"), rows)


@app.command()
def pin(
    namespace: NamespaceId,
    hashes: Hashes = None,
    file: HashesFile = None,
    lasts: Annotated[str, typer.Option("--for", help="How long: 30m, 12h, at most 7d.")] = "1d",
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Keep pages from eviction for a while."""
    asked = {"hashes": hashes_of(hashes, file), "ttl_s": int(seconds(lasts, "--for"))}
    with asking(endpoint, token_file) as service:
        found = service.call("PUT", _path(namespace, "pins"), asked)
    print_figures("", found, as_json=as_json)


@app.command()
def unpin(
    namespace: NamespaceId,
    hashes: Hashes = None,
    file: HashesFile = None,
    everything: Annotated[bool, typer.Option("--all", help="End all pins.")] = False,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """End pins."""
    asked = None if everything else {"hashes": hashes_of(hashes, file)}
    with asking(endpoint, token_file) as service:
        found = service.call("DELETE", _path(namespace, "pins"), asked)
    print_figures("", found, as_json=as_json)


def _path(namespace: str, thing: str = "") -> str:
    return f"/v1/namespaces/{segment(namespace)}" + (f"/{thing}" if thing else "")


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    own = each["identity"]
    names = (each["id"], each["tenant"], own["model"], own["revision"], own["pool"])
    sizes = (each["pages"], size(each["bytes"]), each["stores"], each["pins"])
    mode = each["mode"] or each["tenant_mode"]
    ttl = each["ttl_ms"] if each["ttl_ms"] is not None else each["tenant_ttl_ms"]
    return (*names, *sizes, mode, lasting(ttl), moment(each["seen_s"]))
