"""One engine of random settings and what happens to it: every mechanism, in any order."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.request import Request, Status
from octavo.core.retention import Retention
from octavo.core.scheduler_types import PREEMPTION_MODES, PolicySettings, SkipBounds
from octavo.core.speculation import Speculation
from octavo.core.step import StepPlan
from tests.support.drafters import HostileDrafter
from tests.support.fake_runner import FREQUENT_EOS
from tests.support.naive_beam_search import Search
from tests.support.policies import POLICIES, QUANTILES, with_policy
from tests.support.scheduling import Harness

HEADS: list[list[int]] = [[], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 9, 9, 9, 9, 9], [5] * 17]
WINDOWS = [(None,), (None,), (None, None), (None, 3), (2,), (5,), (None, 1, 6), (3, None), (4, 9)]
RETENTIONS = [Retention(10), Retention(60), Retention(80, 4), Retention(90, 2), Retention(100)]


class Schedule:
    """One engine of random settings, and what happens to it. ``settings``: more of its harness."""

    def __init__(self, seed: int, policies: Sequence[PolicySettings] = POLICIES, **settings: Any) -> None:
        self.rng = rng = random.Random(seed)
        windows = rng.choice(WINDOWS)
        max_num_seqs = rng.randint(1, 6)
        self.harness = Harness(
            num_blocks=rng.randint(4, 26) * len(windows),
            block_size=rng.choice([1, 2, 3, 4, 8]),
            num_groups=len(windows),
            windows=windows,
            depth=rng.choice([1, 2]),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + rng.randint(0, 14),
            prefix_caching=rng.random() < 0.8,
            max_prefix_wait_steps=rng.choice([1, 4, 64]),
            num_host_blocks=rng.choice([0, 0, 3, 10, 60]),
            keep_evicted=rng.random() < 0.5,
            num_disk_slots=rng.choice([0, 0, 3, 20]),
            preemption_mode=rng.choice(PREEMPTION_MODES),
            head_skips=SkipBounds(rng.choice([0, 1, 3, 32]), rng.choice([0, 1, 4, 256])),
            admission_quantile=rng.choice(QUANTILES),
            pin_quota=rng.choice([0.1, 0.5, 0.9]),
            eviction_policy=rng.choice(["lru", "reuse"]),
            speculation=Speculation(rng.choice([0, 0, 1, 4, 15]), lambda: HostileDrafter(rng)),
            **with_policy(rng.choice(policies)),
            **settings,
        )
        self.harness.runner.fails = self._fail_if_armed
        self.is_armed = False
        self.now = 0.0
        self.harness.scheduler.tell_time(self.now)
        self.harness.kv.keeping.tell_time(self.now)
        self.chances: dict[Callable[[], None], float] = {
            self.add: 0.25,
            self.unpin: 0.05,
            self.wait: 0.1,
            self.abort: rng.choice([0.0, 0.03, 0.1]),
            self.reset: rng.choice([0.0, 0.0, 0.02]),
            self.preempt: 0.03,
            self.fail: rng.choice([0.0, 0.0, 0.02, 0.1]),
        }

    def run(self) -> None:
        for turn in range(self.rng.choice([40, 120, 250])):
            for event, chance in self.chances.items():
                if self.rng.random() < chance:
                    event()
                    self.harness.check()
            self.step()
            if turn % 10 == 0:
                self.check_answers()

    def step(self) -> None:
        harness = self.harness
        while len(harness.pending) < harness.depth and harness.plan():
            pass
        assert harness.pending or not harness.scheduler.has_work, "there is work, and no step runs"
        harness.land()

    def finish(self) -> None:
        harness = self.harness
        live = [request for request in harness.requests if not request.is_finished]
        harness.run()
        self.check_answers()
        assert all(request.status in (Status.LENGTH, Status.STOPPED) for request in live)
        harness.kv.keeping.pins.release_all()
        assert harness.kv.pool.num_free == harness.num_blocks
        assert harness.kv.keeping.pins.num_claimed == 0
        if (plan := harness.scheduler.plan_last()) is not None:
            harness.sanitizer.submit(plan).result()

    def check_answers(self) -> None:
        for request in self.harness.requests:
            self.harness.check_answer(request)

    # Events

    def add(self) -> None:
        """A request of one kind or another; one that can never run is refused."""
        rng, prompt = self.rng, self._prompt()
        max_tokens, salt = rng.choice([1, 2, rng.randint(1, 24)]), rng.choice([None, None, "a", "b"])
        kind = rng.choice(["plain", "plain", "choices", "beams", "pins", "retention", "twins"])
        try:
            if kind == "beams":
                self.harness.add_beams(prompt, self._search(), salt)
            elif kind == "choices":
                self.harness.add_choices(prompt, rng.randint(2, 5), max_tokens, salt=salt)
            elif kind == "pins":
                self.harness.add(prompt, max_tokens, salt=salt, pins=self._wishes(len(prompt)))
            elif kind == "retention":
                self.harness.add(prompt, max_tokens, retention=rng.choice(RETENTIONS))
            else:
                more = self._details(len(prompt), salt)
                for _ in range(2 if kind == "twins" else 1):
                    self.harness.add(prompt, max_tokens, salt=salt, **more)
        except InvalidRequestError:
            pass  # whether it should be is for test_scheduler_machine

    def _prompt(self) -> list[int]:
        rng, requests = self.rng, self.harness.requests
        tail = [rng.randrange(2) for _ in range(rng.randint(1, 8))]
        if requests and rng.random() < 0.2:  # what another was asked and has said so far, and more
            before = rng.choice(requests)
            return before.token_ids[: before.num_prompt_tokens + rng.randint(0, 12)] + tail
        return rng.choice(HEADS) + tail

    def _details(self, num_tokens: int, salt: str | None) -> dict[str, Any]:
        rng, details = self.rng, dict[str, Any]()
        if salt and rng.random() < 0.5:
            details["num_open"] = rng.randint(1, num_tokens)
        if rng.random() < 0.3:
            details["stop_ids"] = list(range(0, 1000, 7))[:128]
        if rng.random() < 0.15:
            details["prompt_logprobs"] = 0
        return details

    def _search(self) -> Search:
        rng = self.rng
        return Search(
            width=rng.randint(1, 4),
            max_tokens=rng.randint(1, 8),
            eos=rng.choice([frozenset(), FREQUENT_EOS]),
            length_penalty=rng.choice([0.0, 1.0]),
            early_stopping=rng.choice([False, True, "never"]),
        )

    def _wishes(self, num_tokens: int) -> tuple[PinWish, ...]:
        rng = self.rng
        return tuple(
            PinWish(
                min(num_tokens, rng.choice([2, 4, 5, 8])),
                rng.choice([None, 3, 9]),
                rng.choice([None, 10, 80]),
                is_required=rng.random() < 0.5,
            )
            for _ in range(rng.randint(1, 3))
        )

    def unpin(self) -> None:
        infos = self.harness.kv.keeping.pins.infos()
        if infos:
            self.harness.kv.keeping.pins.release(self.rng.choice(infos).pin_id)

    def wait(self) -> None:
        self.now += self.rng.randint(1, 4)
        self.harness.scheduler.tell_time(self.now)
        self.harness.kv.keeping.tell_time(self.now)

    def abort(self) -> None:
        live = [request for request in self.harness.requests if not request.is_finished]
        if live:
            self.harness.scheduler.abort(self.rng.choice(live))

    def reset(self) -> None:
        self.harness.scheduler.reset_prefix_cache()

    def preempt(self) -> None:
        idle: list[Request] = [request for request in self.harness.scheduler.running if not request.num_in_flight]
        if idle:
            self.harness.scheduler.population.preempt(self.rng.choice(idle))

    def fail(self) -> None:
        """The oldest step in flight fails."""
        self.is_armed = bool(self.harness.pending)
        self.harness.land()
        self.is_armed = False

    def _fail_if_armed(self, plan: StepPlan) -> None:
        if self.is_armed:
            raise RuntimeError("injected")
