"""How fast the CPU kernels are: linears in GFLOPS and GB/s, paged attention in GB/s of keys and values.

    python bench/kernels.py [--threads N] [--json FILE]

Weights and KV memory are larger than the last-level cache and used in turn, so that one row measures memory. The best
of several passes counts: on a shared machine the rest measures the neighbours.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from octavo.bench.decoding import decoding_batch, written_layers
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import AttentionSpec
from octavo.kernels.kinds import kv_head_bytes

Figures = dict[str, str | int | float]

SHAPES = [(576, 576), (3072, 576), (576, 1536), (49152, 576)]  # [out, in], those of SmolLM2-135M
ROWS = [1, 8, 64, 512]
CONTEXTS = [(1, 4096), (8, 512), (8, 4096), (32, 512)]  # sequences x context
MEMORY_BYTES = 100e6
PASSES = 3


def best_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Seconds a call in the best pass over ``calls``."""
    seconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        for call in calls:
            call()
        seconds.append((time.perf_counter() - start) / len(calls))
    return min(seconds)


def linear(ops: CpuOps, out_features: int, in_features: int) -> list[Figures]:
    num_bytes = 4 * out_features * in_features
    weight = torch.randn(out_features, in_features)
    linears = [ops.make_linear(weight) for _ in range(max(1, round(MEMORY_BYTES / num_bytes)))]
    figures: list[Figures] = []
    for num_rows in ROWS:
        x = torch.randn(num_rows, in_features)
        # Enough of the weights to leave the cache where rows are few, few enough to be quick where they are many.
        used = linears[: max(1, len(linears) * 8 // max(8, num_rows))]
        seconds = best_seconds([partial(ops.linear, x, w) for w in used])
        figures.append(
            {
                "operation": f"linear {out_features} x {in_features}",
                "rows": num_rows,
                "microseconds": seconds * 1e6,
                "gflops": 2 * num_rows * out_features * in_features / seconds / 1e9,
                "gb_per_s": num_bytes / seconds / 1e9,
            }
        )
    return figures


def attention(ops: CpuOps, dtype: torch.dtype, num_sequences: int, context: int) -> Figures:
    """One decode row a sequence, blocks of 16 in shuffled places, keys and values in ``dtype``."""
    spec, block_size = AttentionSpec(9, 3, 64, 0.125), 16
    num_blocks = num_sequences * context // block_size
    head_bytes = kv_head_bytes(spec.head_dim, str(dtype).removeprefix("torch."))
    layer_bytes = 2 * num_blocks * block_size * spec.num_kv_heads * head_bytes
    num_layers = max(1, round(MEMORY_BYTES / layer_bytes))
    layers = written_layers(num_layers, num_blocks, block_size, spec, dtype)
    batch = decoding_batch(num_sequences, context, block_size, torch.randperm(num_blocks))
    q = torch.randn(num_sequences, spec.num_heads * spec.head_dim)
    seconds = best_seconds([partial(ops.attention, q, kv, batch, spec) for kv in layers])
    return {
        "operation": f"attention {str(dtype).removeprefix('torch.')}, context {context}",
        "rows": num_sequences,
        "microseconds": seconds * 1e6,
        "gflops": 4 * num_sequences * context * spec.num_heads * spec.head_dim / seconds / 1e9,
        "gb_per_s": layer_bytes / seconds / 1e9,
    }


def parse_arguments(doc: str | None) -> tuple[CpuOps, Path | None]:
    """The kernels, with the threads that the command line asks for, which are told; and where figures are to go.
    ``doc``: of the benchmark."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--threads", type=int, help="threads of the native pool (default: as Octavo chooses)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the same figures for machines")
    arguments = parser.parse_args()
    ops = CpuOps()
    if arguments.threads:
        ops.set_num_threads(arguments.threads)
    print(f"instruction set {ops.isa}, {ops.num_threads} threads")
    return ops, arguments.json


def write_report(path: Path | None, ops: CpuOps, figures: list[Figures]) -> None:
    """The same figures for machines, if they are wanted."""
    if path is not None:
        report = {"isa": ops.isa, "threads": ops.num_threads, "figures": figures}
        path.write_text(json.dumps(report, indent=2) + "\n")


def main() -> None:
    ops, json_path = parse_arguments(__doc__)
    figures = [row for shape in SHAPES for row in linear(ops, *shape)]
    figures += [attention(ops, dtype, *case) for case in CONTEXTS for dtype in (torch.float32, torch.int8)]
    print(f"{'operation':32}{'rows':>6}{'us':>11}{'GFLOPS':>9}{'GB/s':>8}")
    for row in figures:
        print(
            f"{row['operation']:32}{row['rows']:6}{row['microseconds']:11.1f}{row['gflops']:9.1f}{row['gb_per_s']:8.1f}"
        )
    write_report(json_path, ops, figures)


if __name__ == "__main__":
    main()
