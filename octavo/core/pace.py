"""How much time of a step prompts take beside sequences that wait for their next token.

A single prompt takes nearly half of the time: a step lasts 1.9 times as long as without it, and the prompt somewhat
more than twice as long as alone. Of several that are computed one after the other, each is to have its first token
within three times what it takes alone: two take two thirds of the time, and from the third on there is no bound but the
token budget. Where a time between two tokens is the target, that is the bound, however many prompts wait.

Time is measured by whoever runs the steps (``note``). Where nobody does, the token budget is the only bound. Answers do
not depend on any of this, bit for bit.
"""

from collections import deque
from math import inf
from statistics import median

from octavo.core.chunk_budget import ChunkBudget
from octavo.core.prompt_costs import PromptCosts, chunks_of
from octavo.core.step import StepPlan
from octavo.core.step_costs import StepCosts

SHARE_OF_ONE = 0.47
"""Of a step's time, for a single prompt. It is used to the whole token below: a step lasts up to 1 / (1 - 0.47) or 1.89
times as long as without, which leaves a margin below twice for what is measured and changes."""

SHARE_OF_EACH = 1 / 3
"""Of a step's time, for each of several."""

LEAST_SHARE = 1 / 8
"""What prompts get where the target leaves less, or nothing: of what the step takes without them."""

CHECK_EVERY = 16
"""Steps with prompts, until there is one without: what a step takes without them changes as its sequences grow, and
with what else the machine does."""

NUM_REMEMBERED = 5
"""Steps without prompts of which the median counts: one that was held up by the machine does not."""


class Pace:
    """``costs``: what a step costs beside its rows; ``target_seconds``: between two tokens of a sequence, if given."""

    def __init__(self, costs: StepCosts, target_seconds: float | None = None) -> None:
        self._costs = costs
        self._target_seconds = target_seconds
        self._prompt_costs = PromptCosts()
        self._steps_without: deque[tuple[int, float]] = deque(maxlen=NUM_REMEMBERED)
        self._is_timed = False
        self._num_unchecked = CHECK_EVERY

    def budget(self, num_tokens: int, num_rows: int, num_prompts: int) -> ChunkBudget:
        """For prompts in a step of ``num_rows`` rows beside them, with room for ``num_tokens`` tokens, while
        ``num_prompts`` prompts wait, in work or in line."""
        unbound = ChunkBudget(num_tokens)
        if not self._is_timed or num_rows == 0 or num_prompts == 0:
            return unbound
        without = self._seconds_without(num_rows)
        seconds, of_a_row = self._seconds_beside(without, num_prompts), without / (self._costs.base_rows + num_rows)
        if seconds >= num_tokens * (self._prompt_costs.most_seconds_per_token or of_a_row) and seconds:
            return unbound
        if self._num_unchecked == CHECK_EVERY:
            self._num_unchecked = 0
            return ChunkBudget(0)
        self._num_unchecked += 1
        if not without:
            return unbound
        return ChunkBudget(num_tokens, seconds, lambda start: self._prompt_costs.seconds_per_token(start) or of_a_row)

    def note(self, plan: StepPlan, seconds: float) -> None:
        """A step has landed that took so long."""
        if not plan.row_ids:
            return
        self._is_timed = True
        chunks = chunks_of(plan)
        num_rows = plan.num_tokens - sum(chunk.num_tokens for chunk in chunks)
        if chunks:
            self._prompt_costs.note(chunks, seconds - self._seconds_without(num_rows))
        elif num_rows:
            self._steps_without.append((num_rows, seconds))
            self._num_unchecked = 0

    def _seconds_beside(self, without: float, num_prompts: int) -> float:
        """For prompts in a step that takes ``without`` seconds without them."""
        if self._target_seconds is not None:
            return max(self._target_seconds - without, without * LEAST_SHARE)
        share = max(SHARE_OF_ONE, SHARE_OF_EACH * num_prompts)
        return without * share / (1 - share) if share < 1 else inf

    def _seconds_without(self, num_rows: int) -> float:
        """What a step of so many rows and no prompt takes; 0 where nobody knows yet."""
        base_rows = self._costs.base_rows
        measured = [seconds * (base_rows + num_rows) / (base_rows + rows) for rows, seconds in self._steps_without]
        return median(measured) if measured else 0.0
