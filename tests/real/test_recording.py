"""From production to plan: a real server records, the simulator plays it, and both count the same."""

import json
import random
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner

from octavo.cli.main import octavo
from tests.support.fake_server import MODEL, running_real_server

SIZE = 16


def answered(client: httpx.Client, prompt: list[int], max_tokens: int) -> list[int]:
    """The token ids of the answer."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    reply = client.post("/v1/completions", json=body | {"return_token_ids": True})
    assert reply.status_code == 200, reply.text
    token_ids: list[int] = reply.json()["choices"][0]["token_ids"]
    assert len(token_ids) == max_tokens
    return token_ids


def test_what_was_served_is_simulated_to_the_token(smollm2_path: Path, tmp_path: Path) -> None:
    """Conversations of two turns with a system prompt in common, one after the other; lengths are whole blocks, which
    is what the log tells of contents. The simulation knows these and the lengths; the hits are its own finding."""
    source, log = random.Random(0), tmp_path / "requests.jsonl"

    def text(count: int) -> list[int]:
        return source.choices(range(100, 40_000), k=count)

    system, counted = text(2 * SIZE), {}
    with running_real_server(smollm2_path, "--record", str(log), "--num-blocks", "60") as server:
        with server.wait_ready().client() as client:
            for _ in range(4):
                question = system + text(SIZE)
                answer = answered(client, question, 2 * SIZE)
                answered(client, question + answer + text(SIZE), SIZE)
        for name in ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"):
            counted[name] = server.metric(f"vllm:{name}_total")
        server.process.terminate()
        assert server.wait_exit() == 0
    out = tmp_path / "out.json"
    costs = "linear:base=0.00001,per_decode=0,per_chunk_token=0"  # each is over before the next comes
    arguments = ["simulate", str(log), "--num-blocks", "60", "--cost-model", costs, "--json", str(out)]
    result = CliRunner().invoke(octavo, arguments)
    assert result.exit_code == 0, result.output
    row: dict[str, Any]
    (row,) = json.loads(out.read_text())["figures"]["simulate"]
    assert row["num_requests"] == row["num_completed"] == 8
    assert row["prompt_tokens"] == counted["prompt_tokens"] == 4 * (3 + 6) * SIZE
    assert row["output_tokens"] == counted["generation_tokens"] == 4 * 3 * SIZE
    assert row["prefix_query_tokens"] == counted["prefix_cache_queries"]
    assert row["prefix_hit_tokens"] == counted["prefix_cache_hits"] > 4 * 4 * SIZE
