"""Lengths and arrivals of real requests: the two traces of the Azure LLM inference dataset 2023.

Source: Azure Public Dataset, https://github.com/Azure/AzurePublicDataset (CC BY 4.0, octavo/data/azure/LICENSE), files
AzureLLMInferenceTrace_conv.csv and AzureLLMInferenceTrace_code.csv as published: TIMESTAMP, ContextTokens,
GeneratedTokens of 19,366 requests of conversations and of 8,819 of code completion; described in "Splitwise: Efficient
Generative LLM Inference Using Phase Splitting" (Patel et al., ISCA 2024).
"""

import random
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from octavo.sim.traces.azure import read_azure
from octavo.sim.traces.lines import TraceFile

AZURE_TRACES = {"azure": "conv", "azure-code": "code"}
"""Names of the traces in commands -> in their files' names."""


class Lengths(NamedTuple):
    """Tokens of one request: in its prompt, and in the answer that it got."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output

    def divided(self, divisor: int) -> "Lengths":
        """At least one token each."""
        return Lengths(max(1, self.prompt // divisor), max(1, self.output // divisor))


class TracedRequest(NamedTuple):
    """One request of a trace, ``seconds`` after the first one."""

    seconds: float
    lengths: Lengths


def azure_trace(name: str) -> list[TracedRequest]:
    """Every request of a trace, one of ``AZURE_TRACES``, in order of arrival."""
    requests, _ = read_azure(TraceFile(azure_path(name)))
    return [TracedRequest(request.seconds, Lengths(request.prompt, request.output)) for request in requests]


def azure_lengths(name: str = "azure") -> list[Lengths]:
    """The lengths alone, in order of arrival."""
    return [request.lengths for request in azure_trace(name)]


def draw_lengths(count: int, seed: int, divisor: int = 1, name: str = "azure") -> list[Lengths]:
    """``count`` different requests of a trace, drawn by ``seed``; lengths over ``divisor``, at least one token each.

    The same arguments give the same list on every machine.
    """
    drawn = random.Random(seed).sample(azure_lengths(name), count)
    return [lengths.divided(divisor) for lengths in drawn]


def azure_path(name: str) -> Path:
    """Where a trace, one of ``AZURE_TRACES``, is kept."""
    return Path(str(files("octavo") / "data" / "azure" / f"AzureLLMInferenceTrace_{AZURE_TRACES[name]}.csv.gz"))
