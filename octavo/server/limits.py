"""Upper limits of what one request may hold (spec D14). Every one can be set: see octavo/cli/limit_options.py."""

from dataclasses import dataclass, field

from octavo.core.sampling_params import SamplingLimits


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Sizes are bytes unless the name says otherwise. ``choices``: of all prompts of a request together."""

    sampling: SamplingLimits = field(default_factory=SamplingLimits)
    prompts: int = 256
    choices: int = 1024
    messages: int = 4096
    tools: int = 256
    pin_seconds: int = 86400
    truncated_text_bytes: int = 2**20
    body_bytes: int = 32 * 2**20
    json_nesting: int = 64
    json_values: int = 2**20
    header_bytes: int = 64 * 2**10
