"""What is told to somebody who looks at the pool; msgspec carries it between processes."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from octavo.engine.traces import RequestEvent

Place = Literal["running", "waiting", "preempted", "prefix", "family", "held"]
"""Where a choice stands: it runs, stands in line (new, or thrown out of its blocks), waits for a prefix that another
computes, for its own request's prompt, or until fewer long prompts are in work."""


class RequestLook(NamedTuple):
    """One choice. ``num_computed_tokens``: of prompt and answer, with those of steps in flight;
    ``num_cached_tokens``: of the prompt, that were there when it came; ``num_blocks``: in its tables;
    ``max_total_tokens``: where it ends at the latest."""

    request_id: str
    choice: int
    place: Place
    tenant: str
    priority: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_generated_tokens: int
    num_blocks: int
    max_total_tokens: int


class StepLook(NamedTuple):
    """A step that has landed. ``time``: when, in seconds since the epoch; ``seconds``: it took."""

    step_id: int
    time: float
    seconds: float
    num_prompt_tokens: int
    num_decode_tokens: int
    num_rows: int


class EventLook(NamedTuple):
    """A decision about a request."""

    request_id: str
    event: RequestEvent


@dataclass(slots=True)
class Look:
    """The engine between two steps. ``blocks``: see ``block_map``; ``requests``: at most MAX_REQUESTS, those that run
    first; ``steps`` and ``events``: since the last look, the latest; ``seconds``: it took to look."""

    time: float
    num_steps: int
    num_running: int
    num_waiting: int
    token_budget: int
    max_num_seqs: int
    block_size: int
    blocks: bytes
    requests: list[RequestLook]
    steps: list[StepLook]
    events: list[EventLook]
    seconds: float = 0.0


class BlockHolder(NamedTuple):
    """A choice whose table has the block: as its block ``logical_block``, of layer group ``group``."""

    request_id: str
    choice: int
    group: int
    logical_block: int


@dataclass(slots=True)
class BlockLook:
    """``num_filled``: slots that hold a token, as far as that is known; ``holders``: at most MAX_HOLDERS;
    ``token_ids``: those in the block, if they were asked for and are known."""

    block_id: int
    num_references: int
    num_pins: int
    is_named: bool
    num_filled: int
    holders: list[BlockHolder]
    token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ChoiceLook:
    """A choice and its block tables, one a layer group; NO_BLOCK where an entry lies behind the group's window."""

    look: RequestLook
    tables: list[list[int]]


@dataclass(slots=True)
class View:
    """Answer to call ``call_id``, which was for one of these; ``block`` None: there is no such block."""

    call_id: int
    look: Look | None = None
    block: BlockLook | None = None
    choices: list[ChoiceLook] = field(default_factory=list)
