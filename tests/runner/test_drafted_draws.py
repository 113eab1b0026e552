"""Rows with drafts in the real runner: they draw what they would draw one step at a time."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.core.sampling_params import SamplingParams
from octavo.core.speculation import Speculation
from octavo.core.step import NewRow
from octavo.core.step_costs import StepCosts
from octavo.runner import execution
from octavo.runner.drafted_draws import FurtherTokens, drafted_draws
from octavo.runner.row_sampling import RowSampling
from octavo.runner.sampler import Sampler
from tests.support.driving import Driver, Job, all_bits, run_apart
from tests.support.models import RAND_VOCAB, rand_model

VOCAB = 6


def row(params: SamplingParams, bad_word_ids: Sequence[tuple[int, ...]] = (), row_id: int = 7) -> RowSampling:
    new = NewRow(row_id, (1, 2), 2, ((0,),), params, seed=3, choice_index=0, stop_token_ids=frozenset())
    return RowSampling(new, VOCAB, bad_word_ids)


def draw(rows: Mapping[RowSampling, Sequence[int]], best: Sequence[Sequence[int]]) -> FurtherTokens:
    """``rows``: with the drafts of each; ``best[i][j]``: the best token after draft j of row i."""
    draws, logits = [], []
    for (state, drafts), tokens in zip(rows.items(), best, strict=True):
        draws += drafted_draws(state, len(state.token_ids) - 2, drafts)
        logits += [torch.nn.functional.one_hot(torch.tensor(token), VOCAB).float() for token in tokens]
    order = sorted(range(len(draws)), key=lambda place: draws[place].number)
    further, table = FurtherTokens(), torch.stack([logits[place] for place in order])
    further.draw(Sampler(VOCAB, VOCAB), [draws[place] for place in order], table, table.argmax(-1))
    return further


def test_draws_go_on_while_drafts_are_right() -> None:
    first, second, third = (row(SamplingParams(temperature=0.0), row_id=number) for number in (1, 2, 3))
    for state, token_id in ((first, 3), (second, 3), (third, 4)):
        state.append(token_id)
    further = draw({first: [3, 4, 5], second: [3, 5, 4], third: [3, 3]}, [[4, 5, 0], [1, 5, 0], [3, 3]])
    assert further.token_ids == {1: [4, 5, 0], 2: [1]}
    assert first.token_ids == [1, 2, 3, 4, 5, 0]
    assert second.token_ids == [1, 2, 3, 1]
    assert third.token_ids == [1, 2, 4], "its first draft was wrong"


def test_a_draw_that_cannot_be_made_is_left_to_the_next_step() -> None:
    """After 3 3 nothing is allowed: the step brings what came before, and says nothing of a fault."""
    stuck, other = (row(SamplingParams(temperature=0.0, allowed_token_ids=[3]), bad_word_ids=[(3, 3, 3)]),
                    row(SamplingParams(temperature=0.0), row_id=8))  # fmt: skip
    stuck.append(3), other.append(3)
    further = draw({stuck: [3, 3, 3], other: [3, 3, 3]}, [[0, 0, 0], [3, 3, 4]])
    assert further.token_ids == {7: [3], 8: [3, 3, 4]}
    assert stuck.token_ids == [1, 2, 3, 3]


class Known:
    """Implements ``Drafter`` from answers that are known, every third draft of which it spoils."""

    def __init__(self, answers: Sequence[list[int]]) -> None:
        self.answers = answers

    def follow(self, token_ids: Sequence[int]) -> None:
        pass

    def propose(self, token_ids: Sequence[int]) -> Iterator[tuple[int, float]]:
        known, count = list(token_ids), len(token_ids)
        for answer in self.answers:
            if answer[:count] == known:
                for number, token_id in enumerate(answer[count:], count):
                    yield (token_id + 1) % RAND_VOCAB if number % 7 == 6 else token_id, 1.0
                return


class TypicalCosts(StepCosts):
    """What is drafted does not depend on what else the machine does."""

    def note(self, num_rows: int, seconds: float) -> None:
        pass


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 1},
    {"temperature": 1.0, "seed": 1, "logprobs": 0, "top_p": 0.9},
    {"temperature": 0.9, "seed": 2, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"temperature": 0.0, "presence_penalty": 1.0, "min_tokens": 12},
    {"temperature": 0.0, "bad_words": ["a", "the"], "logit_bias": {5: 2.0, 9: 1.5}},
]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("rows_at_once", [1, 3, 1000])
def test_answers_are_bitwise_the_same(backend: str, rows_at_once: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Also where the logits of a sequence's drafts are not all there at once."""
    model = rand_model(tmp_path)
    prompts = [[5 + number, *range(10, 17 + 3 * number)] for number in range(len(KINDS))]
    jobs = [Job(prompt, SamplingParams(max_tokens=24, **kind)) for prompt, kind in zip(prompts, KINDS, strict=True)]
    plain = Driver(model, backend=backend, num_blocks=64)
    expected = run_apart(plain, jobs)
    monkeypatch.setattr(execution, "MAX_LOGITS", rows_at_once * RAND_VOCAB)
    driver = Driver(model, backend=backend, num_blocks=64, kv_sanitizer=True)
    known = [[*job.prompt, *answers[0].token_ids] for job, answers in zip(jobs, expected, strict=True)]
    speculation = Speculation(5, lambda: Known(known))
    speculation.costs = TypicalCosts()
    _speculate(driver, speculation)
    assert all_bits(driver.run(jobs)) == all_bits(expected)
    assert all_bits(run_apart(driver, jobs)) == all_bits(expected)
    assert driver.stats.num_draft_tokens > driver.stats.num_accepted_tokens > 150


def _speculate(driver: Driver, speculation: Speculation) -> None:
    scheduler = driver.engine._scheduler
    scheduler.speculation = scheduler._planner._speculation = speculation
