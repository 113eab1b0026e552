"""deploy/systemd: the unit's own lines, run as systemd would run them."""

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from octavo.engine.child import STORING_SECONDS
from tests.support.deploying import BIN, DEPLOY, call, read_unit, read_yaml, seconds_of, settings_in, with_paths
from tests.support.fake_server import ServerProcess
from tests.support.models import rand_model
from tests.support.waiting import wait_until

PATH = DEPLOY / "systemd" / "octavo.service"
UNIT = read_unit(PATH)
SERVICE = {key: values[-1] for key, values in UNIT["Service"].items()}


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """By its own verifier where the machine has one; that every line is KEY=VALUE, read_unit has seen."""
    assert list(UNIT) == ["Unit", "Service", "Install"]
    assert all(len(values) == 1 for section in UNIT.values() for values in section.values())
    if shutil.which("systemd-analyze"):
        text = PATH.read_text(encoding="utf-8")
        (tmp_path / PATH.name).write_text(with_paths(text, {"/opt/octavo/bin": BIN}))
        assert "ignoring" not in call("systemd-analyze", "verify", tmp_path / PATH.name)


def test_it_has_as_little_as_it_needs() -> None:
    assert SERVICE["DynamicUser"] == "yes"
    assert SERVICE["ProtectSystem"] == "strict"
    assert SERVICE["CapabilityBoundingSet"] == ""
    assert SERVICE["SystemCallFilter"] == "@system-service"
    if shutil.which("systemd-analyze"):
        call("systemd-analyze", "security", "--offline=true", "--threshold=20", PATH)


def test_it_is_stopped_after_it_has_had_time_to_drain() -> None:
    drain = float(read_yaml(DEPLOY / "systemd" / "octavo.yaml")["shutdown-timeout"])
    assert seconds_of(SERVICE["TimeoutStopSec"]) >= drain + STORING_SECONDS + 5


@pytest.mark.slow
def test_its_commands_start_reload_and_stop_a_server(tmp_path: Path, free_port: int) -> None:
    etc, cache = tmp_path / "etc", tmp_path / "cache"
    for folder in (etc, cache):
        folder.mkdir()
    places: dict[str, str | Path] = {"/opt/octavo/bin": BIN, "/etc/octavo": etc, "/var/cache/octavo": cache}
    settings = (DEPLOY / "systemd" / "octavo.yaml").read_text(encoding="utf-8")
    model = rand_model(tmp_path / "model")
    assert "model: smollm2-135m\nport: 8000\n" in settings
    smaller = {"smollm2-135m": model, "8000": f"{free_port}"}
    (etc / "octavo.yaml").write_text(with_paths(settings, smaller) + "num-blocks: 64\nhost: 127.0.0.1\n")
    (etc / "keys.yaml").write_text("web: sk-first\n")
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"} | settings_in(with_paths(SERVICE["Environment"], places))
    process = subprocess.Popen(
        shlex.split(with_paths(SERVICE["ExecStart"], places)),
        env=variables,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        umask=int(SERVICE["UMask"], 8),
    )
    server = ServerProcess(process)
    try:
        server.wait_ready(60.0)

        def status(key: str) -> int:
            with server.client(Authorization=f"Bearer {key}") as client:
                return client.get("/v1/models").status_code

        assert (status("sk-first"), status("sk-second")) == (200, 401)
        (etc / "keys.yaml").write_text("web: sk-second\n")
        reload = with_paths(SERVICE["ExecReload"], {"$MAINPID": f"{process.pid}"})
        subprocess.run(shlex.split(reload), check=True)
        wait_until(lambda: status("sk-second") == 200)
        assert status("sk-first") == 401
        os.kill(process.pid, signal.SIGTERM)
        assert server.wait_exit(seconds_of(SERVICE["TimeoutStopSec"])) == 0
        assert "Octavo has stopped." in server.log
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.slow
def test_wrong_flags_end_with_the_code_that_is_not_tried_again() -> None:
    command = [*shlex.split(with_paths(SERVICE["ExecStart"], {"/opt/octavo/bin": BIN}))[:2], "--no-such-flag"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert f"{done.returncode}" == SERVICE["RestartPreventExitStatus"]
    assert int(SERVICE["SuccessExitStatus"]) == 128 + signal.SIGTERM
