"""Logits to tokens. The order of what happens to a row:

1. logprobs are taken from the raw logits (spec D9);
2. masks (rows beyond the tokenizer's ids, allowed_token_ids, what the row's grammar forbids, stop ids until
   min_tokens, bad_words), logit_bias, then the penalties: repetition over prompt and output, frequency and presence
   over the output;
3. temperature 0: the best token, ties by the lower id. Else temperature, top_k, top_p, min_p, and one draw whose
   randomness is a function of (seed, choice index, position) alone.

A back end may do this for the whole batch (``kernels.sampling``); else rows are handled one by one, which is the
specification. Either way the bits are the same, and those of a row do not depend on its neighbours (design, promise 1).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from octavo.core.errors import InvalidRequestError
from octavo.core.step import NewRow, RowFault, TokenLogprobs
from octavo.kernels.sampling import Sampling
from octavo.runner.drawing import draw, token_weights
from octavo.runner.logprobs import listed_logprobs, token_logprobs
from octavo.runner.randomness import uniform
from octavo.runner.ranking import Row
from octavo.runner.row_sampling import RowSampling
from octavo.runner.sample_requests import SampleRequests
from octavo.runner.thinking_grammar import Grammar


class Samples(NamedTuple):
    """``token_ids``: one a row, in order. ``logprobs``: by row id, of the rows that ask for them. ``faults``: by row
    id, of the rows that have no token to draw; their token id is 0."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs]
    faults: dict[int, RowFault]


class Sampler:
    """``vocab_size``: rows of the model's head. ``num_valid_tokens``: ids that the tokenizer knows; rows beyond them
    are never drawn nor listed (spec D18). ``kernels``: the back end's way for a whole batch, if it has one."""

    def __init__(self, vocab_size: int, num_valid_tokens: int, kernels: Sampling | None = None) -> None:
        self.vocab_size = vocab_size
        self.num_valid_tokens = min(num_valid_tokens, vocab_size)
        self._kernels = kernels
        self._requests = SampleRequests()
        self._best_rows: list[RowSampling] | None = None

    def new_row(
        self, row: NewRow, bad_word_ids: Sequence[tuple[int, ...]] = (), grammar: Grammar | None = None
    ) -> RowSampling:
        """Sampling state of a sequence; ``bad_word_ids`` are the token sequences of ``row.params.bad_words``, and
        ``grammar`` the state of ``row.params.constraint``."""
        return RowSampling(row, self.vocab_size, bad_word_ids, grammar)

    def sample(self, logits: Tensor, best_ids: Tensor, rows: list[RowSampling], positions: Sequence[int]) -> Samples:
        """Draw one token for each row; changes neither ``logits`` nor ``rows`` (the caller appends). The very list of
        ``rows`` of the step before may be given again, with the same rows in it.

        ``logits``: fp32 [N, vocab_size]. ``best_ids``: ``Ops.argmax`` of each row's first ``num_valid_tokens``.
        ``positions``: index in its sequence of the token that each row draws.

        A row without a token to draw (its own masks leave none, or the model gave NaN or infinite logits) is a fault
        of that row alone.
        """
        batch: Row = logits.detach().cpu().numpy()
        best = best_ids.tolist()
        if self._take_best(rows) and np.isfinite(batch[np.arange(len(rows)), best]).all():
            return Samples(best, {}, {})
        if self._kernels is not None:
            return self._sample_batch(self._kernels, logits, best_ids, rows, positions)
        samples = Samples([], {}, {})
        for raw, best_id, row, position in zip(batch, best, rows, positions, strict=True):
            try:
                token_id = self._sample_row(raw, best_id, row, position)
            except ValueError as error:
                samples.faults[row.row_id] = _fault(error)
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
        if self._kernels is not None:
            num_listed = min(num_top, self.num_valid_tokens)
            answers = self._kernels.logprobs(logits, np.array(token_ids), self.num_valid_tokens, num_listed)
            return tuple(listed_logprobs(answers, range(len(token_ids)), [num_top] * len(token_ids)))
        batch: Row = logits.detach().cpu().numpy()
        return tuple(
            token_logprobs(raw, token_id, num_top, self.num_valid_tokens)
            for raw, token_id in zip(batch, token_ids, strict=True)
        )

    def _take_best(self, rows: list[RowSampling]) -> bool:
        """Whether all these rows take the best token. Rows that do so once go on to."""
        if rows is not self._best_rows and all(row.takes_best for row in rows):
            self._best_rows = rows
        return rows is self._best_rows

    def _sample_batch(
        self,
        kernels: Sampling,
        logits: Tensor,
        best_ids: Tensor,
        rows: list[RowSampling],
        positions: Sequence[int],
    ) -> Samples:
        requests = self._requests
        records = requests.records(rows, positions)
        num_top = min(requests.num_top, self.num_valid_tokens)
        answers = kernels.sample(logits, best_ids, records, self.num_valid_tokens, num_top)
        bests, faults = answers.samples["best"], {}
        for place in np.flatnonzero(~np.isfinite(bests)).tolist():
            row = rows[place]
            faults[row.row_id] = _fault(_no_token(row, float(bests[place]), row.changes_logits))
        listing = [place for place in requests.listing if rows[place].row_id not in faults]
        num_tops = [rows[place].params.logprobs or 0 for place in listing]
        entries = listed_logprobs(answers, listing, num_tops) if listing else []
        logprobs = {rows[place].row_id: entry for place, entry in zip(listing, entries, strict=True)}
        return Samples(answers.samples["token_id"].tolist(), logprobs, faults)

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


def _fault(error: ValueError) -> RowFault:
    return RowFault(str(error), isinstance(error, InvalidRequestError))


def _no_token(row: RowSampling, best: float, changed: bool) -> ValueError:
    if changed and best == -np.inf:
        if row.grammar is not None and row.grammar.fault is not None:
            return InvalidRequestError(f"structured_outputs: {row.grammar.fault}")
        grammar = "" if row.grammar is None else "structured_outputs, "
        return InvalidRequestError(
            f"{grammar}allowed_token_ids, bad_words and min_tokens together leave no token to draw after "
            f"{row.num_output_tokens} output tokens; relax one of them"
        )
    return ValueError(f"it gave no usable logits (the largest is {best}); its weights may be damaged")
