"""Requests of a trace as the scheduler knows them: token ids that say no more than what is shared with whom."""

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.sim.traces.request import TracedRequest

NAMED = 1 << 31
"""Token ids from here on stand for named contents."""

OWN = 1 << 30
"""Those from here on stand for what one request alone has, by its number; below are the ids of rows."""

_PARAMS = SamplingParams()


def prompt_token_ids(traced: TracedRequest, number: int) -> list[int]:
    """Every token of a block has the block's name for its id. So requests share exactly the blocks that have the same
    names, and where two blocks differ, they differ in their first token. What no name is known of has ids of its own,
    by the ``number`` of the request."""
    token_ids: list[int] = []
    for name in traced.blocks:
        token_ids += [NAMED | name % NAMED] * traced.block_size
    token_ids += [OWN | number % OWN] * (traced.prompt - len(token_ids))
    del token_ids[traced.prompt :]
    return token_ids


def make_request(traced: TracedRequest, number: int) -> Request:
    """It may have as many tokens as it got, or as it asked for, if the trace says so."""
    max_tokens = traced.output if traced.max_tokens is None else max(traced.output, traced.max_tokens)
    request = Request(str(number), prompt_token_ids(traced, number), _PARAMS, max_tokens=max_tokens)
    if traced.tenant:
        request.tenant = traced.tenant
    return request
