from collections.abc import Sequence
from typing import NewType

CRC32C_IMPLEMENTATIONS: tuple[str, ...]  # usable on this processor, the one in use first

def read_many(
    fds: bytes,
    offsets: bytes,
    iov: bytes,
    pieces: int,
    digests: bytes,
    deadline_ns: int,
    threads: int,
    max_bytes: int,
    keep_gil_bytes: int,
    /,
) -> tuple[bytearray, bytearray]: ...
def write_many(
    fds: bytes,
    offsets: bytes,
    iov: bytes,
    pieces: int,
    digests: bytes,
    deadline_ns: int,
    threads: int,
    max_bytes: int,
    record_fds: bytes,
    record_offsets: bytes,
    was_used: bytes,
    records: bytearray,
    runs: tuple[bytes, bytes, bytes] | None,
    /,
) -> tuple[bytearray, bytearray]: ...
def checksum_many(iov: bytes, pieces: int, digests: bytes, threads: int, /) -> bytearray: ...
def copy_many(
    count: int,
    source_iov: bytes,
    source_pieces: int,
    iov: bytes,
    pieces: int,
    digests: bytes,  # b"": no checksums
    threads: int,
    /,
) -> bytearray: ...
def page_digests(fingerprint: bytes, keys: Sequence[str], max_key_bytes: int, /) -> list[bytes]: ...
def crc32c(data: bytes, seed: int = ..., implementation: int = ..., /) -> int: ...
def valid_records(address: int, count: int, /) -> bytearray: ...
def exchange(fd: int, request: bytes, deadline_ns: int, replies: int = ..., /) -> bytes: ...
def try_exchange(fd: int, request: bytes, replies: int, /) -> tuple[int, bytes, bool]: ...
def skip_replies(raw: bytearray, start: int, wanted: int, /) -> tuple[int, int]: ...
def lookup(
    fd: int,
    deadline_ns: int,
    route: tuple[bytes, bytes, bytes, bytes, bytes, bytes],
    digests: list[bytes],
    why: bool,
    now: int,
    interval: int,
    /,
) -> tuple[list[bytes] | None, bytes, bytes]: ...
def pages_request(
    route: tuple[bytes, bytes, bytes, bytes, bytes, bytes], digests: list[bytes], /
) -> bytes: ...
def read_pages(
    route: tuple[bytes, bytes, bytes, bytes, bytes, bytes],
    asked: int,
    raw: bytes,
    why: bool,
    now: int,
    interval: int,
    /,
) -> tuple[list[bytes] | None, bytes]: ...
def prefixes_add(table: bytearray, digests: bytes, /) -> None: ...
def prefixes_remove(table: bytearray, digests: bytes, /) -> None: ...
def prefixes_find(table: bytearray, digests: list[bytes], /) -> list[bool]: ...

Ring = NewType("Ring", object)

def ring_open(
    shared: int,
    shared_bytes: int,
    entries: int,
    burst: int,
    submit_semaphore: int,
    staging: int,
    staging_bytes: int,
    staging_start: int,
    block_bytes: int,
    staging_uuid: bytes,
    alarm_fd: int,
    /,
) -> Ring: ...
def ring_read(
    ring: Ring,
    fds: bytes,
    offsets: bytes,
    iov: bytes,
    pieces: int,
    digests: bytes,
    deadline_ns: int,
    memories: bytes,
    device: int,
    /,
) -> tuple[bytearray, bytearray]: ...
def ring_write(
    ring: Ring,
    fds: bytes,
    offsets: bytes,
    iov: bytes,
    pieces: int,
    digests: bytes,
    deadline_ns: int,
    memories: bytes,
    device: int,
    padded_bytes: int,
    record_fds: bytes,
    record_offsets: bytes,
    was_used: bytes,
    records: bytearray,
    runs: tuple[bytes, bytes, bytes] | None,
    /,
) -> tuple[bytearray, bytearray]: ...
def ring_facts(ring: Ring, /) -> dict[str, int]: ...
def ring_in_doubt(ring: Ring, /) -> bytes: ...
def ring_may_touch(ring: Ring, address: int, size: int, /) -> bool: ...
def ring_stop(ring: Ring, /) -> None: ...
