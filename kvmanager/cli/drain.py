"""`kvmanager drain`, `kvmanager mode`: what processes may do."""

from __future__ import annotations

import math
import time
from typing import Annotated, Any

import typer

from hicache_backends.errors import ConfigError
from kvmanager.cli.caller import Caller, asking, segment
from kvmanager.cli.namespaces import Mode
from kvmanager.cli.options import HERE, AsJson, Endpoint, TokenFile, namespace_id, process_uuid
from kvmanager.cli.output import print_figures, print_json, print_table

POLL_S = 0.5

ProcessName = Annotated[
    str | None,
    typer.Option("--process", callback=process_uuid, help="The process with this uuid."),
]


def _finite(seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise typer.BadParameter("a number of seconds, 0 or more")
    return seconds


def drain(
    process: ProcessName = None,
    server: Annotated[str | None, typer.Option(help="All processes of this server.")] = None,
    host: Annotated[str | None, typer.Option(help="All processes of this host.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Until all have obeyed and write nothing any more.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(callback=_finite, help="With --wait: seconds, then status 1."),
    ] = 60,
    undo: Annotated[bool, typer.Option("--undo", help="Let them write again.")] = False,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Let processes store nothing more, before they are ended; what they have stays readable."""
    named = {"process": process, "server": server, "host": host}
    chosen = {name: value for name, value in named.items() if value is not None}
    if len(chosen) != 1:
        raise ConfigError("say which: one of --process, --server, --host")
    with asking(endpoint, token_file) as service:
        if undo:
            found = service.call("DELETE", "/v1/drain", query=chosen)
        else:
            found = service.call("POST", "/v1/drain", chosen)
            if wait:
                found = _awaited(service, chosen, found, timeout)
    if as_json:
        print_json(found)
    else:
        columns = ("process", "host", "server", "mode", "ordered", "writing pages", "drained")
        fields = ("process", "host", "server", "mode", "ordered", "claims", "drained")
        rows = [[each.get(field) for field in fields] for each in found["processes"]]
        print_table("", columns, rows)
    if wait and not undo and not found["drained"]:
        raise typer.Exit(1)


def mode(
    what: Annotated[Mode, typer.Argument(metavar="MODE", help="none: as it is set elsewhere.")],
    process: ProcessName = None,
    tenant: Annotated[str | None, typer.Option(help="All processes of this tenant.")] = None,
    namespace: Annotated[
        str | None, typer.Option(callback=namespace_id, help="All processes of this namespace.")
    ] = None,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Order what processes may do: off, read, read_write; none withdraws the order.

    That of a process wins over that of its namespace, and that over its tenant's. They obey at
    their next heartbeat.
    """
    from kvmanager.cli.tenants import change

    if [process, tenant, namespace].count(None) != 2:
        raise ConfigError("say whose: one of --process, --tenant, --namespace")
    asked: dict[str, Any] = {"mode": what.order}
    with asking(endpoint, token_file) as service:
        if process is not None:
            found = service.call("PUT", f"/v1/processes/{segment(process)}/mode", asked)
        elif namespace is not None:
            found = service.call("PATCH", f"/v1/namespaces/{segment(namespace)}", asked)
        else:
            found = change(service, str(tenant), asked)
    kept = ("process", "id", "tenant", "mode", "ordered")
    shown = {name: found[name] for name in kept if name in found}
    print_figures("", found if as_json else shown, as_json=as_json)


def _awaited(service: Caller, chosen: dict[str, str], found: Any, timeout_s: float) -> Any:
    """How far it is when it is done, or when the time is over."""
    give_up = time.monotonic() + timeout_s
    while not found["drained"] and time.monotonic() < give_up:
        time.sleep(POLL_S)
        found = service.get("/v1/drain", **chosen)
    return found
