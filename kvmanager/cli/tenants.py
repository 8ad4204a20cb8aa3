"""`kvmanager tenants`: what each uses, and what is set for it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hicache_backends.errors import ConfigError
from kvmanager.cli.caller import Caller, NotThere, asking, segment
from kvmanager.cli.namespaces import Mode, Ttl
from kvmanager.cli.options import HERE, AsJson, Endpoint, TokenFile
from kvmanager.cli.output import print_figures, print_json, print_table
from kvmanager.cli.units import NONE, lasting, size, ttl_ms

app = typer.Typer(no_args_is_help=True, help="List tenants; set quota, time to live and mode.")

SETTINGS = ("quota_bytes", "ttl_ms", "mode")
Name = Annotated[str, typer.Argument(help="Of the tenant.")]


@app.command("list")
def list_tenants(
    endpoint: Endpoint = HERE, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List all tenants."""
    with asking(endpoint, token_file) as service:
        found = service.every("/v1/tenants", "tenants")
    if as_json:
        print_json(found)
        return
    columns = (
        "tenant",
        "namespaces",
        "pages",
        "used",
        "orphans",
        "quota",
        "days to full",
        "ttl",
        "mode",
    )
    rows = [
        (
            each["tenant"],
            each["namespaces"],
            each["pages"],
            size(each["bytes"]),
            size(each.get("orphan_bytes")),  # not of an older service
            size(each["quota_bytes"]),
            each["days_to_full"],
            lasting(each["ttl_ms"]),
            each["mode"],
        )
        for each in found
    ]
    print_table("", columns, rows)


@app.command()
def show(
    name: Name, endpoint: Endpoint = HERE, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Show one."""
    with asking(endpoint, token_file) as service:
        found = service.get(_path(name))
    print_figures("", found, as_json=as_json)


@app.command("set")
def set_tenant(
    name: Name,
    quota: Annotated[
        str | None, typer.Option(help=f"Bytes of all its pages, such as 500GiB; {NONE}: no limit.")
    ] = None,
    ttl: Ttl = None,
    mode: Annotated[Mode | None, typer.Option(help="What its processes may do.")] = None,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Set some of quota, time to live and mode; what is not named stays."""
    from hicache_backends.sizes import parse_size

    asked: dict[str, Any] = {}
    if quota is not None:
        asked["quota_bytes"] = (
            None if quota == NONE else parse_size(quota, name="--quota", minimum=0)
        )
    if ttl is not None:
        asked["ttl_ms"] = ttl_ms(ttl)
    if mode is not None:
        asked["mode"] = mode.order
    if not asked:
        raise ConfigError("say what to set: --quota, --ttl, --mode")
    with asking(endpoint, token_file) as service:
        found = change(service, name, asked)
    print_figures("", found, as_json=as_json)


@app.command()
def reset(
    name: Name, endpoint: Endpoint = HERE, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Take away all that is set for one; its pages stay."""
    with asking(endpoint, token_file) as service:
        service.call("DELETE", _path(name))
    if as_json:
        print_json({"tenant": name})


def change(service: Caller, name: str, asked: dict[str, Any]) -> Any:
    """The tenant as it is after some of its settings were changed."""
    try:
        present = service.get(_path(name))
    except NotThere:  # nothing was set so far, and there are no pages yet
        present = dict.fromkeys(SETTINGS)
    kept = {setting: present[setting] for setting in SETTINGS}
    return service.call("PUT", _path(name), {**kept, **asked})


def _path(name: str) -> str:
    return f"/v1/tenants/{segment(name)}"
