"""The runner on a small random model: what it answers does not depend on how many rows reach the head at a time."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from octavo import LLM, SamplingParams
from octavo.core.step import TokenLogprobs
from octavo.runner import execution
from octavo.runner.sampler import Sampler, Samples
from tests.support.models import RAND_VOCAB, rand_model

PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [12, 13], list(range(20, 50)), [60])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return make_llm(path)


def make_llm(path: Path) -> LLM:
    return LLM(str(path), num_blocks=64, max_num_seqs=4, max_num_batched_tokens=24, enable_prefix_caching=False)


def answers(llm: LLM) -> list[tuple[object, ...]]:
    params = [
        SamplingParams(max_tokens=3, seed=1, logprobs=2, prompt_logprobs=num_top, ignore_eos=True)
        for num_top in (2, None, 0, 3)
    ]
    outputs = llm.generate(list(PROMPTS), params)
    return [(output.prompt_logprobs, output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("rows_at_once", [1, 3, 5])
def test_the_head_reads_a_few_rows_at_a_time(
    path: Path, rows_at_once: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", backend)
    expected = answers(make_llm(path))
    monkeypatch.setattr(execution, "MAX_LOGITS", rows_at_once * RAND_VOCAB)
    llm, heights = make_llm(path), []
    sample, prompt_logprobs = Sampler.sample, Sampler.prompt_logprobs

    def counted_sample(sampler: Sampler, logits: Tensor, *others: Any) -> Samples:
        heights.append(len(logits))
        return sample(sampler, logits, *others)

    def counted_prompt_logprobs(sampler: Sampler, logits: Tensor, *others: Any) -> tuple[TokenLogprobs, ...]:
        heights.append(len(logits))
        return prompt_logprobs(sampler, logits, *others)

    monkeypatch.setattr(Sampler, "sample", counted_sample)
    monkeypatch.setattr(Sampler, "prompt_logprobs", counted_prompt_logprobs)
    assert answers(llm) == expected
    assert max(heights) == rows_at_once


def test_prompt_logprobs_are_one_entry_a_prompt_token(llm: LLM) -> None:
    for prompt, wanted, (entries, _, _) in zip(PROMPTS, (2, None, 0, 3), answers(llm), strict=True):
        if wanted is None:
            assert entries is None
            continue
        assert isinstance(entries, list)
        assert entries[0] is None
        assert [entry.token_id for entry in entries[1:]] == list(prompt[1:])
        assert {len(entry.top) for entry in entries[1:]} <= {wanted}
