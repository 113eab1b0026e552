"""Lengths and arrivals of real requests: the two traces of the Azure LLM inference dataset 2023.

Source: Azure Public Dataset, https://github.com/Azure/AzurePublicDataset (CC BY 4.0, octavo/data/azure/LICENSE), files
AzureLLMInferenceTrace_conv.csv and AzureLLMInferenceTrace_code.csv as published: TIMESTAMP, ContextTokens,
GeneratedTokens of 19,366 requests of conversations and of 8,819 of code completion; described in "Splitwise: Efficient
Generative LLM Inference Using Phase Splitting" (Patel et al., ISCA 2024).
"""

import csv
import gzip
import random
from datetime import datetime
from importlib.resources import files
from typing import NamedTuple

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
    rows = _rows(name)
    arrivals = [datetime.fromisoformat(row["TIMESTAMP"]) for row in rows]
    return [
        TracedRequest((arrival - arrivals[0]).total_seconds(), _lengths(row))
        for arrival, row in zip(arrivals, rows, strict=True)
    ]


def azure_lengths(name: str = "azure") -> list[Lengths]:
    """The lengths alone, in order of arrival."""
    return [_lengths(row) for row in _rows(name)]


def draw_lengths(count: int, seed: int, divisor: int = 1, name: str = "azure") -> list[Lengths]:
    """``count`` different requests of a trace, drawn by ``seed``; lengths over ``divisor``, at least one token each.

    The same arguments give the same list on every machine.
    """
    drawn = random.Random(seed).sample(azure_lengths(name), count)
    return [lengths.divided(divisor) for lengths in drawn]


def _rows(name: str) -> list[dict[str, str]]:
    source = files("octavo") / "data" / "azure" / f"AzureLLMInferenceTrace_{AZURE_TRACES[name]}.csv.gz"
    return list(csv.DictReader(gzip.decompress(source.read_bytes()).decode("ascii").splitlines()))


def _lengths(row: dict[str, str]) -> Lengths:
    return Lengths(int(row["ContextTokens"]), int(row["GeneratedTokens"]))
