"""What every test may ask for. Models are fetched once into the cache folder; a test never skips for want of one."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# Before anything imports the libraries that read them: no network from tests, no pool of threads a library (where the
# cores are in use, two threads of torch that wait for each other take ten times as long as one).
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

# Every engine that a test builds, in this process or another, has its KV memory watched.
os.environ.setdefault("OCTAVO_KV_SANITIZER", "1")

# A shared machine makes single examples slow at random: no deadline an example. CI draws the same examples each time.
# What fails is made smaller but not explained: that traces every line, and the timeout would hide the example found.
settings.register_profile(
    "octavo",
    deadline=None,
    derandomize="CI" in os.environ,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("octavo")


LONG_FILES = ("test_packaging.py", "clients", "real", "dashboard", "server", "cases", "loading")
"""Files and folders whose tests take longest, those first: what is left for the end is short, so that no process ends
long after the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, and each process (pytest-xdist) a file at a time, since a file's tests share what is
    slow to make; of those on real models, one model at a time. Those with other projects' clients
    share an environment."""
    items.sort(key=_rank)
    for item in items:
        group = str(item.path)
        if "clients" in item.path.parts:
            group = "clients"
        if "real" in item.path.parts:
            group += next((model for model in ("smollm2", "gemma3") if model in item.name), "")
        item.add_marker(pytest.mark.xdist_group(group))


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, part in enumerate(LONG_FILES) if part in item.path.parts), len(LONG_FILES))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The built-in SmolLM2-135M-Instruct (GGUF, Q4_1)."""
    from octavo.loading.pull import pull

    return pull("smollm2-135m", quiet=True)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M (GGUF, Q4_K_M)."""
    from octavo.loading.pull import pull

    return pull("gemma3-270m", quiet=True)


@pytest.fixture
def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    return _free_port()


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """Several of them."""
    return lambda count: [_free_port() for _ in range(count)]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
