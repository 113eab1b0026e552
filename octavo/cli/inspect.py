"""``octavo inspect``: what a model is and what its KV memory costs, from headers alone."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from octavo.cli.options import engine_options, model_argument
from octavo.cli.units import readable_bytes
from octavo.core.errors import ConfigurationError

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
    dtype = engine_args.kv_dtype_name
    block_bytes = summary.kv_bytes_per_token * engine_args.block_size // len(summary.groups)
    return {
        "KV a token": f"{summary.kv_bytes_per_token:,} bytes ({dtype}, all layers)",
        "block": f"{engine_args.block_size} tokens of one layer group, {readable_bytes(block_bytes)}",
        "blocks that fit": _describe_pool(summary, engine_args, block_bytes),
    }


def _describe_pool(summary: "ModelSummary", engine_args: "EngineArgs", block_bytes: int) -> str:
    """The pool's size, or why there can be none."""
    from octavo.core_configs import cache_sizes
    from octavo.loading.summary import with_context
    from octavo.pool_size import pool_size
    from octavo.runner.memory import free_memory_bytes

    sizes = cache_sizes(engine_args, [group.window for group in summary.groups])
    left = max(free_memory_bytes() - summary.loaded_bytes, 0)
    try:
        longest = with_context(summary.config, engine_args.max_model_len).max_position
        size = pool_size(engine_args, sizes, block_bytes, longest, left)
    except ConfigurationError as error:
        return f"none: {error}"
    num_tokens = replace(sizes, num_blocks=size.num_blocks).num_tokens_held(longest)
    of_budget = f"{'at most ' if size.is_capped else ''}{readable_bytes(size.num_bytes)} ({size.source})"
    enough = f", all that {engine_args.max_num_seqs} sequences (max_num_seqs) can use" if size.is_capped else ""
    return f"{size.num_blocks:,} ({num_tokens:,} tokens) in {of_budget}{enough}"
