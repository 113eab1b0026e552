"""A request's one sequence: its tokens, how many of them are computed, and where it stands."""

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from octavo.core.hashing import HashChain
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import Pooling
from octavo.core.table import BlockTables, SwappedTables

if TYPE_CHECKING:
    from octavo.core.beam_group import BeamGroup
    from octavo.core.drafting import Drafter
    from octavo.core.pins import PinClaim
    from octavo.core.retention import Retention


class Status(Enum):
    """Where a request stands; ``TRANSITIONS`` says what may follow what."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    STOPPED = "stop"
    LENGTH = "length"
    ABORTED = "abort"
    FAILED = "error"

    __hash__ = object.__hash__  # there is one of each; Enum's own hashes the name, in Python


ENDINGS = frozenset({Status.STOPPED, Status.LENGTH, Status.ABORTED, Status.FAILED})

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, *ENDINGS}),
    Status.RUNNING: frozenset({Status.PREEMPTED, *ENDINGS}),
    Status.PREEMPTED: frozenset({Status.RUNNING, *ENDINGS}),
    **dict.fromkeys(ENDINGS, frozenset()),
}

NEVER = 1 << 62
"""A token count that is never reached."""

UNRANKED = 1 << 200
"""A rank after all others."""


class StepCounters(Protocol):
    """Steps that a batch of requests has taken together (``DecodeBatch``)."""

    num_planned: int
    num_landed: int


class Request:
    """One sequence to generate. Token ids are append-only and hold landed tokens only.

    ``num_computed_tokens`` advances when a step is planned, ``num_landed_tokens`` when it lands; between the two lie
    the steps in flight. ``num_pending_samples`` counts tokens drawn by steps in flight, not yet known; where a step
    computes drafts, those that it draws at most. While a request is in a ``batch``, its counts follow that batch's
    counters, one token a step; ``joined`` is the step after which it came in. ``order`` counts arrivals. ``rank`` says
    who gives way to whom, the smaller to nobody larger; the policy draws it once (``ordering``), and no two have the
    same. ``priority``, ``tenant``: what the policy goes by; ``num_settled_tokens`` of the answer are in the tenant's
    account. ``group``: the beam search it is part of.

    ``is_complete``: it ended since its text is all that its constraint allows.

    ``drafter``: proposes tokens of a request that speculates, or has; ``num_undrafted``: steps since it last had one.

    ``is_long``: it had many tokens to compute when it was admitted (see ``PromptBounds``).

    ``num_skips``: how many later requests have passed it in line; ``first_skip``: the step and the time at which the
    first of them did (see ``Skipping``). ``is_hastened``: others gave way to it.

    ``pin_claim``: what of its prompt is to be pinned; ``retention``: how long the cache keeps what it leaves there.

    ``chain`` names its full blocks. The next one is published when ``next_publish`` tokens have landed; and when those
    have that it had when it was admitted, ``prompt_end``, so is the block that is not full, as ``tail_hash``.
    """

    __slots__ = (
        "_computed",
        "_in_flight",
        "_landed",
        "_pending",
        "batch",
        "chain",
        "choice_index",
        "drafter",
        "first_skip",
        "group",
        "is_complete",
        "is_finished",
        "is_hastened",
        "is_long",
        "joined",
        "max_total_tokens",
        "next_publish",
        "num_cached_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_settled_tokens",
        "num_skips",
        "num_undrafted",
        "order",
        "params",
        "pin_claim",
        "pooling",
        "prefix_deadline",
        "priority",
        "prompt_end",
        "rank",
        "request_id",
        "retention",
        "row_id",
        "seed",
        "status",
        "stop_reason",
        "stop_token_ids",
        "swapped",
        "tables",
        "tail_hash",
        "tenant",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        max_tokens: int,
        seed: int = 0,
        choice_index: int = 0,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.params = params
        self.max_total_tokens = self.num_prompt_tokens + max_tokens
        self.seed = seed
        self.choice_index = choice_index
        eos = frozenset[int]() if params.ignore_eos else eos_token_ids
        self.stop_token_ids = eos.union(params.stop_token_ids) if params.stop_token_ids else eos
        self.status = Status.WAITING
        self.is_complete = False
        self.is_finished = False
        self.is_hastened = False
        self.is_long = False
        self.stop_reason: int | str | None = None
        self.order = 0
        self.rank = UNRANKED
        self.priority = 0
        self.tenant = "default"
        self.num_settled_tokens = 0
        self.row_id = -1
        self.batch: StepCounters | None = None
        self.joined = 0
        self._computed = 0
        self._landed = 0
        self._pending = 0
        self._in_flight = 0
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.tables: BlockTables | None = None
        self.swapped: SwappedTables | None = None
        self.chain = HashChain(b"")
        self.group: BeamGroup | None = None
        self.next_publish = NEVER
        self.prompt_end = NEVER
        self.tail_hash: bytes | None = None
        self.prefix_deadline: int | None = None
        self.num_skips = 0
        self.first_skip: tuple[int, float] | None = None
        self.pin_claim: PinClaim | None = None
        self.retention: Retention | None = None
        self.pooling: Pooling | None = None
        """The request is for a vector of its prompt."""
        self.drafter: Drafter | None = None
        self.num_undrafted = 0

    @property
    def num_tokens(self) -> int:
        """Landed tokens, prompt and output."""
        return len(self.token_ids)

    @property
    def num_computed_tokens(self) -> int:
        batch = self.batch
        return self._computed if batch is None else self._computed + batch.num_planned - self.joined

    @property
    def num_landed_tokens(self) -> int:
        batch = self.batch
        if batch is None or batch.num_landed <= self.joined:
            return self._landed
        return self._landed + batch.num_landed - self.joined

    @property
    def num_pending_samples(self) -> int:
        planned, landed = self._batch_steps()
        return self._pending + planned - landed

    @property
    def num_in_flight(self) -> int:
        """Steps in flight that compute tokens of this request."""
        planned, landed = self._batch_steps()
        return self._in_flight + planned - landed

    @property
    def num_planned_tokens(self) -> int:
        """Landed tokens and those that steps in flight draw."""
        return len(self.token_ids) + self.num_pending_samples

    @property
    def may_be_planned(self) -> bool:
        """May a step compute more of it? Not past its last token; nor, of a beam, before what is in flight has landed
        (design, Decided 1), nor before a draw has that drafts are to follow or were to."""
        if self.group is not None and self.num_in_flight:
            return False
        if self.drafter is not None and self.num_pending_samples:
            return False
        return self.num_planned_tokens < self.max_total_tokens

    @property
    def may_read_cache(self) -> bool:
        """Prompt logprobs come from computing the prompt (B27), and so does the mean of its hidden states."""
        return self.params.prompt_logprobs is None and self.pooling != "mean"

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def move_to(self, status: Status) -> None:
        """Change status along the table.

        Raises:
            ValueError: the table has no such transition.
        """
        if status not in TRANSITIONS[self.status]:
            raise ValueError(f"request {self.request_id} cannot go from {self.status.value} to {status.value}")
        self.status = status
        self.is_finished = status in ENDINGS

    def start_from(self, num_tokens: int) -> None:
        """The first ``num_tokens`` tokens are in the cache, the others are to be computed; nothing is in flight."""
        self._computed = self._landed = num_tokens
        self._pending = self._in_flight = 0

    def plan(self, count: int, samples: bool) -> None:
        """A step was planned that computes the next ``count`` tokens and, perhaps, draws one."""
        self._computed += count
        self._pending += samples
        self._in_flight += 1

    def plan_drafts(self, count: int) -> None:
        """The step that was planned last, the only one in flight, computes ``count`` drafts as well and draws a token
        after each."""
        self._computed += count
        self._pending += count

    def land_before_drafts(self) -> None:
        """A step with drafts has landed: what it computed before them counts, and each of them only once it is known
        to be right (``accept_draft``)."""
        self.start_from(self._landed + 1)

    def accept_draft(self) -> None:
        """The last token was a draft: it has been computed."""
        self.start_from(self._landed + 1)

    def land(self, count: int, samples: bool) -> None:
        """The oldest step in flight that was planned by ``plan`` (or by a batch that the request left) landed."""
        self._landed += count
        self._pending -= samples
        self._in_flight -= 1

    def roll_back(self) -> None:
        """Forget what steps in flight were to compute. Not for members of a batch."""
        self.start_from(self._landed)

    def join(self, batch: StepCounters) -> None:
        self.batch = batch
        self.joined = batch.num_planned

    def leave_batch(self) -> None:
        planned, landed = self._batch_steps()
        self.batch = None
        self._computed += planned
        self._landed += landed
        self._pending += planned - landed
        self._in_flight += planned - landed

    def _batch_steps(self) -> tuple[int, int]:
        """Steps planned and landed as a member of the batch."""
        if self.batch is None:
            return 0, 0
        return self.batch.num_planned - self.joined, max(0, self.batch.num_landed - self.joined)

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, tokens={self.num_tokens}, "
            f"computed={self.num_computed_tokens}, landed={self.num_landed_tokens})"
        )
