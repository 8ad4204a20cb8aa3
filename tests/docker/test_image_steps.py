"""The steps of the Dockerfile that install, carried out as they stand, away from the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.files import REPOSITORY, Stage, copies, services, stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Image:
    """A directory that stands for an image's root, and a virtual environment for its Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run([sys.executable, "-m", "venv", str(root / "python")], check=True)

    def build(self, stage: Stage, built: dict[str, Image], **arguments: str) -> Image:
        """What a stage copies and installs; packages of the system are left out."""
        for copy in copies(stage):
            origin = built[copy.stage].root if copy.stage else REPOSITORY
            for source in copy.sources:
                self._copy(origin / source.lstrip("/"), self._place(stage, copy.target))
        for step in stage.all("RUN"):
            for name, value in arguments.items():
                step = step.replace(f"${{{name}}}", value)
            calls = [call.strip() for call in step.split("&&")]
            for call in calls:
                if call.startswith("pip "):
                    self.run(
                        [
                            "sh",
                            "-c",
                            call.replace(" /wheels", f" {self.root}/wheels").replace(
                                "echo /wheels", f"echo {self.root}/wheels"
                            ),
                        ],
                        stage,
                    )
        return self

    def run(self, command: list[str], stage: Stage) -> str:
        """As in the image: its programs come first, and nothing of the tree can be imported."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        environment["PATH"] = f"{self.root / 'python' / 'bin'}:/usr/bin:/bin"
        place = self._place(stage, ".")
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def _place(self, stage: Stage, path: str) -> Path:
        inside = (stage.all("WORKDIR") or ["/"])[-1]
        return self.root / Path(inside, path).as_posix().lstrip("/")

    def _copy(self, source: Path, target: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    """All stages; the node with the extras that the deployment gives it."""
    built: dict[str, Image] = {}
    for name, stage in stages().items():
        extras = services()["demo-1"]["build"]["args"] if name == "node" else {}
        built[name] = Image(tmp_path_factory.mktemp(name)).build(stage, built, **extras)
    return built


def test_the_service_is_installed_and_says_what_it_needs(images: dict[str, Image]) -> None:
    image, stage = images["kvmanager"], stages()["kvmanager"]
    entry = stage.last("ENTRYPOINT")
    assert "serve" in image.run([*entry, "--help"], stage)
    assert "fsck" in image.run([*entry, "--help"], stage)
    program = (
        "import importlib.util as u, fastapi, opentelemetry.sdk.trace, kvmanager.service.serving\n"
        "import hicache_backends._native\n"
        "assert not [name for name in ('torch', 'mooncake', 'sglang') if u.find_spec(name)]"
    )
    image.run(["python", "-c", program], stage)
    refused = subprocess.run(
        [str(image.root / "python" / "bin" / entry[0]), *stage.last("CMD")],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert "tokens are needed" in refused.stderr


def test_a_node_runs_its_demo(images: dict[str, Image], tmp_path: Path) -> None:
    image, stage = images["node"], stages()["node"]
    demo = ["hicache-storage", "demo", "--users=2", "--turns=2", "--page-bytes=16KiB"]
    assert "no page wrong" in " ".join(image.run([*demo, f"--dir={tmp_path}"], stage).split())


def test_everything_of_a_node_can_be_resolved(images: dict[str, Image]) -> None:
    """Torch is not installed, but its version fits the others and the constraints."""
    image, stage = images["node"], stages()["node"]
    (extras,) = (words.partition("=")[2] for words in stage.all("ARG"))
    wheel = next((image.root / "wheels").glob("*.whl"))
    pip = ["pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    constraints = f"{image.root}/wheels/constraints.txt"
    image.run([*pip, "-c", constraints, f"{wheel}[{extras}]"], stage)
