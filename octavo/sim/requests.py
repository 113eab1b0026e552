"""Requests of a trace as the scheduler knows them: token ids that say no more than what is shared with whom."""

from collections.abc import Iterator, Sequence
from itertools import chain, compress, islice, repeat

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import StepPlan, StepResult
from octavo.sim.runner import draw_row_ids
from octavo.sim.traces.request import TracedRequest

NAMED = 1 << 31
"""Token ids from here on stand for named contents."""

OWN = 1 << 30
"""Those from here on stand for what one request alone has, by its number; below are the ids of rows."""

_PARAMS = SamplingParams()


def make_request(traced: TracedRequest, number: int) -> Request:
    """It may have as many tokens as it got, or as it asked for, if the trace says so."""
    max_tokens = traced.output if traced.max_tokens is None else max(traced.output, traced.max_tokens)
    request = Request(str(number), prompt_token_ids(traced, number), _PARAMS, max_tokens=max_tokens)
    if traced.tenant:
        request.tenant = traced.tenant
    return request


def prompt_token_ids(traced: TracedRequest, number: int) -> list[int]:
    """Every token of a block has the block's name for its id. So requests share exactly the blocks that have the same
    names, and where two blocks differ, they differ in their first token. What no name is known of has ids of its own,
    by the ``number`` of the request."""
    token_ids: list[int] = []
    for name in traced.blocks[: -(-traced.prompt // max(1, traced.block_size))]:
        token_ids += [NAMED | name % NAMED] * traced.block_size
    token_ids += [OWN | number % OWN] * (traced.prompt - len(token_ids))
    del token_ids[traced.prompt :]
    return token_ids


def answer_token_ids(traced: TracedRequest, number: int) -> Iterator[int] | None:
    """The same of the tokens after its prompt, without end; None where no name is known of them."""
    first, offset = divmod(traced.prompt, max(1, traced.block_size))
    if traced.prompt >= len(traced.blocks) * traced.block_size:
        return None
    named = chain.from_iterable(repeat(NAMED | name % NAMED, traced.block_size) for name in traced.blocks[first:])
    return islice(chain(named, repeat(OWN | number % OWN)), offset, None)


class Answers:
    """What rows draw: the tokens of answers of which a trace knows what they were, and for others ``draw_row_ids``."""

    def __init__(self) -> None:
        self._known: dict[Request, Iterator[int]] = {}

    def expect(self, request: Request, traced: TracedRequest, number: int) -> None:
        """What it is going to draw; it may have some of it already."""
        token_ids = answer_token_ids(traced, number)
        if token_ids is not None:
            self._known[request] = islice(token_ids, request.num_output_tokens, None)

    def drop(self, request: Request) -> None:
        """It has ended."""
        self._known.pop(request, None)

    def draw(self, plan: StepPlan, requests: Sequence[Request]) -> StepResult:
        """``requests``: those of the plan, row by row."""
        if not self._known:
            return draw_row_ids(plan)
        drawing = compress(zip(plan.row_ids, requests, strict=True), plan.samples)
        known = self._known
        return StepResult(
            plan.step_id, tuple([next(known[each]) if each in known else row_id for row_id, each in drawing])
        )
