"""Batches as tests write, run and read them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.fake_server import ROOT
from tests.support.waiting import PATIENCE, wait_until

CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES = (
    f"/v1/{name}" for name in ("chat/completions", "completions", "embeddings", "responses")
)


def line(custom_id: Any, url: str = COMPLETIONS, method: str = "POST", **body: Any) -> str:
    """One line of an input, without its end."""
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body})


def write_input(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{each}\n" for each in lines), encoding="utf-8")
    return path


def read_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_bytes().splitlines()]


def answers(path: Path) -> dict[str, dict[str, Any]]:
    """Response by custom_id; each may be there once."""
    records = [record for record in read_records(path) if record["error"] is None]
    found = {record["custom_id"]: record["response"] for record in records}
    assert len(found) == len(records)
    return found


def start_fake_batch(
    input_path: Path,
    output_path: Path,
    max_open: int = 8,
    settings: dict[str, Any] | None = None,
    stderr: int = subprocess.PIPE,
    **engine: Any,
) -> "subprocess.Popen[str]":
    """``octavo run-batch`` over the fake engine; ``engine``: FakeEngineOptions; ``stderr``: where it writes."""
    options = json.dumps({"engine": engine, "settings": settings or {}, "max_open": max_open})
    return _start(["tests.support.fake_batch_main", str(input_path), str(output_path), options], stderr)


def start_real_batch(*arguments: str | Path) -> "subprocess.Popen[str]":
    """``octavo run-batch`` as users start it."""
    return _start(["octavo", "run-batch", *map(str, arguments)])


def _start(module: list[str], stderr: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", *module], cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True, env=os.environ
    )


def wait_for_records(path: Path, count: int, process: "subprocess.Popen[str]") -> None:
    """Until so many are written; ``process`` has to go on meanwhile."""

    def are_written() -> bool:
        assert process.poll() is None, "it has ended"
        return path.exists() and path.read_bytes().count(b"\n") >= count

    wait_until(are_written)


def finish(process: "subprocess.Popen[str]", seconds: float = PATIENCE) -> tuple[int, str]:
    """Its exit code and all it wrote."""
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out + (err or "")
