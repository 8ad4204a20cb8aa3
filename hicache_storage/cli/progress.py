"""Progress of long work, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar towards `total`; call what is yielded with how many more are done, from any thread."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def announced() -> Iterator[Callable[[str], None]]:
    """A line that says what is being done; call what is yielded with the next."""
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update
