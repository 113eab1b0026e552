"""How fast each kernel is under each instruction set of this machine, against the best one.

    python -m bench.instruction_sets [--threads N] [--json FILE]

All take turns in one process; the best of many calls counts, so that a busy machine shows the same ratios. Everything
stays in the cache: where the memory limits, instruction sets differ less than here. Calls are made from Python, which
takes 2 to 10 us of each.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.kernels import Figures, parse_arguments, write_report
from bench.quantized import random_weight
from octavo.core.errors import ConfigurationError
from octavo.kernels import native
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import AttentionSpec, BatchLayout, allocate_kv
from octavo.kernels.quantized import FORMATS

SHAPE = (768, 576)  # [out, in]
ROWS = [1, 8, 32, 128]
CONTEXT = 512
SECONDS = 1.0
"""Of each operation, all instruction sets together."""

Call = Callable[[], object]


def operations(ops: CpuOps) -> Iterator[tuple[str, Call]]:
    inputs = {rows: torch.randn(rows, SHAPE[1]) for rows in ROWS}
    plain = torch.randn(*SHAPE)
    for weight in [plain, plain.bfloat16(), *(random_weight(weight_format, *SHAPE) for weight_format in FORMATS)]:
        linear = ops.make_linear(weight)
        name = str(weight.dtype).removeprefix("torch.") if isinstance(weight, torch.Tensor) else weight.format.name
        yield from ((f"linear, {name}, {rows} rows", partial(ops.linear, x, linear)) for rows, x in inputs.items())
    for dtype in (torch.float32, torch.float16, torch.int8):
        name = f"attention, {str(dtype).removeprefix('torch.')}, context {CONTEXT}"
        yield from ((f"{name}, {rows} rows", attention(ops, dtype, rows)) for rows in (1, 64))
    x, weight = torch.randn(32, 3072), torch.ones(3072)
    yield "norm, 32 x 3072", lambda: ops.norm(x, weight, 1e-5)
    yield "silu, 32 x 1536", lambda: ops.gate(x, "silu")
    logits = torch.randn(8, 49152)
    yield "argmax, 8 x 49152", lambda: ops.argmax(logits, 49152)


def attention(ops: CpuOps, dtype: torch.dtype, rows: int) -> Call:
    """The last ``rows`` rows of one sequence."""
    spec, block_size = AttentionSpec(9, 3, 64, 0.125), 16
    kv = allocate_kv(CONTEXT // block_size, block_size, spec.num_kv_heads, spec.head_dim, dtype)
    for tensor in kv.tensors:
        tensor.fill_(1)
    positions = torch.arange(CONTEXT - rows, CONTEXT, dtype=torch.int32)
    batch = BatchLayout(
        positions=positions,
        slots=positions.long(),
        query_starts=torch.tensor([0, rows], dtype=torch.int32),
        context_lens=torch.tensor([CONTEXT], dtype=torch.int32),
        block_tables=torch.arange(CONTEXT // block_size, dtype=torch.int32)[None],
    )
    q = torch.randn(rows, spec.num_heads * spec.head_dim)
    return lambda: ops.attention(q, kv, batch, spec)


def instruction_sets() -> list[str]:
    """Those of this machine, best first."""
    library, available = native.open_library(), []
    for isa in native.ISAS:
        try:
            native.set_isa(library, isa)
        except ConfigurationError:
            continue
        available.append(isa)
    return available


def best_seconds(call: Call, isas: list[str]) -> dict[str, float]:
    """Of one call under each instruction set."""
    library, best = native.open_library(), dict.fromkeys(isas, float("inf"))
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for isa in isas:
            native.set_isa(library, isa)
            for _ in range(3):
                start = time.perf_counter()
                call()
                best[isa] = min(best[isa], time.perf_counter() - start)
    return best


def main() -> None:
    ops, json_path = parse_arguments(__doc__)
    isas = instruction_sets()
    print(f"{'operation, us':52}" + "".join(f"{isa:>19}" for isa in isas))
    figures: list[Figures] = []
    for name, call in operations(ops):
        seconds = best_seconds(call, isas)
        figures.append({"operation": name, **{isa: seconds[isa] * 1e6 for isa in isas}})
        columns = (f"{seconds[isa] * 1e6:11.1f} ({seconds[isa] / seconds[isas[0]]:4.2f}x)" for isa in isas)
        print(f"{name:52}" + "".join(f"{column:>19}" for column in columns), flush=True)
    write_report(json_path, ops, figures)


if __name__ == "__main__":
    main()
