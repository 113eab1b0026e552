"""What the size of blocks costs: the engine's bookkeeping for each, and attention over contexts in larger and smaller
ones."""

import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import torch

from octavo.bench.decoding import decoding_batch, written_layers
from octavo.core.kv_types import CacheConfig
from octavo.core.scheduler_types import SchedulerConfig
from octavo.kernels.interface import AttentionSpec, BatchLayout, KVLayer, Ops
from octavo.sim.costs import BlockCosts, LinearCosts
from octavo.sim.planning.block_size import BLOCK_SIZES
from octavo.sim.simulation import ServerSettings, Simulation
from octavo.sim.traces.request import TracedRequest

NUM_REPEATS = 7
"""Of each measurement, in turns."""

NUM_ROWS, PROMPT, ANSWER = 64, 64, 192
"""Of the bookkeeping: all there from the start."""

ATTENDING_ROWS, CONTEXT, NUM_LAYERS = 8, 512, 4
ONE_SECOND = LinearCosts(1.0, 0.0, 0.0)


def block_costs(ops: Ops, spec: AttentionSpec, kv_dtype: torch.dtype) -> BlockCosts:
    """``spec``: of the model's attention over whole contexts."""
    return BlockCosts(seconds=block_seconds(), context_factors=context_factors(ops, spec, kv_dtype))


def block_seconds() -> float:
    """CPU time of the scheduler and the allocator for one more block: the median over repeats, with the smallest and
    the largest blocks in turns. Prompts and answers have names for the prefix cache, as on a server."""
    small, large = min(BLOCK_SIZES), max(BLOCK_SIZES)
    num_more = NUM_ROWS * (_num_blocks(small) - _num_blocks(large))
    differences = [_replay_seconds(small) - _replay_seconds(large) for _ in range(NUM_REPEATS)]
    return max(0.0, median(differences) / num_more)


def context_factors(ops: Ops, spec: AttentionSpec, kv_dtype: torch.dtype) -> Sequence[tuple[int, float]]:
    """By the size of blocks: how many times as long attention of decoding rows takes as with the quickest. The best of
    the repeats counts."""
    calls = {size: partial(_attend, ops, spec, *_layers(spec, kv_dtype, size)) for size in BLOCK_SIZES}
    best = dict.fromkeys(BLOCK_SIZES, float("inf"))
    for _ in range(NUM_REPEATS):
        for size, call in calls.items():
            start = time.perf_counter()
            call()
            best[size] = min(best[size], time.perf_counter() - start)
    return tuple((size, seconds / min(best.values())) for size, seconds in best.items())


def _num_blocks(block_size: int) -> int:
    return -(-(PROMPT + ANSWER) // block_size)


def _replay_seconds(block_size: int) -> float:
    settings = ServerSettings(
        SchedulerConfig(max_num_seqs=NUM_ROWS, max_num_batched_tokens=NUM_ROWS * PROMPT),
        CacheConfig(2 * NUM_ROWS * _num_blocks(block_size), block_size),
    )
    simulation = Simulation(_requests(), settings, ONE_SECOND)
    start = time.process_time()
    simulation.run()
    return time.process_time() - start


def _requests() -> Iterator[TracedRequest]:
    """Each with contents of its own."""
    source, size = random.Random(0), min(BLOCK_SIZES)
    for _ in range(NUM_ROWS):
        names = tuple(source.getrandbits(30) for _ in range((PROMPT + ANSWER) // size))
        yield TracedRequest(0.0, PROMPT, ANSWER, blocks=names, block_size=size)


def _layers(spec: AttentionSpec, kv_dtype: torch.dtype, block_size: int) -> tuple[BatchLayout, list[KVLayer]]:
    """One decoding row a sequence, with its blocks in shuffled places."""
    num_blocks = ATTENDING_ROWS * CONTEXT // block_size
    layers = written_layers(NUM_LAYERS, num_blocks, block_size, spec, kv_dtype)
    layout = decoding_batch(ATTENDING_ROWS, CONTEXT, block_size, torch.randperm(num_blocks))
    return layout, layers


def _attend(ops: Ops, spec: AttentionSpec, layout: BatchLayout, layers: Sequence[KVLayer]) -> None:
    q = torch.ones(ATTENDING_ROWS, spec.num_heads * spec.head_dim)
    for layer in layers:
        ops.attention(q, layer, layout, spec)
