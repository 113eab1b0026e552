"""Medians, ratios and shares of the machine's ceiling, from the seconds that runs took."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from octavo.bench.ceilings import Ceilings
from octavo.bench.compare.cells import Cell

COLUMNS = {
    "cell": "cell",
    "system": "system",
    "seconds": "median s",
    "tokens_per_second": "tokens/s",
    "slowest": "lowest",
    "fastest": "highest",
    "octavo_ratio": "Octavo x",
    "lowest_ratio": "lowest x",
    "highest_ratio": "highest x",
    "ceiling_percent": "% of ceiling",
    "limit": "limit",
}


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a forward pass costs at least. ``body``, ``head``: weights of the layers, and of the head, which only rows
    that draw a token pass. ``weight_bytes``: all of them as stored. ``kv_bytes``: of one token, all layers.
    ``is_float``: computed with in fp32, else in 8 bits."""

    body: int
    head: int
    weight_bytes: int
    kv_bytes: int
    is_float: bool


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time of a cell, and what most of it goes to: "bytes" or "operations"."""

    seconds: float
    limit: str


def floor_of(cell: Cell, cost: ModelCost, ceilings: Ceilings, tokens_per_step: int = 512) -> Floor:
    """No machine with these ceilings can run ``cell`` faster, if each step reads all weights once and the keys and
    values of each sequence, prompts go ``tokens_per_step`` at a time, and what is shared is computed once.

    The operations of attention are left out: they are few beside those of the weights at these lengths.
    """
    speed = ceilings.float_operations_per_second if cost.is_float else ceilings.byte_operations_per_second
    num_prompt = cell.shared_len + cell.num_requests * cell.prompt_len
    num_steps = -(-num_prompt // tokens_per_step)
    steps = [(num_prompt, cell.num_requests, num_steps * cost.weight_bytes)]
    for context in range(cell.max_tokens - cell.output_len + 1, cell.max_tokens):
        num_bytes = cost.weight_bytes + cell.num_requests * context * cost.kv_bytes
        steps.append((cell.num_requests, cell.num_requests, num_bytes))
    reading = [num_bytes / ceilings.read_bytes_per_second for _, _, num_bytes in steps]
    computing = [2 * (rows * cost.body + drawn * cost.head) / speed for rows, drawn, _ in steps]
    seconds = [max(pair) for pair in zip(reading, computing, strict=True)]
    bound_by_bytes = sum(total for total, read in zip(seconds, reading, strict=True) if read == total)
    return Floor(sum(seconds), "bytes" if bound_by_bytes > sum(seconds) / 2 else "operations")


def row(
    cell: Cell, system: str, seconds: Sequence[float], octavo: Sequence[float] | None, floor: Floor | None
) -> dict[str, object]:
    """One line. ``seconds``: one a repeat; ``octavo``: those of Octavo in the same repeats, for a peer's ratios, which
    are Octavo's speed over the peer's; ``floor``: the ceiling that the system is measured by."""
    figures: dict[str, object] = {
        "cell": cell.name,
        "system": system,
        "seconds": median(seconds),
        "tokens_per_second": cell.num_counted / median(seconds),
        "slowest": cell.num_counted / max(seconds),
        "fastest": cell.num_counted / min(seconds),
        "seconds_of_repeats": list(seconds),
    }
    if octavo is not None:
        ratios = [own / others for own, others in zip(seconds, octavo, strict=True)]
        figures |= {"octavo_ratio": median(ratios), "lowest_ratio": min(ratios), "highest_ratio": max(ratios)}
    if floor is not None:
        figures |= {
            "ceiling_percent": 100 * floor.seconds / median(seconds),
            "limit": floor.limit,
            "floor_seconds": floor.seconds,
        }
    return figures
