"""Merging news that a reader has not taken yet: a slow reader costs the memory of its own text and nothing else."""

from octavo.engine.messages import EngineOutputs, OutputDelta


def merge_delta(pending: OutputDelta, news: OutputDelta) -> None:
    """Append ``news`` to ``pending``, an earlier delta of the same choice; ``pending`` is changed in place."""
    pending.text += news.text
    pending.token_ids += news.token_ids
    if news.logprobs is not None:
        pending.logprobs = (pending.logprobs or []) + news.logprobs
    if news.prompt_logprobs is not None:
        pending.prompt_logprobs = news.prompt_logprobs
    if news.pin_report is not None:
        pending.pin_report = news.pin_report
    if news.finish_reason is not None:
        pending.finish_reason = news.finish_reason
        pending.stop_reason = news.stop_reason
        pending.error = news.error
        pending.invalid_param = news.invalid_param
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
        rest.token_intervals += outputs.token_intervals
        rest.pin_lists += outputs.pin_lists
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
