"""A plan: what a memory holds in theory, and what comes of it under the real scheduler."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.core.kv_types import CacheConfig
from octavo.core.policy import growth_reserve
from octavo.core.scheduler_types import ADMISSION_QUANTILE, SchedulerConfig
from octavo.sim.costs import CostModel
from octavo.sim.figures import figures
from octavo.sim.planning.block_size import BlockChoice, advisable_sizes, advised, block_choices
from octavo.sim.planning.lengths import QUANTILES, quantile
from octavo.sim.simulation import ServerSettings, Simulation
from octavo.sim.traces.request import TracedRequest, asking

MAX_DEGREE = 64
"""Devices that one model is spread over; more are not looked at."""

MAX_PIN_QUOTA = 0.25

PREEMPTED_SHARE = 0.01
"""Of requests; from here on preemption is worth a word."""

LITTLE_GAIN = 1.1
"""So many times the sequences of a memory reserved to the maximum are no gain."""


class Model(NamedTuple):
    """``windows``: of each layer group. ``kv_bytes_per_token``: over all layers."""

    weight_bytes: int
    kv_bytes_per_token: int
    windows: tuple[int | None, ...]
    num_kv_heads: int
    max_position: int


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a plan is made for. ``memory_bytes``: of one device, of which ``utilization`` may be used. None: what the
    plan advises. ``max_tokens``: what requests ask for where the trace does not say it (None: what they got)."""

    memory_bytes: int
    utilization: float = 0.9
    block_size: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    max_tokens: int | None = None
    admission_quantile: float = ADMISSION_QUANTILE


@dataclass(frozen=True, slots=True)
class Plan:
    """``degree``: devices that the model has to be spread over; ``missing_bytes``: what one device lacks to hold the
    weights and one sequence of ``max_model_len`` tokens. ``held``: sequences at each of QUANTILES of the total length.

    ``full``: figures of a run in which all requests are there from the start; ``paced``: at the rate that was asked
    for. ``preemption_rate``: requests a second at which ``PREEMPTED_SHARE`` of them are preempted; None: at none.
    """

    wishes: Wishes
    degree: int
    missing_bytes: int
    kv_bytes: int
    block: BlockChoice
    block_bytes: int
    num_blocks: int
    num_slots: int
    max_model_len: int
    lengths: tuple[int, ...]
    held: tuple[int, ...]
    held_reserved: int
    full: dict[str, object]
    paced: dict[str, object] | None
    preemption_rate: float | None
    watermark_blocks: int
    pin_quota: float
    swap_bytes: int
    remarks: list[str] = field(default_factory=list)


