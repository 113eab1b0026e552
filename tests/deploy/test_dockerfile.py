"""deploy/Dockerfile: linted, its files and commands tried as far as that goes without an engine for containers."""

import fnmatch
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from octavo.kernels.registry import _BACKENDS
from tests.support.deploying import BIN, DEPLOY, call, read_dockerfile, settings_in, values_of, with_paths
from tests.support.fake_server import ROOT, ServerProcess
from tests.support.models import rand_model

DOCKERFILE = DEPLOY / "Dockerfile"
INSTRUCTIONS = read_dockerfile(DOCKERFILE)
STAGES = [each.stage for each in INSTRUCTIONS if each.name == "FROM"]

IN_NEW_PID_NAMESPACE = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--pid", "--fork")


def test_the_linter_finds_nothing() -> None:
    call(BIN / "hadolint", "--failure-threshold", "style", DOCKERFILE)


def copied(stage: str) -> list[list[str]]:
    """Source names and the target of each COPY from the build context."""
    return [value.split() for value in values_of(INSTRUCTIONS, "COPY", stage) if "--from" not in value]


def test_what_is_copied_is_there_and_nothing_else_is_sent() -> None:
    sources = {name for stage in STAGES for words in copied(stage) for name in words[:-1]}
    assert all((ROOT / name).exists() for name in sources)
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == sources
    assert any(fnmatch.fnmatch("octavo/kernels/_native.so", rule) for rule in rules[1:])


def test_the_images_are_built_from_the_stages_that_they_should() -> None:
    assert STAGES[-1] == "cpu"
    for stage in ("cpu", "cuda"):
        assert values_of(INSTRUCTIONS, "FROM", stage) == [f"runtime AS {stage}"]
        assert values_of(INSTRUCTIONS, "COPY", stage) == [f"--from=environment-{stage} /opt/octavo /opt/octavo"]
    assert values_of(INSTRUCTIONS, "RUN", "runtime")[0].count("10001") == 2
    assert values_of(INSTRUCTIONS, "USER", "runtime") == ["10001:10001"]
    assert values_of(INSTRUCTIONS, "STOPSIGNAL", "runtime") == ["SIGTERM"]
    (volume,) = values_of(INSTRUCTIONS, "VOLUME", "runtime")
    (env,) = values_of(INSTRUCTIONS, "ENV", "runtime")
    assert settings_in(env)["OCTAVO_CACHE"] == volume


def test_the_cuda_image_promises_no_more_than_there_is() -> None:
    """Whoever registers a back end for GPUs has to say so here too."""
    assert set(_BACKENDS) == {"cpu", "reference"}
    for path in (DOCKERFILE, ROOT / "docs" / "deploying.md"):
        assert "no kernels for GPUs yet" in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_command_is_process_1_healthy_when_ready_and_ends_on_sigterm(tmp_path: Path, free_port: int) -> None:
    (entry,) = values_of(INSTRUCTIONS, "ENTRYPOINT", "runtime")
    (arguments,) = values_of(INSTRUCTIONS, "CMD", "runtime")
    (healthcheck,) = values_of(INSTRUCTIONS, "HEALTHCHECK", "runtime")
    (env,) = values_of(INSTRUCTIONS, "ENV", "runtime")
    model = rand_model(tmp_path / "model")
    cache = tmp_path / "cache"
    variables = settings_in(with_paths(env, {"/opt/octavo/bin": BIN, "/var/cache/octavo": cache, "$PATH": "/usr/bin"}))
    variables |= {"OCTAVO_PORT": f"{free_port}", "OCTAVO_NUM_BLOCKS": "64", "OCTAVO_THREADS": "1"}
    assert json.loads(arguments) == ["smollm2-135m"]
    process = subprocess.Popen(
        [*IN_NEW_PID_NAMESPACE, "--kill-child", *json.loads(entry), str(model)],
        env=variables,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    server = ServerProcess(process)
    try:
        check = json.loads(with_paths(healthcheck.partition("CMD ")[2], {":8000/": f":{free_port}/"}))
        assert server.port == free_port
        server.wait_ready(60.0)
        assert subprocess.run(check, env=variables, check=False).returncode == 0
        (first,) = psutil.Process(process.pid).children()
        status = Path(f"/proc/{first.pid}/status").read_text()
        assert [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid")] == ["1"]
        first.send_signal(signal.SIGTERM)
        assert server.wait_exit(30.0) == 0
        assert "Octavo has stopped." in server.log
        assert subprocess.run(check, env=variables, check=False, stderr=subprocess.DEVNULL).returncode == 1
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.soak
def test_the_build_commands_run(tmp_path: Path) -> None:
    """Each RUN with pip, in the order of the stages, over copies of what the image gets; then the command is there."""
    places: dict[str, str | Path] = {name: tmp_path / name.strip("/") for name in ("/src", "/wheels", "/opt/octavo")}
    (tmp_path / "src").mkdir()
    for stage in ("wheel", "environment", "environment-cpu"):
        for *names, target in copied(stage):
            for name in names:
                if (ROOT / name).is_dir():
                    ignored = shutil.ignore_patterns("*.so", "__pycache__")
                    shutil.copytree(ROOT / name, tmp_path / "src" / target, ignore=ignored)
                else:
                    shutil.copy(ROOT / name, tmp_path / "src")
        for command in values_of(INSTRUCTIONS, "RUN", stage):
            if command.startswith("apt-get"):
                assert "g++" in command
                continue
            here = with_paths(command, places)
            if here.startswith("python "):
                here = f"{shlex.quote(sys.executable)} {here.removeprefix('python ')}"
            done = subprocess.run(["sh", "-ec", here], cwd=tmp_path / "src", capture_output=True, check=False)
            assert done.returncode == 0, f"{here}\n{done.stdout.decode()}{done.stderr.decode()}"
    assert "octavo" in call(tmp_path / "opt/octavo/bin/octavo", "--version")
