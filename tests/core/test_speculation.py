"""Speculation in the scheduler: drafts change how many tokens a step brings, and nothing else."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

import pytest

from octavo.core.kv_fault import KVFaultError
from octavo.core.request import Request, Status
from octavo.core.speculation import PATIENCE, Speculation
from tests.support.drafters import HostileDrafter, Oracle
from tests.support.fake_runner import expected_output, next_token
from tests.support.naive_beam_search import Search
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
PROMPT = [1, 2, 3, 4, 5]


def harness(most: int = 4, drafter: Callable[[], object] = Oracle, **settings: object) -> Harness:
    return Harness(speculation=Speculation(most, drafter), **settings)  # type: ignore[arg-type]


def output(request: Request) -> list[int]:
    return request.token_ids[request.num_prompt_tokens :]


def counts(made: Harness) -> tuple[int, int, int]:
    counters = made.scheduler.counters
    return counters.num_drafts, counters.num_draft_tokens, counters.num_accepted_tokens


@DEPTHS
def test_right_drafts_save_steps(depth: int) -> None:
    made = harness(depth=depth)
    request = made.add(PROMPT, 21)
    made.run()
    assert output(request) == expected_output(PROMPT, 21)
    assert request.status is Status.LENGTH
    # A token with the prompt, then five a step: one that is drawn anyway, and four drafts.
    assert [plan.num_tokens for plan in made.runner.plans] == [5, 5, 5, 5, 5]
    assert counts(made) == (4, 16, 16)
    assert made.scheduler.counters.generation_tokens == 21


@DEPTHS
@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_wrong_drafts_change_nothing(depth: int, num_right: int) -> None:
    made = harness(drafter=partial(Oracle, num_right), depth=depth)
    request = made.add(PROMPT, 21)
    made.run()
    assert output(request) == expected_output(PROMPT, 21)
    num_drafts, num_drafted, num_accepted = counts(made)
    assert num_drafted > num_accepted >= num_right * (num_drafts - 1)
    assert num_accepted == 20 - num_drafts - (21 - 1 - num_accepted - num_drafts)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 6, 7])
def test_no_draft_goes_past_the_last_token(max_tokens: int) -> None:
    made = harness(most=8)
    request = made.add(PROMPT, max_tokens)
    made.run()
    assert output(request) == expected_output(PROMPT, max_tokens)
    assert sum(counts(made)[1:]) == 2 * max(0, max_tokens - 2)


def test_a_stop_id_among_accepted_drafts_ends_the_request() -> None:
    for place in range(1, 9):
        expected = expected_output(PROMPT, 20)
        made = harness(most=8)
        request = made.add(PROMPT, 20, stop_ids=[expected[place]])
        made.run()
        assert output(request) == expected[: place + 1]
        assert (request.status, request.stop_reason) == (Status.STOPPED, expected[place])
        assert made.scheduler.counters.generation_tokens == place + 1


def test_a_stop_string_is_looked_for_token_by_token() -> None:
    """What was drawn after the token that ends the request is dropped."""
    made, seen = harness(most=8), list[int]()
    request = made.add(PROMPT, 20)
    expected = expected_output(PROMPT, 20)

    def check_stop(requests: Sequence[Request], token_ids: Sequence[int]) -> dict[Request, str]:
        assert [each.token_ids[-1] for each in requests] == list(token_ids)
        seen.extend(token_ids)
        return {each: "stop" for each in requests if each.token_ids[-1] == expected[5]}

    while made.scheduler.has_work:
        plan = made.scheduler.schedule()
        assert plan is not None
        outcome = made.scheduler.update(made.sanitizer.submit(plan).result(), check_stop)
        made.check()
    assert seen == output(request) == expected[:6]
    assert outcome.further == {request: expected[2:6]}
    assert outcome.finished == [request]


def test_drafts_take_no_block_that_somebody_waits_for() -> None:
    """The second request waits for blocks; the first one drafts within those that it has."""
    made = harness(most=8, num_blocks=8, block_size=4, prefix_caching=False)
    first, second = made.add(PROMPT, 20), made.add(list(range(100, 120)), 8)
    made.run()
    assert output(first) == expected_output(PROMPT, 20)
    assert output(second) == expected_output(list(range(100, 120)), 8)
    without = Harness(num_blocks=8, block_size=4, prefix_caching=False)
    without.add(PROMPT, 20), without.add(list(range(100, 120)), 8)
    without.run()
    assert made.scheduler.counters.num_preemptions <= without.scheduler.counters.num_preemptions
    for plan in made.runner.plans:
        if plan.drafts and second.num_output_tokens == 0:
            assert not plan.table_writes


def test_many_running_requests_do_not_speculate() -> None:
    made = harness(num_blocks=400, max_num_seqs=64, max_num_batched_tokens=512)
    requests = [made.add([*PROMPT, number], 12) for number in range(40)]
    made.run()
    assert counts(made) == (0, 0, 0)
    assert [output(request) for request in requests] == [expected_output([*PROMPT, n], 12) for n in range(40)]


def test_the_chance_that_pays_rises_with_the_rows() -> None:
    speculation = Speculation(4)
    needed = [speculation.costs.gain(rows).num_tokens / speculation.costs.gain(rows).cost for rows in (1, 2, 8, 32)]
    assert needed == sorted(needed)
    assert needed[0] < 0.35
    assert not speculation.may_pay(32)
    assert speculation.may_pay(8)


class Silent:
    """Has something to say about one stretch of the answer alone."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def follow(self, token_ids: Sequence[int]) -> None:
        self.num_tokens = len(token_ids)

    def propose(self, token_ids: Sequence[int]) -> Iterator[tuple[int, float]]:
        if self.first <= len(token_ids) < self.last:
            yield next_token(token_ids), 1.0


