"""Logits to tokens. The order of what happens to a row:

1. logprobs are taken from the raw logits (spec D9);
2. masks (rows beyond the tokenizer's ids, allowed_token_ids, stop ids until min_tokens, bad_words), logit_bias, then
   the penalties: repetition over prompt and output, frequency and presence over the output;
3. temperature 0: the best token, ties by the lower id. Else temperature, top_k, top_p, min_p, and one draw whose
   randomness is a function of (seed, choice index, position) alone.

Rows are handled one by one with numpy over arrays whose shape is the row's alone: what a row gets, bit for bit, cannot
depend on its neighbours (design, promise 1).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from octavo.core.errors import InvalidRequestError
from octavo.core.step import NewRow, RowFault, TokenLogprobs
from octavo.runner.drawing import draw, token_weights
from octavo.runner.logprobs import token_logprobs
from octavo.runner.randomness import uniform
from octavo.runner.ranking import Row
from octavo.runner.row_sampling import RowSampling


class Samples(NamedTuple):
    """``token_ids``: one a row, in order. ``logprobs``: by row id, of the rows that ask for them. ``faults``: by row
    id, of the rows that have no token to draw; their token id is 0."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs]
    faults: dict[int, RowFault]


class Sampler:
    """``vocab_size``: rows of the model's head. ``num_valid_tokens``: ids that the tokenizer knows; rows beyond them
    are never drawn nor listed (spec D18)."""

    def __init__(self, vocab_size: int, num_valid_tokens: int) -> None:
        self.vocab_size = vocab_size
        self.num_valid_tokens = min(num_valid_tokens, vocab_size)

    def new_row(self, row: NewRow, bad_word_ids: Sequence[tuple[int, ...]] = ()) -> RowSampling:
        """Sampling state of a sequence; ``bad_word_ids`` are the token sequences of ``row.params.bad_words``."""
        return RowSampling(row, self.vocab_size, bad_word_ids)

    def sample(
        self, logits: Tensor, best_ids: Tensor, rows: Sequence[RowSampling], positions: Sequence[int]
    ) -> Samples:
        """Draw one token for each row; changes neither ``logits`` nor ``rows`` (the caller appends).

        ``logits``: fp32 [N, vocab_size]. ``best_ids``: ``Ops.argmax`` of each row's first ``num_valid_tokens``.
        ``positions``: index in its sequence of the token that each row draws.

        A row without a token to draw (its own masks leave none, or the model gave NaN or infinite logits) is a fault
        of that row alone.
        """
        batch: Row = logits.detach().cpu().numpy()
        best = best_ids.tolist()
        if all(row.takes_best for row in rows) and np.isfinite(batch[np.arange(len(rows)), best]).all():
            return Samples(best, {}, {})
        samples = Samples([], {}, {})
        for raw, best_id, row, position in zip(batch, best, rows, positions, strict=True):
            try:
                token_id = self._sample_row(raw, best_id, row, position)
            except ValueError as error:
                samples.faults[row.row_id] = RowFault(str(error), isinstance(error, InvalidRequestError))
                samples.token_ids.append(0)
                continue
            samples.token_ids.append(token_id)
            if row.params.logprobs is not None:
                entry = token_logprobs(raw, token_id, row.params.logprobs, self.num_valid_tokens)
                samples.logprobs[row.row_id] = entry
        return samples

    def prompt_logprobs(self, logits: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprobs, ...]:
        """Logprobs of known tokens: row i of ``logits`` (fp32 [m, vocab_size]) predicts ``token_ids[i]``.

        Raises:
            ValueError: a row has a NaN, or no finite logit.
        """
        batch: Row = logits.detach().cpu().numpy()
        return tuple(
            token_logprobs(raw, token_id, num_top, self.num_valid_tokens)
            for raw, token_id in zip(batch, token_ids, strict=True)
        )

    def _sample_row(self, raw: Row, best_id: int, row: RowSampling, position: int) -> int:
        changed = row.changes_logits
        if changed:
            raw = raw.copy()
            row.change(raw)
        logits = raw[: self.num_valid_tokens]
        if changed:
            best_id = int(logits.argmax())  # as Ops.argmax: the first of equals, a NaN before anything else
        best = float(logits[best_id])
        if not np.isfinite(best):
            raise _no_token(row, best, changed)
        if row.params.greedy:
            return best_id
        return draw(token_weights(logits, row.params), uniform(row.seed, row.choice_index, position))


def _no_token(row: RowSampling, best: float, changed: bool) -> ValueError:
    if changed and best == -np.inf:
        return InvalidRequestError(
            f"allowed_token_ids, bad_words and min_tokens together leave no token to draw after "
            f"{row.num_output_tokens} output tokens; relax one of them"
        )
    return ValueError(f"it gave no usable logits (the largest is {best}); its weights may be damaged")
