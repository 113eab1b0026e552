"""Beam search through the engine loop with the fake runner, against the same rules applied to the fake model alone."""

import time
from dataclasses import replace
from itertools import count

import pytest

from octavo.core.beam_search import BeamSearch, BeamSearchParams, Hypothesis
from octavo.core.invariants import check_scheduler
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import StepPlan
from octavo.engine.codec import Add, decode_command, encode, read_request
from octavo.engine.messages import EngineRequest
from tests.engine.test_engine import DEPTHS, Bench, spelled
from tests.support.fake_runner import next_candidates

PROMPTS = {"a": list(range(10)), "b": list(range(5, 18))}
SEARCH = BeamSearchParams(4, 12, early_stopping="never")


def expected(prompt: list[int], params: BeamSearchParams, eos: frozenset[int] = frozenset()) -> list[Hypothesis]:
    """The search without an engine: contexts are lists, nothing is shared."""
    assert params.max_tokens is not None
    search = BeamSearch(params, eos, params.max_tokens)
    beams = [prompt]
    while beams:
        going = search.advance([next_candidates(beam, search.num_candidates) for beam in beams])
        beams = [[*beams[place], token_id] for place, token_id in going]
    return search.finished


class Beams(Bench):
    def search(self, request_id: str, prompt: list[int], params: BeamSearchParams = SEARCH) -> None:
        sampling = SamplingParams(n=params.beam_width)
        self.engine.add_request(EngineRequest(request_id, prompt, sampling, 99.0, beam_search=params))

    def check(self, request_id: str, hypotheses: list[Hypothesis]) -> None:
        for index, hypothesis in enumerate(hypotheses):
            (delta,) = self.deltas[request_id, index]
            assert tuple(delta.token_ids) == hypothesis.token_ids
            assert delta.cumulative_logprob == hypothesis.cumulative_logprob
            assert delta.finish_reason == ("stop" if hypothesis.is_stopped else "length")
            assert delta.logprobs is None

    def check_invariants(self, _step: int) -> None:
        live = [sequence for sequences in self.engine._requests.sequences.values() for sequence in sequences]
        check_scheduler(self.scheduler, live)


@DEPTHS
@pytest.mark.parametrize("num_blocks", [200, 26, 22])
def test_searches_at_once(depth: int, num_blocks: int) -> None:
    """Each may take 22 blocks of 4 tokens; where they do not fit together, beams are preempted."""
    params = BeamSearchParams(2, 40, early_stopping="never")
    prompts = {f"s{number}": [number, number + 1] for number in range(4)}
    bench = Beams(depth, num_blocks)
    for name, prompt in prompts.items():
        bench.search(name, prompt, params)
    bench.add("c", [7, 8, 9], max_tokens=9)
    bench.run(bench.check_invariants)
    for name, prompt in prompts.items():
        bench.check(name, expected(prompt, params))
    stats = bench.engine.stats()
    assert (stats.num_preemptions > 0) == (num_blocks < 200)
    assert stats.prompt_tokens == 4 * 2 + 3
    assert stats.generation_tokens == 4 * 2 * 40 + 9


def test_a_search_has_no_time_to_its_first_token() -> None:
    """Its tokens come all at once, at its end: that time would be its whole duration, once a beam."""
    bench = Beams()
    bench.search("a", PROMPTS["a"])
    bench.add("b", [1, 2, 3], max_tokens=4)
    bench.run()
    assert sum(len(outputs.first_token_seconds) for outputs in bench.outputs) == 1
    assert sum(len(outputs.token_intervals) for outputs in bench.outputs) == 3
    times = {times.request_id: times for outputs in bench.outputs for times in outputs.finished}
    assert times["a"].first_token is None
    assert times["a"].scheduled is not None
    assert times["b"].first_token is not None


@DEPTHS
def test_eos_ends_a_sequence_and_is_no_text(depth: int) -> None:
    prompt, params = PROMPTS["a"], BeamSearchParams(4, 12, length_penalty=0.0, early_stopping="never")
    eos = frozenset([expected(prompt, params)[0].token_ids[5]])
    hypotheses = expected(prompt, params, eos)
    assert {hypothesis.is_stopped for hypothesis in hypotheses} == {True, False}
    bench = Beams(depth, eos=eos)
    bench.search("a", prompt, params)
    bench.search("ignored", prompt, replace(params, ignore_eos=True))
    bench.run(bench.check_invariants)
    bench.check("a", hypotheses)
    bench.check("ignored", expected(prompt, params))
    for index, hypothesis in enumerate(hypotheses):
        assert bench.text("a", index) == spelled(list(hypothesis.token_ids)[: -1 if hypothesis.is_stopped else None])


@DEPTHS
def test_a_failed_step_is_tried_again(depth: int) -> None:
    """Every third step of several rows fails; one row alone does not: every search finds what it would have found."""
    calls = count()

    def fails(plan: StepPlan) -> None:
        if next(calls) % 3 == 2 and len(plan.row_ids) > 1:
            raise RuntimeError("the card is on fire")

    bench = Beams(depth)
    for name, prompt in PROMPTS.items():
        bench.search(name, prompt)
    bench.runner.fails = fails
    bench.run(bench.check_invariants)
    for name, prompt in PROMPTS.items():
        bench.check(name, expected(prompt, SEARCH))


@DEPTHS
def test_a_search_whose_row_fails_ends_whole_and_alone(depth: int) -> None:
    bench = Beams(depth)
    bench.search("a", PROMPTS["a"])
    bench.search("b", PROMPTS["b"])
    bench.runner.faults = lambda row_id: row_id in bench.runner.rows and bench.runner.rows[row_id].tokens[:1] == [5]
    bench.run(bench.check_invariants)
    bench.check("a", expected(PROMPTS["a"], SEARCH))
    assert {bench.end("b", index).finish_reason for index in range(4)} == {"error"}


@pytest.mark.parametrize(
    ("params", "clamp", "length"),
    [
        (BeamSearchParams(8, None), False, 8 * 4 - 10),
        (BeamSearchParams(8, 500), True, 8 * 4 - 10),
        (BeamSearchParams(2, 7), False, 7),
    ],
)
def test_max_tokens_is_the_searchs_own(params: BeamSearchParams, clamp: bool, length: int) -> None:
    """64 blocks for 8 beams are 8 blocks of 4 tokens each; the sampling params' own number does not count."""
    bench = Beams()
    sampling = SamplingParams(max_tokens=3)
    bench.engine.add_request(
        EngineRequest("a", PROMPTS["a"], sampling, 99.0, clamp_max_tokens=clamp, beam_search=params)
    )
    bench.run()
    for index in range(params.beam_width):
        assert len(bench.tokens("a", index)) == length


@pytest.mark.parametrize("beams", [None, BeamSearchParams(3, None, True, 0.0, 0.6, "never")])
def test_a_request_crosses_to_the_engine_process_whole(beams: BeamSearchParams | None) -> None:
    request = EngineRequest("a", [1, 2], SamplingParams(n=3, stop=["x"]), time.time(), True, 2, "salt", 1, beams)
    command = decode_command(encode(Add(request)))
    assert isinstance(command, Add)
    assert read_request(command) == request
    assert request.num_choices == 3
