"""What a wheel must hold: the extension for every Python, scripts, type marks, the test suite."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

NEEDED = (
    "hicache_backends/_native.abi3.so",
    "hicache_backends/py.typed",
    "hicache_backends/testing/conformance.py",
    "hicache_storage/__main__.py",
    "hicache_storage/py.typed",
    "kvmanager/py.typed",
    "kvmanager/scripts/lookup.lua",
)
SUFFIXES = (".py", ".pyi", ".lua", ".html", ".css", ".js", ".svg")
"""Of files that belong into it wherever they lie."""


def problems(wheel: Path, tree: Path) -> list[str]:
    """What is wrong with the wheel built from a source tree."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    found = [f"{name} is missing" for name in NEEDED if name not in names]
    if "cp310-abi3" not in wheel.name:
        found.append("it is not built for the stable ABI of Python 3.10 and later")
    for root in ("hicache_storage", "kvmanager", "backends/hicache_backends"):
        for file in (tree / root).rglob("*"):
            name = str(file.relative_to(tree)).removeprefix("backends/")
            if file.suffix in SUFFIXES and name not in names:
                found.append(f"{name} is missing")
    found += [f"{name} does not belong in it" for name in names if name.startswith("tests/")]
    return found


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]), Path(__file__).parents[1])
    sys.exit("\n".join(found) or 0)
