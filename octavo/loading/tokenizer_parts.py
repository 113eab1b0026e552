"""What a tokenizer is made of, whatever file it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend
from tokenizers import processors


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Everything that HFTokenizer needs.

    ``backend``: the `tokenizers` object; its post-processor adds what a raw prompt gets (BOS, EOS).
    ``special_tokens``: named tokens (bos_token, eos_token, ...) as chat templates see them.
    ``eos_token_ids``: union over all files that name some (spec D7).
    ``chat_templates``: Jinja texts by name; "default" is the usual one, "tool_use" the one for requests with tools.
    """

    backend: Backend
    special_tokens: Mapping[str, str]
    eos_token_ids: frozenset[int]
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def frame(backend: Backend, bos_token: str | None, eos_token: str | None) -> None:
    """Has ``backend`` put these tokens before and after a raw prompt (None: nothing)."""
    pieces = [token for token in (bos_token, "$A", eos_token) if token is not None]
    special = {token: backend.token_to_id(token) for token in (bos_token, eos_token) if token is not None}
    backend.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=list(special.items()))