def make_plan(
    model: Model, wishes: Wishes, requests: Sequence[TracedRequest], costs: CostModel, rate: float | None = None
) -> Plan:
    """
    Raises:
        ConfigurationError: no number of devices holds the weights and one sequence; says by how much one falls short.
    """
    totals = [each.prompt + each.output for each in requests]
    longest = min(model.max_position, wishes.max_model_len or model.max_position)
    if max(totals) > longest:
        raise ConfigurationError(
            f"the longest request has {max(totals):,} tokens, but the longest sequence here has {longest:,}; leave it "
            "out or raise --max-model-len"
        )
    if wishes.max_model_len is None:
        longest = max(totals)
    block_sizes = advisable_sizes(costs) if wishes.block_size is None else (wishes.block_size,)
    degree, missing = _degree(model, wishes, longest, block_sizes[0])
    kv_bytes = degree * int(wishes.memory_bytes * wishes.utilization) - model.weight_bytes
    holding = [size for size in block_sizes if _sequence_bytes(model, wishes, longest, size) <= kv_bytes]
    block = advised(block_choices(requests, costs, min(wishes.max_num_seqs, len(requests)), holding))
    block_bytes = _block_bytes(model, block.block_size)
    sizes = _cache(model, wishes, block.block_size, kv_bytes // block_bytes)
    usable = sizes.num_blocks_for(longest) * wishes.max_num_seqs
    sizes = _cache(model, wishes, block.block_size, min(sizes.num_blocks, usable))
    trial = _Trial(wishes, sizes, longest, requests, costs)
    full = trial.run(None)
    lengths = tuple(quantile(totals, share) for share in QUANTILES)
    plan = Plan(
        wishes=wishes,
        degree=degree,
        missing_bytes=missing,
        kv_bytes=kv_bytes,
        block=block,
        block_bytes=block_bytes,
        num_blocks=sizes.num_blocks,
        num_slots=sizes.num_tokens_held(longest),
        max_model_len=longest,
        lengths=lengths,
        held=tuple(_held(sizes, length, wishes) for length in lengths),
        held_reserved=_held(sizes, longest, wishes),
        full=full,
        paced=None if rate is None else trial.run(rate),
        preemption_rate=trial.preemption_rate(full),
        watermark_blocks=growth_reserve(_whole(full["running_max"]), sizes.num_blocks),
        pin_quota=_pin_quota(sizes, longest),
        swap_bytes=_swap_bytes(full, sizes.num_blocks_for(lengths[-1]) * block_bytes),
    )
    plan.remarks.extend(_remarks(plan, requests))
    return plan


def _block_bytes(model: Model, block_size: int) -> int:
    return model.kv_bytes_per_token * block_size // len(model.windows)


def _sequence_bytes(model: Model, wishes: Wishes, length: int, block_size: int) -> int:
    """What the blocks of one sequence of ``length`` tokens take."""
    return _cache(model, wishes, block_size, 0).num_blocks_for(length) * _block_bytes(model, block_size)


def _degree(model: Model, wishes: Wishes, longest: int, block_size: int) -> tuple[int, int]:
    """How many devices hold the weights and one sequence in blocks of ``block_size``, the smallest there may be, and
    what one of them lacks for that."""
    usable = int(wishes.memory_bytes * wishes.utilization)
    sequence = _sequence_bytes(model, wishes, longest, block_size)
    needed = model.weight_bytes + sequence
    degree, most = 1, _max_degree(model.num_kv_heads)
    while degree * usable < needed:
        degree *= 2
        if degree > most:
            raise ConfigurationError(
                f"not even one sequence fits: the weights take {_gib(model.weight_bytes)} and one sequence of "
                f"{longest:,} tokens {_gib(sequence)}, but {_gib(usable)} may be used ({wishes.utilization:.0%} of "
                f"{_gib(wishes.memory_bytes)}): {_gib(needed - usable)} are missing on one device, "
                f"{_gib(needed - most * usable)} on {most}, the most that its {model.num_kv_heads} KV heads can be "
                "spread over; give more memory or a shorter --max-model-len"
            )
    return degree, max(0, needed - usable)


def _max_degree(num_kv_heads: int) -> int:
    """The largest power of two that divides the heads evenly, up to MAX_DEGREE."""
    return min(MAX_DEGREE, num_kv_heads & -num_kv_heads)


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"


def _cache(model: Model, wishes: Wishes, block_size: int, num_blocks: int) -> CacheConfig:
    return CacheConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        num_groups=len(model.windows),
        windows=model.windows,
        max_unlanded_tokens=wishes.max_num_batched_tokens,
    )


