"""Which engine moves the pages: the one in C, or the one in Python where there is no compiler."""

from __future__ import annotations

import logging

from hicache_backends.errors import ConfigError
from hicache_backends.io.engine import MAX_TRANSFER_BYTES, Engine
from hicache_backends.io.posix import PosixEngine

ENGINES = ("auto", "native", "posix")

_log = logging.getLogger(__name__)


def open_engine(name: str = "auto", *, max_transfer_bytes: int = MAX_TRANSFER_BYTES) -> Engine:
    """The engine of that name; "auto" is native where the extension was built.

    Raises ConfigError for another name, for "native" without the extension, and for transfers
    below 4096 bytes.
    """
    if name not in ENGINES:
        raise ConfigError(f"io_engine is one of {', '.join(ENGINES)}, not {name!r}")
    if max_transfer_bytes < 4096:
        raise ConfigError(f"max_transfer_bytes is at least 4096, not {max_transfer_bytes}")
    if name != "posix":
        try:
            from hicache_backends.io.native import NativeEngine
        except ImportError as error:
            if name == "native":
                raise ConfigError(
                    "io_engine native: the C extension was not built; install a C compiler and "
                    f"reinstall hicache-storage, or set io_engine to posix ({error})"
                ) from None
            _warn_once()
        else:
            return NativeEngine(max_transfer_bytes=max_transfer_bytes)
    return PosixEngine(max_transfer_bytes=max_transfer_bytes)


_warned: list[bool] = []


def _warn_once() -> None:
    if not _warned:
        _warned.append(True)
        _log.warning(
            "the C extension was not built: using the posix engine, which is slower, "
            "and many times slower beside a busy Python thread"
        )
