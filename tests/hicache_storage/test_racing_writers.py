"""Processes that store the same pages at the same moment on one medium."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hicache_storage.cli.app import run
from hicache_storage.tools.line_process import LineProcess
from tests.backends.nvme_medium import StoredPage, stored_pages
from tests.hicache_storage.racing_writer import PAGES, SLOT, racing_writer
from tests.hicache_storage.test_shared_pages import NAMESPACE
from tests.kvmanager.servers import BINARIES, Server

WRITERS = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    binary = BINARIES["valkey"]
    assert binary is not None, "the embedded extra is part of the development extras"
    place = tmp_path / "valkey"
    place.mkdir()
    server = Server(binary, place).start()
    yield server
    server.stop()


def all_answer(writers: list[LineProcess], line: str) -> list[dict[str, int]]:
    for writer in writers:
        writer.send(line)
    return [json.loads(writer.answer()) for writer in writers]


def on_medium(root: Path) -> list[StoredPage]:
    return list(stored_pages(root, NAMESPACE))


def test_one_copy_of_each_page_is_stored_and_no_slot_is_lost(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    with ExitStack() as stack:
        writers = [
            stack.enter_context(racing_writer(str(root), server.url, 4 * (n // 2)))
            for n in range(WRITERS)
        ]
        for writer in writers:
            assert writer.answer() == "ready"
        raced = all_answer(writers, "go")
        counted = all_answer(writers, "count")
        pages = on_medium(root)
    # two begin at each place: neither stored all of what it put, and together they stored all
    assert sum(result["stored"] for result in raced) == PAGES
    assert sum(result["existed"] for result in raced) == (WRITERS - 1) * PAGES
    assert sum(result["stored"] > 0 for result in raced) > 1
    assert [result["found"] for result in counted] == [PAGES] * WRITERS
    assert sum(result["pages"] for result in counted) == PAGES
    assert {result["leaked"] for result in counted} == {0}
    assert {result["writing"] for result in counted} == {0}
    assert len({page.digest for page in pages}) == PAGES
    assert len(pages) == PAGES
    assert sum(page.length for page in pages) == PAGES * NAMESPACE.page_bytes
    written = sum(path.stat().st_size for path in root.rglob("seg-*.data"))
    assert written <= (PAGES + WRITERS * 64) * SLOT
    assert run(["fsck", str(root), "--json"]) == 0, capsys.readouterr().out
    report = json.loads(capsys.readouterr().out)
    assert sum(left["pages"] for left in report["roots"][0]["left"]) == PAGES


def test_a_writer_that_is_killed_meanwhile_leaves_no_page_unwritten(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    with ExitStack() as stack:
        writers = [stack.enter_context(racing_writer(str(root), server.url, 0)) for _ in range(3)]
        for writer in writers:
            assert writer.answer() == "ready"
        for writer in writers:
            writer.send("go")
        while len(on_medium(root)) < PAGES // 10:
            pass
        writers[0].kill()
        living = writers[1:]
        for writer in living:
            writer.answer()
        while any(result["found"] < PAGES for result in all_answer(living, "count")):
            all_answer(living, "go")  # until the claims of the dead have ended
        (counted, _) = all_answer(living, "count")
        assert counted["leaked"] == 0
    copies = Counter(page.digest for page in on_medium(root))
    assert len(copies) == PAGES
    # what the dead had written without saying so was written once more, and nothing else
    assert max(copies.values()) <= 2
    assert sum(copies.values()) < PAGES + 200
    assert run(["fsck", str(root), "--json"]) == 0, capsys.readouterr().out
