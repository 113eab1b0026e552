"""Lengths of real requests: the conversation trace of the Azure LLM inference dataset 2023.

Source: Azure Public Dataset, https://github.com/Azure/AzurePublicDataset (CC BY 4.0, octavo/data/azure/LICENSE), file
AzureLLMInferenceTrace_conv.csv as published: TIMESTAMP, ContextTokens, GeneratedTokens of 19,366 requests; described
in "Splitwise: Efficient Generative LLM Inference Using Phase Splitting" (Patel et al., ISCA 2024).
"""

import csv
import gzip
import random
from importlib.resources import files
from typing import NamedTuple


class Lengths(NamedTuple):
    """Tokens of one request: in its prompt, and in the answer that it got."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


def azure_conversation() -> list[Lengths]:
    """Every request of the trace, in order of arrival."""
    source = files("octavo") / "data" / "azure" / "AzureLLMInferenceTrace_conv.csv.gz"
    text = gzip.decompress(source.read_bytes()).decode("ascii")
    return [
        Lengths(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(text.splitlines())
    ]


def draw_lengths(count: int, seed: int, divisor: int = 1) -> list[Lengths]:
    """``count`` different requests of the trace, drawn by ``seed``; lengths over ``divisor``, at least one token each.

    The same arguments give the same list on every machine.
    """
    drawn = random.Random(seed).sample(azure_conversation(), count)
    return [Lengths(max(1, prompt // divisor), max(1, output // divisor)) for prompt, output in drawn]
