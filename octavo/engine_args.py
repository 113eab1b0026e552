"""Settings of an engine: plain values, so that naming them costs no import of torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineArgs:
    """Settings of an engine, named as on the command line.

    ``model``: a folder, a .gguf file, a built-in name or a hub name. ``max_model_len`` None: the model's context, or
    what the pool holds if that is less. The pool has ``num_blocks`` blocks, or as many as ``kv_cache_memory_bytes``
    hold, or as many as ``memory_utilization`` (a share) of the free memory holds.
    """

    model: str = "smollm2-135m"
    dtype: str = "auto"
    max_model_len: int | None = None
    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool = True
    seed: int | None = None
    backend: str | None = None
    threads: int | None = None
    memory_utilization: float = 0.4
    chat_template: str | None = None
