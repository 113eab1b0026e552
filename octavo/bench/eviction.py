"""``octavo bench eviction``: what each order of eviction hits on a recorded load, against an all-knowing one."""

from dataclasses import dataclass
from pathlib import Path

import click

from octavo.bench.eviction_optimum import optimum
from octavo.bench.eviction_replay import replay
from octavo.bench.eviction_traces import ConversationSettings, Trace, generate_conversations, read_mooncake
from octavo.bench.report import report
from octavo.cli.table import json_option
from octavo.core.errors import ConfigurationError
from octavo.core.eviction_policies import EVICTION_POLICIES

CAPACITIES = (20, 195, 1953, 3906, 7812, 9765, 15625, 19531, 40000, 97656)
"""Those of the published figures for the Mooncake conversation trace."""

COLUMNS = {
    "num_blocks": "blocks",
    "lru": "lru (hit tokens)",
    "reuse": "reuse (hit tokens)",
    "optimum": "optimum (hit tokens)",
    "gain": "reuse over lru (%)",
    "gap_closed": "gap closed (%)",
}


@dataclass(frozen=True, slots=True)
class EvictionFigures:
    """Hit tokens, in the second half of the requests, of a cache of ``num_blocks``."""

    num_blocks: int
    lru: int
    reuse: int
    optimum: int

    def row(self) -> dict[str, int | float | None]:
        """With the gain over lru, and the share of the distance from lru to the optimum, both in percent."""
        gain = self.reuse - self.lru
        gap = self.optimum - self.lru
        return {
            "num_blocks": self.num_blocks,
            "lru": self.lru,
            "reuse": self.reuse,
            "optimum": self.optimum,
            "gain": 100 * gain / self.lru if self.lru else None,
            "gap_closed": 100 * gain / gap if gap else None,
        }


def measure(trace: Trace, num_blocks: int) -> EvictionFigures:
    """Replays the trace under every policy, and with the future known."""
    hits = {name: replay(trace, num_blocks, make_evictor) for name, make_evictor in EVICTION_POLICIES.items()}
    return EvictionFigures(num_blocks, hits["lru"], hits["reuse"], optimum(trace, num_blocks))


@click.command("eviction")
@click.argument("trace_path", metavar="[TRACE]", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--num-blocks",
    type=click.IntRange(1),
    multiple=True,
    default=CAPACITIES,
    show_default=True,
    help="Blocks in the cache; may be given more than once.",
)
@click.option("--num-conversations", type=click.IntRange(2), default=1500, show_default=True, help="Without a TRACE.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the conversations, without a TRACE.")
@json_option
def eviction_command(
    trace_path: Path | None, num_blocks: tuple[int, ...], num_conversations: int, seed: int, json_path: Path | None
) -> None:
    """Compare orders of eviction on TRACE (JSON lines as Mooncake publishes them, gzipped or not).

    Without one, on generated conversations of several turns. No model runs: hits follow from the order of requests
    alone, one at a time, and are the same on every machine.
    """
    if trace_path is None:
        trace = generate_conversations(ConversationSettings(num_conversations=num_conversations), seed)
    else:
        trace = read_mooncake(trace_path)
    if len(trace.requests) < 2:
        raise ConfigurationError(f"{trace_path} has {len(trace.requests)} requests; give a trace of at least 2.")
    report("eviction", [measure(trace, count).row() for count in num_blocks], COLUMNS, json_path)
