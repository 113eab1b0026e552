"""A state machine over the scheduler, at one and two steps in flight: any order of arrivals, aborts, plans, landings,
faults and resets keeps the invariants, leaves nothing behind, and gives every request the answer it has alone."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.request import Status
from octavo.core.retention import Retention
from octavo.core.scheduler_types import PolicySettings, SkipBounds
from octavo.core.speculation import Speculation
from octavo.core.step import StepPlan
from tests.support.drafters import HostileDrafter
from tests.support.fake_runner import FREQUENT_EOS
from tests.support.naive_beam_search import Search
from tests.support.policies import POLICIES, QUANTILES, with_policy
from tests.support.scheduling import Harness

HEADS: tuple[list[int], ...] = ([], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 9, 9, 9, 9, 9])
"""Beginnings of prompts: few, so that prefixes are shared, computed twice and waited for."""

PROMPTS = st.builds(list.__add__, st.sampled_from(HEADS), st.lists(st.integers(0, 1), min_size=1, max_size=6))
MAX_TOKENS = st.one_of(st.integers(1, 2), st.integers(1, 20))
SEARCHES = st.builds(
    Search,
    width=st.integers(1, 4),
    max_tokens=st.integers(1, 8),
    eos=st.sampled_from([frozenset(), FREQUENT_EOS]),
    length_penalty=st.sampled_from([0.0, 1.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
)
WISHES = st.lists(
    st.builds(
        PinWish,
        num_tokens=st.sampled_from([2, 4, 5, 8]),
        ttl=st.sampled_from([None, 3, 9]),
        priority=st.sampled_from([None, None, 10, 80]),
        is_required=st.booleans(),
    ),
    min_size=1,
    max_size=3,
)
RETENTIONS = st.sampled_from([Retention(10), Retention(60), Retention(80, 4), Retention(90, 2), Retention(100)])
STOP_IDS = st.sampled_from([(), (), range(0, 1000, 7)])


class SchedulerMachine(RuleBasedStateMachine):
    """Every request that was ever added stays in ``harness.requests``, so the checks see the ended ones too."""

    depth: int

    @initialize(
        num_blocks=st.integers(4, 24),
        block_size=st.sampled_from([1, 2, 4]),
        windows=st.sampled_from([(None,), (None,), (None, None), (None, 3), (2,), (None, 1, 6)]),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        prefix_caching=st.sampled_from([True, True, False]),
        eviction_policy=st.sampled_from(["lru", "reuse"]),
        max_prefix_wait_steps=st.sampled_from([1, 4, 64]),
        head_skips=st.builds(SkipBounds, st.sampled_from([0, 1, 3, 32]), st.sampled_from([0, 1, 4, 256])),
        admission_quantile=st.sampled_from(QUANTILES),
        speculation=st.builds(Speculation, st.sampled_from([0, 1, 3, 15]), st.just(HostileDrafter)),
        policy=st.sampled_from(POLICIES),
    )
    def start(
        self,
        num_blocks: int,
        windows: tuple[int | None, ...],
        max_num_seqs: int,
        spare_tokens: int,
        policy: PolicySettings,
        **sizes: Any,
    ) -> None:
        self.harness = Harness(
            num_blocks=num_blocks * len(windows),
            num_groups=len(windows),
            windows=windows,
            depth=self.depth,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            **with_policy(policy),
            **sizes,
        )
        self.harness.runner.fails = self._fail_if_armed
        self.armed = False
        self.now = 0.0
        self.harness.kv.keeping.tell_time(self.now)

    def _fail_if_armed(self, plan: StepPlan) -> None:
        if self.armed:
            self.armed = False
            raise RuntimeError("injected")

    @rule(
        prompt=PROMPTS,
        max_tokens=MAX_TOKENS,
        stop_ids=STOP_IDS,
        salt=st.sampled_from([None, None, "a"]),
        wants_prompt=st.sampled_from([(False,), (True,), (False, True)]),
    )
    def add(
        self, prompt: list[int], max_tokens: int, stop_ids: range, salt: str | None, wants_prompt: tuple[bool, ...]
    ) -> None:
        """One request, or twins of which the second computes what the first does: prompt logprobs read no cache."""
        fits = len(prompt) + max_tokens <= self.harness.scheduler.door.max_tokens_per_sequence
        for wanted in wants_prompt:
            params = {"prompt_logprobs": 0} if wanted else {}
            try:
                self.harness.add(prompt, max_tokens, stop_ids=list(stop_ids)[:128], salt=salt, **params)
            except InvalidRequestError:
                assert not fits
            else:
                assert fits

    @rule(prompt=PROMPTS, n=st.integers(2, 4), max_tokens=MAX_TOKENS, stop_ids=STOP_IDS, wants_prompt=st.booleans())
    def add_choices(self, prompt: list[int], n: int, max_tokens: int, stop_ids: range, wants_prompt: bool) -> None:
        fits = len(prompt) + max_tokens <= self.harness.scheduler.door.max_tokens_per_sequence
        params = {"prompt_logprobs": 0} if wants_prompt else {}
        try:
            self.harness.add_choices(prompt, n, max_tokens, stop_ids=list(stop_ids)[:128], **params)
        except InvalidRequestError:
            assert not fits
        else:
            assert fits

    @rule(
        which=st.integers(0, 7), kept=st.integers(0, 12), more=PROMPTS, max_tokens=MAX_TOKENS, times=st.integers(1, 2)
    )
    def add_follow_up(self, which: int, kept: int, more: list[int], max_tokens: int, times: int) -> None:
        """A prompt that begins with another request's and a part of its answer, which may be still on its way."""
        if not self.harness.requests:
            return
        before = self.harness.requests[which % len(self.harness.requests)]
        prompt = before.token_ids[: before.num_prompt_tokens + kept] + more
        if len(prompt) + max_tokens <= self.harness.scheduler.door.max_tokens_per_sequence:
            for _ in range(times):
                self.harness.add(prompt, max_tokens)

    @rule(prompt=PROMPTS, search=SEARCHES, salt=st.sampled_from([None, None, "a"]))
    def add_beams(self, prompt: list[int], search: Search, salt: str | None) -> None:
        num_blocks = search.width * self.harness.kv.num_blocks_for(len(prompt) + search.max_tokens)
        num_there = self.harness.num_blocks - self.harness.kv.keeping.pins.num_claimed
        fits = num_blocks <= num_there and search.width <= self.harness.max_num_seqs
        try:
            self.harness.add_beams(prompt, search, salt)
        except InvalidRequestError:
            assert not fits
        else:
            assert fits

    @rule(prompt=PROMPTS, max_tokens=MAX_TOKENS, salt=st.sampled_from([None, None, "a"]), wishes=WISHES)
    def add_pinned(self, prompt: list[int], max_tokens: int, salt: str | None, wishes: list[PinWish]) -> None:
        """Refused or not, depending on all that is there; then nothing is set aside, or as much as is needed."""
        num_claimed, pins = self.harness.kv.keeping.pins.num_claimed, tuple(wishes)
        try:
            self.harness.add(prompt, max_tokens, salt=salt, pins=pins)
        except InvalidRequestError:
            assert self.harness.kv.keeping.pins.num_claimed == num_claimed

    @rule(prompt=PROMPTS, max_tokens=MAX_TOKENS, retention=RETENTIONS)
    def add_retained(self, prompt: list[int], max_tokens: int, retention: Retention) -> None:
        if len(prompt) + max_tokens <= self.harness.scheduler.door.max_tokens_per_sequence:
            self.harness.add(prompt, max_tokens, retention=retention)

    @rule(which=st.integers(0, 3))
    def unpin(self, which: int) -> None:
        infos = self.harness.kv.keeping.pins.infos()
        if infos:
            assert self.harness.kv.keeping.pins.release(infos[which % len(infos)].pin_id)

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.harness.scheduler.tell_time(self.now)
        ends = [info.expires_at for info in self.harness.kv.keeping.pins.infos()]
        assert all(end is None or end > self.now for end in ends)

    @rule(which=st.integers(0, 7))
    def abort(self, which: int) -> None:
        live = [request for request in self.harness.requests if not request.is_finished]
        if live:
            self.harness.scheduler.abort(live[which % len(live)])

    @rule()
    def plan(self) -> None:
        if len(self.harness.pending) == self.depth:
            return
        planned = self.harness.plan()
        assert planned or self.harness.pending or not self.harness.scheduler.has_work, "there is work, and no step runs"

    @rule()
    def land(self) -> None:
        self.harness.land()

    @rule(turns=st.integers(2, 5))
    def run(self, turns: int) -> None:
        for _ in range(turns):
            for _ in range(self.depth):
                self.plan()
            self.land()

    @rule()
    def fail(self) -> None:
        """The oldest step in flight fails; a request that was alone in it ends."""
        self.armed = bool(self.harness.pending)
        self.harness.land()

    @rule()
    def reset_prefix_cache(self) -> None:
        self.harness.scheduler.reset_prefix_cache()

    @invariant()
    def bookkeeping_agrees(self) -> None:
        self.harness.check()

    @invariant()
    def rows_of_the_runner_are_bounded(self) -> None:
        assert len(self.harness.runner.rows) <= 2 * self.harness.max_num_seqs

    @invariant()
    def nothing_is_held_for_steps_that_are_not_in_flight(self) -> None:
        """Nor for a copy that the next plan makes again."""
        is_read = self.harness.pending or self.harness.scheduler.population.copies
        assert is_read or not self.harness.kv.held_blocks

    @invariant()
    def leaves_go_first(self) -> None:
        self.harness.check_leaves_go_first()

    @invariant()
    def the_calendar_knows_members_only(self) -> None:
        batch = self.harness.scheduler.running.batch
        assert batch.scheduled_requests == set(batch.roster.requests)

    @invariant()
    def answers_are_those_of_each_request_alone(self) -> None:
        for request in self.harness.requests:
            self.harness.check_answer(request)

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        before = [request for request in self.harness.requests if not request.is_finished]
        self.harness.run()
        self.harness.kv.keeping.pins.release_all()
        assert self.harness.kv.pool.num_free == self.harness.num_blocks
        assert self.harness.kv.keeping.pins.num_claimed == 0
        assert all(request.status in (Status.LENGTH, Status.STOPPED) for request in before)
        self.bookkeeping_agrees()
        self.nothing_is_held_for_steps_that_are_not_in_flight()
        self.the_calendar_knows_members_only()
        self.answers_are_those_of_each_request_alone()


@pytest.mark.parametrize("depth", [1, 2])
def test_any_order_of_events(depth: int) -> None:
    machine = type("Machine", (SchedulerMachine,), {"depth": depth})
    run_state_machine_as_test(machine, settings=settings(max_examples=35, stateful_step_count=40, deadline=None))
