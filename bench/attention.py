"""How near paged attention of decode rows comes to what the machine can do, and what paging costs.

    python -m bench.attention [--threads N] [--json FILE]

Each round reads, one after another: plain memory (the ceiling), keys and values through block tables in shuffled places
and in order, and the same kernel without tables over the better of two layouts in one piece, positions first and KV
heads first. Memory is larger than the last-level cache. The best round of each counts: on a shared machine the rest
measures the neighbours. "shuffled" is what blocks in the worst order cost against one piece, "table" what following
tables costs where they name blocks in order, as a pool that is not fragmented hands them out.
"""

import time
from collections.abc import Callable, Sequence
from ctypes import byref
from dataclasses import dataclass, replace

import torch

from bench.kernels import Figures, parse_arguments, write_report
from octavo.bench.ceilings import MemoryReading, measure_ceilings
from octavo.bench.decoding import decoding_batch, written_layers
from octavo.kernels import native
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import AttentionSpec, BatchLayout, KVLayer
from octavo.kernels.kinds import kv_head_bytes
from octavo.kernels.native_batch import native_batch

SPECS = {
    "9 heads on 3, 64 (SmolLM2)": AttentionSpec(9, 3, 64, 0.125),
    "8 heads on 2, 128": AttentionSpec(8, 2, 128, 0.088),
    "4 heads on 1, 256 (Gemma 3)": AttentionSpec(4, 1, 256, 0.0625),
}
BATCHES = [(1, 4096), (8, 4096), (8, 512)]  # sequences x context
DTYPES = [torch.float32, torch.float16, torch.int8]
BLOCK_SIZE = 16
MEMORY_BYTES = 100e6
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """``layers``: enough to leave the cache, used in turn."""

    spec: AttentionSpec
    layers: Sequence[KVLayer]
    num_sequences: int
    context: int

    @property
    def float_operations(self) -> int:
        """Multiply and add count as two."""
        return 4 * self.num_sequences * self.context * self.spec.num_heads * self.spec.head_dim

    @property
    def bytes_read(self) -> int:
        """By one call for one layer."""
        head_bytes = kv_head_bytes(self.spec.head_dim, str(self.layers[0].keys.dtype).removeprefix("torch."))
        return 2 * self.num_sequences * self.context * self.spec.num_kv_heads * head_bytes


def make_case(spec: AttentionSpec, dtype: torch.dtype, num_sequences: int, context: int) -> Case:
    num_blocks = num_sequences * context // BLOCK_SIZE
    head_bytes = kv_head_bytes(spec.head_dim, str(dtype).removeprefix("torch."))
    layer_bytes = 2 * num_sequences * context * spec.num_kv_heads * head_bytes
    layers = written_layers(max(1, round(MEMORY_BYTES / layer_bytes)), num_blocks, BLOCK_SIZE, spec, dtype)
    return Case(spec, layers, num_sequences, context)


def attend_without_tables(q: torch.Tensor, kv: KVLayer, batch: BatchLayout, spec: AttentionSpec) -> torch.Tensor:
    """The kernel over blocks in the order of sequence and position (csrc/octavo_kernels.h)."""
    given = native_batch(kv, batch)
    given.block_tables = None
    shape = native.AttentionShape(
        spec.num_heads, spec.num_kv_heads, spec.head_dim, kv.block_size, kv.keys.shape[0], 0, spec.scale, 0.0
    )
    out = torch.empty_like(q)
    native.open_library().octavo_attention(q.data_ptr(), byref(given), byref(shape), out.data_ptr())
    return out


def as_one_kv_head(kv: KVLayer) -> KVLayer:
    """The same memory as that of one KV head and so many times more blocks."""
    keys, values, *scales = (held.view(-1, 1, *held.shape[2:]) for held in kv.tensors)
    return KVLayer(keys, values, *scales)


