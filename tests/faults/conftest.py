from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import need_program
from tests.faults.rig import Faults


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preloaded library, compiled once a session."""
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("shim.c")
    compiler = need_program("gcc")
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"]
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def faults(shim: Path, tmp_path: Path) -> Faults:
    """No faults yet, on the files below `tmp_path / "root"`."""
    root = tmp_path / "root"
    root.mkdir()
    return Faults(shim, tmp_path / "control", root)
