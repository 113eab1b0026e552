"""Steps a second of scheduler and allocator alone: a runner that computes nothing, 256 running requests.

    python bench/scheduler.py [--json FILE] [--steps N] [--running N]

Requests end and are replaced all the time (lengths from the Azure conversation trace's range), the prefix cache is
on and blocks are published, so admissions, endings and block boundaries are all part of the figure.
"""

import argparse
import json
import random
import time
from dataclasses import dataclass

from octavo.core.kv_manager import CacheConfig, KVCacheManager
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.core.step import StepPlan, StepResult

PARAMS = SamplingParams(max_tokens=None)


@dataclass(frozen=True)
class Load:
    """Prompts of 64 to 512 tokens that share a head of 64, outputs of 50 to 400."""

    rng: random.Random

    def request(self, number: int) -> Request:
        head = list(range(64))
        prompt = head + [self.rng.randrange(50_000) for _ in range(self.rng.randint(1, 448))]
        return Request(str(number), prompt, PARAMS, max_tokens=self.rng.randint(50, 400))


def run_step(scheduler: Scheduler, tokens: list[int]) -> tuple[StepPlan, int]:
    """One step with made-up tokens; returns the plan and how many requests ended."""
    plan = scheduler.schedule()
    assert plan is not None
    result = StepResult(plan.step_id, tuple(tokens[: sum(plan.samples)]))
    return plan, len(scheduler.update(result).finished)


def measure(num_running: int, num_steps: int) -> dict[str, float]:
    load = Load(random.Random(0))
    kv = KVCacheManager(CacheConfig(num_blocks=num_running * 64))
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=2048), kv)
    tokens = [7] * num_running
    for number in range(num_running):
        scheduler.add(load.request(number))
    added = num_running
    while len(scheduler.running) < num_running * 0.95:
        run_step(scheduler, tokens)
        while scheduler.num_waiting < 4:
            scheduler.add(load.request(added))
            added += 1
    seconds, generated = 0.0, 0
    for _ in range(num_steps):
        start = time.perf_counter()
        plan, ended = run_step(scheduler, tokens)
        seconds += time.perf_counter() - start
        generated += sum(plan.samples)
        for _ in range(ended):
            scheduler.add(load.request(added))
            added += 1
    return {
        "running": num_running,
        "steps": num_steps,
        "steps_per_second": num_steps / seconds,
        "microseconds_per_step": 1e6 * seconds / num_steps,
        "tokens_per_second": generated / seconds,
        "mean_rows": generated / num_steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--running", type=int, default=256)
    options = parser.parse_args()
    figures = measure(options.running, options.steps)
    for name, value in figures.items():
        print(f"{name:>24} {value:12,.1f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
