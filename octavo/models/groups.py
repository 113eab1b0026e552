"""Layers that share block tables: those of one attention kind, in groups of one size (design, Decided 6)."""

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.kernels.kinds import kv_head_bytes
from octavo.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers, by index, that see the same keys: all before them (``window`` None) or the last ``window``."""

    window: int | None
    layers: tuple[int, ...]


def layer_groups(config: ModelConfig) -> tuple[LayerGroup, ...]:
    """The groups, the unlimited window first, then from the smallest window.

    A block belongs to one group and holds keys and values for ``group_size`` layer slots, so every block has one size
    in bytes and the groups share a pool. Where the counts of the kinds have no common divisor, the last group of a
    kind leaves slots empty: the size is the one that wastes the fewest, among sizes above half the smallest kind (a
    smaller one wastes less still, but each group costs every sequence a table), the largest of equals.
    Gemma 3 270M (3 layers of 18 global): one global group and five sliding ones, of 3 layers each.
    """
    kinds: dict[int | None, list[int]] = {}
    for index, layer in enumerate(config.layers):
        kinds.setdefault(layer.window, []).append(index)
    size = _best_size(kinds)
    ordered = sorted(kinds, key=lambda window: (window is not None, window or 0))
    return tuple(
        LayerGroup(window, tuple(kinds[window][start : start + size]))
        for window in ordered
        for start in range(0, len(kinds[window]), size)
    )


def group_size(groups: tuple[LayerGroup, ...]) -> int:
    """Layer slots in a block: as many as the largest group has layers."""
    return max(len(group.layers) for group in groups)


def kv_bytes_per_token(config: ModelConfig, dtype: str = "float32") -> int:
    """Bytes of keys and values in ``dtype`` that one token holds in all layers, empty slots of the groups included."""
    groups = layer_groups(config)
    slots = len(groups) * group_size(groups)
    return 2 * slots * config.num_kv_heads * kv_head_bytes(config.head_dim, dtype)


def _best_size(kinds: Mapping[int | None, list[int]]) -> int:
    counts = [len(layers) for layers in kinds.values()]
    smallest = min(counts)

    def wasted(size: int) -> int:
        return sum(-count % size for count in counts)

    return min(range(smallest, smallest // 2, -1), key=wasted)
