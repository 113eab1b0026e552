"""A runner on a thread of its own: the engine plans the next step while this one is computed."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait

from octavo.core.step import Runner, StepPlan, StepResult


class ThreadedRunner:
    """Implements ``core.step.Runner`` by another one, which sees one plan after the other, in the order of submission.
    The kernels leave Python's lock alone while they compute, so the caller goes on meanwhile."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, "octavo-runner")
        self._steps: deque[Future[StepResult]] = deque()

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        while self._steps and self._steps[0].done():
            self._steps.popleft()
        self._steps.append(self._thread.submit(self._carry_out, plan))
        return self._steps[-1]

    def reset(self) -> None:
        """Steps that have not begun never do; the one that has is waited for."""
        for step in self._steps:
            step.cancel()
        wait(self._steps)
        self._steps.clear()
        self._runner.reset()

    def close(self) -> None:
        self._thread.shutdown()
        self._runner.close()

    def _carry_out(self, plan: StepPlan) -> StepResult:
        return self._runner.submit(plan).result()
