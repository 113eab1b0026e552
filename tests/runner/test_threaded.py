"""A runner on a thread of its own: the same steps in the same order, while the caller goes on."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from octavo.core.step import StepPlan, StepResult
from octavo.runner.threaded import ThreadedRunner
from tests.support.driving import Driver, Job, greedy_params
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids


def _plan(step_id: int) -> StepPlan:
    return StepPlan(step_id, (), (), (), (), (), (), (), (), (), ())


class _Landed:
    def __init__(self, result: Callable[[], StepResult]) -> None:
        self.result = result


class _Slow:
    """Waits in each step for ``goes_on``; step 13 fails."""

    def __init__(self) -> None:
        self.goes_on = Event()
        self.begun = Event()
        self.seen: list[int] = []
        self.num_resets = 0

    def submit(self, plan: StepPlan) -> _Landed:
        self.begun.set()
        self.goes_on.wait(10)
        self.seen.append(plan.step_id)

        def result() -> StepResult:
            if plan.step_id == 13:
                raise RuntimeError("the model failed")
            return StepResult(plan.step_id, ())

        return _Landed(result)

    def reset(self) -> None:
        self.num_resets += 1

    def close(self) -> None:
        """There is no file."""


def test_steps_land_in_order_and_submitting_does_not_wait() -> None:
    slow = _Slow()
    runner = ThreadedRunner(slow)
    steps = [runner.submit(_plan(number)) for number in range(5)]
    assert slow.seen == []
    slow.goes_on.set()
    assert [step.result().step_id for step in steps] == slow.seen == [0, 1, 2, 3, 4]
    runner.close()


def test_what_a_step_raises_comes_out_of_its_result() -> None:
    slow = _Slow()
    slow.goes_on.set()
    runner = ThreadedRunner(slow)
    first, second = runner.submit(_plan(13)), runner.submit(_plan(14))
    with pytest.raises(RuntimeError, match="the model failed"):
        first.result()
    assert second.result().step_id == 14
    runner.close()


def test_a_reset_waits_for_the_step_that_runs_and_drops_the_others() -> None:
    slow = _Slow()
    runner = ThreadedRunner(slow)
    runner.submit(_plan(0)), runner.submit(_plan(1))
    assert slow.begun.wait(10)
    slow.goes_on.set()
    runner.reset()
    assert slow.seen in ([0], [0, 1]), "whether the second had begun"
    assert slow.num_resets == 1
    assert runner.submit(_plan(2)).result().step_id == 2
    runner.close()


@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_answers_are_those_of_one_step_at_a_time(tmp_path: Path, speculation: str) -> None:
    model = rand_model(tmp_path / "model")
    jobs = [Job(random_ids(7 + 9 * seed, RAND_VOCAB, seed=seed), greedy_params(12), 2 * seed) for seed in range(8)]
    settings = {"num_blocks": 24, "max_num_batched_tokens": 32, "max_num_seqs": 4, "speculation": speculation}
    answers = [Driver(model, max_steps_in_flight=depth, kv_sanitizer=True, **settings).run(jobs) for depth in (1, 2)]
    one, two = ([[answer.token_ids for answer in choices] for choices in each] for each in answers)
    assert one == two
