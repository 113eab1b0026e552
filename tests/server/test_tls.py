"""HTTPS, and a certificate that is renewed while the server runs."""

import os
import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.fake_server import running_server
from tests.support.waiting import wait_until


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A new one for 127.0.0.1, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=test"
    words = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-out", str(cert), "-keyout", str(key)]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def asked(url: str, cert: Path) -> httpx.Client:
    return httpx.Client(base_url=url, verify=ssl.create_default_context(cafile=str(cert)), timeout=20.0)


def test_https_with_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "served")
    renewed_cert, renewed_key = certificate(tmp_path, "renewed")
    with running_server(ssl_certfile=str(cert), ssl_keyfile=str(key)) as server:
        assert server.wait_ready().url.startswith("https://")
        first = shutil.copy(cert, tmp_path / "first.pem")
        fields = {"prompt": "x", "max_tokens": 5}
        with asked(server.url, first) as client:
            assert client.post("/v1/completions", json=fields).json()["choices"][0]["text"] == "alpha"
            assert "data: [DONE]" in client.post("/v1/completions", json=fields | {"stream": True}).text
        with httpx.Client(base_url=server.url) as stranger, pytest.raises(httpx.ConnectError, match="CERTIFICATE"):
            stranger.get("/health")
        shutil.copy(renewed_key, key)
        shutil.copy(renewed_cert, cert)
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: "certificate was read again" in server.log)
        with asked(server.url, renewed_cert) as client:
            assert client.get("/health").status_code == 200
        cert.write_text("none")
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: "certificate stays as it was" in server.log)
        with asked(server.url, renewed_cert) as client:
            assert client.get("/health").status_code == 200
        shutil.copy(first, cert)  # whose key is another: half of a pair that is being renewed
        os.kill(server.process.pid, signal.SIGHUP)
        wait_until(lambda: server.log.count("certificate stays as it was") == 2)
        with asked(server.url, renewed_cert) as client:
            assert client.get("/health").status_code == 200


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path, "served")
    for settings in ({"ssl_certfile": str(tmp_path / "none.pem")}, {"ssl_certfile": str(cert)}):
        with running_server(**settings) as server:
            assert server.wait_exit() == 1
        assert server.lines[-1].startswith(f"Error: cannot use the certificate {settings['ssl_certfile']}: ")
        assert "Traceback" not in server.log
