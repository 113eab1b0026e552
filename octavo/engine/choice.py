"""One choice of a request on its way to the client: its text, logprobs and times since the last delta."""

from collections.abc import Sequence

from octavo.core.beam_search import Hypothesis
from octavo.core.request import Request, Status
from octavo.core.step import TokenLogprobs
from octavo.engine.detokenizer import TokenPieces
from octavo.engine.messages import OutputDelta, RequestTimes
from octavo.engine.pooled import PooledPrompt
from octavo.engine.stops import TextStream


def sequence_id(request_id: str, choice_index: int) -> str:
    """By which the core knows a choice."""
    return f"{request_id}/{choice_index}"


def split_sequence_id(name: str) -> tuple[str, int]:
    """The request and the choice of a ``sequence_id``."""
    request_id, _, index = name.rpartition("/")
    return request_id, int(index)


class Choice:
    """Collects what the steps bring for one sequence; ``take_delta`` hands it out. ``num_resumed``, ``num_skips``: of
    its preemptions, those that it has come back from, and of its skips, those that are written down (``Decisions``)."""

    def __init__(self, request_id: str, sequence: Request, pieces: TokenPieces, arrival: float) -> None:
        self.request_id = request_id
        self.sequence = sequence
        self.arrival = arrival
        self.waiting_since = arrival
        """The last time that it got in line."""
        self.scheduled: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.finish_reason: str | None = None
        self.num_resumed = 0
        self.num_skips = 0
        self._stream = TextStream(pieces, sequence.params)
        self._special_token_ids = pieces.special_token_ids
        self._min_tokens = sequence.params.min_tokens
        self._has_logprobs = sequence.params.logprobs is not None or sequence.params.prompt_logprobs is not None
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._cumulative_logprob: float | None = None
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        if sequence.params.prompt_logprobs is not None:
            self._prompt_logprobs = [None] * sequence.num_prompt_tokens

        self._pooled = PooledPrompt(sequence) if sequence.pooling is not None else None

    def check_stop(self, token_id: int) -> str | None:
        """A token was drawn and its id ends nothing: the stop string that it completes, if it does (spec D6, D8)."""
        suppressed = self._min_tokens > 0 and self.sequence.num_output_tokens <= self._min_tokens
        match = self._stream.append(token_id, suppressed)
        return match.stop if match else None

    def add_token(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def take_hypothesis(self, hypothesis: Hypothesis) -> None:
        """The sequence is the outcome of a beam search: its tokens come all at once."""
        self._cumulative_logprob = hypothesis.cumulative_logprob
        self._token_ids = list(hypothesis.token_ids)
        for token_id in hypothesis.token_ids[: -1 if hypothesis.is_stopped else None]:
            self._stream.append(token_id, suppressed=False)

    def add_prompt_logprobs(self, start: int, entries: tuple[TokenLogprobs, ...]) -> None:
        """Entries for the prompt tokens from position ``start`` on; those known already stay as they are."""
        if self._prompt_logprobs is None:
            return
        for position, entry in enumerate(entries, start):
            if position < len(self._prompt_logprobs) and self._prompt_logprobs[position] is None:
                self._prompt_logprobs[position] = entry

    def add_pooled(self, start: int, count: int, units: Sequence[int]) -> None:
        """Of a step that computed ``count`` positions from ``start`` on; see ``PooledPrompt``."""
        if self._pooled is not None:
            self._pooled.add(start, count, units)

    def take_delta(self) -> OutputDelta:
        """What is new. Once the sequence has ended this is the last delta, with the text that was held back."""
        sequence = self.sequence
        self.finish_reason, stop_reason = self._finish() if sequence.is_finished else (None, None)
        token_ids, self._token_ids = self._token_ids, []
        delta = OutputDelta(
            self.request_id,
            sequence.choice_index,
            self._stream.take_delta(),
            token_ids,
            finish_reason=self.finish_reason,
            stop_reason=stop_reason,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            cumulative_logprob=self._cumulative_logprob,
        )
        if self._has_logprobs:
            self._add_logprobs(delta)
        if self._pooled is not None and token_ids:
            delta.embedding, self._pooled = self._pooled.vector(), None
        claim = sequence.pin_claim
        if claim is not None and not claim.pending:
            delta.pin_report, sequence.pin_claim = claim.report, None
        return delta

    def _add_logprobs(self, delta: OutputDelta) -> None:
        if self.sequence.params.logprobs is not None and self._cumulative_logprob is None:
            delta.logprobs, self._logprobs = self._logprobs, []
        if delta.token_ids:
            delta.prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None

    def _finish(self) -> tuple[str, int | str | None]:
        sequence = self.sequence
        by_id = sequence.status is Status.STOPPED and not isinstance(sequence.stop_reason, str)
        if sequence.is_complete and sequence.token_ids[-1] not in self._special_token_ids:
            by_id = False  # a constraint's last token is part of the text, unless it is the model's own end
        match = self._stream.finish(sequence.token_ids[-1] if by_id else None)
        if match is not None and sequence.status in (Status.STOPPED, Status.LENGTH):
            return Status.STOPPED.value, match.stop
        return sequence.status.value, sequence.stop_reason

    def times(self, now: float) -> RequestTimes:
        """Once the last delta has been taken: it may be what finds the stop string that ends the text."""
        assert self.finish_reason is not None
        return RequestTimes(
            request_id=self.request_id,
            index=self.sequence.choice_index,
            arrival=self.arrival,
            scheduled=self.scheduled,
            first_token=self.first_token,
            finished=now,
            num_prompt_tokens=self.sequence.num_prompt_tokens,
            num_generation_tokens=self.sequence.num_output_tokens,
            finish_reason=self.finish_reason,
        )
