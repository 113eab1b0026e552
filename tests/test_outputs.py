"""What comes back, put together from deltas: the same however the tokens were spread over them."""

from itertools import pairwise

import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import TokenLogprobs
from octavo.engine.coalesce import merge_delta
from octavo.engine.messages import EngineRequest, OutputDelta
from octavo.outputs import RequestOutput

LOGPROBS = [-4.8178841886207096, -4.679703731970006, -1.1944057720477588, -4.412028166460079, -3.3, -6.4491]


def begin() -> RequestOutput:
    return RequestOutput.begin(EngineRequest("0", [5, 6], SamplingParams(logprobs=0), 0.0), None)


def delta_of(first: int, last: int) -> OutputDelta:
    """Tokens ``first`` .. ``last`` - 1."""
    return OutputDelta(
        "0",
        index=0,
        text="x" * (last - first),
        token_ids=list(range(first, last)),
        logprobs=[TokenLogprobs(token_id, LOGPROBS[token_id], 1, ()) for token_id in range(first, last)],
    )


@pytest.mark.parametrize("cuts", [(0, 6), (0, 1, 6), (0, 3, 6), (0, 2, 4, 6), (0, 1, 2, 3, 4, 5, 6)])
def test_a_slow_reader_gets_the_same_bits(cuts: tuple[int, ...]) -> None:
    """Deltas that a reader was too slow for come as one; the sum of logprobs once depended on it in its last bit."""
    output, alone = begin(), begin()
    alone.add(delta_of(0, 6))
    for first, last in pairwise(cuts):
        output.add(delta_of(first, last))
    assert output == alone
    assert alone.outputs[0].cumulative_logprob == pytest.approx(sum(LOGPROBS))


def test_a_snapshot_stays_as_it_is() -> None:
    output = begin()
    output.add(delta_of(0, 2))
    before = output.snapshot()
    output.add(delta_of(2, 6))
    assert (before.outputs[0].token_ids, len(before.outputs[0].logprobs or [])) == ([0, 1], 2)
    assert (output.outputs[0].token_ids, len(output.outputs[0].logprobs or [])) == ([0, 1, 2, 3, 4, 5], 6)


def test_deltas_merged_before_are_the_same_as_deltas_one_by_one() -> None:
    """Whoever was slow, the engine's outbox, the client or nobody: there is one way to join them."""
    last = OutputDelta("0", 0, "z", [7], finish_reason="stop", stop_reason=7, num_cached_tokens=3)
    deltas = [delta_of(0, 2), delta_of(2, 6), last]
    one_by_one, merged = begin(), begin()
    for delta in deltas:
        one_by_one.add(delta)
    pending = delta_of(0, 2)
    for delta in deltas[1:]:
        merge_delta(pending, delta)
    merged.add(pending)
    assert merged == one_by_one
    assert merged.outputs[0].finish_reason == "stop"


def test_a_snapshot_before_the_first_logprob_stays_as_it_is() -> None:
    output = begin()
    output.add(delta_of(0, 0))
    before = output.snapshot()
    output.add(delta_of(0, 2))
    assert before.outputs[0].logprobs == []
