"""`kvmanager locate`: which servers hold how much of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hicache_backends.errors import ConfigError
from kvmanager.cli.caller import asking
from kvmanager.cli.options import HERE, AsJson, Endpoint, TenantName, TokenFile, namespace_id
from kvmanager.cli.output import print_json, print_table

Hashes = Annotated[
    list[str] | None,
    typer.Argument(help="Page hashes of the prompt, from its first page on, as the engine has."),
]
HashesFile = Annotated[
    Path | None, typer.Option("--file", help="File of hashes, one a line; - for standard input.")
]


def _ids(given: list[str] | None) -> list[str] | None:
    for each in given or ():
        namespace_id(each)
    return given


def locate(
    hashes: Hashes = None,
    file: HashesFile = None,
    model: Annotated[str | None, typer.Option(help="In all namespaces of this model.")] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(callback=_ids, help="In this namespace; again for more."),
    ] = None,
    tenant: TenantName = None,
    pool: Annotated[list[str] | None, typer.Option(help="With --model: of this pool.")] = None,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show which servers would find how many of a prompt's first pages; 1 if none would."""
    pages = hashes_of(hashes, file)
    if model is None and not namespace:
        raise ConfigError("say where to look: --model NAME, or --namespace ID")
    asked = {"hashes": pages, "model": model, "namespaces": namespace or None}
    asked |= {"tenant": tenant, "pools": pool or None}
    with asking(endpoint, token_file) as service:
        found = service.call("POST", "/v1/locate", given(asked))
    if as_json:
        print_json(found)
    else:
        columns = ("server", f"pages of {len(pages)}", "ranks", "hosts", "on media")
        rows = [
            (
                each["server"],
                each["pages"],
                each["ranks"],
                each["hosts"],
                [f"{medium['id']} {medium['pages']:,}" for medium in each["media"]],
            )
            for each in found["servers"]
        ]
        print_table("", columns, rows)
    if not found["servers"]:
        raise typer.Exit(1)


def hashes_of(named: list[str] | None, file: Path | None) -> list[str]:
    """Those of the command line, then those of a file. Raises ConfigError."""
    found = list(named or ())
    if file is not None:
        try:
            text = typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--file {file}: {error}") from None
        found += [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
        raise ConfigError("name the prompt's page hashes, or a file of them with --file")
    return found


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Without what was not said."""
    return {name: value for name, value in values.items() if value is not None}
