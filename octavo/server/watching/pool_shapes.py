"""The shapes of what /debug/pool answers."""

from octavo.engine.looks import RequestLook, StepLook
from octavo.server.answer_shapes import Shape


class PoolEvent(Shape):
    """``numbers``: by the names that the event's have (docs/watching.md)."""

    request: str
    x_request_id: str | None
    event: str
    time: float
    step: int
    choice: int
    numbers: dict[str, int]
    reason: str


class PoolBody(Shape):
    """``look``: counts up, to be sent as ``after``; ``interval``: seconds until another may be taken; ``blocks``: a
    byte a block in base64 (octavo/core/block_map.py); ``requests``, ``steps``: arrays (octavo/engine/looks.py)."""

    look: int
    interval: float
    time: float
    model: str
    steps_so_far: int
    running: int
    waiting: int
    token_budget: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    blocks: str
    requests: list[RequestLook]
    steps: list[StepLook]
    events: list[PoolEvent]


class PoolBlockHolder(Shape):
    request: str
    choice: int
    group: int
    block: int


class PoolBlock(Shape):
    """``token_ids``, ``text``: only where the server is set to tell them."""

    id: int
    references: int
    pins: int
    in_prefix_cache: bool
    filled: int
    holders: list[PoolBlockHolder]
    token_ids: list[int] | None = None
    text: str | None = None


class PoolChoice(Shape):
    choice: int
    request: RequestLook
    tables: list[list[int]]


class PoolRequest(Shape):
    id: str
    choices: list[PoolChoice]
