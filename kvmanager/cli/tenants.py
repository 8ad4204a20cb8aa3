"""`kvmanager tenants`: what each uses, and what is set for it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hicache_backends.errors import ConfigError
from kvmanager.cli.caller import Caller, NotThere, asking, segment
from kvmanager.cli.namespaces import Mode, Ttl
from kvmanager.cli.options import HERE, AsJson, Endpoint, TokenFile
from kvmanager.cli.output import print_figures, print_json, print_table, printable, say
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
        if asked.get("quota_bytes") is not None:
            _warn_of(found, service)
    print_figures("", found, as_json=as_json)


@app.command()
def reset(
    name: Name, endpoint: Endpoint = HERE, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Take away all that is set for one; its pages stay."""
    with asking(endpoint, token_file) as service:
        present = _present(service, name)
        service.call("DELETE", _path(name))
    if not any(present[setting] is not None for setting in SETTINGS):
        say(f"nothing was set for the tenant {printable(name)}")
    if as_json:
        print_json({"tenant": name})


def change(service: Caller, name: str, asked: dict[str, Any]) -> Any:
    """The tenant as it is after some of its settings were changed; says where there is none."""
    present = _present(service, name)
    kept = {setting: present[setting] for setting in SETTINGS}
    found = service.call("PUT", _path(name), {**kept, **asked})
    if not found["namespaces"]:
        say(f"no such tenant yet: {printable(name)}; kept for when it comes")
    return found


def _present(service: Caller, name: str) -> dict[str, Any]:
    """What is set for one: nothing for one that is not known."""
    try:
        found: dict[str, Any] = service.get(_path(name))
    except NotThere:
        return dict.fromkeys(SETTINGS)
    return found


def _warn_of(found: dict[str, Any], service: Caller) -> None:
    """Of a quota that takes away what there is, or lets nothing be stored."""
    quota, used = found["quota_bytes"], found["bytes"]
    spaces = service.every("/v1/namespaces", "namespaces") if found["namespaces"] else []
    pages = [n["identity"]["page_bytes"] for n in spaces if n["tenant"] == found["tenant"]]
    smallest = min(pages, default=1)
    if quota < smallest:
        said = f", and a page has {size(smallest)}" if pages else ""
        say(f"warning: a quota of {size(quota)} keeps nothing{said}")
    if quota < used:
        say(
            f"warning: {size(used)} are in use, above the quota of {size(quota)}: the least "
            "recently used pages go"
        )


def _path(name: str) -> str:
    return f"/v1/tenants/{segment(name)}"
