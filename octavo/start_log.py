"""What an engine says of itself at its start: its memory, the tiers beside it, and what costs time."""

import logging
from pathlib import Path

from octavo.core.scheduler import Scheduler
from octavo.engine_args import EngineArgs

logger = logging.getLogger(__name__)


def log_start(scheduler: Scheduler, args: EngineArgs, block_bytes: int, *, is_checked: bool) -> None:
    """``block_bytes``: of one block, in every tier. ``is_checked``: every step is (the sanitizer)."""
    _log_pool(scheduler, args, block_bytes)
    _log_tiers(scheduler, args, block_bytes)
    if is_checked:
        logger.info("KV sanitizer: on; every step is checked against a shadow of the KV memory, which costs time")


def _log_pool(scheduler: Scheduler, args: EngineArgs, block_bytes: int) -> None:
    cache, longest = scheduler.kv.config, scheduler.door.max_tokens_per_sequence
    logger.info(
        "KV cache memory: %.2f GiB in %d blocks of %d tokens, %s",
        *(_gib(cache.num_blocks, block_bytes), cache.num_blocks, cache.block_size, args.kv_dtype_name),
    )
    logger.info("KV cache size: %s tokens", f"{cache.num_tokens_held(longest):,}")
    if longest < scheduler.config.max_model_len:
        logger.warning(
            "The pool holds less than the model's context of %s tokens: requests above %s tokens will be refused. More "
            "memory (kv_cache_memory_bytes, num_blocks) lifts this.",
            *(f"{scheduler.config.max_model_len:,}", f"{longest:,}"),
        )
    blocks = scheduler.kv.num_blocks_for(longest)
    logger.info("Maximum concurrency for %s tokens per request: %.2fx", f"{longest:,}", cache.num_blocks / blocks)


def _log_tiers(scheduler: Scheduler, args: EngineArgs, block_bytes: int) -> None:
    """Of a tier that there is not, nothing."""
    cache = scheduler.kv.config
    if cache.num_host_blocks:
        use = "preempted sequences and evicted prefixes" if cache.keep_evicted else "preempted sequences"
        logger.info(
            "Host pool: up to %.2f GiB in %d blocks, for %s",
            *(_gib(cache.num_host_blocks, block_bytes), cache.num_host_blocks, use),
        )
    if cache.num_disk_slots and args.prefix_cache_dir is not None:
        logger.info(
            "Prefix cache on disk: %.2f GiB in %d blocks in %s, of which %d are filled",
            *(_gib(cache.num_disk_slots, block_bytes), cache.num_disk_slots),
            *(Path(args.prefix_cache_dir).expanduser(), scheduler.kv.host.disk.pool.num_cached),
        )


def _gib(num_blocks: int, block_bytes: int) -> float:
    return num_blocks * block_bytes / 2**30
