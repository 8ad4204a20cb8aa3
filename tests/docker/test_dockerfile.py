"""What the images are made of is there, and what they run exists."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.conftest import need_program
from tests.docker.files import DOCKER, REPOSITORY, Stage, copies, stages, understood
from tests.kvmanager.http_service import Service
from tests.kvmanager.servers import Server, free_port
from tests.test_packaging import PYPROJECT

IMAGES = ("kvmanager", "node")
LISTENING = "0.0.0.0:8080"


def extras(stage: Stage) -> set[str]:
    """Those that its pip step installs, arguments put in."""
    (named,) = re.findall(r"\[(.+?)\]", " ".join(stage.all("RUN")))
    for argument in stage.all("ARG"):
        name, _, value = argument.partition("=")
        named = named.replace(f"${{{name}}}", value)
    return set(named.split(","))


def ignored(path: str) -> bool:
    """Whether the build does not see it: the last rule that fits says so."""
    seen = True
    for rule in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        pattern = rule.lstrip("!")
        fits = any(
            fnmatch(part, pattern.removeprefix("**/"))
            for part in (path, path.split("/")[0], path.split("/")[-1])
        )
        if fits and rule and not rule.startswith("#"):
            seen = rule.startswith("!")
    return not seen


def test_the_linter_has_nothing_to_say() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    program = str(linter) if linter.exists() else need_program("hadolint")
    done = subprocess.run(
        [program, "--failure-threshold", "style", str(DOCKER / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_in_the_tree_and_in_the_build_or_made_by_an_earlier_stage() -> None:
    known: dict[str, Stage] = {}
    copied = 0
    for name, stage in stages().items():
        for copy in copies(stage):
            for source in copy.sources:
                copied += 1
                if copy.stage:
                    assert source in " ".join(known[copy.stage].all("RUN"))
                else:
                    assert (REPOSITORY / source).exists(), source
                    assert not ignored(source), source
        known[name] = stage
    assert copied > 6


@pytest.mark.parametrize(
    "path", ["docker/secrets/tokens", ".git", ".venv", "tests", "build", "kvmanager/x.so"]
)
def test_nothing_else_gets_into_a_build(path: str) -> None:
    assert ignored(path)


def test_the_wheel_is_built_of_every_package_that_there_is() -> None:
    copied = {source for copy in copies(stages()["wheel"]) for source in copy.sources}
    places = PYPROJECT["tool"]["setuptools"]["package-dir"]
    for package in PYPROJECT["tool"]["setuptools"]["packages"]:
        first = package.split(".")[0]
        assert places.get(first, first).split("/")[0] in copied
    assert {PYPROJECT["project"]["readme"], *PYPROJECT["project"]["license-files"]} <= copied


def test_the_service_has_no_torch_and_the_node_has_everything() -> None:
    known = set(PYPROJECT["project"]["optional-dependencies"])
    assert extras(stages()["kvmanager"]) == {"kvmanager", "otel"}
    assert extras(stages()["node"]) == known - {"dev"}


@pytest.mark.parametrize("name", IMAGES)
def test_images_run_as_nobody_special_and_hold_no_secret(name: str) -> None:
    stage = stages()[name]
    assert re.fullmatch(r"[1-9][0-9]{3,}:[1-9][0-9]{3,}", stage.all("USER")[-1])
    for words in (*stage.all("ENV"), *stage.all("ARG")):
        assert not re.search(r"token|password|secret|key", words, re.IGNORECASE)


def test_the_commands_of_the_images_are_those_there_are() -> None:
    service, node = (stages()[name] for name in IMAGES)
    taken = understood([*service.last("ENTRYPOINT"), *service.last("CMD")])
    assert taken["listen"] == LISTENING
    assert [*node.last("CMD")] == ["hicache-storage", "--help"]
    assert {"kvmanager", "hicache-storage"} <= set(PYPROJECT["project"]["scripts"])


def test_the_port_is_the_one_that_the_service_takes_by_itself() -> None:
    port = LISTENING.rpartition(":")[2]
    assert understood(["kvmanager", "serve"])["listen"] == f"127.0.0.1:{port}"
    assert stages()["kvmanager"].all("EXPOSE") == [port]


def test_the_health_check_tells_a_service_that_answers_from_one_that_does_not(
    own_server: Server,
) -> None:
    service = Service(own_server.url).start()
    try:
        assert health(service.port) == 0
        own_server.stop()
        assert health(service.port) != 0
    finally:
        service.stop()
    assert health(free_port()) != 0


def health(port: int) -> int:
    """The exit status of the image's own check, at another port."""
    words = stages()["kvmanager"].all("HEALTHCHECK")[-1].partition(" CMD ")[2]
    command = Stage("", "", [("CMD", words)]).last("CMD")
    assert command[0] == "python"
    assert "127.0.0.1:8080/readyz" in command[-1]
    here = [sys.executable, *command[1:-1], command[-1].replace(":8080/", f":{port}/")]
    return subprocess.run(here, stderr=subprocess.DEVNULL, timeout=30, check=False).returncode
