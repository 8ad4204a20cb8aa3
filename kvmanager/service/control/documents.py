"""What the control routes share of their documents: kinds of values, and lists a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from kvmanager.service.documents import Document
from kvmanager.service.fields import MAX_NUMBER

MAX_ROWS = 1000
DEFAULT_ROWS = 100
MAX_CURSOR = 4200
MAX_TTL_MS = 10 * 365 * 24 * 3600 * 1000

Mode = Literal["off", "read", "read_write"]
DigestText = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Quota = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
TimeToLive = Annotated[int, Field(ge=1, le=MAX_TTL_MS)]
NamespaceId = Annotated[str, Path(alias="id", description="18 hexadecimal digits")]
UuidPath = Annotated[str, Path(alias="uuid", description="32 hexadecimal digits")]
Cursor = Annotated[
    str | None,
    Query(max_length=MAX_CURSOR, description="`next` of the answer before; none for the first"),
]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS, description="Rows of an answer, at most")]

T = TypeVar("T")


class Order(Document):
    """What an operator asks for. A field that is not declared is refused: one that is misspelt
    would set something else than what was meant."""

    model_config = ConfigDict(extra="forbid")


def page(
    rows: Sequence[T], key: Callable[[T], str], cursor: str | None, limit: int
) -> tuple[list[T], str | None]:
    """Some rows of a list that is ordered by `key`, and the cursor for the next; None at the end.
    A cursor is the key of the last row that was given, so that no row is given twice however the
    list changes meanwhile."""
    rest = [row for row in rows if cursor is None or key(row) > cursor]
    some = rest[:limit]
    return some, key(some[-1]) if len(rest) > limit else None
