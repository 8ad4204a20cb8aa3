"""What watches the deployment: Prometheus and Grafana find their files, and what they ask."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.docker.files import DOCKER, compose, services
from tests.docker.test_compose import MANAGERS

SCRAPED = DOCKER / "prometheus" / "prometheus.yml"


def test_what_is_mounted_from_here_is_here() -> None:
    declared = set(compose()["volumes"])
    for service in services().values():
        for volume in service.get("volumes", ()):
            source, _, _ = volume.partition(":")
            if source.startswith("."):
                assert (DOCKER / source).is_dir(), source
                assert volume.endswith(":ro")
            else:
                assert source in declared


def test_prometheus_asks_both_services_with_a_token_that_may() -> None:
    config = yaml.safe_load(SCRAPED.read_text())
    jobs = [job for job in config["scrape_configs"] if "authorization" in job]
    assert jobs
    for job in jobs:
        file = job["authorization"]["credentials_file"]
        assert file.removeprefix("/run/secrets/") in services()["prometheus"]["secrets"]
        asked = {target for static in job["static_configs"] for target in static["targets"]}
        assert asked == {f"{manager}:8080" for manager in MANAGERS}
    for rules in config.get("rule_files", ()):
        assert (SCRAPED.parent / Path(rules).name).is_file()


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    address = urlsplit(source["url"])
    (published,) = services()[str(address.hostname)]["ports"]
    assert published.endswith(f":{address.port}")
    networks = [set(services()[name]["networks"]) for name in ("grafana", str(address.hostname))]
    assert networks[0] & networks[1]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "hicache.yaml").read_text())[
        "providers"
    ]
    mounted = dict(v.split(":")[:2] for v in services()["grafana"]["volumes"])
    assert mounted["./grafana/dashboards"] == provider["options"]["path"]
    assert mounted["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert [*(DOCKER / "grafana" / "dashboards").glob("*.json")]
