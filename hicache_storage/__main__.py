"""The command `hicache-storage`."""

from __future__ import annotations

import sys

from hicache_storage.cli.app import run


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(run())


if __name__ == "__main__":
    main()