def _held(sizes: CacheConfig, length: int, wishes: Wishes) -> int:
    """Sequences of so many tokens that the memory holds at once."""
    return min(wishes.max_num_seqs, sizes.num_blocks // sizes.num_blocks_for(length))


def _pin_quota(sizes: CacheConfig, longest: int) -> float:
    """What the longest sequence does not need, down to whole per cents, and no more than a server's default."""
    spare = 1 - sizes.num_blocks_for(longest) / sizes.num_blocks
    return min(MAX_PIN_QUOTA, int(100 * spare) / 100)


def _swap_bytes(full: dict[str, object], sequence_bytes: int) -> int:
    """Room for the share of the sequences that is preempted, long ones; none where nobody is."""
    share = full["preempted_share"]
    if not isinstance(share, float) or not share:
        return 0
    return (1 + int(share * _whole(full["running_max"]))) * sequence_bytes


def _remarks(plan: Plan, requests: Sequence[TracedRequest]) -> list[str]:
    """Where paging would gain nothing."""
    remarks = [f"paging gains nothing here: {why}" for why in _no_gain(plan, requests)][:1]
    hits = plan.full["prefix_hit_share"]
    if remarks and isinstance(hits, float) and hits > 0:
        remarks.append(f"but {hits:.0%} of the prompt tokens are shared, and only blocks can be")
    return remarks


def _no_gain(plan: Plan, requests: Sequence[TracedRequest]) -> Iterator[str]:
    """Reasons, compared with memory that is reserved to the longest sequence."""
    if plan.held_reserved >= plan.wishes.max_num_seqs:
        yield (
            f"the memory holds {plan.wishes.max_num_seqs} sequences (max_num_seqs) of the full "
            f"{plan.max_model_len:,} tokens"
        )
    if plan.paced is not None and _whole(plan.paced["running_max"]) <= plan.held_reserved:
        yield (
            f"at the rate asked for at most {_whole(plan.paced['running_max'])} run at once, and the memory holds "
            f"{plan.held_reserved} of the full {plan.max_model_len:,} tokens"
        )
    held = _mean_tokens_held(requests) + (plan.block.block_size - 1) / 2
    if plan.max_model_len < LITTLE_GAIN * held:
        yield (
            f"a sequence holds {held:,.0f} slots on average, with the empty end of its last block, and "
            f"{plan.max_model_len:,} reserved to the longest"
        )


def _mean_tokens_held(requests: Sequence[TracedRequest]) -> float:
    """Of a sequence at a moment: each grows from its prompt to its end, and a long answer is there for longer."""
    weighted = sum(each.output * (each.prompt + each.output / 2) for each in requests)
    return weighted / sum(each.output for each in requests)


class _Trial:
    """Runs of the same requests with the same settings."""

    def __init__(
        self, wishes: Wishes, sizes: CacheConfig, longest: int, requests: Sequence[TracedRequest], costs: CostModel
    ) -> None:
        config = SchedulerConfig(
            max_num_seqs=wishes.max_num_seqs,
            max_num_batched_tokens=wishes.max_num_batched_tokens,
            max_model_len=longest,
            admission_quantile=wishes.admission_quantile,
        )
        self._settings = ServerSettings(config, sizes)
        self._requests = list(asking(requests, wishes.max_tokens, longest))
        self._costs = costs

    def run(self, rate: float | None) -> dict[str, object]:
        """``rate``: requests a second, on average; None: all at once."""
        return figures(Simulation(self._arrivals(rate), self._settings, self._costs).run())

    def _arrivals(self, rate: float | None) -> Iterator[TracedRequest]:
        source, now = random.Random(0), 0.0
        for request in self._requests:
            yield request._replace(seconds=now)
            now += 0.0 if rate is None else source.expovariate(rate)

    def preemption_rate(self, full: dict[str, object]) -> float | None:
        """Found by bisection between two rates of which only the higher has more preempted: it may be above what the
        server manages, where requests come in a burst. None where not even all at once bring that about."""
        high = full["requests_per_second"]
        if _share(full) <= PREEMPTED_SHARE or not isinstance(high, float):
            return None
        low = 0.0
        for _ in range(MAX_DOUBLINGS):
            if self._preempts(high):
                break
            low, high = high, 2 * high
        else:
            return None
        for _ in range(NUM_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._preempts(middle) else (middle, high)
        return high

    def _preempts(self, rate: float) -> bool:
        return _share(self.run(rate)) > PREEMPTED_SHARE


MAX_DOUBLINGS, NUM_HALVINGS = 10, 5


def _share(found: dict[str, object]) -> float:
    share = found["preempted_share"]
    return share if isinstance(share, float) else 0.0


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0
