"""`kvmanager namespaces`: whose pages there are, what is set for them, pins."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Any

import typer

from hicache_backends.errors import ConfigError
from kvmanager.cli.caller import Caller, asking, segment
from kvmanager.cli.options import HERE, AsJson, Endpoint, NamespaceId, TenantName, TokenFile
from kvmanager.cli.output import print_figures, print_json, print_table, printable
from kvmanager.cli.pins import pin, pins, unpin
from kvmanager.cli.units import NONE, lasting, moment, size, ttl_ms

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
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; needed with --json and without a terminal.")
    ] = False,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Void all pages of one, everywhere. Processes drop theirs at their next heartbeat."""
    with asking(endpoint, token_file) as service:
        if not yes:
            _agreed(service, namespace, as_json=as_json)
        found = service.call("POST", _path(namespace, "clear"))
    print_figures("", found, as_json=as_json)


for command in (pins, pin, unpin):
    app.command()(command)


def _agreed(service: Caller, namespace: str, *, as_json: bool) -> None:
    """Raises ConfigError where nobody can be asked, Abort for a no. Programs are never asked."""
    found = service.get(_path(namespace))
    own = found["identity"]
    if as_json or not sys.stdin.isatty():
        raise ConfigError(
            f"this voids {found['pages']:,} pages of {namespace}, for every process: say --yes"
        )
    what = f"{found['pages']:,} pages ({size(found['bytes'])}) of {own['model']}"
    typer.confirm(
        printable(f"Void {what}, tenant {found['tenant']}, everywhere?"), abort=True, err=True
    )


def _path(namespace: str, thing: str = "") -> str:
    return f"/v1/namespaces/{segment(namespace)}" + (f"/{thing}" if thing else "")


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    own = each["identity"]
    names = (each["id"], each["tenant"], own["model"], own["revision"], own["pool"])
    sizes = (each["pages"], size(each["bytes"]), each["stores"], each["pins"])
    mode = each["mode"] or each["tenant_mode"]
    ttl = each["ttl_ms"] if each["ttl_ms"] is not None else each["tenant_ttl_ms"]
    return (*names, *sizes, mode, lasting(ttl), moment(each["seen_s"]))
