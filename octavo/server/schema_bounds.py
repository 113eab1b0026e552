"""What the fields of a request may hold, for the OpenAPI document: types say little, limits are settings."""

from collections.abc import Mapping
from typing import Any

from octavo.core.sampling_params import SEED_LIMIT
from octavo.engine.intake import PRIORITY_LIMIT
from octavo.server.chat.tool_choice import MAX_NAME_CHARACTERS
from octavo.server.keeping import MARK_SECONDS
from octavo.server.limits import ServerLimits
from octavo.server.queueing.timing import MOST_MS
from octavo.server.truncation import AS_MANY_AS_FIT

Schema = dict[str, Any]

_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}


def bounds(limits: ServerLimits, model: str) -> dict[str, Schema]:
    """Field -> its schema where it is not null, for all kinds of requests that have it."""
    sampling = limits.sampling
    texts = {"type": "string", "minLength": 1, "maxLength": sampling.stop_characters}
    ids = {"type": "array", "items": _ID}
    logprobs = _whole(0, sampling.logprobs)
    milliseconds = {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_MS}
    message = {"type": "array", "minItems": 1, "maxItems": limits.messages, "items": _message()}
    return {
        "model": {"enum": [model]},
        "n": _whole(1, sampling.n),
        "presence_penalty": _real(-2, 2),
        "frequency_penalty": _real(-2, 2),
        "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
        "temperature": _real(0, 100),
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "top_k": _whole(-1, 2**63 - 1),
        "min_p": _real(0, 1),
        "seed": _whole(0, SEED_LIMIT - 1),
        "stop": {"anyOf": [texts, {"type": "array", "items": texts, "maxItems": sampling.stops}]},
        "stop_token_ids": ids | {"maxItems": sampling.stop_token_ids},
        "max_tokens": _whole(1, 2**63 - 1),
        "max_completion_tokens": _whole(1, 2**63 - 1),
        "min_tokens": _whole(0, 2**63 - 1),
        "prompt_logprobs": logprobs,
        "top_logprobs": logprobs,
        "logit_bias": {
            "type": "object",
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,17})$"},
            "additionalProperties": _real(-100, 100),
            "maxProperties": sampling.logit_bias,
        },
        "allowed_token_ids": ids | {"minItems": 1},
        "bad_words": {"type": "array", "items": texts, "maxItems": sampling.bad_words},
        "truncate_prompt_tokens": _whole(AS_MANY_AS_FIT, 2**63 - 1) | {"not": {"const": 0}},
        "priority": _whole(-PRIORITY_LIMIT, PRIORITY_LIMIT - 1),
        "cache_salt": {"type": "string", "minLength": 1, "maxLength": sampling.cache_salt_characters},
        "retention_priority": _whole(0, 100),
        "slo_ttft_ms": milliseconds,
        "request_timeout_ms": milliseconds,
        "messages": message,
        "tools": {"type": "array", "items": _tool(), "maxItems": limits.tools},
        "cache_control": _mark(),
        "guided_regex": {"type": "string"},
        "guided_grammar": {"type": "string"},
        "guided_choice": {"type": "array", "items": {"type": "string"}},
        "guided_json_object": {"type": "boolean"},
        # Known, so that they are refused by name where they hold something.
        "chat_template": {"type": "null"},
        "functions": {"type": "array", "maxItems": 0},
        "suffix": {"const": ""},
    }


_TEXT: Schema = {"type": "string"}
"""Also an empty one, where the tokenizer begins every text with a token."""
ONE_PROMPT: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _ID, "minItems": 1}]}
"""A text or token ids."""


def many_prompts(limits: ServerLimits) -> Schema:
    """One, or a list of texts or of token ids."""
    lists = [
        {"type": "array", "items": each, "minItems": 1, "maxItems": limits.prompts} for each in ONE_PROMPT["anyOf"]
    ]
    return {"anyOf": [*ONE_PROMPT["anyOf"], *lists]}


def bounded(schema: Schema, known: Mapping[str, Schema]) -> Schema:
    """The schema of a kind of request, with what is known of its fields; null stays allowed where it was, but for what
    a request is of: an input, or else a prompt or messages, whichever it can have."""
    properties = {name: _narrowed(each, known.get(name)) for name, each in schema["properties"].items()}
    subjects = ["input"] if "input" in properties else [name for name in ("prompt", "messages") if name in properties]
    needed = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in subjects]
    return schema | {"properties": properties} | ({"oneOf": needed} if needed else {})


def _narrowed(schema: Schema, known: Schema | None) -> Schema:
    if known is None or schema.get("anyOf", [{}])[0].get("type") == "boolean":  # chat's logprobs, not a number there
        return schema
    is_nullable = schema.get("default", ...) is None
    return {"anyOf": [known, {"type": "null"}], "default": None} if is_nullable else known


def _whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _real(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _mark() -> Schema:
    properties = {"type": {"const": "ephemeral"}, "ttl": {"enum": list(MARK_SECONDS)}}
    return {"type": "object", "properties": properties, "required": ["type"]}


def _message() -> Schema:
    """Further fields, such as those of tool calls, are for the chat template; content may be null beside these."""
    part = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    }
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]}
    role = {"type": "string", "minLength": 1, "examples": ["system", "user", "assistant", "tool"]}
    properties = {"role": role, "content": content}
    return {"type": "object", "properties": properties, "required": ["role", "content"]}


def _tool() -> Schema:
    function = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS},
            "description": {"type": ["string", "null"]},
            "parameters": {"type": ["object", "null"]},
            "strict": {"type": ["boolean", "null"]},
        },
        "required": ["name"],
    }
    properties = {"type": {"const": "function"}, "function": function}
    return {"type": "object", "properties": properties, "required": ["type", "function"]}
