"""How many blocks the KV pool has, from settings, the model's shape and the memory there is; without torch."""

from dataclasses import replace
from typing import NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.core.kv_types import CacheConfig
from octavo.engine_args import EngineArgs


class PoolSize(NamedTuple):
    """``num_blocks`` in a budget of ``num_bytes`` bytes, which comes from ``source``. ``is_capped``: there is memory
    for more, but ``max_num_seqs`` sequences can use no more."""

    num_blocks: int
    num_bytes: int
    source: str
    is_capped: bool = False


def pool_size(args: EngineArgs, sizes: CacheConfig, block_bytes: int, max_position: int, free: int) -> PoolSize:
    """``sizes``: what a sequence takes (``cache_sizes``); ``block_bytes``: of one block; ``max_position``: the longest
    prompt plus output; ``free``: bytes of memory that are left beside the weights.

    Raises:
        ConfigurationError: more than there is, or too little for one sequence.
    """
    size = _given_blocks(args, block_bytes, free) or _blocks_in_memory(args, sizes, block_bytes, max_position, free)
    num_slots = replace(sizes, num_blocks=size.num_blocks).num_token_slots
    held = f"the KV pool of {size.num_blocks} blocks holds {num_slots} tokens of one sequence"
    advice = "give it more memory (kv_cache_memory_bytes, num_blocks)"
    if args.max_model_len is not None and num_slots < args.max_model_len:
        raise ConfigurationError(f"{held}, but max_model_len is {args.max_model_len}; {advice} or lower max_model_len")
    if num_slots == 0:
        raise ConfigurationError(f"{held}: {args.block_size} tokens take {sizes.num_groups} blocks; {advice}")
    return size


def check_is_free(what: str, num_bytes: int, free: int) -> None:
    """What the settings ask for must fit into the memory that is free.

    Raises:
        ConfigurationError: it does not.
    """
    if num_bytes > free:
        raise ConfigurationError(
            f"{what} is {num_bytes / 2**30:,.2f} GiB, but {free / 2**30:,.2f} GiB of memory are free; give it less"
        )


def _given_blocks(args: EngineArgs, block_bytes: int, free: int) -> PoolSize | None:
    if args.num_blocks is None:
        return None
    num_bytes = args.num_blocks * block_bytes
    check_is_free(f"the pool of {args.num_blocks:,} blocks (num_blocks)", num_bytes, free)
    return PoolSize(args.num_blocks, num_bytes, "num_blocks")


def _blocks_in_memory(args: EngineArgs, sizes: CacheConfig, block_bytes: int, max_position: int, free: int) -> PoolSize:
    if args.kv_cache_memory_bytes is not None:
        budget, source = args.kv_cache_memory_bytes, "kv_cache_memory_bytes"
        check_is_free(source, budget, free)
    else:
        budget = int(free * args.memory_utilization)
        source = f"{args.memory_utilization:.0%} of the memory free beside the weights"
    needed = block_bytes * sizes.num_groups
    if budget < needed:
        raise ConfigurationError(
            f"a KV pool of {budget:,} bytes ({source}) cannot hold one sequence: {args.block_size} tokens take "
            f"{needed:,} bytes; give it more, or lower block_size"
        )
    fit, usable = budget // block_bytes, sizes.num_blocks_for(max_position) * args.max_num_seqs
    return PoolSize(min(fit, usable), budget, source, usable < fit)
