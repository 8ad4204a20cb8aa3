"""Commands and replies on the wire (RESP2), and every error a server can reply, translated."""

from __future__ import annotations

from typing import Final

from hicache_backends import native_calls
from hicache_backends.errors import RegistryError, RegistryRefused, RegistryUnavailable

Reply = bytes | int | None
MAX_REPLY_BYTES: Final = 64 << 20
"""Of all replies of one exchange."""
MAX_LINE_BYTES: Final = 64 << 10
_MAX_SIZE_DIGITS: Final = 10


class NoScript(RegistryUnavailable):
    """The server does not know the script yet; load it and ask again."""


class Moved(RegistryRefused):
    """The server does not hold the keys, or not for long: another node of its Cluster does."""


_UNAVAILABLE = {
    "LOADING": "the server is loading its data",
    "BUSY": "the server is busy with a script",
    "MASTERDOWN": "the server is a replica without its master",
    "READONLY": "the server is a replica: a failover, or the endpoint names the wrong server",
    "TRYAGAIN": "the Cluster is moving the slot",
    "CLUSTERDOWN": "the Cluster is down",
    "MISCONF": "the server takes no writes because it cannot save its snapshots",
    "NOREPLICAS": "the server takes no writes because it has too few replicas",
    "UNKILLABLE": "the server is busy with a script",
}
FILES = (
    "its file is --redis-password-file of the service, global_kvmanager.password_file of a process"
)
_REFUSED = {
    "OOM": "the server is out of memory: raise maxmemory",
    "NOAUTH": f"the server wants a password: {FILES}",
    "WRONGPASS": "the user or password is wrong",
    "NOPERM": "the user has not the permission: it needs EVALSHA and the commands of the scripts",
    "MOVED": "the endpoint is one node of a Cluster; name it as redis-cluster://host:port",
    "ASK": "the endpoint is one node of a Cluster; name it as redis-cluster://host:port",
    "CROSSSLOT": "the endpoint is a Cluster that spreads this namespace's keys",
    "WRONGTYPE": "a key of the registry holds something else: does another program write there?",
    "NOPROTO": "the server does not speak RESP2",
    "DENIED": "the server runs in protected mode: set a password or bind it to an address",
    "EXECABORT": "the server gave up a transaction",
    "NOTBUSY": "no script is running",
    "ERR": "the server does not understand the call",
}
_WITHIN_SCRIPTS = {
    "non local key": "the Cluster is moving the slot",
    "while the cluster is down": "the Cluster is down",
}
"""What a script's commands are told, which have no code of their own."""
REPLIES = (*_UNAVAILABLE, *_REFUSED, "NOSCRIPT")
"""Every error code that has a translation; any other is refused as it is."""


def command(*args: bytes) -> bytes:
    """One command."""
    parts = [b"*%d\r\n" % len(args)]
    parts += [b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in args]
    return b"".join(parts)


def bulk(value: bytes | None) -> bytes:
    """An argument, or a reply of that value."""
    return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)


def error(message: str) -> RegistryError:
    """The error for a server's error reply, `message` without the leading '-'."""
    code = message.split(" ", 1)[0]
    if code == "ERR":  # up to version 6 a script's error is wrapped
        inner = message.rpartition(": -")[2].split(" ", 1)[0]
        code = inner if inner in REPLIES else code
        if "unauthenticated" in message:  # what a call of many arguments gets instead of NOAUTH
            code = "NOAUTH"
    if code == "NOSCRIPT":
        return NoScript(message)
    if code in ("MOVED", "ASK"):
        return Moved(f"{_REFUSED[code]} ({message})")
    if code == "ERR":
        said = next((why for part, why in _WITHIN_SCRIPTS.items() if part in message), "")
        if said:
            return RegistryUnavailable(f"{said} ({message})")
    if code in _UNAVAILABLE:
        return RegistryUnavailable(f"{_UNAVAILABLE[code]} ({message})")
    return RegistryRefused(f"{_REFUSED.get(code, 'the server refuses')} ({message})")


def parse(raw: bytes) -> Reply:
    """The value of one whole reply that is no array. Raises the translated error of an error."""
    kind, end = raw[:1], raw.find(b"\r\n")
    try:
        if kind == b"$":
            size = int(raw[1:end])
            return raw[end + 2 : end + 2 + size] if size >= 0 else None
        if kind == b":":
            return int(raw[1:end])
    except ValueError:
        kind = b"?"
    if kind == b"+":
        return raw[1:end]
    if kind == b"-":
        raise error(raw[1:end].decode("utf-8", "replace"))
    raise RegistryRefused(f"the server's reply is no RESP2: {raw[:40]!r}")


class Replies:
    """So many replies, put together as their bytes come."""

    def __init__(self, count: int) -> None:
        self.raw = bytearray()
        self._left = count
        self._end = 0

    def take(self, part: bytes) -> bool:
        """Whether the last one is whole now. Raises ConnectionError for the end of the stream, for
        what is none, and for bytes after the last."""
        if not part:
            raise ConnectionResetError("the server closed the connection")
        self.raw += part
        skipped = native_calls.skip_replies(self.raw, self._end, self._left)
        if skipped is None:
            return self._skip()
        self._end, self._left = skipped
        return not self._left

    def _skip(self) -> bool:
        while self._left:
            size = reply_size(self.raw, self._end)
            if size < 0 or self._end + size > MAX_REPLY_BYTES:
                raise self._wrong()
            if not size or self._end + size > len(self.raw):
                return False
            self._end += size
            if self.raw[self._end - 2 : self._end] != b"\r\n":
                raise self._wrong()
            self._left -= 1
        if self._end != len(self.raw):
            raise self._wrong()
        return True

    def _wrong(self) -> ConnectionResetError:
        said = bytes(self.raw[self._end : self._end + 20])
        return ConnectionResetError(f"not the RESP2 replies that were asked for: {said!r}")


def split(raw: bytes) -> list[bytes]:
    """Whole replies, one after another, apart. Raises RegistryRefused for anything else."""
    replies = []
    at = 0
    while at < len(raw):
        size = reply_size(raw, at)
        if size <= 0 or at + size > len(raw):
            raise RegistryRefused(f"the server's reply is no RESP2: {raw[at : at + 40]!r}")
        replies.append(raw[at : at + size])
        at += size
    return replies


def reply_size(raw: bytes | bytearray, at: int = 0) -> int:
    """Of the reply that begins there, which may be longer than what is there; 0 while that cannot
    be known, -1 if it is none."""
    if raw[at : at + 1] not in b"+-:$":
        return -1
    line = raw.find(b"\r\n", at)
    if line < 0:
        return 0 if len(raw) - at <= MAX_LINE_BYTES else -1
    digits = bytes(raw[at + 1 : line])
    if raw[at : at + 1] != b"$" or digits == b"-1":
        return line + 2 - at
    if not digits.isdigit() or len(digits) > _MAX_SIZE_DIGITS or int(digits) > MAX_REPLY_BYTES:
        return -1
    return line + 2 + int(digits) + 2 - at