def seconds_a_layer(call: Callable[[KVLayer], object], layers: Sequence[KVLayer]) -> float:
    start = time.perf_counter()
    for layer in layers:
        call(layer)
    return (time.perf_counter() - start) / len(layers)


def ways(ops: CpuOps, case: Case) -> dict[str, Callable[[KVLayer], object]]:
    spec, num_sequences, context = case.spec, case.num_sequences, case.context
    num_blocks = num_sequences * context // BLOCK_SIZE
    q = torch.randn(num_sequences, spec.num_heads * spec.head_dim)
    in_order, shuffled = (
        decoding_batch(num_sequences, context, BLOCK_SIZE, tables)
        for tables in (torch.arange(num_blocks), torch.randperm(num_blocks))
    )
    # Each KV head as a sequence of its own.
    one_head = replace(spec, num_heads=spec.num_heads // spec.num_kv_heads, num_kv_heads=1)
    heads_apart = decoding_batch(
        num_sequences * spec.num_kv_heads, context, BLOCK_SIZE, torch.arange(num_blocks * spec.num_kv_heads)
    )
    q_apart = q.view(num_sequences * spec.num_kv_heads, -1)
    return {
        "shuffled": lambda kv: ops.attention(q, kv, shuffled, spec),
        "in order": lambda kv: ops.attention(q, kv, in_order, spec),
        "positions first": lambda kv: attend_without_tables(q, kv, in_order, spec),
        "KV heads first": lambda kv: attend_without_tables(q_apart, as_one_kv_head(kv), heads_apart, one_head),
    }


def measure(ops: CpuOps, reading: MemoryReading, float_operations_per_s: float, case: Case) -> Figures:
    calls, ceiling = ways(ops, case), 0.0
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        ceiling = max(ceiling, reading.bytes_per_second())
        for name, call in calls.items():
            seconds[name] = min(seconds[name], seconds_a_layer(call, case.layers))
    contiguous = min(seconds["positions first"], seconds["KV heads first"])
    return {
        "microseconds": seconds["shuffled"] * 1e6,
        "gb_per_s": case.bytes_read / seconds["shuffled"] / 1e9,
        "ceiling_gb_per_s": ceiling / 1e9,
        "of_memory": case.bytes_read / seconds["shuffled"] / ceiling,
        "of_multiply_adds": case.float_operations / seconds["shuffled"] / float_operations_per_s,
        "cost_of_shuffled_blocks": seconds["shuffled"] / contiguous - 1,
        "cost_of_tables": seconds["in order"] / contiguous - 1,
    }


def main() -> None:
    ops, json_path = parse_arguments(__doc__)
    reading = MemoryReading(ops.num_threads)
    float_operations_per_s = measure_ceilings(ops.num_threads).float_operations_per_second
    print(f"multiply-adds: {float_operations_per_s / 1e9:.0f} GFLOPS")
    print(
        f"{'heads, head size':29}{'KV':8}{'rows x context':>15}{'us':>8}{'GB/s':>7}{'ceiling':>8}{'of it':>7}"
        f"{'of FMA':>8}{'shuffled':>10}{'table':>8}"
    )
    figures: list[Figures] = []
    for name, spec in SPECS.items():
        for dtype in DTYPES:
            for num_sequences, context in BATCHES:
                held = str(dtype).removeprefix("torch.")
                row = measure(ops, reading, float_operations_per_s, make_case(spec, dtype, num_sequences, context))
                figures.append({"heads": name, "kv": held, "rows": num_sequences, "context": context, **row})
                print(
                    f"{name:29}{held:8}{f'{num_sequences} x {context}':>15}{row['microseconds']:8.0f}"
                    f"{row['gb_per_s']:7.1f}{row['ceiling_gb_per_s']:8.1f}{row['of_memory']:7.0%}{row['of_multiply_adds']:8.0%}"
                    f"{row['cost_of_shuffled_blocks']:+10.1%}{row['cost_of_tables']:+8.1%}"
                )
    write_report(json_path, ops, figures)


if __name__ == "__main__":
    main()
