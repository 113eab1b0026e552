"""deploy/grafana/octavo.json: every query is one, and names series and labels that the server exports."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.metrics.test_series import SUFFIXES, documented
from tests.support.prometheus import tool

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "octavo.json").read_text())
VARIABLES = {"$__rate_interval": "5m", "$model": ".*"}


def queries() -> list[tuple[str, str]]:
    """Panel and query, with Grafana's variables filled in."""
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, text in VARIABLES.items():
                query = query.replace(name, text)
            found.append((panel["title"], query))
    return found


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"panel:query{number}", "expr": query} for number, (_, query) in enumerate(queries())]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = [tool("promtool"), "check", "rules", "rules.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("panel", "query"), queries())
def test_series_and_labels_are_there(panel: str, query: str) -> None:
    labels = {}
    for name, (kind, own) in documented().items():
        for suffix in SUFFIXES[kind]:
            labels[name + suffix] = own | {"model_name"} | ({"le"} if suffix == "_bucket" else set())
    assert "$" not in query
    named = re.findall(r"((?:vllm|octavo):\w+)\{([^}]*)\}", query)
    assert len(named) == query.count("vllm:") + query.count("octavo:") > 0
    for name, matchers in named:
        assert name in labels, name
        assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= labels[name]
    grouped = re.findall(r"by \(([^)]*)\)", query)
    for group in grouped:
        wanted = {label.strip() for label in group.split(",")}
        assert all(wanted <= labels[name] for name, _ in named), panel


def test_legends_name_labels_that_are_left() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                grouped = re.search(r"by \(([^)]*)\)", target["expr"])
                names = re.findall(r"((?:vllm|octavo):\w+)\{", target["expr"])
                assert label in grouped[1] if grouped else all(label in documented()[name][1] for name in names)


def test_every_own_series_of_the_pool_is_shown() -> None:
    shown = " ".join(query for _, query in queries())
    for name in ("kv_blocks", "kv_blocks_allocatable", "admissible_prompt_tokens", "filled_slot_ratio", "pinned_blocks",
                 "queue_head_age_seconds", "output_length_tokens", "step_time_seconds", "preemptions"):  # fmt: skip
        assert f"octavo:{name}" in shown


def test_panels_are_apart() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        own = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert cells.isdisjoint(own), panel["title"]
        cells |= own


def test_compose_gives_grafana_the_page_and_where_its_figures_are() -> None:
    """As the container sees them, the provider's folder holds the page, and the data source is the service."""
    service = yaml.safe_load((GRAFANA.parent / "compose.grafana.yaml").read_text())["services"]["grafana"]
    mounts = dict(volume.removesuffix(":ro").split(":") for volume in service["volumes"])
    for local in mounts:
        assert (GRAFANA.parent / local).exists()
    inside = {target: GRAFANA.parent / local for local, target in mounts.items()}
    provisioning = inside["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "octavo.yaml").read_text())["providers"]
    assert inside[provider["options"]["path"] + "/octavo.json"] == GRAFANA / "octavo.json"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    services = yaml.safe_load((GRAFANA.parent / "compose.yaml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert service["depends_on"] == ["prometheus"]
    assert "prometheus" in services
