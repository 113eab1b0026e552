"""Case B48: rotary scaling under its older and newer names, against ``transformers`` at short and long prompts."""

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.core.errors import ConfigurationError
from octavo.loading.model_config import read_model_config
from octavo.models.config import RopeConfig
from octavo.models.rope import rope_table
from tests.support.gguf_files import to_gguf
from tests.support.models import RAND_VOCAB, edit_json, rand_model
from tests.support.parity import largest_difference, load, logprobs, random_ids

LENGTHS = (8, 200, 600, 2000)
PROMPT = random_ids(max(LENGTHS), RAND_VOCAB)
SHAPE: dict[str, Any] = {"head_dim": 64, "max_position_embeddings": 2048, "num_hidden_layers": 2}

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": LINEAR | {"rope_theta": 10000.0},
    "llama3": LLAMA3 | {"rope_theta": 10000.0},
    "theta": {"rope_type": "default", "rope_theta": 500000.0},
}


def older_names(folder: Path, scaling: dict[str, Any], type_key: str) -> Path:
    """Write the settings of ``folder`` as older versions of ``transformers`` did."""
    numbers = {key: value for key, value in scaling.items() if key not in ("rope_theta", "rope_type")}
    settings = {type_key: scaling["rope_type"]} | numbers
    changes = {"rope_scaling": settings if numbers else None, "rope_theta": scaling["rope_theta"]}
    edit_json(folder / "config.json", changes, remove=["rope_parameters"])
    return folder


@pytest.mark.parametrize("name", SCALINGS)
def test_scalings_equal_transformers_at_every_length(name: str, tmp_path: Path) -> None:
    folder = rand_model(tmp_path / "new", rope_parameters=SCALINGS[name], **SHAPE)
    assert largest_difference(folder, PROMPT) < 1e-3
    newer = read_model_config(folder)
    for type_key in ("type", "rope_type"):
        assert read_model_config(older_names(folder, SCALINGS[name], type_key)) == newer


@pytest.mark.parametrize("name", ["linear", "llama3", "theta"])
def test_ignoring_a_scaling_would_show_on_long_prompts(name: str, tmp_path: Path) -> None:
    """Power check of the test above."""
    plain = rand_model(tmp_path / "plain", rope_parameters=SCALINGS["none"], **SHAPE)
    scaled = rand_model(tmp_path / "scaled", rope_parameters=SCALINGS[name], **SHAPE)
    difference = (logprobs(plain, PROMPT) - logprobs(scaled, PROMPT)).abs()
    for length in LENGTHS[2:]:
        assert float(difference[length - 1].max()) > 0.05


@pytest.mark.parametrize("name", ["linear", "llama3"])
def test_gguf_twins(name: str, tmp_path: Path) -> None:
    folder = rand_model(tmp_path / "folder", rope_parameters=SCALINGS[name], **SHAPE)
    twin = to_gguf(folder, tmp_path / "twin.gguf")
    assert largest_difference(twin, PROMPT, reference=folder) < 1e-3


def test_chunks_give_the_same_bits(tmp_path: Path) -> None:
    folder = rand_model(tmp_path, rope_parameters=SCALINGS["llama3"], **SHAPE)
    assert torch.equal(logprobs(folder, PROMPT[:600], chunk=64), logprobs(folder, PROMPT[:600]))


def test_gemma3_scales_its_global_layers_alone(tmp_path: Path) -> None:
    rope = {
        "full_attention": LINEAR | {"rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
    }
    folder = rand_model(tmp_path, "gemma3", rope_parameters=rope)
    assert largest_difference(folder, PROMPT[:200]) < 1e-3
    newer = read_model_config(folder)
    changes = {"rope_theta": 1_000_000.0, "rope_local_base_freq": 20_000.0, "rope_scaling": LINEAR}
    edit_json(folder / "config.json", changes, remove=["rope_parameters"])
    assert read_model_config(folder) == newer


def test_an_original_context_outside_the_settings_counts(tmp_path: Path) -> None:
    folder = rand_model(tmp_path, rope_parameters=SCALINGS["llama3"], **SHAPE)
    edit_json(folder / "config.json", {"original_max_position_embeddings": 256})
    assert largest_difference(folder, PROMPT[:600]) < 1e-3


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_null_is_none(key: str, tmp_path: Path) -> None:
    folder = rand_model(tmp_path)
    plain = read_model_config(folder)
    edit_json(folder / "config.json", {key: None}, remove=["rope_parameters"] if key == "rope_scaling" else [])
    assert read_model_config(folder) == plain


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        # DECISION D19
        ({"type": "dynamic", "factor": 4.0}, "dynamic .* refused, because .* cached keys would be wrong"),
        ({"type": "foo", "factor": 4.0}, "rope type 'foo' is not supported; known types: default, linear, llama3"),
        ({"rope_type": "yarn", "factor": 4.0}, "rope type 'yarn' is not supported"),
        ({"rope_type": ["linear"]}, "rope type .* is not supported"),
        ({"type": "linear", "factor": 0.5}, "factor of the rope settings must be a number at least 1, got 0.5"),
        ({"type": "linear"}, "factor of the rope settings must be a number at least 1, got nothing"),
        ({"type": "linear", "factor": "4"}, "factor of the rope settings must be a number at least 1, got '4'"),
        ({"type": "linear", "factor": float("nan")}, "factor of the rope settings must be a number"),
        ({**LLAMA3, "factor": 0.5}, "factor of the rope settings must be a number at least 1"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor of the rope settings must be a number above 1"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section in the rope settings is not supported"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_type": "default", "rope_theta": 0}, "rope_theta of the rope settings must be a number above 0"),
        ([1, 2], "rope settings must be an object"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(scaling: Any, message: str, tmp_path: Path) -> None:
    folder = rand_model(tmp_path)
    edit_json(folder / "config.json", {"rope_scaling": scaling})
    with pytest.raises(ConfigurationError, match=message):
        load(folder)


def test_tables_hold_the_angles_of_each_position() -> None:
    table = rope_table(RopeConfig(theta=100.0, kind="divisors", divisors=(1.0, 5.0)), head_dim=4, max_position=3)
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.02], [2.0, 0.04]])
    torch.testing.assert_close(table.cos, angles.cos())
    torch.testing.assert_close(table.sin, angles.sin())
