"""Which ring client speaks to the daemon: the official module where it is installed, or ours."""

from __future__ import annotations

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.usrbio.mount import Mount
from hicache_backends.usrbio.ring import RingClient, RingSettings

CLIENTS = ("auto", "official", "own")


def open_client(kind: str, mount: Mount, settings: RingSettings, deadline: Deadline) -> RingClient:
    """`kind` is one of `CLIENTS`. Raises StorageUnavailable."""
    if kind != "own":
        try:
            from hf3fs_fuse import io
        except ImportError as error:
            if kind == "official":
                raise StorageUnavailable(
                    f"the official ring client is not installed ({error}): build its wheel from "
                    "the 3FS sources, or choose the own one"
                ) from None
        else:
            from hicache_backends.usrbio.official import OfficialRings

            return OfficialRings(io, mount, settings, deadline)
    try:
        from hicache_backends.usrbio.own import OwnRings
    except ImportError as error:
        raise StorageUnavailable(
            "USRBIO needs the C extension, or the official module hf3fs_fuse: install a C compiler "
            f"and reinstall hicache-storage ({error})"
        ) from None
    return OwnRings(mount, settings, deadline)
