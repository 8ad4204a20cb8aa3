"""What tests of whole servers say and wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hicache_storage.tools.media import read_medium
from tests.sglang.harness.server import Answer, Server
from tests.sglang.harness.waiting import wait_until
from tests.sglang.plugin import extra_config

PAGE = 16


def served(path: Path, **sections: Any) -> dict[str, Any]:
    """An extra config whose namespace is made from the model's own files."""
    config = extra_config(path, **sections)
    del config["identity"]
    return {**config, "prefetch_threshold": PAGE}


def stored_pages(root: Path) -> int:
    """Pages on the medium, of all ranks and pools."""
    return sum(namespace.pages for namespace in read_medium(root).namespaces)


def wait_for_pages(root: Path, pages: int) -> None:
    """Until so many pages are on the medium."""
    wait_until(lambda: stored_pages(root) >= pages, f"{pages} pages in {root}")


def again_from_storage(server: Server, ids: list[int]) -> Answer:
    """The answer with nothing in device and host memory."""
    server.flush_cache()
    return server.generate(ids)
