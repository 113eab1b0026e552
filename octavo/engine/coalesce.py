"""Deltas joined: to a whole choice, or to news that a slow reader has not taken yet, which so costs the memory of its
own text and nothing else."""

from typing import Protocol

from octavo.core.step import TokenLogprobs
from octavo.engine.messages import EngineOutputs, OutputDelta


class ChoiceSoFar(Protocol):
    """What there is of one choice: text, tokens and logprobs since its start, or since they were last read."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    cumulative_logprob: float | None
    finish_reason: str | None
    stop_reason: int | str | None


def join(choice: ChoiceSoFar, news: OutputDelta) -> None:
    """Append ``news`` of a choice to what there is of it; ``choice`` and its lists are changed in place."""
    choice.text += news.text
    choice.token_ids += news.token_ids
    if news.logprobs is not None:
        choice.logprobs = [] if choice.logprobs is None else choice.logprobs
        choice.logprobs += news.logprobs
    if news.cumulative_logprob is not None:
        choice.cumulative_logprob = news.cumulative_logprob
    if news.finish_reason is not None:
        choice.finish_reason, choice.stop_reason = news.finish_reason, news.stop_reason


def merge_delta(pending: OutputDelta, news: OutputDelta) -> None:
    """Append ``news`` to ``pending``, an earlier delta of the same choice, with what it says of the whole request."""
    join(pending, news)
    if news.prompt_logprobs is not None:
        pending.prompt_logprobs = news.prompt_logprobs
    if news.embedding is not None:
        pending.embedding = news.embedding
    if news.pin_report is not None:
        pending.pin_report = news.pin_report
    if news.error is not None:
        pending.error, pending.timeout = news.error, news.timeout
        pending.invalid_param, pending.invalid_code = news.invalid_param, news.invalid_code
    pending.num_cached_tokens = max(pending.num_cached_tokens, news.num_cached_tokens)


class Outbox:
    """Outputs on their way to a reader that may be slow: at most one delta a choice, the newest stats, all samples."""

    def __init__(self) -> None:
        self.clear()

    def __bool__(self) -> bool:
        return self._holds_news

    def put(self, outputs: EngineOutputs) -> None:
        """Take over ``outputs``; its deltas may be changed later by merging."""
        self._holds_news = True
        for delta in outputs.deltas:
            key = (delta.request_id, delta.index)
            pending = self._deltas.get(key)
            if pending is None:
                self._deltas[key] = delta
            else:
                merge_delta(pending, delta)
        if outputs.iteration_tokens:
            self._iterations.append(outputs.iteration_tokens)
        rest = self._rest
        rest.stats = outputs.stats or rest.stats
        rest.finished += outputs.finished
        rest.first_token_seconds += outputs.first_token_seconds
        rest.cached_shares += outputs.cached_shares
        rest.token_intervals += outputs.token_intervals
        rest.steps += outputs.steps
        rest.pin_lists += outputs.pin_lists
        rest.trace_lists += outputs.trace_lists
        rest.views += outputs.views
        rest.started += outputs.started

    def peek(self) -> tuple[EngineOutputs, list[int]]:
        """Everything held as one value, and the tokens of each step it covers; the box is left as it is."""
        self._rest.deltas = list(self._deltas.values())
        return self._rest, self._iterations

    def clear(self) -> None:
        self._deltas: dict[tuple[str, int], OutputDelta] = {}
        self._rest = EngineOutputs()
        self._iterations: list[int] = []
        self._holds_news = False
