"""Raw logprobs (spec D9): of the model as it is, before temperature, penalties and masks."""

import math
from collections.abc import Sequence

import numpy as np

from octavo.core.step import TokenLogprobs
from octavo.kernels.sampling import Answers
from octavo.runner.drawing import UNIT_BITS, exponentials, in_units
from octavo.runner.ranking import Row, rank_of, top_ids

_UNUSABLE = "the model gave no usable logits for a logprob: NaN, infinite, or all -inf"


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
        raise ValueError(_UNUSABLE)
    return log_sum_exp(float(best), int(in_units(exponentials(logits)).sum()))


def listed_logprobs(answers: Answers, places: Sequence[int], num_tops: Sequence[int]) -> list[TokenLogprobs]:
    """The same of some rows that a back end has looked at.

    Raises:
        ValueError: as ``token_logprobs``.
    """
    samples = answers.samples[places]
    if not np.isfinite(samples["raw_best"]).all():
        raise ValueError(_UNUSABLE)
    fields = (samples[name].tolist() for name in ("token_id", "raw_logit", "rank"))
    normalizers = list(map(log_sum_exp, samples["raw_best"].tolist(), samples["units"].tolist()))
    top_logprobs = (answers.top_logits[places].astype(np.float64) - np.array(normalizers)[:, None]).tolist()
    top_ids = answers.top_ids[places].tolist()
    return [
        TokenLogprobs(token_id, logit - normalizer, rank, tuple(zip(ids[:num_top], values[:num_top], strict=True)))
        for token_id, logit, rank, normalizer, ids, values, num_top in zip(
            *fields, normalizers, top_ids, top_logprobs, num_tops, strict=True
        )
    ]


def log_sum_exp(best: float, units: int) -> float:
    """``units``: the sum of e**(logit - best), in units."""
    return best + math.log(math.ldexp(units, -UNIT_BITS))
