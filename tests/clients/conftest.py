"""The servers that clients of other projects talk to, from an environment of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_server import ServerProcess, running_real_server, running_server


@pytest.fixture(scope="session")
def typing_server() -> Iterator[ServerProcess]:
    """The fake engine, which answers what it is told to; read for thinking and for calls, as of a Qwen model."""
    with running_server(
        {"max_model_len": 4096, "max_num_seqs": 64}, tool_call_parser="hermes", reasoning_parser="qwen3"
    ) as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def model_server(smollm2_path: Path) -> Iterator[ServerProcess]:
    """SmolLM2-135M, under the fake one's name."""
    with running_real_server(smollm2_path, "--max-model-len", "2k", "--tool-call-parser", "hermes") as running:
        yield running.wait_ready(60.0)
