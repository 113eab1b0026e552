"""deploy/kubernetes: true to Kubernetes' schemas, to each other, and to what a server answers."""

from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest

from octavo.cli.main import octavo as command
from octavo.cli.variables import warn_of_unknown
from octavo.engine.child import STORING_SECONDS
from tests.support.deploying import DEPLOY, read_dockerfile, read_yaml, values_of
from tests.support.fake_server import running_server

FOLDER = DEPLOY / "kubernetes"
KUSTOMIZATION: dict[str, Any] = read_yaml(FOLDER / "kustomization.yaml")
MANIFESTS: dict[str, dict[str, Any]] = {name: read_yaml(FOLDER / name) for name in KUSTOMIZATION["resources"]}
POD = MANIFESTS["deployment.yaml"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
LABELS = {"app.kubernetes.io/name": "octavo"}


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_follow_the_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def test_every_manifest_is_listed_and_belongs_together() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} - {"keys.yaml"} == {"kustomization.yaml", *MANIFESTS}
    assert all(manifest["metadata"]["labels"] == LABELS for manifest in MANIFESTS.values())
    deployment, budget = MANIFESTS["deployment.yaml"]["spec"], MANIFESTS["poddisruptionbudget.yaml"]["spec"]
    selectors = [deployment["selector"]["matchLabels"], budget["selector"]["matchLabels"]]
    selectors += [deployment["template"]["metadata"]["labels"], MANIFESTS["service.yaml"]["spec"]["selector"]]
    assert selectors == [LABELS] * 4
    assert budget["minAvailable"] < deployment["replicas"]  # else no node could ever be drained
    (port,) = MANIFESTS["service.yaml"]["spec"]["ports"]
    assert port["targetPort"] in [each["name"] for each in CONTAINER["ports"]]
    claims = [each["persistentVolumeClaim"]["claimName"] for each in POD["volumes"] if "persistentVolumeClaim" in each]
    assert claims == [MANIFESTS["persistentvolumeclaim.yaml"]["metadata"]["name"]]
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == {each["name"] for each in POD["volumes"]}


def test_keys_come_as_a_file_that_is_not_in_the_repository() -> None:
    (secret,) = KUSTOMIZATION["secretGenerator"]
    (file,) = secret["files"]
    volumes = {each["secret"]["secretName"]: each["name"] for each in POD["volumes"] if "secret" in each}
    (mount,) = [each for each in CONTAINER["volumeMounts"] if each["name"] == volumes[secret["name"]]]
    variables = {each["name"]: each["value"] for each in CONTAINER["env"]}
    assert variables["OCTAVO_API_KEY_FILE"] == f"{mount['mountPath']}/{file}"
    assert mount["readOnly"]
    assert f"deploy/kubernetes/{file}" in (DEPLOY.parent / ".gitignore").read_text(encoding="utf-8").split()


def test_its_variables_are_settings(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [command.get_command(None, name) for name in command.list_commands(None)]  # type: ignore[arg-type, attr-defined]
    given = {each["name"]: each["value"] for each in CONTAINER["env"]}
    warn_of_unknown(given, [each for each in commands if each is not None])
    assert capsys.readouterr().err == ""


def test_a_pod_is_ended_after_it_has_had_time_to_leave_and_drain() -> None:
    variables = {each["name"]: each["value"] for each in CONTAINER["env"]}
    program, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    total = float(seconds) + float(variables["OCTAVO_SHUTDOWN_TIMEOUT"]) + STORING_SECONDS
    assert POD["terminationGracePeriodSeconds"] >= total + 5


def test_it_runs_as_the_user_of_the_image_and_may_do_nothing_else() -> None:
    instructions = read_dockerfile(DEPLOY / "Dockerfile")
    (user,) = values_of(instructions, "USER", "runtime")
    (cache,) = values_of(instructions, "VOLUME", "runtime")
    security = POD["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == user
    assert security["fsGroup"] == security["runAsGroup"]
    assert security["runAsNonRoot"]
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {each["mountPath"] for each in CONTAINER["volumeMounts"]} >= {cache, "/tmp"}
    assert CONTAINER["resources"]["requests"] == CONTAINER["resources"]["limits"]


def probe(name: str, url: str) -> int:
    """The status that the kubelet would see: it sends no key."""
    given = CONTAINER[name]
    assert given["httpGet"]["port"] == CONTAINER["ports"][0]["name"]
    return httpx.get(url + given["httpGet"]["path"], timeout=given["timeoutSeconds"]).status_code


@pytest.mark.slow
def test_probes_tell_loading_serving_and_draining_apart(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("web: sk-web\n")
    engine = {"start_seconds": 2.0, "step_seconds": 0.05}
    names = ("startupProbe", "readinessProbe", "livenessProbe")
    with running_server(engine, api_key_file=str(keys), host="127.0.0.1") as server:
        assert [probe(name, server.url) for name in names] == [503, 503, 200]
        server.wait_ready()
        assert [probe(name, server.url) for name in names] == [200, 200, 200]
        headers = {"Authorization": "Bearer sk-web"}
        body = {"prompt": "x", "max_tokens": 200, "stream": True}
        with (
            server.client(**headers) as client,
            client.stream("POST", "/v1/completions", json=body) as stream,
        ):
            server.process.terminate()
            lines = stream.iter_lines()
            next(lines)
            while (ready := probe("readinessProbe", server.url)) == 200:
                next(lines)
            assert ready == 503
            assert probe("livenessProbe", server.url) == 200
            assert list(lines)[-2] == "data: [DONE]"
        assert server.wait_exit(20.0) == 0
