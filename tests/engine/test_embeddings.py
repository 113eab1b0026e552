"""Embeddings of a real model in one process: the same bits after preemption in the middle of the prompt, in either
mode."""

from pathlib import Path
from typing import Any

import pytest

from octavo.build import build_engine
from octavo.core.request import Pooling
from octavo.core.sampling_params import SamplingParams
from octavo.engine.engine import Engine
from octavo.engine.messages import EngineRequest
from octavo.engine_args import EngineArgs
from tests.support.models import RAND_VOCAB, rand_model

PROMPT = [(7 * i + 3) % RAND_VOCAB for i in range(90)]
DROPPED = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


def ask(engine: Engine, name: str, pooling: Pooling) -> None:
    engine.add_request(EngineRequest(name, PROMPT, DROPPED, 0.0, pooling=pooling))


def drive(engine: Engine) -> list[float]:
    """The vector that the next steps bring."""
    vector: list[float] | None = None
    while engine.has_work():
        for delta in engine.step().deltas:
            assert delta.error is None
            vector = delta.embedding or vector
    assert vector is not None
    return vector


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_same_bits_after_preemption_inside_the_prompt(
    path: Path, pooling: Pooling, mode: str, caching: bool
) -> None:
    """Two answers grow into the blocks of a prompt that has come later and is half computed."""
    common: dict[str, Any] = {"model": str(path), "dtype": "float32", "max_model_len": 128}
    common |= {"max_num_batched_tokens": 4, "max_num_seqs": 4, "enable_prefix_caching": caching}
    common |= {"target_itl_ms": 1e9}  # so that chunks do not depend on the clock
    alone = build_engine(EngineArgs(**common, num_blocks=64))
    ask(alone, "alone", pooling)
    small = build_engine(
        EngineArgs(**common, num_blocks=9, preemption_mode=mode, swap_space=0.01, admission_quantile=0.0)
    )
    growing = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    for name in "ab":
        small.add_request(EngineRequest(name, [5, 6, 7], growing, 0.0))
    for _ in range(3):
        small.step()
    ask(small, "late", pooling)
    assert drive(small) == drive(alone)
    stats = small.stats()
    assert stats.num_preemptions == 1
    # A mean reads nothing from the cache, so that what it has left there is computed again, whatever follows.
    assert bool(stats.num_swaps) == (mode == "swap" and not (caching and pooling == "mean"))
