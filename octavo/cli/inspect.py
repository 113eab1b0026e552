"""``octavo inspect``: what a model is and what its KV memory costs, from headers alone."""

from collections import Counter
from typing import TYPE_CHECKING

import click

from octavo.cli.options import engine_options, model_argument
from octavo.cli.units import readable_bytes

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs
    from octavo.loading.summary import ModelSummary


@click.command("inspect")
@model_argument
@engine_options
def inspect_command(engine_args: "EngineArgs") -> None:
    """Show the architecture and parameters of MODEL, the bytes a token of KV costs, and the blocks that would fit.

    MODEL is what `octavo serve` takes. Only headers are read; nothing is loaded.
    """
    from octavo.loading.resolve import resolve_model
    from octavo.loading.summary import model_summary

    path = resolve_model(engine_args.model)
    summary = model_summary(path, engine_args.kv_dtype_name, engine_args.dtype, engine_args.quantization)
    lines = {"model": str(path)} | describe_model(summary) | describe_memory(summary, engine_args)
    width = max(map(len, lines))
    for name, value in lines.items():
        click.echo(f"{name:<{width}}  {value}")


def describe_model(summary: "ModelSummary") -> dict[str, str]:
    """Lines about the model itself."""
    config = summary.config
    kinds = ", ".join(f"{kind} x {count}" for kind, count in sorted(summary.kinds.items()))
    kinds_of_groups = Counter((len(group.layers), group.window) for group in summary.groups)
    groups = ", ".join(_describe_groups(count, *kind) for kind, count in kinds_of_groups.items())
    return {
        "architecture": config.architecture,
        "parameters": f"{summary.num_parameters:,}",
        "stored as": f"{readable_bytes(summary.weight_bytes)} ({kinds} tensors)",
        "weights in memory": readable_bytes(summary.loaded_bytes),
        "context": f"{config.max_position:,} tokens",
        "vocabulary": f"{config.vocab_size:,}",
        "layers": f"{config.num_layers}, hidden size {config.hidden_size}",
        "attention": f"{config.num_heads} heads, {config.num_kv_heads} KV heads, head size {config.head_dim}",
        "layer groups": groups,
    }


def _describe_groups(count: int, num_layers: int, window: int | None) -> str:
    """``count`` layer groups of one kind."""
    times = "" if count == 1 else f"{count} x "
    return f"{times}{num_layers} layers {'global' if window is None else f'with a window of {window} tokens'}"


def describe_memory(summary: "ModelSummary", engine_args: "EngineArgs") -> dict[str, str]:
    """Lines about the KV cache that `octavo serve` would make with these settings, now, on this machine."""
    from octavo.core_configs import cache_sizes

    dtype = engine_args.kv_dtype_name
    block_bytes = summary.kv_bytes_per_token * engine_args.block_size // len(summary.groups)
    budget, source = _kv_budget(summary, engine_args)
    cache = cache_sizes(engine_args, [group.window for group in summary.groups], budget // block_bytes)
    num_tokens = cache.num_tokens_held(summary.config.max_position)
    return {
        "KV a token": f"{summary.kv_bytes_per_token:,} bytes ({dtype}, all layers)",
        "block": f"{engine_args.block_size} tokens of one layer group, {readable_bytes(block_bytes)}",
        "blocks that fit": f"{cache.num_blocks:,} ({num_tokens:,} tokens) in {source}",
    }


def _kv_budget(summary: "ModelSummary", engine_args: "EngineArgs") -> tuple[int, str]:
    """Bytes for the KV cache, and where they come from."""
    from octavo.runner.memory import free_memory_bytes

    if engine_args.kv_cache_memory_bytes is not None:
        return engine_args.kv_cache_memory_bytes, readable_bytes(engine_args.kv_cache_memory_bytes)
    left = max(free_memory_bytes() - summary.loaded_bytes, 0)
    budget = int(left * engine_args.memory_utilization)
    share = f"{engine_args.memory_utilization:.0%} of the memory free beside the weights"
    return budget, f"{readable_bytes(budget)}, {share}"
