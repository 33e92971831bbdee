"""docs/metrics.md names every metric of every service, and dashboard and alerts use only what is there, with its labels."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from metrics_tables import ROOT, Metrics, documented
from pegaflow.common import metrics
from pegaflow.common.bus.clone import SyncReason
from pegaflow.common.bus.events import session_topic
from pegaflow.common.lifecycle import Lifecycle, run
from pegaflow.services.doors import DoorCollector, Kept
from pegaflow.services.metaserver.metrics import ENDS, MetaserverMetrics
from pegaflow.services.metaserver.nodes import NodeState
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.steps import Outcome
from pegaflow.services.tier.exposition import TierCollector
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.state import TierState
from prometheus_client import CollectorRegistry

SCRAPED = frozenset({"instance", "job"})
"""Labels that Prometheus adds."""
OF_SERIES = re.compile(r"_(bucket|sum|count)$")


def named(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def collected(*collectors: Any) -> Metrics:
    """What collectors make when Prometheus asks: families, which know their labels."""
    families = [family for collector in collectors for family in collector.collect()]
    return {named(family.name, family.type): frozenset(family._labelnames) for family in families}


def registered(registry: CollectorRegistry) -> Metrics:
    made: list[Any] = [one for one in registry._collector_to_names if hasattr(one, "_labelnames")]
    return {named(one._name, one._type): frozenset(one._labelnames) for one in made}


def doors(service: str) -> DoorCollector:
    return DoorCollector(service, lambda: Kept({}, 0))


def of_tier() -> Metrics:
    place = Place("a", 1, "pool", 1 << 24, "table", "i", "e", "c")
    return collected(TierCollector(TierState(place, bytes, session_topic)), doors("tier"))


def of_metaserver() -> Metrics:
    registry = CollectorRegistry()
    MetaserverMetrics(registry)
    return registered(registry) | collected(doors("metaserver"))


def of_router() -> Metrics:
    registry = CollectorRegistry()
    RouterMetrics(registry)
    return registered(registry) | collected(doors("router"))


def of_process() -> Metrics:
    async def nothing(_: Any) -> None:
        return None

    run(nothing, Lifecycle("test"))
    return registered(metrics.process())


def of_connector() -> Metrics:
    """From the tables in its source: to import it takes vLLM."""
    tree = ast.parse((ROOT / "connector" / "stats.py").read_text())
    tables = {
        node.target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Dict)
    }
    labelled = {f"pegaflow_{name}_total": label for name, (label, _) in tables["COUNTERS"].items()}
    labelled |= {f"pegaflow_{name}": label for name, (label, _) in tables["SECONDS"].items()}
    labelled |= {f"pegaflow_{name}": "" for name in tables["GAUGES"]}
    return {name: frozenset({label} - {""}) for name, label in labelled.items()}


@pytest.mark.parametrize(
    ("heading", "exposed"),
    [
        ("Every service", of_process),
        ("Tier", of_tier),
        ("Metaserver", of_metaserver),
        ("Router", of_router),
        ("Connector", of_connector),
    ],
)
def test_the_tables_are_what_is_exposed(heading: str, exposed: Any) -> None:
    assert documented()[heading] == exposed()


def test_a_tier_says_how_many_metaservers_know_it() -> None:
    state = TierState(Place("a", 1, "pool", 1 << 24, "table", "i", "e", "c"), bytes, session_topic)
    families = {family.name: family for family in TierCollector(state, metaservers=lambda: (2, 1)).collect()}
    names = ("pegaflow_tier_metaservers", "pegaflow_tier_metaservers_known")
    assert [sample.value for name in names for sample in families[name].samples] == [2, 1]


def dashboard() -> Iterator[tuple[str, str]]:
    for panel in json.loads((ROOT / "configs" / "grafana" / "pegaflow.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"] + " " + target["legendFormat"]


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((ROOT / "configs" / "prometheus" / "alerts.yaml").read_text())["groups"]:
        yield from group["rules"]


def alerts() -> Iterator[tuple[str, str]]:
    for rule in rules():
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        yield rule["alert"], rule["expr"] + " " + " ".join(rule["annotations"].values())


ALL: Metrics = {name: labels for table in documented().values() for name, labels in table.items()}


VALUES: dict[tuple[str, str], set[str]] = {
    ("pegaflow_process_info", "service"): {"tier", "metaserver", "router", "watch"},
    ("pegaflow_metaserver_nodes", "state"): set(NodeState),
    ("pegaflow_metaserver_nodes_ended_total", "reason"): set(ENDS),
    ("pegaflow_metaserver_resyncs_total", "reason"): set(SyncReason),
    ("pegaflow_router_requests_total", "outcome"): set(Outcome),
    ("pegaflow_saves_total", "outcome"): {"written"},
}
"""What a label that an expression compares may be."""


def metric_of(series: str) -> str:
    return series if series in ALL else OF_SERIES.sub("", series)


@pytest.mark.parametrize("used", [*dashboard(), *alerts()], ids=lambda used: used[0])
def test_dashboard_and_alerts_use_what_is_there_with_its_labels(used: tuple[str, str]) -> None:
    _, text = used
    expression = re.sub(r"GET /\w+|pegaflow status", "", text)
    names = set(re.findall(r"\bpegaflow_\w+", expression))
    assert names
    for name in names:
        assert metric_of(name) in ALL, f"there is no {name}"
    known = frozenset.union(*(ALL[metric_of(name)] for name in names)) | SCRAPED | {"le"}
    for name, matchers in re.findall(r"\b(pegaflow_\w+)\{([^}]*)\}", expression):
        labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", matchers))
        assert labels and labels <= ALL[metric_of(name)], f"{name} has no {labels - ALL[metric_of(name)]}"
        for label, values in re.findall(r"(\w+)(?:=~|!~|!=|=)\"([^\"]*)\"", matchers):
            assert set(values.split("|")) <= VALUES[metric_of(name), label]
    for words in re.findall(r"\b(?:by|on|without) *\(([^)]*)\)", expression):
        assert set(words.replace(" ", "").split(",")) - {""} <= known, words
    shown = set(re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", expression))
    assert {label for pair in shown for label in pair if label} <= known


def test_no_alert_and_no_panel_stands_twice() -> None:
    names = [name for name, _ in alerts()]
    assert len(names) == len(set(names)) > 15
    numbers = [panel["id"] for panel in json.loads((ROOT / "configs" / "grafana" / "pegaflow.json").read_text())["panels"]]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("service", ["metaserver", "router", "watch"])
def test_a_service_that_is_gone_raises_an_alert(service: str) -> None:
    """Rules on what a process says are silent once there is no process."""
    expressions = [rule["expr"] for rule in rules()]
    assert any(f'absent(pegaflow_process_info{{service="{service}"}})' in expression for expression in expressions)
    assert any("pegaflow_process_info" in expression and "up == 0" in expression for expression in expressions)


def test_a_loop_that_stands_still_raises_an_alert_before_the_watch_has_ended_it() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "PegaflowLoopStuck"]
    assert "for" not in rule and "max_over_time" in rule["expr"], "one scrape may be all that sees it"


def test_what_security_md_says_to_alert_on_has_an_alert_and_a_panel() -> None:
    shown, told = " ".join(text for _, text in dashboard()), " ".join(rule["expr"] for rule in rules())
    kept_out = [name for name in ALL if name.endswith(("_connections_refused_total", "_requests_forbidden_total"))]
    assert len(kept_out) == 6
    assert [name for name in kept_out if name not in shown or name not in told] == []
