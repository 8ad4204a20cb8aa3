"""`<root>/.medium` on 3FS: limits and the cluster's name, in the form of a local medium's with a
format version of its own, so that neither backend takes the other's directory."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass

from hicache_backends.errors import IdentityMismatch
from hicache_backends.segment.plain import open_plain

_MAGIC = b"HICACHE\0"
FORMAT_VERSION = 0x3F50001
"""Far from any of a local medium."""
_BODY = struct.Struct("<8sII16sQQQQQ")
_NAME = struct.Struct("<128s")
_CRC = struct.Struct("<I")
_MEDIUM_BYTES = 4096


@dataclass(frozen=True, slots=True)
class MediumFile:
    """What `.medium` says."""

    uuid: bytes
    cluster: str
    capacity_bytes: int
    free_floor_bytes: int

    def pack(self) -> bytes:
        limits = (self.capacity_bytes, self.free_floor_bytes)
        body = _BODY.pack(_MAGIC, FORMAT_VERSION, 0, self.uuid, 0, 0, *limits, 0)
        name = _NAME.pack(self.cluster.encode())
        packed = body + _CRC.pack(zlib.crc32(body)) + name + _CRC.pack(zlib.crc32(name))
        return packed.ljust(_MEDIUM_BYTES, b"\0")

    @classmethod
    def unpack(cls, packed: bytes) -> MediumFile | None:
        """None for what is damaged. Raises IdentityMismatch for what another backend wrote."""
        body, rest = packed[: _BODY.size], packed[_BODY.size + _CRC.size :]
        name = rest[: _NAME.size]
        crcs = packed[_BODY.size :][: _CRC.size], rest[_NAME.size :][: _CRC.size]
        if len(body) < _BODY.size or crcs[0] != _CRC.pack(zlib.crc32(body)) or body[:8] != _MAGIC:
            return None
        fields = _BODY.unpack(body)
        if fields[1] != FORMAT_VERSION:
            raise IdentityMismatch(
                f"the directory holds pages in format {fields[1]}, which the backend 3fs does not "
                "read: nvme wrote it, or another version; give 3fs a directory of its own"
            )
        if crcs[1] != _CRC.pack(zlib.crc32(name)):
            return None
        cluster = name.rstrip(b"\0").decode(errors="replace")
        return cls(fields[3], cluster, fields[6], fields[7])

    @classmethod
    def read(cls, path: str) -> MediumFile | None:
        """What the file says, past the page cache. Raises OSError, and as `unpack`."""
        fd = open_plain(path, os.O_RDONLY | os.O_DIRECT)
        try:
            return cls.unpack(os.pread(fd, _MEDIUM_BYTES, 0))
        finally:
            os.close(fd)

    def overwrite(self, path: str) -> None:
        """In place: other hosts go on for a while with the file that they know by this name.
        Raises OSError."""
        fd = open_plain(path, os.O_RDWR | os.O_DIRECT)
        try:
            os.pwrite(fd, self.pack(), 0)
        finally:
            os.close(fd)
