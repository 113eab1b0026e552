"""Octavo: a serving engine for Transformer language models that treats the KV cache as virtual memory.

    from octavo import LLM, SamplingParams

    llm = LLM()
    print(llm.generate("The capital of France is", SamplingParams(max_tokens=8))[0].outputs[0].text)

The names below are imported when they are first used (PEP 562), so that ``import octavo`` is quick and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.async_llm import AsyncLLM as AsyncLLM
    from octavo.core.beam_search import BeamSearchParams as BeamSearchParams
    from octavo.core.errors import ConfigurationError as ConfigurationError
    from octavo.core.errors import EngineDeadError as EngineDeadError
    from octavo.core.errors import InvalidRequestError as InvalidRequestError
    from octavo.core.errors import OctavoError as OctavoError
    from octavo.core.errors import TimedOutError as TimedOutError
    from octavo.core.retention import Retention as Retention
    from octavo.core.sampling_params import SamplingParams as SamplingParams
    from octavo.core.structured import StructuredOutputsParams as StructuredOutputsParams
    from octavo.engine_args import EngineArgs as EngineArgs
    from octavo.llm import LLM as LLM
    from octavo.outputs import BeamSearchOutput as BeamSearchOutput
    from octavo.outputs import BeamSearchSequence as BeamSearchSequence
    from octavo.outputs import CompletionOutput as CompletionOutput
    from octavo.outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
    from octavo.outputs import RequestOutput as RequestOutput

__version__ = "0.1.0"

_EXPORTS = {
    "LLM": "octavo.llm",
    "AsyncLLM": "octavo.async_llm",
    "BeamSearchOutput": "octavo.outputs",
    "EmbeddingRequestOutput": "octavo.outputs",
    "BeamSearchParams": "octavo.core.beam_search",
    "BeamSearchSequence": "octavo.outputs",
    "CompletionOutput": "octavo.outputs",
    "ConfigurationError": "octavo.core.errors",
    "EngineArgs": "octavo.engine_args",
    "EngineDeadError": "octavo.core.errors",
    "InvalidRequestError": "octavo.core.errors",
    "OctavoError": "octavo.core.errors",
    "RequestOutput": "octavo.outputs",
    "Retention": "octavo.core.retention",
    "SamplingParams": "octavo.core.sampling_params",
    "StructuredOutputsParams": "octavo.core.structured",
    "TimedOutError": "octavo.core.errors",
}
"""Public name -> the module that holds it."""

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "ConfigurationError",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "EngineDeadError",
    "InvalidRequestError",
    "OctavoError",
    "RequestOutput",
    "Retention",
    "SamplingParams",
    "StructuredOutputsParams",
    "TimedOutError",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
