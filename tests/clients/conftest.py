"""The servers that clients of other projects talk to, from an environment of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_server import ServerProcess, running_real_server, running_server
from tests.support.models import rand_model


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


@pytest.fixture(scope="session")
def small_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model in the layout of the hub, with a tokenizer that clients can load."""
    path = tmp_path_factory.mktemp("small")
    rand_model(path)
    return path


@pytest.fixture(scope="session")
def small_server(small_path: Path) -> Iterator[ServerProcess]:
    """It, under the fake one's name, computed without rounding to 8 bits."""
    with running_real_server(small_path, "--num-blocks", "512", "--dtype", "float32") as running:
        yield running.wait_ready(60.0)
