"""The limits of one request (spec D14) as flags of ``octavo serve``: ``--limit-n``, ``--limit-body-bytes``, ..."""

import functools
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import click

from octavo.cli.options import Decorator, all_of, setting
from octavo.cli.units import ByteSize, readable_bytes
from octavo.core.sampling_params import SamplingLimits
from octavo.server.limits import ServerLimits

HELP = {
    "n": "Choices of a prompt.",
    "logprobs": "Logprobs of a token, prompt_logprobs and top_logprobs too.",
    "stops": "Stop strings.",
    "stop_characters": "Characters of a stop string, or of a bad word.",
    "stop_token_ids": "Stop ids.",
    "logit_bias": "Biased tokens.",
    "bad_words": "Bad words.",
    "cache_salt_characters": "Characters of a cache_salt.",
    "schema_bytes": "A JSON schema or a grammar, or all texts to choose from.",
    "regex_bytes": "A regular expression.",
    "schema_nesting": "Levels of a JSON schema.",
    "prompts": "Prompts of a request.",
    "choices": "Choices of all prompts of a request together.",
    "messages": "Messages of a conversation.",
    "tools": "Tools of a request.",
    "pin_seconds": "Seconds that a request may pin a prefix for.",
    "truncated_text_bytes": "Text that truncate_prompt_tokens is going to cut.",
    "body_bytes": "Request body.",
    "json_nesting": "Levels of a request body.",
    "json_values": "Values in a request body.",
    "header_bytes": "Request line and headers.",
}
"""Field of ``SamplingLimits`` or ``ServerLimits`` -> what it bounds."""


def _defaults(kind: type[Any]) -> dict[str, int]:
    return {each.name: each.default for each in fields(kind) if each.default is not MISSING}


_SAMPLING, _SERVER = _defaults(SamplingLimits), _defaults(ServerLimits)


def _limit_setting(name: str, default: int) -> Decorator:
    is_size = name.endswith("_bytes")
    shown = readable_bytes(default) if is_size else f"{default:,}"
    return setting(
        f"--limit-{name.replace('_', '-')}",
        type=ByteSize() if is_size else click.IntRange(1),
        help=f"Limit: {HELP[name]}  [default: {shown}]",
    )


_limit_settings = all_of(*(_limit_setting(name, default) for name, default in (_SAMPLING | _SERVER).items()))


def limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds a flag for each limit to a command, which receives them as one ``limits: ServerLimits``."""

    @functools.wraps(function)
    def with_limits(**values: Any) -> Any:
        given = {name: values.pop(f"limit_{name}") for name in _SAMPLING | _SERVER}
        chosen = {name: value for name, value in given.items() if value is not None}
        sampling = SamplingLimits(**{name: chosen.pop(name) for name in _SAMPLING if name in chosen})
        return function(limits=ServerLimits(sampling, **chosen), **values)

    return _limit_settings(with_limits)
