"""``octavo run-batch`` on a real model: killed in the middle, it ends with the bits of a server that was not."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    answers,
    finish,
    line,
    start_real_batch,
    wait_for_records,
    write_input,
)
from tests.support.fake_server import running_real_server

pytestmark = pytest.mark.slow

FLAGS = ("--num-blocks", "256", "--max-model-len", "512", "--max-num-seqs", "4", "--served-model-name", "fake")


def bodies(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Chats, seeded completions and embeddings in turn."""
    found: list[tuple[str, dict[str, Any]]] = []
    for i in range(count):
        messages = [{"role": "user", "content": f"What is {i} and {i + 1}?"}]
        found += [
            (CHAT, {"messages": messages, "max_tokens": 12, "temperature": 0, "logprobs": True}),
            (COMPLETIONS, {"prompt": f"Once upon {i} times", "max_tokens": 10, "seed": i, "n": 2}),
            (EMBEDDINGS, {"input": f"The number {i}", "encoding_format": "base64"}),
        ]
    return found


def unchanging(body: dict[str, Any]) -> str:
    """All of an answer but its id, its time, and what the prefix cache held of its prompt."""
    kept = {name: value for name, value in body.items() if name not in ("id", "created", "usage")}
    return json.dumps(kept, sort_keys=True)


def test_killed_in_the_middle_it_ends_with_the_answers_of_a_server(smollm2_path: Path, tmp_path: Path) -> None:
    asked = bodies(10)
    source = write_input(tmp_path / "in", [line(f"{i}", url, **body) for i, (url, body) in enumerate(asked)])
    output = tmp_path / "out"
    command = (source, output, "--model", smollm2_path, *FLAGS)
    process = start_real_batch(*command)
    wait_for_records(output, 5, process)
    process.kill()
    finish(process)
    num_before = output.read_bytes().count(b"\n")
    assert 5 <= num_before < len(asked)

    code, said = finish(start_real_batch(*command), 120)
    assert code == 0, said
    assert "in this run 0 got an error as their answer and 0 failed" in said
    found = answers(output)
    assert set(found) == {f"{i}" for i in range(len(asked))}
    with running_real_server(smollm2_path, *FLAGS[:-2]) as server, server.wait_ready(60).client() as client:
        for i, (url, body) in enumerate(asked):
            assert unchanging(client.post(url, json=body).json()) == unchanging(found[f"{i}"]["body"])
