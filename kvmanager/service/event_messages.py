"""Events as a listener over HTTP is sent them: server-sent events, their data in JSON."""

from __future__ import annotations

import json
from typing import Any

from kvmanager.control.events import Event
from kvmanager.control.snapshot import Heading, Pages

STILL_THERE = b": still there\n\n"


def message(kind: str, said: dict[str, Any], sequence: str = "") -> bytes:
    """One message; `sequence`: the event to come back with. Bytes are hexadecimal digits."""
    data = json.dumps(said, default=bytes.hex, separators=(",", ":"))
    head = f"id: {sequence}\n" if sequence else ""
    return f"{head}event: {kind}\ndata: {data}\n\n".encode()


def of_event(event: Event) -> bytes:
    """Something that happened."""
    said: dict[str, Any] = {"medium": _letters(event.medium)} if event.medium else {}
    for name in ("uuid", "store", "process", "digests", "reported", "why"):
        value = getattr(event, name)
        if value:
            said[name] = value
    if event.epoch is not None:
        said["epoch"] = event.epoch
    if event.kind == "joined":
        said |= {"host": event.host, "server": event.server, "rank": event.rank}
    return message(event.kind, said, event.id)


def of_heading(heading: Heading) -> bytes:
    """A snapshot begins: what the listener had is void."""
    media = [
        {"medium": _letters(medium.id), "uuid": medium.uuid, "shared": medium.shared}
        for medium in heading.media
    ]
    stores = [
        {
            "medium": _letters(store.medium_id),
            "store": store.store,
            "process": store.process,
            "host": store.host,
            "server": store.server,
            "rank": store.rank,
            "alive": store.alive,
        }
        for store in heading.stores
    ]
    return message(
        "snapshot",
        {
            "fingerprint": heading.fingerprint,
            "epoch": heading.epoch,
            "media": media,
            "stores": stores,
        },
    )


def of_pages(found: Pages) -> bytes:
    """A part of a snapshot."""
    stores: dict[str, list[bytes]] = {}
    for digest, store in found.pages:
        stores.setdefault(store.hex(), []).append(digest)
    return message("pages", {"medium": _letters(found.medium), "stores": stores})


def _letters(medium: bytes) -> str:
    return medium.decode("ascii", "replace")
