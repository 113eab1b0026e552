"""SmolLM2 and Gemma 3 (real GGUF files) against ``transformers`` in fp32, and Octavo's own runs against each other.

20 prompts of 5 to 700 tokens, 8 to 16 tokens out, greedy. Octavo's runs must agree bit for bit, tokens and logprobs;
with ``transformers`` token for token, where a difference is allowed only if the reference's own gap is below 1e-3.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import octavo.build
from octavo.kernels.registry import select_ops
from tests.real.text import ALICE
from tests.support.driving import Answer, Driver, Job, all_bits, at_steps, greedy_params, run_apart
from tests.support.forward import SequenceRun
from tests.support.oracle import check_same_as_reference
from tests.support.parity import reference_logprobs, reference_model

LENGTHS = [5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 19, 23, 31, 32, 33, 48, 64, 150, 700]
NUM_NEW = [8 + 5 * number % 9 for number in range(len(LENGTHS))]
"""Answers end at different steps, so that the batch shrinks as often as it grows."""
ALONE = [*range(0, len(LENGTHS), 3), len(LENGTHS) - 1]
"""Places of the prompts that run alone too."""
MAX_LEN = 720
LARGE: dict[str, Any] = {"num_blocks": 200, "max_model_len": MAX_LEN, "max_num_seqs": 32, "dtype": "float32"}
SMALL = LARGE | {"num_blocks": 46}
"""The longest request takes 45 blocks (of 16 tokens), all together take 98."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Real:
    """A model, its prompts, and the answers to all of them at once in a large pool."""

    def __init__(self, path: Path) -> None:
        self.path = path
        tokenizer = octavo.build.load_tokenizer(path, None)
        ids = tokenizer.encode(ALICE, False)
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        starts = [5 * number for number in range(len(LENGTHS) - 1)] + [0]
        self.prompts = [(bos + ids[start:])[:length] for start, length in zip(starts, LENGTHS, strict=True)]
        assert [len(prompt) for prompt in self.prompts] == LENGTHS
        self.jobs = [
            Job(prompt, greedy_params(num_new, logprobs=2))
            for prompt, num_new in zip(self.prompts, NUM_NEW, strict=True)
        ]
        self.large = self.engine(LARGE)
        self.answers = self.large.run(self.jobs)

    def engine(self, settings: dict[str, Any]) -> Driver:
        """Gemma 3 has six layer groups, so its sequences take six times as many blocks, each a sixth as large."""
        groups = 6 if "gemma" in self.path.name else 1
        return Driver(self.path, checks=False, **settings | {"num_blocks": settings["num_blocks"] * groups})

    def check(self, answers: list[list[Answer]]) -> None:
        assert all_bits(answers) == all_bits(self.answers)


@pytest.fixture(scope="module", params=["smollm2_path", "gemma3_path"])
def real(request: pytest.FixtureRequest) -> Real:
    return Real(request.getfixturevalue(request.param))


def test_alone(real: Real) -> None:
    """No cache, no batch, no preemption: some of the prompts, the longest too."""
    alone = run_apart(real.engine(LARGE | {"enable_prefix_caching": False}), [real.jobs[place] for place in ALONE])
    assert all_bits(alone) == all_bits(real.answers[place] for place in ALONE)


def test_again_from_the_cache(real: Real) -> None:
    hits = real.large.stats.prefix_hits
    real.check(real.large.run(real.jobs))
    assert real.large.stats.prefix_hits - hits >= sum((length - 1) // 16 * 16 for length in LENGTHS)


def test_at_random_steps_in_small_chunks_in_a_small_pool(real: Real) -> None:
    """With chunks of 64 tokens, nothing cached, and preempted; not so Gemma, whose windows leave room where long
    prompts are computed one at a time: it is in the next test."""
    random = Random(0)
    driver = real.engine(SMALL | {"max_num_batched_tokens": 64, "enable_prefix_caching": False})
    real.check(driver.run(at_steps(real.jobs, [random.randrange(30) for _ in real.jobs])))
    assert driver.stats.num_preemptions > 0 or "gemma" in real.path.name


def test_preempted_with_the_prefix_cache(real: Real) -> None:
    driver = real.engine(SMALL)
    real.check(driver.run(real.jobs))
    assert driver.stats.num_preemptions > 0


def test_tokens_and_logprobs_are_those_of_transformers(real: Real) -> None:
    num_allowed = check_same_as_reference(real.path, real.prompts, [choices[0] for choices in real.answers])
    print(f"{real.path.name}: {num_allowed} of {len(real.prompts)} answers used the allowance")  # noqa: T201 (for -rP)


def test_whole_distributions_are_those_of_transformers(real: Real) -> None:
    """The last 60 of 700 tokens, where Gemma's window of 512 has begun to slide: every logprob, not only the best."""
    prompt = real.prompts[-1]
    model = octavo.build.load_model(real.path, select_ops(), MAX_LEN, "float32").model
    actual = SequenceRun(model, len(prompt)).feed(prompt, num_logits=60).log_softmax(-1)
    assert float((actual - reference_logprobs(real.path, prompt, num_logits=60)).abs().max()) < 1e-3


def test_generate_of_transformers_itself(real: Real) -> None:
    """Its own loop with its own cache, beside the one forward pass of the test above."""
    for prompt, (answer,) in list(zip(real.prompts, real.answers, strict=True))[:3]:
        expected = reference_model(real.path).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=len(answer.token_ids),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert answer.token_ids == expected[0, len(prompt) :].tolist()


def test_the_reference_is_read_as_the_file_says(gemma3_path: Path) -> None:
    """What a loader of GGUF could misread without a word: five of six layers have a window of 512 and rotate with base
    10,000, the others with 1,000,000; queries are scaled by the head size."""
    config = reference_model(gemma3_path).config
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)]
    assert config.layer_types == kinds
    assert config.sliding_window == 512
    assert config.query_pre_attn_scalar == config.head_dim == 256
    thetas = {kind: config.rope_parameters[kind]["rope_theta"] for kind in set(kinds)}
    assert thetas == {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}
