"""How near the linears on quantised weights come to what the machine can do: bytes and products a second.

    python -m bench.quantized [--threads N] [--json FILE]

Weights are larger than the last-level cache and used in turn, so that one row measures memory. The ceilings (reading
memory; products with the multiply-adds that they take, in registers) are measured in the same run, with as many
threads; the best of several passes counts. Both are of the instruction set in use (OCTAVO_ISA).
"""

from functools import partial

import torch

from bench.kernels import Figures, best_seconds, parse_arguments, write_report
from octavo.bench.ceilings import Ceilings, measure_ceilings
from octavo.kernels.cpu import CpuOps
from octavo.kernels.quantized import INT4_MINIMA, INT8, QuantizedFormat, QuantizedWeight

SHAPES = [(3072, 576), (576, 1536), (16384, 576)]  # [out, in], those of SmolLM2-135M; a third of its head
ROWS = [1, 2, 4, 8, 32, 128, 512]
MEMORY_BYTES = 80e6


def random_weight(weight_format: QuantizedFormat, out_features: int, in_features: int) -> QuantizedWeight:
    numbers = torch.randint(0, 256, (out_features, in_features * weight_format.bits // 8), dtype=torch.uint8)
    scales = torch.rand(out_features, in_features // weight_format.group).to(weight_format.scale_dtype)
    minima = scales.clone() if weight_format.has_minima else None
    return QuantizedWeight(
        weight_format, numbers if weight_format.bits == 4 else numbers.view(torch.int8), scales, minima
    )


def measure(ops: CpuOps, weight_format: QuantizedFormat, shape: tuple[int, int], ceilings: Ceilings) -> list[Figures]:
    weight = random_weight(weight_format, *shape)
    first = ops.make_linear(weight)
    num_bytes = sum(part.packed.numel() for part in first.parts)
    linears = [first, *(ops.make_linear(weight) for _ in range(round(MEMORY_BYTES / num_bytes)))]
    figures: list[Figures] = []
    for num_rows in ROWS:
        x = torch.randn(num_rows, shape[1])
        # Enough of the weights to leave the cache where rows are few, few enough to be quick where they are many.
        used = linears[: max(1, len(linears) * 8 // max(8, num_rows))]
        seconds = best_seconds([partial(ops.linear, x, linear) for linear in used])
        products = num_rows * shape[0] * shape[1] / seconds
        figures.append(
            {
                "linear": f"{weight_format.name} {shape[0]} x {shape[1]}",
                "rows": num_rows,
                "microseconds": seconds * 1e6,
                "gb_per_s": num_bytes / seconds / 1e9,
                "of_memory": num_bytes / seconds / ceilings.read_bytes_per_second,
                "g_products_per_s": products / 1e9,
                "of_products": products / ceilings.products_per_second[weight_format.name],
            }
        )
    return figures


def main() -> None:
    ops, json_path = parse_arguments(__doc__)
    ceilings = measure_ceilings(ops.num_threads)
    print(f"ceilings: {ceilings.read_bytes_per_second / 1e9:.1f} GB/s; products a second, 10^9:", end="")
    print(", ".join(f" {value / 1e9:.0f} ({name})" for name, value in ceilings.products_per_second.items()))
    print(f"{'linear':36}{'rows':>5}{'us':>9}{'GB/s':>7}{'of it':>7}{'10^9/s':>8}{'of it':>7}")
    figures: list[Figures] = []
    for weight_format in (INT4_MINIMA, INT8):
        for shape in SHAPES:
            for row in measure(ops, weight_format, shape, ceilings):
                figures.append(row)
                print(
                    f"{row['linear']:36}{row['rows']:5}{row['microseconds']:9.1f}{row['gb_per_s']:7.1f}"
                    f"{row['of_memory']:7.0%}{row['g_products_per_s']:8.1f}{row['of_products']:7.0%}"
                )
    write_report(json_path, ops, figures)


if __name__ == "__main__":
    main()
