"""The distribution holds every package, and its dependencies stay few."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
CONSTRAINTS = (REPOSITORY / "constraints.txt").read_text()


def test_every_package_is_listed() -> None:
    found = {
        str(mark.parent.relative_to(root)).replace("/", ".")
        for root in (REPOSITORY, REPOSITORY / "backends")
        for package in ("hicache_backends", "hicache_storage", "kvmanager")
        for mark in (root / package).rglob("__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_c_source_is_compiled_and_every_header_rebuilds() -> None:
    extension = PYPROJECT["tool"]["setuptools"]["ext-modules"][0]
    root = REPOSITORY / "backends" / "hicache_backends"
    listed = {Path(name) for name in (*extension["sources"], *extension.get("depends", ()))}
    assert listed == {p.relative_to(REPOSITORY) for p in root.rglob("*.[ch]")}


def test_core_dependencies_are_at_most_eight() -> None:
    assert len(PYPROJECT["project"]["dependencies"]) <= 8


def test_each_dependency_is_pinned_for_tests() -> None:
    named = [*PYPROJECT["project"]["dependencies"]]
    for extra in PYPROJECT["project"]["optional-dependencies"].values():
        named += extra
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in CONSTRAINTS.split("\n")}
    for requirement in named:
        name = re.split(r"[\[>=<;]", requirement)[0].strip().lower()
        assert name in pinned | {"hicache-storage", "tomli"}, requirement
    assert "torch==2.13.0" in CONSTRAINTS
