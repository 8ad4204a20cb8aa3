"""Alerts and Grafana's panels: each expression is one, and asks for metrics that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import prometheus_client
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from hicache_backends.identity import Namespace
from hicache_backends.outcomes import Reason
from hicache_storage.metrics import Metrics as EngineMetrics
from kvmanager import figures, keys
from kvmanager.control.census import LOADED_TOKENS, Look
from kvmanager.control.census import ClaimCount as Claims
from kvmanager.control.checks import FsckResult
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.service.control.census import Census, Seen
from kvmanager.service.metrics import Metrics, exposition_of
from kvmanager.service.scrape import Background
from kvmanager.service.sums import Sums
from tests.docker.files import DOCKER, PROGRAMS

RULES = yaml.safe_load((DOCKER / "prometheus" / "rules.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DOCKER / "grafana" / "dashboards" / "hicache.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RUNBOOK = (DOCKER / "RUNBOOK.md").read_text()
REFUSING = (Reason.NO_SPACE, Reason.QUOTA, Reason.MODE, Reason.TIMEOUT, Reason.IO_ERROR)
OF_EVERY_TARGET = {"instance", "job"}
OF_PROMETHEUS = {"up": OF_EVERY_TARGET}


@cache
def exposed() -> dict[str, set[str]]:
    """Every sample that a service or an engine shows, with the labels that it has."""
    namespace = Namespace("model", "revision", "bf16", "page_first", 64, 4096, tenant="t")
    record = NamespaceRecord(keys.tag(namespace.fingerprint), namespace, 0, (), 0, 0, 0)
    sums = dict.fromkeys([*figures.names(), LOADED_TOKENS], 1)
    look = Look(record, sums, [], {}, Claims(), FsckResult(0, True, {}, 0))
    seen = Seen(1.0, {"t": [look]}, {"t": 1}, {"t": 1.0})
    service = Metrics(lambda: False)
    service.watch("lookup")(200, 0.1)
    census = Census()
    census._read_s = 0.0  # it has looked
    text = exposition_of(
        service.own, Background(census, [_loop()]), Sums.of(seen, {"t": "t"})
    ).decode()
    registry = prometheus_client.CollectorRegistry()
    EngineMetrics.create("local", "t", registry)
    text += prometheus_client.generate_latest(registry).decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set(OF_EVERY_TARGET)).update(sample.labels)
    return found | OF_PROMETHEUS


def _loop() -> Any:
    class Loop:
        name = "sweeping"
        failures = 0

    return Loop()


def selectors(expression: Any) -> Iterator[Any]:
    """The metrics that an expression asks for."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector", "args"):
        inner = getattr(expression, name, None)
        for one in inner if isinstance(inner, list) else [inner]:
            if one is not None:
                yield from selectors(one)


def _parsed(expression: str) -> Any:
    plain = re.sub(r"\$__\w+", "5m", expression)
    return promql_parser.parse(plain)


def _assert_known(expression: str) -> None:
    asked = [*selectors(_parsed(expression))]
    assert asked
    for selector in asked:
        assert selector.name in exposed(), f"{selector.name} is shown by nobody"
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert labels <= exposed()[selector.name], (selector.name, labels)
    known = set().union(*(exposed()[selector.name] for selector in asked))
    for grouped in re.findall(r"(?:by|without|ignoring|on) \(([^)]*)\)", expression):
        assert {name.strip() for name in grouped.split(",")} <= known, (expression, grouped)


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_an_alert_asks_for_what_is_shown_and_says_what_to_do(alert: dict[str, Any]) -> None:
    _assert_known(alert["expr"])
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    notes = alert["annotations"]
    used = {*re.findall(r"\$labels\.(\w+)", notes["summary"])}
    assert used <= {*re.findall(r"\w+", alert["expr"])} | OF_EVERY_TARGET
    file, _, anchor = notes["runbook_url"].partition("#")
    assert (DOCKER / file).is_file()
    headings = [line[3:].lower() for line in RUNBOOK.splitlines() if line.startswith("## ")]
    assert headings.count(anchor) == 1
    assert anchor == alert["alert"].lower()


def test_refusals_that_were_ordered_raise_no_alert_and_the_runbook_explains_each_reason() -> None:
    (alert,) = [alert for alert in ALERTS if alert["alert"] == "PagesRefused"]
    assert 'reason!~"mode|skipped"' in alert["expr"]
    section = RUNBOOK.split("\n## PagesRefused\n")[1].split("\n## ")[0]
    for reason in (*REFUSING, Reason.SKIPPED):
        assert f"| `{reason.value}` |" in section


def test_every_section_of_the_runbook_is_of_an_alert_and_complete() -> None:
    sections = RUNBOOK.split("\n## ")[1:]
    assert [text.split("\n")[0] for text in sections] == [alert["alert"] for alert in ALERTS]
    for text in sections:
        assert re.findall(r"\* \*\*(\w+):\*\*", text) == ["Symptom", "Cause", "Do"]
    for link in re.findall(r"\]\(#(\w+)\)", RUNBOOK):
        assert f"\n## {link}\n" in RUNBOOK.replace("\n## ", "\n## ").lower()


@pytest.mark.parametrize(
    "command", sorted({*re.findall(r"`((?:kvmanager|hicache-storage) [^`]+)`", RUNBOOK)})
)
def test_a_command_of_the_runbook_is_one(command: str) -> None:
    program, *words = command.removesuffix(" --help").split()
    said = CliRunner().invoke(PROGRAMS[program](), [*words, "--help"])
    assert said.exit_code == 0, said.output


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_a_panel_asks_for_what_is_shown(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        _assert_known(target["expr"])
        assert target["datasource"] == panel["datasource"]
        legend = {*re.findall(r"{{(\w+)}}", target["legendFormat"])}
        assert legend <= {*re.findall(r"\w+", target["expr"])} | OF_EVERY_TARGET
    assert panel["fieldConfig"]["defaults"]["unit"]


def test_panels_lie_beside_each_other_and_are_told_apart() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (place["x"] + dx, place["y"] + dy)
        for place in places
        for dx in range(place["w"])
        for dy in range(place["h"])
    ]
    assert len(cells) == len({*cells})
    assert all(place["x"] + place["w"] <= 24 for place in places)
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len({*numbers})


def test_grafana_is_given_its_source_and_its_panels() -> None:
    provisioning = DOCKER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    asked = {panel["datasource"]["uid"] for panel in PANELS}
    assert asked == {source["uid"]}
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "hicache.yaml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
    assert DASHBOARD["templating"]["list"][0]["definition"].startswith("label_values(")


def test_every_figure_of_the_service_is_in_a_panel() -> None:
    text = json.dumps([target["expr"] for panel in PANELS for target in panel["targets"]])
    shown = {name for name in exposed() if name.startswith("kvmanager_")}
    plain = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in shown}
    assert {name for name in plain if name not in text} == set()
