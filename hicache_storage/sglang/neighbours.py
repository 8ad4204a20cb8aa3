"""Other namespaces whose pages lie where ours do."""

from __future__ import annotations

from hicache_backends.identity import Namespace
from hicache_storage.config import Config


def neighbours(config: Config, own: Namespace) -> list[Namespace]:
    """Namespaces with pages in the configured directories, `own` left out.

    Raises ConfigError, StorageUnavailable. None for a backend that has no directories.
    """
    from hicache_storage.tools.media import read_medium  # reads files: only when asked for

    return [
        found.namespace
        for root in config.roots()
        for found in read_medium(root).namespaces
        if found.namespace is not None and found.namespace != own and found.pages
    ]
