"""The disk tier on a real model: a second run begins with what the first one computed, bit for bit."""

from pathlib import Path

import pytest

import octavo.build
from tests.real.text import ALICE
from tests.support.driving import Driver, greedy_params

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_a_second_run_begins_warm_with_the_same_bits(smollm2_path: Path, tmp_path: Path, kv_cache_dtype: str) -> None:
    prompt = octavo.build.load_tokenizer(smollm2_path, None).encode(ALICE, False)[:150]
    bits = []
    for num_cached in (0, 144):
        driver = Driver(
            smollm2_path,
            kv_cache_dtype=kv_cache_dtype,
            num_blocks=24,
            max_model_len=200,
            swap_space=0,
            prefix_cache_dir=str(tmp_path),
            prefix_cache_disk_space=0.05,
        )
        answer = driver.ask(prompt, greedy_params(12, logprobs=2))
        assert answer.num_cached_tokens == num_cached
        bits.append(answer.bits)
        driver.engine.close()
    assert bits[0] == bits[1]
