"""deploy/compose.yaml and what its Prometheus scrapes."""

import os
import shutil
from pathlib import Path
from typing import Any

from octavo.cli.main import octavo as command
from octavo.cli.variables import warn_of_unknown
from octavo.engine.child import STORING_SECONDS
from tests.support.deploying import BIN, DEPLOY, call, read_dockerfile, read_yaml, seconds_of, values_of, with_paths
from tests.support.fake_server import running_server

COMPOSE: dict[str, Any] = read_yaml(DEPLOY / "compose.yaml")
PROMETHEUS: dict[str, Any] = read_yaml(DEPLOY / "prometheus" / "prometheus.yml")
OCTAVO, WATCHER = COMPOSE["services"]["octavo"], COMPOSE["services"]["prometheus"]


def test_it_follows_the_compose_specification() -> None:
    call(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_the_image_is_a_stage_of_the_dockerfile_and_its_argument_one_that_it_takes() -> None:
    build = OCTAVO["build"]
    dockerfile = DEPLOY / build["context"] / build["dockerfile"]
    instructions = read_dockerfile(dockerfile)
    assert build["target"] in [each.stage for each in instructions]
    arguments = {value.partition("=")[0] for value in values_of(instructions, "ARG", "environment-cpu")}
    assert set(build["args"]) <= arguments
    (volume,) = values_of(instructions, "VOLUME", "runtime")
    assert f"models:{volume}" in OCTAVO["volumes"]


def test_its_variables_are_settings(capsys: Any) -> None:
    commands = [command.get_command(None, name) for name in command.list_commands(None)]  # type: ignore[arg-type, attr-defined]
    warn_of_unknown(OCTAVO["environment"], [each for each in commands if each is not None])
    assert capsys.readouterr().err == ""


def test_it_is_stopped_after_it_has_had_time_to_drain() -> None:
    drain = float(OCTAVO["environment"]["OCTAVO_SHUTDOWN_TIMEOUT"])
    assert seconds_of(OCTAVO["stop_grace_period"]) >= drain + STORING_SECONDS + 5


def test_names_lead_somewhere() -> None:
    for service in (OCTAVO, WATCHER):
        assert set(service["secrets"]) <= set(COMPOSE["secrets"])
        named = [volume.partition(":")[0] for volume in service["volumes"]]
        assert all(name in COMPOSE["volumes"] or (DEPLOY / name).is_dir() for name in named)
    assert OCTAVO["environment"]["OCTAVO_API_KEY_FILE"] == f"/run/secrets/{OCTAVO['secrets'][0]}"
    ignored = (DEPLOY.parent / ".gitignore").read_text(encoding="utf-8").split()
    assert all(secret["file"].startswith("./secrets/") for secret in COMPOSE["secrets"].values())
    assert "deploy/secrets/" in ignored


def test_nothing_is_open_to_other_machines_and_nothing_runs_with_more_than_it_needs() -> None:
    for service in (OCTAVO, WATCHER):
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_prometheus_scrapes_a_server_with_the_key(tmp_path: Path) -> None:
    (job,) = PROMETHEUS["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert host in COMPOSE["services"]
    assert OCTAVO["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{WATCHER['secrets'][0]}"
    key = tmp_path / "metrics.key"
    key.write_text("sk-metrics\n")
    (tmp_path / "keys.yaml").write_text("web: sk-web\nmetrics: sk-metrics\n")
    with running_server(api_key_file=str(tmp_path / "keys.yaml"), host="127.0.0.1") as server:
        server.wait_ready()
        with server.client() as client:
            path, kind = job["metrics_path"], job["authorization"]["type"]
            assert client.get(path).status_code == 401
            answer = client.get(path, headers={"Authorization": f"{kind} {key.read_text().strip()}"})
            assert answer.status_code == 200
            assert "vllm:num_requests_running" in answer.text
    if shutil.which("promtool"):
        copied = tmp_path / "prometheus.yml"
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        copied.write_text(with_paths(text, {job["authorization"]["credentials_file"]: key}))
        for rules in (DEPLOY / "prometheus").glob("*.rules.yml"):
            shutil.copy(rules, tmp_path)
        call("promtool", "check", "config", copied)
    assert os.path.basename(WATCHER["command"][0]) == "prometheus.yml"
