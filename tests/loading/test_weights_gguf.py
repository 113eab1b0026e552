"""Case B46: the same model as safetensors and as GGUF; and GGUF files that cannot be served."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants

from octavo.core.errors import ConfigurationError
from octavo.kernels.registry import select_ops
from octavo.loading.gguf_quants import UNPACKERS, quantized_weight
from octavo.loading.gguf_reader import GGUFFile
from octavo.loading.gguf_weights import GGUFCheckpoint, dequantize
from octavo.loading.quantization import Quantization
from octavo.loading.summary import model_summary
from octavo.loading.weights import load_model
from tests.support.forward import greedy, prompt_logits
from tests.support.gguf_files import Kind, to_gguf
from tests.support.models import RAND_VOCAB, rand_model, script_model
from tests.support.parity import largest_difference, load, logprobs, random_ids, reference_logprobs

PROMPT = random_ids(60, RAND_VOCAB)
PROMPTS = [random_ids(20, RAND_VOCAB, seed) for seed in range(20)]
# In GGUF, Gemma's score scale follows from head_dim.
SETTINGS: dict[str, dict[str, Any]] = {"gemma3": {"query_pre_attn_scalar": 16}}


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("tied", [False, True])
def test_f32_equals_the_folder(arch: str, tied: bool, tmp_path: Path) -> None:
    folder = rand_model(tmp_path / "folder", arch, **{"tie_word_embeddings": tied} | SETTINGS.get(arch, {}))
    file = to_gguf(folder, tmp_path / "model.gguf")
    assert largest_difference(file, PROMPT, reference=folder) < 1e-3
    if arch != "gemma3":  # whose norms are stored with 1 added, which rounds
        assert torch.equal(logprobs(file, PROMPT), logprobs(folder, PROMPT))


def test_biases_are_permuted_too(tmp_path: Path) -> None:
    folder = rand_model(tmp_path / "folder", attention_bias=True, mlp_bias=True)
    file = to_gguf(folder, tmp_path / "model.gguf")
    assert torch.equal(logprobs(file, PROMPT), logprobs(folder, PROMPT))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize(("kind", "mean"), [("F16", 0.02), ("BF16", 0.1), ("Q8_0", 0.1)])
def test_rounded_kinds_stay_near(arch: str, kind: Kind, mean: float, tmp_path: Path) -> None:
    """Mean difference over the three best of each position. RAND at std 0.2, which still passes its power check (at 0.3
    the random network enlarges the rounding of Q8_0 itself to about 0.15)."""
    folder = rand_model(tmp_path / "folder", arch, std=0.2)
    file = to_gguf(folder, tmp_path / "model.gguf", kind)
    expected = reference_logprobs(folder, PROMPT)
    best = expected.topk(3).indices
    difference = (logprobs(file, PROMPT) - expected).gather(-1, best).abs()
    assert 0 < float(difference.mean()) < mean


def test_leaving_the_permutation_out_would_show(tmp_path: Path) -> None:
    """Power check: a file whose rows were not reordered gives other outputs for at least 18 of 20 prompts."""
    folder = rand_model(tmp_path / "folder")
    right, wrong = load(to_gguf(folder, tmp_path / "a.gguf")), load(to_gguf(folder, tmp_path / "b.gguf", permute=False))
    changed = sum(greedy(right, prompt, 10) != greedy(wrong, prompt, 10) for prompt in PROMPTS)
    assert changed >= 18


def test_script_models_type_the_same_from_gguf(tmp_path: Path) -> None:
    for kind in ("bpe", "sentencepiece"):
        script = script_model(tmp_path / kind, ["alpha", " be", "ta ga", "mma"], kind)
        file = to_gguf(script.path, tmp_path / f"{kind}.gguf")
        assert greedy(load(file), [65], 5) == [*script.piece_ids, script.eos_id]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_every_kind_unpacks_as_the_package_does(kind: str, tmp_path: Path) -> None:
    """Bytes at random (finite scales) in more rows than one chunk holds, against the package's own dequantize."""
    number_kind = GGMLQuantizationType[kind]
    shape = (700, 256)
    generator = np.random.default_rng(0)
    if kind in ("Q4_K", "Q6_K"):  # the package cannot pack these
        block, size = gguf.GGML_QUANT_SIZES[number_kind]
        data = generator.integers(0, 60, (shape[0], shape[1] // block * size), dtype=np.uint8)
    else:
        data = quants.quantize(generator.standard_normal(shape, dtype=np.float32), number_kind)
    writer = GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tensor("t", data, raw_dtype=number_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = GGUFFile(tmp_path / "t.gguf").tensors["t"]
    actual = dequantize(tensor)
    expected = quants.dequantize(np.asarray(tensor.data), number_kind)
    assert actual.shape == shape
    assert np.array_equal(actual.numpy(), expected)
    if number_kind in UNPACKERS:  # and held in whole numbers it is the same matrix: nothing is lost
        held = quantized_weight(number_kind, np.asarray(tensor.data), shape[0])
        assert (held.out_features, held.in_features) == shape
        assert np.array_equal(held.dequantize().numpy(), expected)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_quantised_weights_stay_quantised_and_in_order(arch: str, kind: Kind, tmp_path: Path) -> None:
    """Multiplied as they are stored (dtype auto) they give nearly what they give unpacked; rows that llama's converter
    reorders included. Activations are rounded to 16 bits beside 8-bit weights, to 8 beside 4-bit ones."""
    folder = rand_model(tmp_path / "folder", arch, std=0.2, **SETTINGS.get(arch, {}))
    file = to_gguf(folder, tmp_path / "model.gguf", kind)
    unpacked, stored = (
        prompt_logits(load_model(file, select_ops(), dtype=dtype).model, PROMPT).log_softmax(-1)
        for dtype in ("float32", "auto")
    )
    difference = float((stored - unpacked).abs().mean())
    assert 0 < difference < (1e-3 if kind in ("Q8_0", "Q5_0") else 0.15)


@pytest.mark.parametrize(("quantization", "mean"), [("int8", 0.1), ("int4", 1.0)])
def test_plain_weights_are_quantised_at_load(quantization: Quantization, mean: float, tmp_path: Path) -> None:
    """As a file of that kind has them: Q8_0, and Q4_1 with embedding and head in Q8_0."""
    folder = rand_model(tmp_path / "folder", "qwen2", std=0.2)
    plain, rounded = (
        prompt_logits(load_model(folder, select_ops(), quantization=each).model, PROMPT).log_softmax(-1)
        for each in (None, quantization)
    )
    assert 0 < float((plain - rounded).abs().mean()) < mean
    if quantization == "int8":
        file = to_gguf(folder, tmp_path / "model.gguf", "Q8_0")
        assert torch.equal(prompt_logits(load_model(file, select_ops()).model, PROMPT).log_softmax(-1), rounded)


def test_eos_ids_and_context_come_from_the_file(tmp_path: Path) -> None:
    file = to_gguf(rand_model(tmp_path / "folder"), tmp_path / "model.gguf")
    loaded = load_model(file, select_ops(), max_model_len=64)
    assert loaded.eos_token_ids == {RAND_VOCAB - 2, RAND_VOCAB - 1}
    assert loaded.model.config.max_position == 64


def test_summary_reads_headers(tmp_path: Path) -> None:
    folder = rand_model(tmp_path / "folder")
    summary = model_summary(to_gguf(folder, tmp_path / "model.gguf", "Q8_0"))
    assert summary.num_parameters == model_summary(folder).num_parameters
    assert summary.kinds == {"Q8_0": 4 * 7 + 2, "F32": 4 * 2 + 1}
    assert summary.kv_bytes_per_token == 4 * 2 * 2 * 16 * 4
    assert summary.weight_bytes < model_summary(folder).weight_bytes / 3


def test_the_reader_equals_the_package_s(tmp_path: Path) -> None:
    file = to_gguf(rand_model(tmp_path / "folder"), tmp_path / "model.gguf")
    expected = {key: field.contents() for key, field in gguf.GGUFReader(file).fields.items()}
    assert GGUFFile(file).metadata == expected


def _broken(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def test_every_truncation_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = to_gguf(rand_model(tmp_path / "folder"), tmp_path / "model.gguf").read_bytes()
    header = whole.index(b"token_embd.weight")
    for size in [0, 3, 4, 7, 11, 23, 24, 100, *range(200, header, 997), header + 30, len(whole) // 2, len(whole) - 40]:
        with pytest.raises(ConfigurationError, match="is not a GGUF file or is cut short") as caught:
            load(_broken(tmp_path / "cut.gguf", whole[:size]))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04" + bytes(100),
        b"GGUF" + struct.pack("<I", 1) + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(64),
        # One array of 2^60 strings.
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 1 << 60) + bytes(64),
        # One array of 2^60 floats.
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 6, 1 << 60) + bytes(64),
    ],
)
def test_foreign_files_are_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a GGUF file or is cut short"):
        load(_broken(tmp_path / "foreign.gguf", content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.gguf does not exist"):
        load(tmp_path / "nothing.gguf")


def _rewrite(file: Path, out: Path, settings: dict[str, Any], drop: str | None = None) -> Path:
    """Copy a GGUF file with metadata added or replaced and, if ``drop`` is given, one tensor left out."""
    reader = gguf.GGUFReader(file)
    architecture = settings.get("general.architecture", reader.fields["general.architecture"].contents())
    writer = GGUFWriter(out, architecture)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture" and key not in settings:
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    for key, value in settings.items():
        if key != "general.architecture":
            kind = gguf.GGUFValueType.get_type(value)
            writer.add_key_value(key, value, kind, gguf.GGUFValueType.INT32 if isinstance(value, list) else None)
    for tensor in reader.tensors:
        if tensor.name != drop:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"general.architecture": "mamba"}, "GGUF architecture 'mamba' is not supported; supported: llama, qwen2"),
        ({"llama.expert_count": 8}, "expert_count is 8, which would change the results"),
        ({"llama.attention.clamp_kqv": 8.0}, "attention.clamp_kqv is 8.0"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn' is not supported"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8, but heads have 16 numbers"),
        ({"llama.attention.head_count_kv": [1, 2, 2, 2]}, "attention.head_count_kv must be one number"),
        ({"llama.embedding_length": 128}, r"has shape \[512, 64\], but the config needs \[512, 128\]"),
        ({"llama.block_count": 5}, r"tensor blk\.4\.\w+\.weight is missing"),
        ({"llama.context_length": "x"}, "context_length must be one number, got 'x'"),
        ({"split.count": 3}, "one of 3 parts of a split GGUF file"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = to_gguf(rand_model(tmp_path / "folder"), tmp_path / "model.gguf")
    with pytest.raises(ConfigurationError, match=message):
        load(_rewrite(file, tmp_path / "other.gguf", settings))


def test_neutral_settings_are_accepted(tmp_path: Path) -> None:
    file = to_gguf(rand_model(tmp_path / "folder"), tmp_path / "model.gguf")
    neutral = {
        "llama.expert_count": 0,
        "llama.attention.head_count_kv": [2, 2, 2, 2],
        "llama.rope.scaling.type": "none",
    }
    assert torch.equal(logprobs(_rewrite(file, tmp_path / "n.gguf", neutral), PROMPT), logprobs(file, PROMPT))


@pytest.mark.parametrize("name", ["blk.2.attn_k.weight", "token_embd.weight", "output_norm.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    file = to_gguf(rand_model(tmp_path / "folder"), tmp_path / "model.gguf")
    with pytest.raises(ConfigurationError, match=rf"tensor {name} is missing"):
        load(_rewrite(file, tmp_path / "other.gguf", {}, drop=name))


def test_an_unsupported_number_format_is_named(tmp_path: Path) -> None:
    folder = rand_model(tmp_path / "folder", hidden_size=256, num_hidden_layers=1)
    file = to_gguf(folder, tmp_path / "model.gguf", "Q5_1")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"tensor \S+ is stored as Q5_1, which is not supported; supported: F32"
    ):
        load(file)


def test_checkpoint_names_are_canonical(tmp_path: Path) -> None:
    folder = rand_model(tmp_path / "folder", "gemma3")
    checkpoint = GGUFCheckpoint(to_gguf(folder, tmp_path / "model.gguf"))
    assert (
        checkpoint.stored_name("model.layers.3.post_attention_layernorm.weight") == "blk.3.post_attention_norm.weight"
    )
    assert "model.layers.3.pre_feedforward_layernorm.weight" in checkpoint.tensors
