"""Speculation with SmolLM2: tokens, logprobs and endings are those without it, bit for bit, and steps are saved where a
text repeats itself."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

import octavo.build
from octavo.core.sampling_params import SamplingParams
from octavo.engine.messages import OutputDelta
from tests.real.text import ALICE
from tests.support.driving import Driver, Job, all_bits, at_steps, greedy_params, run_apart

SETTINGS: dict[str, Any] = {"max_model_len": 512, "num_blocks": 200, "max_num_seqs": 8, "swap_space": 0}
RABBIT = ALICE.split("\n\n")[2]
WELL = ALICE.split("\n\n")[5]
"""Paragraphs that the model repeats nearly word for word."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def chat(path: Path, question: str) -> list[int]:
    return octavo.build.load_tokenizer(path, None).apply_chat_template([{"role": "user", "content": question}])


@pytest.fixture(scope="module")
def jobs(smollm2_path: Path) -> list[Job]:
    """Answers that repeat their prompts, in every way of drawing, and one that repeats nothing."""
    repeat = chat(smollm2_path, f"Repeat the following text exactly.\n\n{RABBIT}")
    correct = chat(smollm2_path, f"Correct the spelling mistakes and write it again.\n\n{WELL.replace('was', 'wass')}")
    story = chat(smollm2_path, "Write a short story about a lighthouse.")
    twice = octavo.build.load_tokenizer(smollm2_path, None).encode(ALICE[:300] + ALICE[:200], False)
    kinds: list[tuple[list[int], dict[str, Any]]] = [
        (repeat, {"temperature": 0.0, "logprobs": 2, "max_tokens": 60}),
        (correct, {"temperature": 0.4, "seed": 5, "n": 2, "logprobs": 0, "max_tokens": 60}),
        (repeat, {"temperature": 0.5, "seed": 6, "top_p": 0.9, "repetition_penalty": 1.02, "presence_penalty": 0.1}),
        (
            twice,
            {"temperature": 0.0, "bad_words": ["book"], "min_tokens": 30, "prompt_logprobs": 1, "ignore_eos": True},
        ),
        (repeat, {"temperature": 0.0, "stop": ["natural"], "logprobs": 3, "max_tokens": 90}),
        (twice, {"temperature": 0.0, "max_tokens": 1}),
        (story, {"temperature": 0.0, "max_tokens": 50, "logprobs": 1}),
    ]
    return [Job(prompt, SamplingParams(**({"max_tokens": 40} | params))) for prompt, params in kinds]


@pytest.fixture(scope="module", params=["auto", "float16", "int8"])
def kv_cache_dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(smollm2_path: Path, jobs: list[Job], kv_cache_dtype: str) -> list[list[Any]]:
    settings = SETTINGS | {"kv_cache_dtype": kv_cache_dtype, "enable_prefix_caching": False}
    driver = Driver(smollm2_path, checks=False, speculation="off", **settings)
    answers = run_apart(driver, jobs)
    assert driver.stats.num_draft_tokens == 0
    return all_bits(answers)


def speculating(path: Path, **settings: Any) -> Driver:
    return Driver(path, speculation="ngram", **SETTINGS | settings)


def test_alone(smollm2_path: Path, jobs: list[Job], plain: list[list[Any]], kv_cache_dtype: str) -> None:
    driver = speculating(smollm2_path, kv_cache_dtype=kv_cache_dtype, enable_prefix_caching=False)
    assert all_bits(run_apart(driver, jobs)) == plain
    stats = driver.stats
    assert stats.num_draft_tokens > stats.num_accepted_tokens > 50


def test_in_a_batch(smollm2_path: Path, jobs: list[Job], plain: list[list[Any]], kv_cache_dtype: str) -> None:
    """They come and go at random steps, find each other's prompts in the cache, and the sanitizer looks on."""
    random = Random(1)
    driver = speculating(smollm2_path, kv_cache_dtype=kv_cache_dtype, kv_sanitizer=True)
    assert all_bits(driver.run(at_steps(jobs, [random.randrange(30) for _ in jobs]))) == plain
    assert driver.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preempted_in_a_small_pool(
    smollm2_path: Path, jobs: list[Job], plain: list[list[Any]], kv_cache_dtype: str, mode: str
) -> None:
    class Adversary(Driver):
        """Now and then it takes the blocks of a running request."""

        def step(self) -> list[OutputDelta]:
            scheduler = self.engine._scheduler
            random.shuffle(scheduler.kv.pool._free)
            idle = [request for request in scheduler.running if not request.num_in_flight]
            if idle and random.random() < 0.1:
                scheduler.population.preempt(random.choice(idle))
            return super().step()

    random = Random(2)
    settings = SETTINGS | {"kv_cache_dtype": kv_cache_dtype, "num_blocks": 40, "swap_space": 0.05, "max_num_seqs": 4}
    driver = Adversary(smollm2_path, speculation="ngram", preemption_mode=mode, num_speculative_tokens=5, **settings)
    assert all_bits(driver.run(jobs)) == plain
    assert driver.stats.num_preemptions > 0
    assert driver.stats.num_accepted_tokens > 0


def test_a_repeated_text_takes_fewer_steps(smollm2_path: Path) -> None:
    driver = speculating(smollm2_path)
    driver.ask(chat(smollm2_path, f"Repeat the following text exactly.\n\n{RABBIT}"), greedy_params(140))
    stats = driver.stats
    assert stats.generation_tokens == 140
    assert stats.num_steps < 90
    assert stats.num_accepted_tokens == stats.generation_tokens - stats.num_steps


def test_drafts_switch_themselves_off_and_on_again(smollm2_path: Path) -> None:
    """A text without repetition is drafted for next to never; one that repeats, in the same engine, is."""
    driver = speculating(smollm2_path)
    driver.ask(chat(smollm2_path, "Write a short story about a lighthouse."), greedy_params(150))
    assert driver.stats.num_draft_tokens < 75
    assert driver.stats.generation_tokens == 150
    before = driver.stats.num_draft_tokens
    driver.ask(chat(smollm2_path, f"Repeat the following text exactly.\n\n{RABBIT}"), greedy_params(100))
    assert driver.stats.num_draft_tokens - before > 40
