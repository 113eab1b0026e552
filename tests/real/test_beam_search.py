"""Beam search on SmolLM2 against ``generate`` of transformers in fp32, token for token, and against itself where beams
are preempted or nothing is cached.

Three prompts of equal length, so that the reference searches them as one batch without padding: two questions, whose
answers end early, and the beginning of a book, whose do not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from octavo.core.beam_search import BeamSearchParams
from octavo.core.sampling_params import SamplingParams
from tests.real.text import ALICE
from tests.support.driving import Answer, Driver
from tests.support.oracle import GAP
from tests.support.parity import reference_logprobs, reference_model

BEAM_WIDTH = 4
MAX_TOKENS = 24
QUESTIONS = ("What is the capital of France?", "What is the name of Hamlet?")
CONFIGS = [(penalty, early) for penalty in (1.0, 0.6) for early in ("never", False, True)]
"""The one that stops last comes first."""
LARGE: dict[str, Any] = {"num_blocks": 400, "max_model_len": 128, "max_num_seqs": 128}
SMALL = LARGE | {"num_blocks": 18}
"""A search takes 16 blocks (of 16 tokens) if its beams come to share nothing; three run."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Result(NamedTuple):
    token_ids: list[int]
    cumulative_logprob: float
    finish_reason: str | None


