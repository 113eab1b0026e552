"""What goes into a scheduler and comes out of it, besides plans and results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple, get_args

from octavo.core.beam_search import Hypothesis
from octavo.core.errors import ConfigurationError
from octavo.core.request import Request
from octavo.core.step import RowFault

StopCheck = Callable[[Sequence[Request], Sequence[int]], Mapping[Request, str]]
"""Called with requests and the token that landed of each, those that its stop ids do not end, each token once; returns
the stop strings that were completed."""


PreemptionMode = Literal["recompute", "swap", "auto"]
"""What becomes of a preempted request's computed tokens that are not in the prefix cache: they are computed again, or
their blocks go to the host pool and come back, or whichever takes less time. Where the host pool has no room, they are
computed again."""

PREEMPTION_MODES: tuple[PreemptionMode, ...] = get_args(PreemptionMode)


@dataclass(slots=True)
class PreemptionCosts:
    """What mode "auto" weighs, as measured by whoever runs the steps: seconds to compute a token of a prompt (None: not
    measured yet), and to copy a block between the pools."""

    seconds_per_token: float | None = None
    seconds_per_block: float = 0.0


class Preemption(NamedTuple):
    """For the log: who was preempted, how many blocks came free, how many computed tokens were swapped out and how many
    are in no block any more, and for whose sake, in words."""

    request_id: str
    num_freed_blocks: int
    num_swapped_tokens: int
    num_lost_tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class SkipBounds:
    """``max_skips`` later requests may pass one that does not fit (0: none), and none once ``max_steps`` steps or
    ``max_seconds`` have gone since the first did. From then on its turn is overdue: those that passed it give way as
    soon as it fits without them.

    Raises:
        ConfigurationError: a bound below 0.
    """

    max_skips: int = 32
    max_steps: int = 256
    max_seconds: float = 30.0

    def __post_init__(self) -> None:
        bounds = {"skips": self.max_skips, "skip_steps": self.max_steps, "skip_seconds": self.max_seconds}
        for name, bound in bounds.items():
            if not bound >= 0:
                raise ConfigurationError(f"max_head_{name} must be 0 or more, got {bound}")


PolicyName = Literal["fcfs", "priority", "fair"]
"""Who of those that wait goes next: see ``ordering``."""

POLICY_NAMES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """``aging_seconds``: under "priority", after how long a request counts as one level better. Under "fair" a tenant's
    service is counted in tokens, those of prompts and of answers at the ``fair_*_weight``s; and one that is ahead by up
    to ``fair_slack`` of it may have requests that pass others which do not fit.

    Raises:
        ConfigurationError: a time or a weight that is none.
    """

    name: PolicyName = "fcfs"
    aging_seconds: float = 30.0
    fair_input_weight: float = 1.0
    fair_output_weight: float = 2.0
    fair_slack: float = 4096.0

    def __post_init__(self) -> None:
        if not 0 <= self.aging_seconds <= MAX_AGING_SECONDS:
            raise ConfigurationError(
                f"priority_aging_seconds must be 0 to {MAX_AGING_SECONDS}, got {self.aging_seconds:g}"
            )
        for name in ("fair_input_weight", "fair_output_weight"):
            if not 0 < getattr(self, name) <= MAX_FAIR_WEIGHT:
                raise ConfigurationError(
                    f"{name} must be above 0 and at most {MAX_FAIR_WEIGHT}, got {getattr(self, name):g}"
                )


MAX_AGING_SECONDS = 10**9
"""Some thirty years: for those who want none."""

MAX_FAIR_WEIGHT = 10**6

ADMISSION_QUANTILE = 0.997
"""At most one request in a hundred is preempted (``octavo bench admission``), and memory is as good as full
(``octavo bench memory``)."""


LONG_STEPS = 4
"""Whole steps that a prompt takes, from which on it is long where nothing else is said."""


@dataclass(frozen=True, slots=True)
class PromptBounds:
    """``max_long``: how many long prompts may be in work at once; long is one that has more than ``long_threshold``
    tokens to compute (None: four times the token budget). ``target_seconds``: between two tokens of a sequence, which
    steps with prompts are to keep (None: see ``Pace``).

    Raises:
        ConfigurationError: none in work, or no time between tokens.
    """

    max_long: int = 1
    long_threshold: int | None = None
    target_seconds: float | None = None

    def __post_init__(self) -> None:
        counts = {"max_long_partial_prefills": self.max_long, "long_prefill_token_threshold": self.long_threshold}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {count}")
        if self.target_seconds is not None and not 0 < self.target_seconds < inf:
            raise ConfigurationError(f"target_itl_ms must be above 0, got {1e3 * self.target_seconds:g}")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Budgets. ``max_num_batched_tokens``: tokens computed in one step; at least ``max_num_seqs``, so that every
    running sequence can have its token. ``max_model_len``: prompt plus output of one sequence. ``admission_quantile``:
    how likely the blocks have to suffice that admitted requests will come to need; 0: nobody looks ahead.

    Raises:
        ConfigurationError: numbers that cannot work together.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    max_steps_in_flight: int = 1
    max_prefix_wait_steps: int = 64
    head_skips: SkipBounds = SkipBounds()
    prompts: PromptBounds = PromptBounds()
    preemption_mode: PreemptionMode = "auto"
    policy: PolicySettings = PolicySettings()
    admission_quantile: float = ADMISSION_QUANTILE

    def __post_init__(self) -> None:
        if not 0 <= self.admission_quantile < 1:
            raise ConfigurationError(f"admission_quantile must be 0 or more and below 1, got {self.admission_quantile}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigurationError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running sequence gets its token in each step"
            )

    @property
    def long_threshold(self) -> int:
        """Prompts with more tokens to compute are long."""
        return self.prompts.long_threshold or LONG_STEPS * self.max_num_batched_tokens


@dataclass(slots=True)
class SchedulerCounters:
    """Counts since start. ``num_swaps``: preemptions that swapped. ``num_forked_tokens``: those that further choices
    began with, in the blocks of the first. ``prefix_queries`` and ``prefix_hits`` are prompt
    tokens, each request counted once. ``num_drafts``: times that tokens were drafted for a request; of these tokens
    those count as accepted that are part of an answer now."""

    num_steps: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_preempted_tokens: int = 0
    num_forked_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What landed: the plan's requests, row by row; parallel lists of those that drew a token and their tokens; the
    ``further`` tokens of those with drafts that were right; those that ended with them; those for which no token could
    be drawn, which have failed, and why; and the members of beam searches that are over, each with one of its results.
    Requests that had ended while the step was in flight are in ``landed`` alone. The first ``num_members`` of those
    landed were members of the decode batch: each had drawn a token in the step that landed before."""

    landed: list[Request]
    num_members: int = 0
    sampled: list[Request] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    further: dict[Request, list[int]] = field(default_factory=dict)
    finished: list[Request] = field(default_factory=list)
    failed: dict[Request, RowFault] = field(default_factory=dict)
    hypotheses: dict[Request, Hypothesis] = field(default_factory=dict)
