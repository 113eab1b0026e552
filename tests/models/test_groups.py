"""Layer groups: layers of one window together, in groups of one size."""

from dataclasses import replace

import pytest

from octavo.models.config import LayerConfig, ModelConfig, RopeConfig
from octavo.models.groups import LayerGroup, group_size, kv_bytes_per_token, layer_groups

GLOBAL, LOCAL = LayerConfig(None, RopeConfig()), LayerConfig(512, RopeConfig())


def config(layers: list[LayerConfig]) -> ModelConfig:
    return ModelConfig(
        architecture="gemma3",
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_layers=len(layers),
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        norm_eps=1e-6,
        max_position=64,
        layers=tuple(layers),
    )


def pattern(count: int) -> list[LayerConfig]:
    """Gemma 3: every sixth layer sees everything."""
    return [LOCAL if (index + 1) % 6 else GLOBAL for index in range(count)]


def test_layers_of_one_kind_are_one_group() -> None:
    assert layer_groups(config([GLOBAL] * 5)) == (LayerGroup(None, (0, 1, 2, 3, 4)),)
    assert layer_groups(config([LOCAL] * 2)) == (LayerGroup(512, (0, 1)),)


def test_gemma_270m_divides_evenly() -> None:
    groups = layer_groups(config(pattern(18)))
    assert groups[0] == LayerGroup(None, (5, 11, 17))
    assert groups[1] == LayerGroup(512, (0, 1, 2))
    assert [group.window for group in groups] == [None, 512, 512, 512, 512, 512]
    assert {len(group.layers) for group in groups} == {3}


@pytest.mark.parametrize("count", [18, 26, 34, 48, 62])
def test_every_layer_is_in_one_group_of_its_kind_and_few_slots_are_empty(count: int) -> None:
    model = config(pattern(count))
    groups = layer_groups(model)
    assert sorted(index for group in groups for index in group.layers) == list(range(count))
    assert all(model.layers[index].window == group.window for group in groups for index in group.layers)
    empty = len(groups) * group_size(groups) - count
    assert empty <= count * 0.08


def test_bytes_per_token_count_empty_slots() -> None:
    # Three groups of 3 slots (one of them empty), each with a key and a value of 4 numbers of 4 bytes.
    model = config([LOCAL] * 5 + [GLOBAL] * 3)
    assert kv_bytes_per_token(model) == 3 * 3 * 2 * 4 * 4
    # int8: a byte a number, and a scale of four a token and KV head.
    assert kv_bytes_per_token(replace(model, num_kv_heads=2), "int8") == 3 * 3 * 2 * 2 * (4 + 4)
