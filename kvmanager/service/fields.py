"""The kinds of values in the documents of the data routes."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from hicache_backends.identity import DIGEST_BYTES
from kvmanager.model import MAX_KEYS, MAX_LOCATION_BYTES

MAX_NUMBER = 1 << 53
"""The scripts count in doubles."""
MAX_TTL_MS = 24 * 3600 * 1000
UUID_BYTES = 16
TOKEN_BYTES = 8
MAX_ENCODING_BYTES = 16_384


class Hex(NamedTuple):
    """How many bytes, for a reader of the JSON Schema: hexadecimal digits."""

    least: int
    most: int

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {
            "type": "string",
            "pattern": "^([0-9a-fA-F]{2})*$",
            "minLength": 2 * self.least,
            "maxLength": 2 * self.most,
        }


Digest = Annotated[
    bytes,
    Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES),
    Hex(DIGEST_BYTES, DIGEST_BYTES),
]
Uuid = Annotated[
    bytes, Field(min_length=UUID_BYTES, max_length=UUID_BYTES), Hex(UUID_BYTES, UUID_BYTES)
]
Nothing = Annotated[bytes, Field(max_length=0), Hex(0, 0)]
Token = Annotated[
    bytes, Field(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES), Hex(TOKEN_BYTES, TOKEN_BYTES)
]
Location = Annotated[
    bytes, Field(min_length=1, max_length=MAX_LOCATION_BYTES), Hex(1, MAX_LOCATION_BYTES)
]
MaybeLocation = Annotated[bytes, Field(max_length=MAX_LOCATION_BYTES), Hex(0, MAX_LOCATION_BYTES)]
Encoding = Annotated[
    bytes, Field(min_length=1, max_length=MAX_ENCODING_BYTES), Hex(1, MAX_ENCODING_BYTES)
]
Results = Annotated[bytes, Field(max_length=MAX_KEYS), Hex(0, MAX_KEYS)]
Number = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Positive = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
NumberOrNone = Annotated[int, Field(ge=-1, le=MAX_NUMBER)]
Milliseconds = Annotated[int, Field(ge=1, le=MAX_TTL_MS)]
Interval = Annotated[int, Field(ge=100, le=MAX_TTL_MS)]
Text = Annotated[str, Field(max_length=255)]
Word = Annotated[str, Field(max_length=32)]
LongText = Annotated[str, Field(max_length=4096)]
Range = Annotated[list[Number], Field(min_length=2, max_length=2)]
Digests = Annotated[list[Digest], Field(max_length=MAX_KEYS)]
Locations = Annotated[list[Location], Field(max_length=MAX_KEYS)]
