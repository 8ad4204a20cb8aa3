"""The version of what is installed."""

from __future__ import annotations


def installed_version() -> str:
    """Of the distribution; a checkout that runs without installation has none of its own."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("hicache-storage")
    except PackageNotFoundError:
        return "unknown (not installed)"
