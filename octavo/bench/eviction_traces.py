"""Loads for the prefix cache: recorded ones, and generated conversations."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

from octavo.sim.traces.mooncake import BLOCK_SIZE
from octavo.sim.traces.source import TraceSource

_NAME_BYTES = 8


class CachedRequest(NamedTuple):
    """One request to a prefix cache, by what its blocks hold.

    ``names``: of the blocks that it leaves in the cache, root first; equal names are equal contents after equal
    contents. ``num_tokens``: of its prompt, which those blocks begin with; more of it than this cannot be hit.
    """

    names: Sequence[bytes]
    num_tokens: int


class Trace(NamedTuple):
    """Requests in order of arrival, with blocks of ``block_size`` tokens."""

    requests: Sequence[CachedRequest]
    block_size: int


def read_mooncake(path: Path) -> Trace:
    """A trace in Mooncake's format. Its last block is as a rule partly filled; it counts for the tokens in it.

    Raises:
        ConfigurationError: the file cannot be read, or a line is no such request.
    """
    requests = TraceSource(path, "mooncake").requests()
    return Trace(
        [
            CachedRequest([name.to_bytes(_NAME_BYTES, "little") for name in request.blocks], request.prompt)
            for request in requests
        ],
        BLOCK_SIZE,
    )


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """How conversations are generated.

    Lengths are lognormal about the means of ShareGPT in "Efficient Memory Management for Large Language Model Serving
    with PagedAttention" (Kwon et al., SOSP 2023, section 6.1): 161 tokens a question, 338 an answer. Conversations
    begin as a Poisson process; the number of turns is geometric; pauses between turns are lognormal.
    """

    num_conversations: int = 1500
    conversations_a_second: float = 0.5
    mean_turns: float = 3.5
    mean_pause_s: float = 60.0
    pause_sigma: float = 1.0
    mean_question: float = 161.0
    mean_answer: float = 338.0
    length_sigma: float = 1.0
    system_prompt: int = 0
    """Tokens that every conversation begins with."""
    block_size: int = 16


def generate_conversations(settings: ConversationSettings, seed: int) -> Trace:
    """A load in which every prompt is the whole conversation so far and a question more. The same arguments give the
    same trace on every machine."""
    source = random.Random(seed)
    arrivals: list[tuple[float, int, CachedRequest]] = []
    start = 0.0
    for conversation in range(settings.num_conversations):
        start += source.expovariate(settings.conversations_a_second)
        time = start
        for request in _turns(conversation, settings, source):
            heappush(arrivals, (time, conversation, request))
            time += _lognormal(settings.mean_pause_s, settings.pause_sigma, source)
    requests = [heappop(arrivals)[2] for _ in range(len(arrivals))]
    return Trace(requests, settings.block_size)


def _turns(conversation: int, settings: ConversationSettings, source: random.Random) -> Iterator[CachedRequest]:
    num_tokens = settings.system_prompt
    names: list[bytes] = []
    while True:
        prompt = num_tokens + max(1, round(_lognormal(settings.mean_question, settings.length_sigma, source)))
        num_tokens = prompt + max(1, round(_lognormal(settings.mean_answer, settings.length_sigma, source)))
        for block in range(len(names), num_tokens // settings.block_size):
            is_shared = (block + 1) * settings.block_size <= settings.system_prompt
            owner = 0 if is_shared else conversation + 1
            names.append((owner << 32 | block).to_bytes(_NAME_BYTES, "little"))
        yield CachedRequest(names[:], prompt)
        if source.random() < 1 / settings.mean_turns:
            return


def _lognormal(mean: float, sigma: float, source: random.Random) -> float:
    """A lognormal number with this mean."""
    return source.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
