"""A trace of requests, examined as it is read."""

from collections.abc import Iterable, Iterator, Sequence

from octavo.core.errors import ConfigurationError
from octavo.doctor.finding import Report, sorted_findings
from octavo.doctor.lengths import LengthSummary, block_size, long_tail
from octavo.doctor.sharing import MOST, Sharing, nothing_shared, thrashing
from octavo.doctor.words import number, share
from octavo.sim.traces.request import TracedRequest

DEFAULT_BLOCK_SIZE = 16


class TraceExamination:
    """``size``: tokens in a block of the server; None: as the log of an Octavo server says, else as by default."""

    def __init__(self, size: int | None = None, num_blocks: int | None = None) -> None:
        self._size = size
        self._num_blocks = num_blocks
        self._lengths: LengthSummary | None = None
        self.sharing = Sharing()
        self._seconds = 0.0

    def read(self, requests: Iterable[TracedRequest], *, is_octavo: bool) -> None:
        """``is_octavo``: it is the log of a server, whose blocks have the server's size."""
        for request in requests:
            if self._lengths is None:
                own = request.block_size if is_octavo and request.block_size else DEFAULT_BLOCK_SIZE
                self._lengths = LengthSummary(self._size or own)
            self._lengths.add(request.prompt, request.output)
            self._seconds = request.seconds
            if request.blocks:
                self.sharing.add(request)

    def report(self, source: str, notes: Sequence[str] = ()) -> Report:
        """``notes``: of whoever read it, such as lines that were left out.

        Raises:
            ConfigurationError: there are no requests.
        """
        lengths, sharing = self._lengths, self.sharing
        if lengths is None:
            raise ConfigurationError(" ".join((f"there are no requests in {source}.", *notes)))
        capacity = None if self._num_blocks is None else self._num_blocks * lengths.block_size
        p50, p99 = (lengths.outputs.percentile(percent) or 0.0 for percent in (50, 99))
        findings = [block_size(lengths), long_tail(p50, p99)]
        if sharing.num_requests:
            findings += [thrashing(sharing, capacity, lengths.block_size), nothing_shared(sharing)]
        looked_at = (*self._looked_at(lengths), *_sharing_lines(sharing, capacity), *notes)
        return Report(source, sorted_findings(*findings), looked_at, tuple(_unseen(sharing, capacity)))

    def _looked_at(self, lengths: LengthSummary) -> Iterator[str]:
        yield (
            f"{number(lengths.count)} requests in {number(round(self._seconds))} seconds: "
            f"{number(lengths.prompt_tokens)} prompt tokens, {number(lengths.output_tokens)} of answers."
        )
        chosen = lengths.chosen()
        yield (
            f"Blocks of {chosen.block_size} tokens leave {number(lengths.empty_tokens(chosen.block_size))} slots of a "
            f"sequence empty on average ({share(chosen.tail_waste)})."
        )


def _sharing_lines(sharing: Sharing, capacity: int | None) -> Iterator[str]:
    if not sharing.num_requests:
        return
    held = (
        ""
        if capacity is None
        else (f", and one of {number(capacity)} tokens {share(sharing.hit_share(capacity // sharing.block_size))}")
    )
    most = sharing.reuse.blocks_for(MOST) * sharing.block_size
    yield (
        f"Names of blocks of {sharing.block_size} tokens: an unlimited prefix cache has "
        f"{share(sharing.reusable_share)} of the prompt tokens{held}; nine tenths of that take {number(most)} tokens."
    )
    if sharing.reuse.one_in > 1:
        yield f"Of the blocks one in {number(sharing.reuse.one_in)} was followed; shares are close, not exact."


def _unseen(sharing: Sharing, capacity: int | None) -> Iterator[str]:
    if not sharing.num_requests:
        yield "This trace has lengths alone: what prompts share, and what a cache would have, is not known."
    else:
        yield "Names have no texts: why prompts differ where they do is seen in a trace of prompts."
        if capacity is None:
            yield "How much the server's cache holds is not known: give --num-blocks (and --block-size)."
    yield "What the server did (pins, queue, preemptions, refusals) is seen at the server: octavo doctor URL."
