"""The command `hicache-storage`."""

from __future__ import annotations

from hicache_storage.cli.process import main

if __name__ == "__main__":
    main()
