"""Medians, ratios and shares of the machine's ceiling, from the seconds that runs took."""

from collections.abc import Mapping, Sequence
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


FLOAT = "float32"
"""What multiplies weights that are not quantised."""


@dataclass(frozen=True, slots=True)
class Weights:
    """``num_bytes`` as stored; ``numbers``: how many, by the name of their format, or FLOAT."""

    num_bytes: int
    numbers: Mapping[str, int]

    def seconds_per_row(self, ceilings: Ceilings) -> float:
        """To multiply one row with them."""
        speeds = {**ceilings.products_per_second, FLOAT: ceilings.float_operations_per_second / 2}
        return sum(count / speeds[kind] for kind, count in self.numbers.items())


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a forward pass costs at least. ``body``: the weights of the layers; ``head``: which only rows that draw a
    token pass. ``kv_bytes``: of one token, all layers. ``attention_operations``: in fp32, of one row and one token that
    it sees, all layers."""

    body: Weights
    head: Weights
    kv_bytes: int
    attention_operations: int


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time of a cell, and what most of it goes to: "bytes" or "operations"."""

    seconds: float
    limit: str


class _Parts:
    """The parts of a step one after the other, each as long as its bytes or its operations take, whichever is more."""

    def __init__(self) -> None:
        self.seconds = self.seconds_of_bytes = 0.0

    def add(self, reading: float, computing: float) -> None:
        self.seconds += max(reading, computing)
        if reading >= computing:
            self.seconds_of_bytes += reading


def floor_of(cell: Cell, cost: ModelCost, ceilings: Ceilings, tokens_per_step: int = 512) -> Floor:
    """No machine with these ceilings can run ``cell`` faster, if each step reads all weights once and the keys and
    values of each sequence, prompts go ``tokens_per_step`` at a time, what is shared is computed once, and layers,
    head and attention wait for one another, as each needs what the one before it computed.
    """
    parts, read, count = _Parts(), ceilings.read_bytes_per_second, cell.num_requests
    per_row, per_head = cost.body.seconds_per_row(ceilings), cost.head.seconds_per_row(ceilings)
    seeing = cost.attention_operations / ceilings.float_operations_per_second
    num_prompt = cell.shared_len + count * cell.prompt_len
    num_steps = -(-num_prompt // tokens_per_step)
    parts.add(num_steps * cost.body.num_bytes / read, num_prompt * per_row)
    parts.add(num_steps * cost.head.num_bytes / read, count * per_head)
    num_seen = _triangle(cell.shared_len) + count * (
        _triangle(cell.shared_len + cell.prompt_len) - _triangle(cell.shared_len)
    )
    parts.add(0.0, num_seen * seeing)
    for context in range(cell.max_tokens - cell.output_len + 1, cell.max_tokens):
        parts.add(cost.body.num_bytes / read, count * per_row)
        parts.add(cost.head.num_bytes / read, count * per_head)
        parts.add(count * context * cost.kv_bytes / read, count * context * seeing)
    return Floor(parts.seconds, "bytes" if parts.seconds_of_bytes > parts.seconds / 2 else "operations")


def _triangle(length: int) -> int:
    """Tokens that the rows of a prompt see, each those before it and itself."""
    return length * (length + 1) // 2


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
