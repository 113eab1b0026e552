"""An engine stepped by hand on a real model: requests come in at chosen steps, answers are kept delta by delta."""

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from octavo.build import build_engine, build_tokenizer
from octavo.core.invariants import check_scheduler
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import TokenLogprobs
from octavo.core.step_costs import StepCosts
from octavo.engine.messages import EngineRequest, EngineStats, OutputDelta
from octavo.engine_args import EngineArgs


@dataclass
class Answer:
    """One choice of one request, as it came."""

    deltas: list[OutputDelta] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return [entry for delta in self.deltas for entry in delta.logprobs or ()]

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None]:
        """As reported; raises if they come twice or not at all."""
        (reported,) = [delta.prompt_logprobs for delta in self.deltas if delta.prompt_logprobs is not None]
        return reported

    @property
    def finish_reason(self) -> str | None:
        """Of the last delta; raises if another one carries one too."""
        assert not any(delta.finish_reason for delta in self.deltas[:-1]), "two endings of one choice"
        return self.deltas[-1].finish_reason if self.deltas else None

    @property
    def num_cached_tokens(self) -> int:
        return self.deltas[-1].num_cached_tokens

    @property
    def bits(self) -> tuple[list[int], list[TokenLogprobs], str | None]:
        """What must be equal, bit for bit, however the request was run (floats compare exactly)."""
        return self.token_ids, self.logprobs, self.finish_reason


@dataclass(frozen=True)
class Job:
    """A request that comes in before step ``at_step`` of a run."""

    prompt: Sequence[int]
    params: SamplingParams
    at_step: int = 0


class _UnmeasuredCosts(StepCosts):
    """Which drafts pay does not depend on how busy the machine is."""

    def note(self, num_rows: int, seconds: float) -> None:
        """Nothing is learned."""


class Driver:
    """An engine with its answers by request id and choice. Settings are those of ``EngineArgs``; nothing is drafted
    where a test does not ask for it, and then by what rows typically cost; no prompt is slowed down for others, since
    how much is depends on the clock; admission does not look ahead, since of small pools the point is who is preempted;
    and models whose weights are fp32 have keys and values in fp32, as transformers has.

    ``checks``: all invariants of the core after every step; slow in a large pool.
    """

    def __init__(self, model: Path, checks: bool = True, **settings: Any) -> None:
        kv_dtype = "fp32" if model.is_dir() else "auto"
        usual = {"kv_cache_dtype": kv_dtype, "speculation": "off", "target_itl_ms": 1e9, "admission_quantile": 0.0}
        args = EngineArgs(**{"model": str(model)} | usual | settings)
        self.tokenizer = build_tokenizer(args)
        self.engine = build_engine(args, self.tokenizer)
        self.engine._scheduler.speculation.costs = _UnmeasuredCosts()
        self.answers: dict[str, list[Answer]] = {}
        self._checks = checks
        self._ids = itertools.count()

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats()

    def add(self, prompt: Sequence[int], params: SamplingParams, **fields: Any) -> str:
        """Send one request; its id. ``fields``: those of EngineRequest."""
        request_id = f"r{next(self._ids)}"
        self.answers[request_id] = [Answer() for _ in range(params.n)]
        self.engine.add_request(EngineRequest(request_id, list(prompt), params, arrival_time=time.time(), **fields))
        return request_id

    def step(self) -> list[OutputDelta]:
        deltas = self.engine.step().deltas
        for delta in deltas:
            self.answers[delta.request_id][delta.index].deltas.append(delta)
        if self._checks:
            scheduler, live = self.engine._scheduler, self.engine._requests.sequences
            check_scheduler(scheduler, [sequence for sequences in live.values() for sequence in sequences])
        return deltas

    def finish(self) -> None:
        """Step until nothing is left, within a bound (no hang), and check that every block came back."""
        for _ in range(20_000):
            if not self.engine.has_work() and not self.engine._requests.grammars.is_waiting:
                break
            self.step()
        self.check_quiet()

    def run(self, jobs: Iterable[Job]) -> list[list[Answer]]:
        """All jobs to their end; the choices of each, in order of the jobs."""
        coming = sorted(enumerate(jobs), key=lambda each: each[1].at_step)
        ids: dict[int, str] = {}
        for step in itertools.count():
            while coming and coming[0][1].at_step <= step:
                place, job = coming.pop(0)
                ids[place] = self.add(job.prompt, job.params)
            if not coming:
                break
            self.step()
        self.finish()
        return [self.answers[ids[place]] for place in range(len(ids))]

    def ask(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        """One request of one choice, alone with whatever runs already, to the end of all."""
        request_id = self.add(prompt, params)
        self.finish()
        return self.answers[request_id][0]

    def check_quiet(self) -> None:
        """QUIET: nothing runs or waits, every block is free or cached."""
        stats = self.stats
        assert (stats.num_running, stats.num_waiting, stats.num_active_blocks) == (0, 0, 0)
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


def run_apart(driver: Driver, jobs: Sequence[Job]) -> list[list[Answer]]:
    """One job at a time."""
    return [driver.run([replace(job, at_step=0)])[0] for job in jobs]


def at_steps(jobs: Sequence[Job], steps: Sequence[int]) -> list[Job]:
    """The same jobs, coming in before these steps."""
    return [replace(job, at_step=step) for job, step in zip(jobs, steps, strict=True)]


def all_bits(answers: Iterable[Iterable[Answer]]) -> list[list[tuple[Any, ...]]]:
    return [[choice.bits for choice in choices] for choices in answers]


def greedy_params(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True} | more))
