"""guidellm and the client of ``vllm bench serve`` load the server, and count what it counts."""

import json
from pathlib import Path
from typing import Any

from tests.support.client_environment import run_script
from tests.support.fake_server import ServerProcess

NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 12, 64, 16


def run(script: str, server: ServerProcess, tokenizer: Path, out: Path, **variables: str) -> dict[str, Any]:
    """The reports that a client has written, by name."""
    run_script(script, [server.url, tokenizer, out, NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS], **variables)
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*.json")}


def served(server: ServerProcess) -> tuple[float, float]:
    """Tokens of prompts and of answers so far."""
    return server.metric("vllm:prompt_tokens_total"), server.metric("vllm:generation_tokens_total")


def test_guidellm(small_server: ServerProcess, small_path: Path, tmp_path: Path) -> None:
    before = served(small_server)
    reports = run("use_guidellm.py", small_server, small_path, tmp_path, GUIDELLM__MAX_WORKER_PROCESSES="1")
    assert sorted(reports) == ["chat", "completions"]
    totals = [0, 0]
    for name, report in reports.items():
        (benchmark,) = report["benchmarks"]
        counts = {"successful": NUM_REQUESTS, "errored": 0, "incomplete": 0, "total": NUM_REQUESTS}
        assert benchmark["metrics"]["request_totals"] == counts
        for request in benchmark["requests"]["successful"]:
            assert request["output_tokens"] == OUTPUT_TOKENS
            assert request["prompt_tokens"] >= PROMPT_TOKENS if name == "chat" else PROMPT_TOKENS
            assert 0 < request["time_to_first_token_ms"] < 1000 * request["request_latency"]
            totals[0] += request["prompt_tokens"]
            totals[1] += request["output_tokens"]
    after = served(small_server)
    assert [after[0] - before[0], after[1] - before[1]] == totals


def test_vllm_bench_serve(small_server: ServerProcess, small_path: Path, tmp_path: Path) -> None:
    reports = run("use_vllm_bench.py", small_server, small_path, tmp_path)
    assert sorted(reports) == ["chat", "completions", "embeddings", "responses"]
    for name, report in reports.items():
        assert report["completed"] == NUM_REQUESTS, name
        # Texts of random tokens may tokenize to some tokens more or fewer.
        assert report["total_input_tokens"] > 0.9 * NUM_REQUESTS * PROMPT_TOKENS
    for name in ("chat", "completions"):
        assert reports[name]["output_lens"] == [OUTPUT_TOKENS] * NUM_REQUESTS
        assert all(ttft > 0 for ttft in reports[name]["ttfts"])
    assert 0 < reports["responses"]["total_output_tokens"] <= NUM_REQUESTS * OUTPUT_TOKENS
