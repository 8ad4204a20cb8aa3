"""`kvmanager namespaces pins`, `pin`, `unpin`: pages that are to stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from hicache_backends.errors import RegistryRefused
from kvmanager.cli.caller import Caller, asking, segment
from kvmanager.cli.locate import Hashes, HashesFile, hashes_of
from kvmanager.cli.options import HERE, AsJson, Endpoint, NamespaceId, TokenFile
from kvmanager.cli.output import print_figures, print_json, print_table, printable, say
from kvmanager.cli.units import moment, seconds

PAGES_AT_ONCE = 256
_NAMED = 5
"""Pages that are named where many are meant."""


def pins(
    namespace: NamespaceId,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the pages that are pinned, by their digests.

    The registry knows no hashes; `kvmanager explain` says of a hash its digest and until when it
    is pinned.
    """
    with asking(endpoint, token_file) as service:
        found = service.every(_path(namespace), "pins")
    if as_json:
        print_json(found)
    else:
        rows = [(each["digest"], moment(each["until_s"])) for each in found]
        print_table("", ("digest", "until"), rows)


def pin(
    namespace: NamespaceId,
    hashes: Hashes = None,
    file: HashesFile = None,
    lasts: Annotated[str, typer.Option("--for", help="How long: 30m, 12h, at most 7d.")] = "1d",
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Keep pages from eviction for a while. A page that is not stored is pinned for when it comes,
    and named."""
    pages = hashes_of(hashes, file)
    for_s = int(seconds(lasts, "--for"))
    count, done, missing = 0, 0, list[str]()
    with asking(endpoint, token_file) as service:
        for some in _few(pages):
            try:
                asked = {"hashes": some, "ttl_s": for_s}
                count = service.call("PUT", _path(namespace), asked)["pins"]
            except RegistryRefused as refusal:
                if not done:
                    raise
                raise RegistryRefused(
                    f"the first {done:,} of {len(pages):,} pages are pinned, the others are not: "
                    f"{refusal}"
                ) from None
            done += len(some)
            missing += _not_stored(service, namespace, some)
    if missing:
        say(f"pinned, but not stored: {_names(missing)}")
    figures = {"pins": count, "not_stored": missing if as_json else len(missing)}
    print_figures("", figures, as_json=as_json)


def unpin(
    namespace: NamespaceId,
    hashes: Hashes = None,
    file: HashesFile = None,
    digest: Annotated[
        list[str] | None, typer.Option(help="A page as `pins` lists it; again for more.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="End all pins.")] = False,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """End pins."""
    asked: list[dict[str, Any] | None] = [None]
    if not everything:
        named = [] if digest and not (hashes or file) else hashes_of(hashes, file)
        asked = [{"hashes": some} for some in _few(named)]
        asked += [{"digests": some} for some in _few(digest or ())]
    with asking(endpoint, token_file) as service:
        ended = sum(service.call("DELETE", _path(namespace), each)["ended"] for each in asked)
    print_figures("", {"ended": ended}, as_json=as_json)


def _few(pages: Sequence[str]) -> Iterator[Sequence[str]]:
    return (pages[n : n + PAGES_AT_ONCE] for n in range(0, len(pages), PAGES_AT_ONCE))


def _not_stored(service: Caller, namespace: str, pages: Sequence[str]) -> list[str]:
    told = service.call("POST", "/v1/explain", {"namespace": namespace, "hashes": pages})["pages"]
    return [page for page, each in zip(pages, told, strict=True) if not each["copies"]]


def _names(pages: Sequence[str]) -> str:
    some = ", ".join(printable(page) for page in pages[:_NAMED])
    return some if len(pages) <= _NAMED else f"{some} and {len(pages) - _NAMED:,} more"


def _path(namespace: str) -> str:
    return f"/v1/namespaces/{segment(namespace)}/pins"
