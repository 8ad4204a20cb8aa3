"""The command `kvmanager`: the registry's service, and what its operators ask of it."""

from __future__ import annotations


def main() -> int:
    """The entry point; the process's exit status."""
    from kvmanager.cli.app import run

    return run()
