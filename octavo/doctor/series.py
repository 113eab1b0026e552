"""What a server's series say, as typed figures: two readings of /metrics with a gap between them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

Figures = Mapping[str | tuple[str, str], float]
"""Samples by name, and by name and the value of the label besides the model's."""

MIN_ENDED = 20
"""Requests that have to end, or be refused, in the gap for it to say something; else what counts is all that the server
has done since it began."""


class Waits(NamedTuple):
    """Times to the first token, of so many choices."""

    num_choices: float
    mean: float


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened in ``seconds``; since the server began if that is None. Of ``finished``, by reason, all have ended;
    tokens are those of the series' own kinds (docs/metrics.md)."""

    seconds: float | None
    finished: Mapping[str, float]
    rejected: Mapping[str, float]
    timed_out: Mapping[str, float]
    pins_refused: Mapping[str, float]
    query_tokens: float
    hit_tokens: float
    evicted_blocks: float
    prompt_tokens: float
    generation_tokens: float
    preemptions: float
    lost_tokens: float
    drafted_tokens: float
    accepted_tokens: float
    drafts: float
    steps: float
    restarts: float
    waits: Mapping[str, Waits]

    @property
    def num_ended(self) -> float:
        return sum(self.finished.values())

    @property
    def num_rejected(self) -> float:
        return sum(self.rejected.values())

    @property
    def num_told(self) -> float:
        """Requests of which it is known what became of them."""
        return self.num_ended + self.num_rejected

    @property
    def computed_tokens(self) -> float:
        return self.prompt_tokens - self.hit_tokens + self.generation_tokens

    @property
    def over(self) -> str:
        return "since the server began" if self.seconds is None else f"in the last {self.seconds:.3g} seconds"

    @classmethod
    def between(cls, before: Figures | None, now: Figures, seconds: float | None) -> Self:
        """``before`` None: since the server began. A counter that has begun anew counts from 0."""

        def grown(name: str | tuple[str, str]) -> float:
            first = before.get(name, 0.0) if before is not None else 0.0
            last = now.get(name, 0.0)
            return last - first if last >= first else last

        def by_label(name: str) -> dict[str, float]:
            return {key[1]: grown(key) for key in now if isinstance(key, tuple) and key[0] == name}

        ttft = "octavo:time_to_first_token_seconds"
        times = {label: (count, grown((f"{ttft}_sum", label))) for label, count in by_label(f"{ttft}_count").items()}
        return cls(
            seconds=seconds,
            finished=by_label("vllm:request_success_total"),
            rejected=by_label("octavo:requests_rejected_total"),
            timed_out=by_label("octavo:requests_timed_out_total"),
            pins_refused=by_label("octavo:pins_refused_total"),
            query_tokens=grown("vllm:prefix_cache_queries_total"),
            hit_tokens=grown("vllm:prefix_cache_hits_total"),
            evicted_blocks=grown("octavo:evicted_blocks_total"),
            prompt_tokens=grown("vllm:prompt_tokens_total"),
            generation_tokens=grown("vllm:generation_tokens_total"),
            preemptions=grown("vllm:num_preemptions_total"),
            lost_tokens=grown("octavo:preempted_tokens_total"),
            drafted_tokens=grown("vllm:spec_decode_num_draft_tokens_total"),
            accepted_tokens=grown("vllm:spec_decode_num_accepted_tokens_total"),
            drafts=grown("vllm:spec_decode_num_drafts_total"),
            steps=grown("octavo:steps_total"),
            restarts=grown("octavo:engine_restarts_total"),
            waits={label: Waits(count, total / count) for label, (count, total) in times.items() if count},
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """Quantiles of recent lengths, tokens."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, figures: Figures, name: str) -> Self | None:
        """None where nothing has ended of late."""
        found = [figures.get((name, quantile)) for quantile in ("0.5", "0.9", "0.99")]
        known = [each for each in found if each is not None]
        return cls(*known) if len(known) == len(found) else None


def _known(figures: Figures) -> Figures:
    """A sample that is no number says nothing."""
    return {key: value for key, value in figures.items() if not math.isnan(value)}


@dataclass(frozen=True, slots=True)
class ServerSummary:
    """A server as it is now, and what it has done. Blocks, unless a name says tokens or seconds. ``active``: in use;
    ``idle_pinned``: kept by pins alone. ``filled_share``: of slots in use; None while nothing runs. ``max_num_seqs``:
    None where nobody tells."""

    model: str
    counts: Counts
    gap_steps: float
    gap_seconds: float
    num_blocks: float
    block_tokens: float
    active: float
    cached: float
    idle_pinned: float
    pinned: float
    pin_quota: float
    allocatable: float
    admissible_tokens: float
    saved: float
    filled_share: float | None
    running: float
    waiting: float
    head_seconds: float
    prompts: Lengths | None
    outputs: Lengths | None
    max_num_seqs: int | None = None

    @classmethod
    def of(cls, model: str, before: Figures, now: Figures, seconds: float, *, max_num_seqs: int | None = None) -> Self:
        """``seconds``: between the two."""
        before, now = _known(before), _known(now)

        def value(name: str, label: str | None = None) -> float:
            return now.get(name if label is None else (name, label), 0.0)

        gap = Counts.between(before, now, seconds)
        is_telling = gap.num_told >= MIN_ENDED
        return cls(
            model=model,
            counts=gap if is_telling else Counts.between(None, now, None),
            gap_steps=gap.steps,
            gap_seconds=seconds,
            num_blocks=value("octavo:kv_blocks_total"),
            block_tokens=value("octavo:kv_block_tokens"),
            active=value("octavo:kv_blocks", "active"),
            cached=value("octavo:kv_blocks", "cached"),
            idle_pinned=value("octavo:kv_blocks", "pinned"),
            pinned=value("octavo:pinned_blocks"),
            pin_quota=value("octavo:pin_quota_blocks"),
            allocatable=value("octavo:kv_blocks_allocatable"),
            admissible_tokens=value("octavo:admissible_prompt_tokens"),
            saved=value("octavo:sharing_saved_blocks"),
            filled_share=now.get("octavo:filled_slot_ratio"),
            running=value("vllm:num_requests_running"),
            waiting=value("vllm:num_requests_waiting"),
            head_seconds=value("octavo:queue_head_age_seconds"),
            prompts=Lengths.of(now, "octavo:prompt_length_tokens"),
            outputs=Lengths.of(now, "octavo:output_length_tokens"),
            max_num_seqs=max_num_seqs,
        )
