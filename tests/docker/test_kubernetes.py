"""The example manifests: valid, closed, and of commands, ports and files that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from hicache_storage.config import load_config
from kvmanager.http.endpoint import TOKEN_FILE
from tests.docker.files import DOCKER, in_shell, manifests, stages, understood, variables

FILES = ("kvmanager.yaml", "engine.yaml")
DOCUMENTS = [(name, document) for name in FILES for document in manifests(name)]
IDS = [f"{name}:{document['kind']}" for name, document in DOCUMENTS]


def pod(name: str) -> dict[str, Any]:
    """The pod that a file's Deployment or DaemonSet makes."""
    (found,) = (d for d in manifests(name) if d["kind"] in ("Deployment", "DaemonSet"))
    return dict(found["spec"]["template"]["spec"])


def containers(name: str) -> list[dict[str, Any]]:
    return [*pod(name).get("initContainers", ()), *pod(name)["containers"]]


def calls(container: dict[str, Any]) -> Iterator[list[str]]:
    """Every call of our own commands, hooks included."""
    hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ())
    for words in (container.get("command", ()), hook):
        if words and words[0] == "bash":
            yield from in_shell(words[-1])
        elif words and words[0] != "sleep":
            yield [*words]
    if "args" in container:
        assert container["image"] == "hicache/kvmanager"
        yield [*stages()["kvmanager"].last("ENTRYPOINT"), *container["args"]]


@pytest.mark.parametrize(("name", "document"), DOCUMENTS, ids=IDS)
def test_each_is_a_valid_resource(name: str, document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.31", strict=True)


@pytest.mark.parametrize("name", FILES)
def test_our_commands_are_called_as_they_are(name: str) -> None:
    called = [words for container in containers(name) for words in calls(container)]
    assert called
    for words in called:
        understood(words)
    said = {" ".join(words[:2]) for words in called}
    if name == "engine.yaml":
        assert said == {"hicache-storage check", "hicache-storage sglang-args", "kvmanager drain"}
    else:
        assert said == {"kvmanager serve"}


def test_the_service_listens_where_service_and_probes_look() -> None:
    (container,) = containers("kvmanager.yaml")
    taken = understood(next(calls(container)))
    (port,) = container["ports"]
    assert taken["listen"] == f"0.0.0.0:{port['containerPort']}"
    assert str(port["containerPort"]) in stages()["kvmanager"].all("EXPOSE")
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        asked = container[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == (path, port["name"])
        assert (asked["scheme"] == "HTTPS") == (taken["tls_cert"] is not None)
    deployment, service, budget = manifests("kvmanager.yaml")
    (reached,) = service["spec"]["ports"]
    assert reached["targetPort"] == port["name"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert deployment["spec"]["replicas"] == 2 > budget["spec"]["minAvailable"]


def test_the_service_can_do_little() -> None:
    (container,) = containers("kvmanager.yaml")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    spec = pod("kvmanager.yaml")
    assert spec["securityContext"]["runAsNonRoot"]
    user = stages()["kvmanager"].all("USER")[-1].split(":")[0]
    assert str(spec["securityContext"]["runAsUser"]) == user
    assert {"requests", "limits"} == set(container["resources"])


@pytest.mark.parametrize("name", FILES)
def test_no_pod_gets_a_token_of_the_cluster(name: str) -> None:
    assert pod(name)["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_named_lie_on_volumes_that_there_are(name: str) -> None:
    volumes = {volume["name"] for volume in pod(name)["volumes"]}
    used: set[str] = set()
    for container in containers(name):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        used |= set(mounts.values())
        named = [str(entry["value"]) for entry in container["env"]]
        named += [word for words in calls(container) for word in words]
        for path in re.findall(r"(?:^|=)(/[\w./-]+)", "\n".join(named), re.MULTILINE):
            assert any(Path(path).is_relative_to(mount) for mount in mounts), path
        for mount in mounts:  # a mount within a read-only one cannot be made
            assert not [m for m in mounts if m != mount and Path(m).is_relative_to(mount)]
    assert used == volumes


@pytest.mark.parametrize("name", FILES)
def test_variables_are_known_and_hold_no_secret(name: str) -> None:
    known = variables("kvmanager") | {TOKEN_FILE, "SSL_CERT_FILE"}
    for container in containers(name):
        for entry in container["env"]:
            assert entry["name"] in known
            assert not re.search(r"://[^/]*:[^/]*@", entry["value"])


@pytest.mark.parametrize("name", FILES)
def test_every_secret_has_its_command(name: str) -> None:
    head = (DOCKER / "kubernetes" / name).read_text().partition("apiVersion")[0]
    secrets = {v["secret"]["secretName"] for v in pod(name)["volumes"] if "secret" in v}
    assert secrets == set(re.findall(r"kubectl create secret (?:generic|tls) ([\w-]+)", head))


def test_the_engines_configuration_is_taken_and_leads_to_the_service(tmp_path: Path) -> None:
    config_map, _ = manifests("engine.yaml")
    (file,) = config_map["data"]
    (tmp_path / file).write_text(config_map["data"][file].replace("token_file", "# token_file"))
    config = load_config(tmp_path / file, env={})
    (port,) = containers("kvmanager.yaml")[0]["ports"]
    assert config.registry_endpoint() == f"https://kvmanager:{port['containerPort']}"
    mounts = {m["mountPath"] for c in containers("engine.yaml") for m in c["volumeMounts"]}
    assert {*config.roots(), "/dev/shm"} <= mounts  # noqa: S108 - of the container
    named = {word for c in containers("engine.yaml") for words in calls(c) for word in words}
    assert f"/etc/hicache/{file}" in named


def test_a_pod_is_given_the_time_that_its_drain_takes() -> None:
    (drain,) = (w for c in containers("engine.yaml") for w in calls(c) if w[1] == "drain")
    taken = understood(drain)
    assert taken["wait"]
    assert taken["timeout"] < pod("engine.yaml")["terminationGracePeriodSeconds"]
