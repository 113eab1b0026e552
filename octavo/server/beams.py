"""``use_beam_search``: what it asks for, and what cannot go with it."""

from typing import Any

from octavo.core.beam_search import MAX_BEAM_WIDTH, BeamSearchParams
from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.server.sampling import SamplingFields
from octavo.server.structured import constraint_field

_NEUTRAL: dict[str, Any] = {
    "stream": False,
    "temperature": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "allowed_token_ids": None,
    "logit_bias": {},
    "min_tokens": 0,
    "logprobs": False,
    "prompt_logprobs": None,
}
"""The fields that a search cannot honour, and the value that asks for nothing (as does null). Those that only shape a
draw (seed, top_p, top_k, min_p) are as without effect as they are with temperature 0."""


def beam_search_params(fields: SamplingFields, params: SamplingParams) -> BeamSearchParams | None:
    """The search that a request asks for, n beams wide; ``params`` are its checked fields. None: it draws.

    Raises:
        InvalidRequestError: a field that cannot go with a search, or a value out of its range.
    """
    if not fields.use_beam_search:
        return None
    for name, neutral in _NEUTRAL.items():
        value = getattr(fields, name)
        if value is not None and (type(value), value) != (type(neutral), neutral):  # logprobs 0 is not false
            raise InvalidRequestError(f"{name} cannot be used with use_beam_search; leave it out.", name)
    if params.constraint is not None:
        name = constraint_field(fields)
        raise InvalidRequestError(f"{name} cannot be used with use_beam_search; leave it out.", name)
    if params.n > MAX_BEAM_WIDTH:
        raise InvalidRequestError(f"n must be at most {MAX_BEAM_WIDTH} with use_beam_search, got {params.n}.", "n")
    return BeamSearchParams(
        beam_width=params.n,
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        length_penalty=1.0 if fields.length_penalty is None else fields.length_penalty,
        early_stopping=bool(fields.early_stopping) if fields.early_stopping != "never" else "never",
    )
