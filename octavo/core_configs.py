"""What settings mean for the core: the scheduler's budgets, what a sequence takes of the KV cache; without torch."""

from collections.abc import Sequence

from octavo.core.kv_types import CacheConfig
from octavo.core.scheduler_types import SchedulerConfig
from octavo.engine_args import EngineArgs, head_skips, policy_settings, prompt_bounds

DEFAULT_BATCHED_TOKENS = 512
"""Tokens a step on CPU: see docs/benchmarks.md."""


def scheduler_config(args: EngineArgs, max_model_len: int) -> SchedulerConfig:
    """``max_model_len``: the model's context. The scheduler knows the pool's size itself, and names it where that is
    the smaller limit."""
    return SchedulerConfig(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens or max(DEFAULT_BATCHED_TOKENS, args.max_num_seqs),
        max_model_len=max_model_len,
        preemption_mode=args.preemption_mode,
        head_skips=head_skips(args),
        policy=policy_settings(args),
        prompts=prompt_bounds(args),
        max_steps_in_flight=args.max_steps_in_flight,
        admission_quantile=args.admission_quantile,
    )


def cache_sizes(args: EngineArgs, windows: Sequence[int | None], num_blocks: int = 0) -> CacheConfig:
    """What a sequence takes of a pool of ``num_blocks`` blocks (0: not known yet). ``windows``: of each layer group."""
    budgets = scheduler_config(args, 0)
    return CacheConfig(
        num_blocks=num_blocks,
        block_size=args.block_size,
        num_groups=len(windows),
        windows=tuple(windows),
        max_unlanded_tokens=budgets.max_num_batched_tokens * budgets.max_steps_in_flight,
    )
