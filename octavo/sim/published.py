"""Cost models of hardware that one does not have, from measurements that others have published.

Source: https://github.com/Mutinifni/splitwise-sim, data/perf_model.csv (MIT, octavo/data/splitwise/LICENSE):
Llama-2-70B and BLOOM-176B on 2, 4 or 8 NVIDIA A100 or H100 with 80 GB, as described in "Splitwise: Efficient Generative
LLM Inference Using Phase Splitting" (Patel et al., ISCA 2024). Each row has the milliseconds of a batch of prompts
(``prompt_time``) and of a step of the answers to it (``token_time``). The rows of H100s with capped power are left out:
their times are those without the cap times 1.3, or the same.
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Mapping
from importlib.resources import files
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.sim.costs import TableCosts

SPLITWISE = "splitwise"
DEVICES = {"a100-80gb": "a100", "h100-80gb": "h100"}
DECODE_PROMPT, DECODE_ANSWER = 512, 128
"""Tokens of the prompts and answers with which all sizes of a batch were measured."""


class Cell(NamedTuple):
    """What repeats have in common: tokens of each prompt, prompts, tokens of each answer."""

    prompt: int
    batch: int
    answer: int

    @property
    def prompt_tokens(self) -> int:
        return self.prompt * self.batch


class Times(NamedTuple):
    """Seconds of all prompts of a cell, and of a step of its answers."""

    prompt: float
    token: float


def published_costs(name: str) -> TableCosts:
    """The cost model of ``splitwise:NAME``.

    Raises:
        ConfigurationError: there is no such one, with those there are.
    """
    found = _read()
    if name not in found:
        raise ConfigurationError(f"{SPLITWISE} has no {name!r}; it has {', '.join(sorted(found))}")
    return costs_of(found[name])


def costs_of(cells: Mapping[Cell, Times]) -> TableCosts:
    """Prompts by all their tokens, answers by the size of the batch; both read the weights, which a step of one answer
    does little beside."""
    measured = _that_ran(cells)
    prefill: defaultdict[int, list[float]] = defaultdict(list)
    for cell, times in measured.items():
        prefill[cell.prompt_tokens].append(times.prompt)
    decode = sorted(
        (cell.batch, times.token)
        for cell, times in measured.items()
        if (cell.prompt, cell.answer) == (DECODE_PROMPT, DECODE_ANSWER)
    )
    table = [(tokens, median(seconds)) for tokens, seconds in sorted(prefill.items())]
    return TableCosts(decode, table, shared_seconds=decode[0][1])


def _that_ran(cells: Mapping[Cell, Times]) -> dict[Cell, Times]:
    """Without those whose prompts took less than half the time of a batch with fewer tokens: the largest batch on two
    devices did not fit, and the times that stand for it are of a part of it."""
    ordered = sorted(cells, key=lambda cell: cell.prompt_tokens)
    longest = accumulate((cells[cell].prompt for cell in ordered), max)
    return {cell: cells[cell] for cell, most in zip(ordered, longest, strict=True) if cells[cell].prompt >= most / 2}


def _read() -> dict[str, dict[Cell, Times]]:
    """Medians over the repeats of every cell, by the name of model, device and how many; without the number: of as many
    as were used at most."""
    repeats: defaultdict[tuple[str, int], defaultdict[Cell, list[Times]]] = defaultdict(lambda: defaultdict(list))
    packed = files("octavo").joinpath("data/splitwise/perf_model.csv.gz").read_bytes()
    for row in csv.DictReader(gzip.decompress(packed).decode().splitlines()):
        if row["hardware"] in DEVICES:
            system = f"{row['model']}-{DEVICES[row['hardware']]}", int(row["tensor_parallel"])
            cell = Cell(int(row["prompt_size"]), int(row["batch_size"]), int(row["token_size"]))
            repeats[system][cell].append(Times(float(row["prompt_time"]) / 1e3, float(row["token_time"]) / 1e3))
    found: dict[str, dict[Cell, Times]] = {}
    for (name, degree), cells in sorted(repeats.items()):
        medians = {
            cell: Times(median(each.prompt for each in times), median(each.token for each in times))
            for cell, times in cells.items()
        }
        found[f"{name}-tp{degree}"] = found[name] = medians
    return found
