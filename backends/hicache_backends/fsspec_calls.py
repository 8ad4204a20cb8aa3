"""Many calls of one fsspec file system at once: on its own loop, or on threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, MissingExtra, StorageUnavailable

_CANCEL_S = 0.1
_MOST_THREADS = 16


class LateError(TimeoutError):
    """A call that had not ended by the deadline. It may still take effect."""


class FileSystemCalls:
    """Calls the file system of a URL, at most `concurrency` at once."""

    def __init__(self, url: str, options: dict[str, Any], concurrency: int) -> None:
        """Raises ConfigError, MissingExtra, StorageUnavailable."""
        self.fs, self.root = _file_system(url, options)
        self.is_async = bool(self.fs.async_impl)
        self._concurrency = concurrency
        self._pool = None if self.is_async else ThreadPoolExecutor(min(concurrency, _MOST_THREADS))

    def method(self, name: str) -> Callable[..., Any]:
        """A method of the file system as `all` takes it."""
        method: Callable[..., Any] = getattr(self.fs, f"_{name}" if self.is_async else name)
        return method

    def overrides(self, name: str) -> bool:
        """Whether the file system has a method of its own, not fsspec's stopgap."""
        from fsspec.spec import AbstractFileSystem

        return getattr(type(self.fs), name) is not getattr(AbstractFileSystem, name)

    def all(self, calls: Sequence[Callable[[], Any]], deadline: Deadline) -> list[Any]:
        """The result of each call, or the exception that it raised."""
        if self._pool is None:
            from fsspec.asyn import sync

            results: list[Any] = sync(self.fs.loop, self._gather, calls, deadline)
            return results
        futures = [self._pool.submit(call) for call in calls]
        wait(futures, timeout=deadline.remaining_ms() / 1000)
        return [_result(future) for future in futures]

    def close(self) -> None:
        """Begin no call any more; those under way go on."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _gather(self, calls: Sequence[Callable[[], Any]], deadline: Deadline) -> list[Any]:
        results: list[Any] = [LateError("not done by the deadline")] * len(calls)
        gate = asyncio.Semaphore(self._concurrency)

        async def one(number: int) -> None:
            async with gate:
                try:
                    results[number] = await calls[number]()
                except Exception as error:
                    results[number] = error

        tasks = [asyncio.ensure_future(one(number)) for number in range(len(calls))]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=deadline.remaining_ms() / 1000)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_CANCEL_S)
        return list(results)


def _result(future: Future[Any]) -> Any:
    if not future.done():
        future.cancel()
        return LateError("not done by the deadline")
    with contextlib.suppress(BaseException):
        return future.result()
    return future.exception()


def _file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The file system of the URL and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtra("the backend 'fsspec'", "fsspec") from None
    scheme = url.partition("://")[0]
    try:
        # listings are not kept: existence is asked of the store each time
        fs, root = url_to_fs(url, **{"use_listings_cache": False, **options})
    except ImportError as error:
        extra = scheme if scheme == "s3" else "fsspec"
        raise MissingExtra(f"fsspec's file system {scheme!r} ({error})", extra) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"fsspec.url or fsspec.options: {error}") from error
    except Exception as error:
        raise StorageUnavailable(f"{scheme}: {type(error).__name__}: {error}") from error
    return fs, str(root).rstrip("/")
