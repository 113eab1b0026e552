"""``octavo doctor`` at a real server whose pool is pinned shut."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_server import ROOT, ServerProcess, running_real_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

ADMIN = "admin-key"


@pytest.fixture(scope="module")
def pinned_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model: Path = rand_model(tmp_path_factory.mktemp("rand"), max_position_embeddings=2048)
    flags = ("--num-blocks", "100", "--max-num-seqs", "4", "--max-model-len", "300", "--pin-quota", "0.6")
    with running_real_server(model, *flags, "--threads", "1", "--admin-key", ADMIN, "--open-metrics") as running:
        yield running.wait_ready(60.0)


def doctor(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "octavo", "doctor", "--interval", "0.2", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_it_is_well_until_it_is_pinned_shut(pinned_server: ServerProcess, tmp_path: Path) -> None:
    well = doctor(pinned_server.url, "--api-key", ADMIN)
    assert well.returncode == 0, well.stderr
    assert f"Nothing is wrong with {pinned_server.url}, as far as this shows." in well.stdout
    assert "100 blocks of 16 tokens, 0 in use, 0 cached, 0 pinned" in " ".join(well.stdout.split())
    with pinned_server.client(Authorization=f"Bearer {ADMIN}") as client:
        for seed in range(4):
            prompt = random_ids(208, RAND_VOCAB, seed=seed)
            client.post("/admin/pins", json={"prompt": prompt}, timeout=60).raise_for_status()
    ill = doctor(pinned_server.url, "--api-key", ADMIN, "--json", tmp_path / "out.json")
    assert ill.returncode == 3, ill.stdout + ill.stderr
    shown = " ".join(ill.stdout.split())
    assert "1. severe (pinned-share) Pins hold 52 of 100 blocks (52%), 52 of them in no request's use" in shown
    assert "do: Release pins that nobody asks for any more" in shown
    assert "with --pin-quota 0.05." in shown
    report = json.loads((tmp_path / "out.json").read_text())["figures"]["doctor"]
    assert report["is_severe"]
    assert report["findings"][0]["figures"]["pinned_share"] == 0.52
    assert not any("admin's key" in line for line in report["unseen"])


def test_with_another_key_less_is_told(pinned_server: ServerProcess) -> None:
    told = doctor(pinned_server.url)
    assert told.returncode in {0, 3}, told.stderr
    assert "--max-num-seqs is told to the admin's key only, while an engine runs." in " ".join(told.stdout.split())


def test_what_cannot_be_examined() -> None:
    for source, message in (
        ("http://127.0.0.1:1", "cannot reach http://127.0.0.1:1"),
        ("http://", "is no address"),
        ("localhost:8000", "give one such as http://127.0.0.1:8000"),
    ):
        failed = doctor(source)
        assert failed.returncode == 1
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr
