"""Raw logprobs (spec D9): of the model as it is, before temperature, penalties and masks."""

import math

import numpy as np

from octavo.core.step import TokenLogprobs
from octavo.runner.drawing import UNIT_BITS, exponentials, in_units
from octavo.runner.ranking import Row, rank_of, top_ids


def token_logprobs(logits: Row, token_id: int, num_top: int, num_valid_tokens: int) -> TokenLogprobs:
    """Logprobs of one row of raw ``logits`` [model rows].

    The softmax runs over all model rows; rows beyond the tokenizer's ids are no tokens, so they are neither listed nor
    counted in the rank (spec D18). A logit of -inf gives ``-math.inf``.

    Raises:
        ValueError: the row has a NaN, or no finite logit.
    """
    normalizer = _log_sum_exp(logits)
    valid = logits[:num_valid_tokens]
    top = top_ids(valid, num_top).tolist()
    logit = float(logits[token_id])
    return TokenLogprobs(
        token_id=token_id,
        logprob=logit - normalizer,
        rank=rank_of(valid, token_id, logit),
        top=tuple((best_id, float(logits[best_id]) - normalizer) for best_id in top),
    )


def _log_sum_exp(logits: Row) -> float:
    """Of one row. The sum is exact (see drawing)."""
    best = logits[logits.argmax()]  # argmax finds a NaN, too
    if not np.isfinite(best):
        raise ValueError("the model gave no usable logits for a logprob: NaN, infinite, or all -inf")
    return log_sum_exp(float(best), int(in_units(exponentials(logits)).sum()))


def log_sum_exp(best: float, units: int) -> float:
    """``units``: the sum of e**(logit - best), in units."""
    return best + math.log(math.ldexp(units, -UNIT_BITS))
