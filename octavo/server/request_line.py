"""``--log-requests``: one line a request, when it is over. No header, no query, no key; text where it is asked for."""

import logging
from collections import Counter
from typing import Any
from urllib.parse import quote

from starlette.types import Scope

from octavo.engine.log_format import named
from octavo.loading.interface import Tokenizer
from octavo.server.generation import Generation
from octavo.server.visit import Visit

logger = logging.getLogger(__name__)

MAX_TEXT = 2000
"""Characters of a prompt that are logged, and tokens that are looked at for them."""


def log_request(scope: Scope, visit: Visit, seconds: float, tokenizer: Tokenizer | None) -> None:
    """``seconds``: that it took; ``tokenizer``: where the text of prompts is to be logged."""
    host = (scope.get("client") or ("-",))[0]
    path = quote(scope["path"])[:200]  # so that it has no line breaks
    fields: dict[str, Any] = {
        "client": host,
        "method": scope["method"],
        "path": path,
        "status": visit.status,
        "seconds": round(seconds, 6),
    }
    told = f'{host} "{scope["method"]} {path}" {visit.status or "-"} {visit.request_id} {seconds:.3f} s'
    if visit.refusal is not None:
        fields["error"] = visit.refusal.code
        told += f", {visit.refusal.code}"
    if visit.generation is not None:
        figures = _figures(visit.generation, visit)
        fields |= figures
        told += _in_words(figures)
        if tokenizer is not None:
            fields["prompts"] = [_text(prompt.token_ids, tokenizer) for prompt in visit.generation.prompts]
            told += f", prompts {fields['prompts']}"
    logger.info("%s", told, extra=named(**fields))


def _figures(generation: Generation, visit: Visit) -> dict[str, Any]:
    """Counts and times of what the engine has done. A choice that it has not ended yet ends with its client's leaving,
    or with what failed beside it."""
    usage = generation.usage()
    num_missing = len(generation.prompts) * generation.params.n - len(visit.ended)
    reasons = Counter(times.finish_reason for times in visit.ended)
    if num_missing:
        reasons["abort" if visit.refusal is None else "error"] += num_missing
    return {
        "engine_id": generation.answer_id,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "queue_seconds": _least(times.scheduled - times.arrival for times in visit.ended if times.scheduled),
        "ttft_seconds": _least(times.first_token - times.arrival for times in visit.ended if times.first_token),
        "finish_reasons": dict(reasons),
    }


def _least(seconds: Any) -> float | None:
    return round(min(seconds), 6) if (seconds := list(seconds)) else None


def _in_words(figures: dict[str, Any]) -> str:
    told = f", {figures['prompt_tokens']} prompt tokens ({figures['cached_tokens']} cached)"
    told += f", {figures['completion_tokens']} generated"
    if figures["queue_seconds"] is not None:
        told += f", waited {figures['queue_seconds']:.3f} s"
    if figures["ttft_seconds"] is not None:
        told += f", first token after {figures['ttft_seconds']:.3f} s"
    return told + ", " + ", ".join(f"{count} {reason}" for reason, count in figures["finish_reasons"].items())


def _text(token_ids: list[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(token_ids[:MAX_TEXT], skip_special_tokens=False)[:MAX_TEXT]
