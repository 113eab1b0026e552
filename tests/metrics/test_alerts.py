"""The alert rules of deploy/prometheus: what makes them fire, and that what they name is there."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.metrics.test_series import SUFFIXES, documented
from tests.support.prometheus import tool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "octavo.rules.yml"
CASES = Path(__file__).with_name("alerts.yml")


def alerts() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return rules


def test_cases(tmp_path: Path) -> None:
    """Each alert fires when it should and not before, and none fires since memory is full."""
    assert run_cases(tmp_path, RULES.read_text()) == ""


def run_cases(folder: Path, rules: str) -> str:
    """What promtool objects to."""
    (folder / RULES.name).write_text(rules)
    shutil.copy(CASES, folder)
    command = [tool("promtool"), "test", "rules", CASES.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == ("SUCCESS" in done.stdout)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", [rule["alert"] for rule in alerts()])
def test_the_cases_notice_an_alert_that_never_fires(name: str, tmp_path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())
    (rule,) = [rule for rule in rules["groups"][0]["rules"] if rule["alert"] == name]
    rule["expr"] = f"({rule['expr']}) and vector(0) > 1"
    assert name in run_cases(tmp_path, yaml.safe_dump(rules))


def test_rules_name_series_and_sections_that_there_are() -> None:
    series = {name + suffix for name, (kind, _) in documented().items() for suffix in SUFFIXES[kind]}
    docs = (ROOT / "docs" / "metrics.md").read_text()
    titles = re.findall(r"^#+ (.+)$", docs, re.MULTILINE)
    sections = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    for rule in alerts():
        named = set(re.findall(r"(?:vllm|octavo):\w+", rule["expr"]))
        assert named
        assert named <= series, rule["alert"]
        assert "kv_cache_usage_perc" not in rule["expr"], "a full cache is as it should be"
        page, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert (ROOT / page).is_file()
        assert section in sections
        assert rule["alert"] in docs
        assert rule["annotations"]["summary"]
