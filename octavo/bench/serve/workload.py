"""What is sent, and when: arrivals, lengths and prompts, all fixed by a seed."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from octavo.bench.traces import AZURE_TRACES, Lengths, TracedRequest, azure_trace, draw_lengths
from octavo.core.errors import ConfigurationError

Endpoint = Literal["completions", "chat"]

SYNTHETIC = "synthetic"
POISSON = "poisson"
LENGTHS = (SYNTHETIC, *AZURE_TRACES, "sharegpt")
ARRIVALS = (POISSON, *AZURE_TRACES)

WORDS = (
    *("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "with", "as", "his", "they"),
    *("at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when", "we"),
)
"""One token each in the vocabularies of most models, with the space before it."""


class LengthRange(NamedTuple):
    """Both ends count."""

    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        return source.randint(self.least, self.most)


DEFAULT_LENGTH = LengthRange(128, 128)


class Planned(NamedTuple):
    """One request: due ``seconds`` after the start, with a prompt of token ids, or of text for a chat."""

    seconds: float
    prompt: list[int] | str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What all rates of a sweep have in common.

    ``burstiness``: shape of the gamma distribution of the gaps between arrivals: 1 is Poisson, less comes in bursts,
    more is regular. ``vocab_size``: token ids of prompts are below it. ``divisor``: of the lengths of traces.
    """

    num_prompts: int
    lengths: str = SYNTHETIC
    arrivals: str = POISSON
    input_len: LengthRange = DEFAULT_LENGTH
    output_len: LengthRange = DEFAULT_LENGTH
    shared_prefix_len: int = 0
    divisor: int = 1
    burstiness: float = 1.0
    vocab_size: int = 30_000
    seed: int = 0

    def plan(self, rate: float, endpoint: Endpoint, index: int = 0) -> list[Planned]:
        """The requests of rate number ``index`` of a sweep, in order of arrival. Lengths are the same in all of them,
        prompts are not, so that none finds what another has left in the cache.

        Raises:
            ConfigurationError: the trace has fewer requests.
        """
        traced = self._traced()
        lengths, seconds = self._lengths(traced), self._arrivals(traced, rate)
        tokens = random.Random(f"{self.seed} {index}")
        make = self._token_ids if endpoint == "completions" else _text
        prefix = make(self.shared_prefix_len, tokens)
        return [
            Planned(due, prefix + make(request.prompt, tokens), request.output)  # type: ignore[operator]
            for due, request in zip(seconds, lengths, strict=True)
        ]

    def _traced(self) -> list[TracedRequest] | None:
        """As many requests of the trace in a row as are wanted, from one that the seed draws."""
        if self.arrivals == POISSON:
            return None
        trace = azure_trace(self.arrivals)
        self._check(len(trace), self.arrivals)
        first = random.Random(self.seed).randrange(len(trace) - self.num_prompts + 1)
        return trace[first : first + self.num_prompts]

    def _lengths(self, traced: list[TracedRequest] | None) -> Sequence[Lengths]:
        if traced is not None and self.lengths == self.arrivals:
            return [request.lengths.divided(self.divisor) for request in traced]
        if self.lengths == "sharegpt":
            from octavo.bench.sharegpt import draw_sharegpt

            return [lengths.divided(self.divisor) for lengths in draw_sharegpt(self.num_prompts, self.seed)]
        if self.lengths in AZURE_TRACES:
            self._check(len(azure_trace(self.lengths)), self.lengths)
            return draw_lengths(self.num_prompts, self.seed, self.divisor, self.lengths)
        source = random.Random(self.seed)
        return [Lengths(self.input_len.draw(source), self.output_len.draw(source)) for _ in range(self.num_prompts)]

    def _arrivals(self, traced: list[TracedRequest] | None, rate: float) -> list[float]:
        """Seconds after the start, ``rate`` a second on average; the first at once."""
        if math.isinf(rate):
            return [0.0] * self.num_prompts
        if traced is not None:
            start, whole = traced[0].seconds, traced[-1].seconds - traced[0].seconds
            speed = (self.num_prompts - 1) / rate / whole if whole else 0.0
            return [(request.seconds - start) * speed for request in traced]
        source, scale = random.Random(self.seed), 1 / (rate * self.burstiness)
        gaps = (source.gammavariate(self.burstiness, scale) for _ in range(self.num_prompts - 1))
        return list(accumulate(gaps, initial=0.0))

    def _token_ids(self, count: int, source: random.Random) -> list[int]:
        return source.choices(range(self.vocab_size), k=count)

    def _check(self, num_there: int, name: str) -> None:
        if self.num_prompts > num_there:
            raise ConfigurationError(f"the trace {name} has {num_there} requests, fewer than --num-prompts")


def _text(count: int, source: random.Random) -> str:
    return "".join(f" {word}" for word in source.choices(WORDS, k=count))
