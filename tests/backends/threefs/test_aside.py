"""Work that is done aside: the system may have no thread left for it."""

from __future__ import annotations

import threading

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.threefs.aside import Aside


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_work_fails_as_on_a_hung_mount_and_later_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aside = Aside()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        for _ in range(20):  # more than may be under way at once
            with pytest.raises(TimeoutError, match="thread"):
                aside.run(lambda: 1, Deadline.after_ms(1000))
    assert aside.run(lambda: 1, Deadline.after_ms(1000)) == 1


def test_what_found_no_thread_is_done_with_what_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aside = Aside()
    done: list[int] = []
    both = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        aside.later(lambda: done.append(1))
    aside.later(lambda: done.append(2))
    aside.later(both.set)
    assert both.wait(5)
    assert done == [1, 2]