class Searcher:
    """Octavo with these settings."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._driver = Driver(path, checks=False, dtype="float32", **settings)

    @property
    def num_preemptions(self) -> int:
        return self._driver.stats.num_preemptions

    def search(self, prompts: Sequence[list[int]], configs: Sequence[tuple[float, bool | str]]) -> list[list[Result]]:
        """The results of every prompt under every configuration, all of them searched at once."""
        ids = [
            self._driver.add(
                prompt,
                SamplingParams(n=BEAM_WIDTH),
                beam_search=BeamSearchParams(BEAM_WIDTH, MAX_TOKENS, length_penalty=penalty, early_stopping=early),
            )
            for penalty, early in configs
            for prompt in prompts
        ]
        self._driver.finish()
        return [[_result(answer) for answer in self._driver.answers[request_id]] for request_id in ids]


def _result(answer: Answer) -> Result:
    (delta,) = answer.deltas
    assert delta.cumulative_logprob is not None
    return Result(delta.token_ids, delta.cumulative_logprob, delta.finish_reason)


class Recorder:
    """Forward passes of the reference under one configuration, played back under the others: which beams run at a step
    does not depend on length penalty or early stopping, only which finished sequences are kept and when it is over.

    Serves as a logits processor as well, which sees whole sequences: that they are the recorded ones is checked.
    """

    def __init__(self, model: Any) -> None:
        self._forward = model.forward
        self._logits: list[torch.Tensor] = []
        self._sequences: list[torch.Tensor] = []
        self._step = 0

    def rewind(self) -> None:
        self._step = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._step < len(self._logits):
            return CausalLMOutputWithPast(logits=self._logits[self._step])  # type: ignore[arg-type]
        output = self._forward(*args, **kwargs)
        self._logits.append(output.logits[:, -1:])
        return output

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._step == len(self._sequences):
            self._sequences.append(input_ids.clone())
        assert torch.equal(self._sequences[self._step], input_ids)
        self._step += 1
        return scores


@contextmanager
def recorded(model: Any) -> Iterator[Recorder]:
    recorder = Recorder(model)
    with mock.patch.object(model, "forward", recorder.forward):
        yield recorder


def reference_results(
    path: Path, prompts: Sequence[list[int]], eos_token_ids: frozenset[int]
) -> list[list[tuple[list[int], float]]]:
    """(output, score) for each prompt under each of CONFIGS, best first, as transformers gives them."""
    model, length = reference_model(path), len(prompts[0])
    found = []
    with recorded(model) as recorder:
        for penalty, early in CONFIGS:
            recorder.rewind()
            answer = model.generate(
                torch.tensor(prompts),
                attention_mask=torch.ones(len(prompts), length, dtype=torch.int64),
                max_new_tokens=MAX_TOKENS,
                do_sample=False,
                num_beams=BEAM_WIDTH,
                num_return_sequences=BEAM_WIDTH,
                length_penalty=penalty,
                early_stopping=early,
                eos_token_id=sorted(eos_token_ids),
                pad_token_id=min(eos_token_ids),
                logits_processor=[recorder],
                output_scores=True,
                return_dict_in_generate=True,
            )
            outputs = [_up_to_eos(row[length:], eos_token_ids) for row in answer.sequences.tolist()]
            pairs = list(zip(outputs, answer.sequences_scores.tolist(), strict=True))
            found += [pairs[first : first + BEAM_WIDTH] for first in range(0, len(pairs), BEAM_WIDTH)]
    return found


def _up_to_eos(token_ids: list[int], eos_token_ids: frozenset[int]) -> list[int]:
    ends = [place for place, token_id in enumerate(token_ids, 1) if token_id in eos_token_ids]
    return token_ids[: min(ends, default=None)]


@pytest.fixture(scope="module")
def large(smollm2_path: Path) -> Searcher:
    return Searcher(smollm2_path, LARGE)


@pytest.fixture(scope="module")
def prompts(large: Searcher) -> list[list[int]]:
    tokenizer = large._driver.tokenizer
    questions = [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in QUESTIONS]
    prompts = [*questions, tokenizer.encode(ALICE, False)[: len(questions[0])]]
    assert {len(prompt) for prompt in prompts} == {37}
    return prompts


@pytest.fixture(scope="module")
def results(large: Searcher, prompts: list[list[int]]) -> list[list[Result]]:
    return large.search(prompts, CONFIGS)


def test_results_are_those_of_transformers(
    smollm2_path: Path, large: Searcher, prompts: list[list[int]], results: list[list[Result]]
) -> None:
    """A sequence may differ only where the reference itself puts the two less than 1e-3 apart (at most one may)."""
    expected = reference_results(smollm2_path, prompts, large._driver.tokenizer.eos_token_ids)
    num_allowed, lengths = 0, set()
    for case, (found, wanted) in enumerate(zip(results, expected, strict=True)):
        penalty, _ = CONFIGS[case // len(prompts)]
        for result, (token_ids, score) in zip(found, wanted, strict=True):
            lengths.add(len(token_ids))
            own_score = result.cumulative_logprob / len(result.token_ids) ** penalty
            assert own_score == pytest.approx(score, abs=GAP)
            if result.token_ids != token_ids:
                reference_score = _score(smollm2_path, prompts[case % len(prompts)], result.token_ids, penalty)
                assert reference_score == pytest.approx(score, abs=GAP), f"{CONFIGS[case // len(prompts)]}: {found}"
                num_allowed += 1
    assert len(lengths) > 5, "some sequences end with EOS, at different lengths"
    assert num_allowed <= 1, f"{num_allowed} of {len(expected) * BEAM_WIDTH} sequences used the allowance"


def _score(path: Path, prompt: list[int], token_ids: list[int], penalty: float) -> float:
    """What the reference itself gives a sequence."""
    rows = reference_logprobs(path, [*prompt, *token_ids[:-1]], num_logits=len(token_ids))
    return float(rows[torch.arange(len(token_ids)), torch.tensor(token_ids)].sum()) / len(token_ids) ** penalty


def test_endings(results: list[list[Result]], large: Searcher) -> None:
    eos = large._driver.tokenizer.eos_token_ids
    for result in (result for found in results for result in found):
        assert result.finish_reason == ("stop" if result.token_ids[-1] in eos else "length")
        assert eos.isdisjoint(result.token_ids[:-1])
        assert len(result.token_ids) == MAX_TOKENS or result.finish_reason == "stop"


def test_preempted_beams_find_the_same_bit_for_bit(
    smollm2_path: Path, prompts: list[list[int]], results: list[list[Result]]
) -> None:
    small = Searcher(smollm2_path, SMALL)
    assert small.search(prompts, CONFIGS[:1]) == results[: len(prompts)]
    assert small.num_preemptions > 0


def test_without_the_prefix_cache_bit_for_bit(
    smollm2_path: Path, prompts: list[list[int]], results: list[list[Result]]
) -> None:
    """With fewer rows than two searches have beams."""
    uncached = Searcher(smollm2_path, SMALL | {"enable_prefix_caching": False, "max_num_seqs": 7})
    assert uncached.search(prompts, CONFIGS[-1:]) == results[-len(prompts) :]
