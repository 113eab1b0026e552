"""Beam search written a second time: whole sequences in one dict, every step from scratch, no memory to share."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Candidates = Callable[[tuple[int, ...]], Sequence[tuple[int, float]]]
"""The tokens that may follow an output, and their logprobs: at least as many as a step looks at."""


class Finished(NamedTuple):
    """A result: its score, the sum of its logprobs, its tokens."""

    score: float
    total: float
    token_ids: tuple[int, ...]


class Search(NamedTuple):
    """What is searched for; names as in ``transformers``."""

    width: int
    max_tokens: int
    eos: frozenset[int] = frozenset()
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    @property
    def num_looked_at(self) -> int:
        """Continuations that one step of ``transformers`` looks at (``beams_to_keep``)."""
        return max(2, 1 + len(self.eos)) * self.width


def naive_beam_search(candidates: Candidates, search: Search) -> list[Finished]:
    """The best ``search.width`` finished sequences, best first (``GenerationMixin._beam_search`` of transformers 5:
    ``_get_top_k_continuations``, ``_update_finished_beams``, ``_check_early_stop_heuristic``)."""
    running: dict[tuple[int, ...], float] = {(): 0.0}
    finished: list[Finished] = []
    for length in range(1, search.max_tokens + 1):
        extended = {(*ids, new): total + lp for ids, total in running.items() for new, lp in candidates(ids)}
        looked_at = sorted(extended, key=lambda ids: -extended[ids])[: search.num_looked_at]
        ended = [ids for ids in looked_at if ids[-1] in search.eos or length == search.max_tokens]
        may_enter = set(looked_at[: search.width])
        results = [Finished(extended[i] / length**search.length_penalty, extended[i], i) for i in ended]
        finished += [result for result in results if result.token_ids in may_enter]
        finished = sorted(finished, key=lambda result: -result.score)[: search.width]
        running = {ids: extended[ids] for ids in looked_at if ids not in ended}
        running = dict(list(running.items())[: search.width])
        if not running or (len(finished) == search.width and _is_over(search, max(running.values()), length, finished)):
            return finished
    raise AssertionError("every sequence ends at max_tokens")


def _is_over(search: Search, best_total: float, length: int, finished: list[Finished]) -> bool:
    if search.early_stopping is True:
        return True
    if search.early_stopping == "never" and search.length_penalty > 0:
        length = search.max_tokens
    return bool(best_total / length**search.length_penalty <= min(result.score for result in finished))
