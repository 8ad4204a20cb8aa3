"""`python -m kvmanager.cli`."""

from __future__ import annotations

import sys

from kvmanager.cli.app import run

if __name__ == "__main__":
    sys.exit(run())
