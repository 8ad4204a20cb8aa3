"""What the fields of a configuration are made of.

Values of a file are taken strictly (a number is not a string); those of the environment are
strings and converted. Sizes are bytes: 4294967296, "4GiB", "4gb" or "4G".
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from hicache_backends.sizes import format_size, parse_size
from hicache_storage.options import MAX_DEPTH

MAX_BATCH = 1024
MAX_PAGE_BYTES = 1 << 30
"""More is a mistake: a page is some tokens of one rank, and is held in memory."""


def _size(value: object) -> object:
    return parse_size(value, name="it") if isinstance(value, str) else value


def _page_bytes(count: int) -> int:
    if count > MAX_PAGE_BYTES:
        raise ValueError(f"should be at most {format_size(MAX_PAGE_BYTES)}, not {count}")
    return count


def _path(text: str) -> str:
    if "\0" in text:
        raise ValueError("should not contain a null character")
    return text


def _strings(value: object) -> object:
    if isinstance(value, str):
        return tuple(part for part in value.split(":") if part)
    return tuple(value) if isinstance(value, list) else value


def _range(value: object) -> object:
    if isinstance(value, str):
        first, _, last = value.partition(",")
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"should be two numbers such as 0,32, not {value!r}")
        return int(first), int(last)
    return tuple(value) if isinstance(value, list) else value


Size = Annotated[
    int, BeforeValidator(_size, json_schema_input_type=int | str), Field(gt=0, lt=1 << 63)
]
SizeOrZero = Annotated[
    int, BeforeValidator(_size, json_schema_input_type=int | str), Field(ge=0, lt=1 << 63)
]
PageBytes = Annotated[Size, AfterValidator(_page_bytes)]
PathText = Annotated[str, Field(min_length=1), AfterValidator(_path)]
Paths = Annotated[
    tuple[PathText, ...], BeforeValidator(_strings, json_schema_input_type=list[str] | str)
]
Range = Annotated[tuple[int, int], BeforeValidator(_range, json_schema_input_type=list[int] | str)]
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH)] | Literal["auto"]
Batch = Annotated[int, Field(ge=1, le=MAX_BATCH)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of every section."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)
