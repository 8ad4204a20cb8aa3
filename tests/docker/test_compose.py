"""The deployment of compose.yaml: parts that fit each other and the project, and nothing open."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from hicache_storage.config import load_config
from kvmanager.http.endpoint import TOKEN, TOKEN_FILE
from kvmanager.service.access import read_tokens
from tests.docker.files import DOCKER, REPOSITORY, compose, services, stages, understood, variables

OURS = {"hicache/kvmanager": "kvmanager", "hicache/node": "node"}
SERVICES = sorted(services())
MANAGERS = ("kvmanager-1", "kvmanager-2")
DEMOS = ("demo-1", "demo-2")


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from (*strings(key), *strings(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def command(name: str) -> list[str]:
    """Words that a container is started with, those of its image before them."""
    service = services()[name]
    image = stages()[OURS[service["image"]]]
    entry = image.last("ENTRYPOINT") if image.all("ENTRYPOINT") else []
    return [*entry, *service.get("command", image.last("CMD"))]


def names(network: str) -> set[str]:
    """What a container of a network is reached by."""
    found: set[str] = set()
    for name, service in services().items():
        if network in service["networks"]:
            settings = service["networks"][network] if isinstance(service["networks"], dict) else {}
            found |= {name, *settings.get("aliases", ())}
    return found


@pytest.mark.parametrize("name", SERVICES)
def test_containers_can_do_little(name: str) -> None:
    service = services()[name]
    assert service["read_only"]
    assert service["tmpfs"] == ["/tmp"]  # noqa: S108 - of the container
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].split(":")[0] not in ("", "0", "root")
    assert not {"privileged", "network_mode", "pid", "ipc", "devices"} & set(service)


@pytest.mark.parametrize("name", SERVICES)
def test_containers_have_a_health_check(name: str) -> None:
    service = services()[name]
    image = stages().get(OURS.get(service["image"], ""))
    assert "healthcheck" in service or (image and image.all("HEALTHCHECK"))


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_alone(name: str) -> None:
    for port in services()[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_no_two_containers_want_one_port() -> None:
    taken = [port.split(":")[1] for s in services().values() for port in s.get("ports", ())]
    assert len(taken) == len(set(taken)) >= 4


@pytest.mark.parametrize("name", [*MANAGERS, *DEMOS])
def test_our_images_are_built_as_the_dockerfile_says(name: str) -> None:
    service = services()[name]
    build = service["build"]
    assert build["target"] == OURS[service["image"]]
    assert (DOCKER / build["context"]).resolve() == REPOSITORY
    assert (REPOSITORY / build["dockerfile"]).is_file()
    arguments = " ".join(stages()[build["target"]].all("ARG"))
    assert all(f"{argument}=" in arguments for argument in build.get("args", {}))
    assert service["user"] == stages()[build["target"]].all("USER")[-1]


@pytest.mark.parametrize("name", MANAGERS)
def test_both_services_listen_where_others_look_for_them(name: str) -> None:
    taken = understood(command(name))
    port = taken["listen"].rpartition(":")[2]
    (published,) = services()[name]["ports"]
    assert published.endswith(f":{port}")
    assert "kvmanager" in services()[name]["networks"]["services"]["aliases"]
    redis = urlsplit(services()[name]["environment"]["KVMANAGER_REDIS"])
    assert redis.hostname in names("registry")
    assert redis.port == 6379
    assert f"http://kvmanager:{port}" in {understood(command(d))["endpoint"] for d in DEMOS}


def test_valkey_is_reached_by_the_services_alone() -> None:
    assert compose()["networks"]["registry"]["internal"]
    assert names("registry") == {"valkey", *MANAGERS}
    assert "ports" not in services()["valkey"]


@pytest.mark.parametrize("name", DEMOS)
def test_the_processes_share_a_volume_that_they_may_write(name: str) -> None:
    taken = understood(command(name))
    assert taken["forever"]
    assert f"pages:{taken['directory']}" in services()[name]["volumes"]
    assert f"install -d -o 10001 -g 10001 {taken['directory']}" in stages()["node"].all("RUN")[-1]
    check = services()[name]["healthcheck"]["test"]
    assert str(understood(check[1:])["directory"]) == str(taken["directory"])


@pytest.mark.parametrize("name", SERVICES)
def test_variables_are_known_and_hold_no_secret(name: str) -> None:
    known = variables("kvmanager") | {TOKEN_FILE}
    secrets = {f"/run/secrets/{secret}" for secret in services()[name].get("secrets", ())}
    for variable, value in services()[name].get("environment", {}).items():
        if variable.startswith("KVMANAGER_"):
            assert variable in known - {TOKEN}
        if re.search(r"TOKEN|PASSWORD|SECRET", variable):
            assert value in secrets, variable
        assert ":" not in urlsplit(value).netloc.rpartition("@")[0]


def test_every_secret_is_declared_used_and_made() -> None:
    declared = compose()["secrets"]
    used = {secret for service in services().values() for secret in service.get("secrets", ())}
    assert used == set(declared)
    for name, secret in declared.items():
        assert secret == {"file": f"./secrets/{name}"}
    mentioned = re.findall(r"/run/secrets/(\w+)", "\n".join(strings(compose())))
    assert set(mentioned) <= used


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("deployment") / "secrets"
    make_secrets(directory)
    return directory


def make_secrets(directory: Path) -> None:
    """By the script that people use, with this project's command first in its path."""
    program = directory.parent / "kvmanager"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvmanager.cli "$@"\n')
    program.chmod(0o700)
    environment = {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}",
    }
    script = [str(DOCKER / "make-secrets"), str(directory)]
    done = subprocess.run(
        script, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_secrets_are_made_for_each_holder_and_lie_where_only_their_maker_goes(
    secrets: Path,
) -> None:
    made = {path.name for path in secrets.iterdir()}
    assert made == {*compose()["secrets"], "admin_token"}
    assert secrets.stat().st_mode & 0o777 == 0o700
    access = read_tokens(secrets / "tokens", "")
    for name, role, tenant in (
        ("admin_token", "admin", "*"),
        ("node_token", "node", "demo"),
        ("router_token", "router", "*"),
    ):
        grant = access.grant(f"Bearer {(secrets / name).read_text().strip()}", "")
        assert (grant.role.value, *grant.tenants) == (role, tenant)
    tenants = {understood(command(demo))["tenant"] for demo in DEMOS}
    assert tenants == {"demo"}
    again = subprocess.run(
        [str(DOCKER / "make-secrets"), str(secrets)], capture_output=True, check=False
    )
    assert again.returncode != 0  # what is there is not written over


def test_the_services_user_at_valkey_may_what_the_readme_says(secrets: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    (rules,) = re.findall(r"ACL SETUSER kv-service on >password (.+)", readme)
    users = dict(
        line.removeprefix("user ").split(" on ")
        for line in (secrets / "valkey_acl").read_text().splitlines()
    )
    assert users["kvmanager"].partition(" ")[2] == rules
    assert users["default"] == "nopass resetkeys resetchannels -@all +ping"
    password = (secrets / "valkey_password").read_text().strip().encode()
    assert users["kvmanager"].startswith(f"#{hashlib.sha256(password).hexdigest()} ")


def test_secrets_stay_out_of_the_repository() -> None:
    assert "docker/secrets/" in (REPOSITORY / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("name", DEMOS)
def test_the_configuration_of_a_demo_is_one(name: str, secrets: Path) -> None:
    from hicache_storage.tools.demo import DemoPlan
    from hicache_storage.tools.demo_traffic import TrafficPlan

    taken = understood(command(name))
    demo = DemoPlan(directory=taken["directory"], endpoint=taken["endpoint"])
    config = TrafficPlan(demo, taken["tenant"], taken["capacity"]).config()
    assert config.registry_endpoint() == taken["endpoint"]
    assert load_config(json.loads("{}"), env={}).backend == "nvme"