@DEPTHS
def test_off_where_there_is_nothing_to_draft_and_on_again(depth: int) -> None:
    made = harness(drafter=lambda: Silent(50, 70), depth=depth, num_blocks=64)
    request = made.add(PROMPT, 120)
    was_member = dict[int, bool]()
    while made.step():
        was_member[request.num_tokens] = request.batch is not None
    assert output(request) == expected_output(PROMPT, 120)
    assert not any(was_member[num_tokens] for num_tokens in was_member if num_tokens < len(PROMPT) + PATIENCE)
    assert was_member[40]
    assert not any(was_member[num_tokens] for num_tokens in was_member if 60 <= num_tokens < 70)
    assert was_member[100]
    num_drafts, num_drafted, num_accepted = counts(made)
    assert num_drafts == num_drafted == num_accepted
    assert num_drafts >= 5


@DEPTHS
def test_a_request_that_has_drafted_joins_the_batch_when_its_blocks_are_full(depth: int) -> None:
    """Blocks of one token: drafts get up to four too many, and the batch must not take more of them yet."""
    made = harness(drafter=lambda: HostileDrafter(Random(3)), block_size=1, num_blocks=200, depth=depth)
    request = made.add(PROMPT, 30)
    made.step(), made.step(), made.step()
    assert request.drafter is not None
    request.num_undrafted = PATIENCE
    made.run()
    assert output(request) == expected_output(PROMPT, 30)


@DEPTHS
def test_a_failed_step_takes_its_drafts_back(depth: int) -> None:
    made = harness(depth=depth)
    first, second = made.add(PROMPT, 30), made.add([9, *PROMPT], 30)
    failures = iter([False] * 4 + [True])

    def fails(plan: object) -> None:
        if next(failures, False):
            raise RuntimeError("injected")

    made.runner.fails = fails
    made.run()
    assert next(failures, None) is None
    assert output(first) == expected_output(PROMPT, 30)
    assert output(second) == expected_output([9, *PROMPT], 30)


@DEPTHS
def test_an_abort_while_drafts_are_in_flight_gives_the_blocks_back(depth: int) -> None:
    made = harness(depth=depth, most=8)
    request = made.add(PROMPT, 60)
    while not any(plan.drafts for plan in made.runner.plans):
        made.plan() or made.land()
    assert request.num_in_flight
    made.scheduler.abort(request)
    made.check()
    made.run()
    assert output(request) == expected_output(PROMPT, 60)[: len(output(request))]


@DEPTHS
def test_beams_never_speculate(depth: int) -> None:
    made = harness(depth=depth)
    made.add_beams(PROMPT, Search(width=3, max_tokens=8, eos=frozenset(), length_penalty=1.0, early_stopping=False))
    made.run()
    assert counts(made) == (0, 0, 0)
    for request in made.requests:
        made.check_answer(request)


@DEPTHS
def test_choices_speculate_each_for_itself(depth: int) -> None:
    made = harness(depth=depth, num_blocks=64)
    requests = made.add_choices([*PROMPT, 6], 3, 20)
    made.run()
    assert counts(made)[2] > 0
    for request in requests:
        made.check_answer(request)


def test_the_sanitizer_sees_that_scheduler_and_runner_disagree_on_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in Octavo: one that was right is not counted."""
    monkeypatch.setattr(Request, "accept_draft", lambda self: None)
    made = harness(drafter=partial(Oracle, 1))
    made.add(PROMPT, 21)
    with pytest.raises(KVFaultError, match="goes on with"):
        made.run()


def test_the_sanitizer_sees_a_block_of_wrong_drafts_that_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in Octavo: what a sequence leaves in the cache reaches past what it has computed of its own tokens."""
    made = harness(most=8, drafter=partial(Oracle, 0))
    request = made.add(PROMPT, 6)
    while not made.runner.plans or not made.runner.plans[-1].drafts:
        made.plan()
        made.land()
    monkeypatch.setattr(Request, "num_landed_tokens", property(lambda self: self.num_tokens))
    made.scheduler.abort(request)
    monkeypatch.undo()
    with pytest.raises(KVFaultError, match="under a name that its contents do not have"):
        made.add([*request.token_ids, 3], 3), made.run()
