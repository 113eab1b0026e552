"""Every architecture and every variant of case B50 against ``transformers``, on small random models."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.core.errors import ConfigurationError
from octavo.kernels.registry import select_ops
from octavo.loading.weights import load_model
from tests.support.forward import greedy, prompt_logits
from tests.support.models import RAND_VOCAB, edit_json, rand_model
from tests.support.parity import largest_difference, load, logprobs, random_ids, reference_logprobs, reference_model

TOLERANCE = 1e-3
PROMPT = random_ids(90, RAND_VOCAB)

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama attention_bias": ("llama", {"attention_bias": True}),
    "llama mlp_bias": ("llama", {"mlp_bias": True}),
    "llama head_dim 32": ("llama", {"head_dim": 32}),
    "llama one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama as many KV heads": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {}),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 window on upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3 head_dim 32": ("qwen3", {"head_dim": 32}),
    "qwen3 attention_bias": ("qwen3", {"attention_bias": True}),
    "gemma3": ("gemma3", {}),
    "gemma3 untied": ("gemma3", {"tie_word_embeddings": False}),
    "gemma3 attention_bias": ("gemma3", {"attention_bias": True}),
    "gemma3 one KV head, wide": ("gemma3", {"num_key_value_heads": 1, "head_dim": 64}),
    "gemma3 window on some layers": (
        "gemma3",
        {"layer_types": ["full_attention", "sliding_attention"] * 3, "sliding_window": 7},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logprobs_equal_transformers(variant: str, tmp_path: Path) -> None:
    arch, overrides = VARIANTS[variant]
    folder = rand_model(tmp_path, arch, **overrides)
    assert largest_difference(folder, PROMPT) < TOLERANCE


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_chunks_and_reruns_give_the_same_bits(arch: str, tmp_path: Path) -> None:
    model = load(rand_model(tmp_path, arch))
    whole = prompt_logits(model, PROMPT)
    assert torch.equal(prompt_logits(model, PROMPT, chunk=7), whole)
    assert torch.equal(prompt_logits(model, PROMPT, chunk=1), whole)
    assert torch.equal(prompt_logits(model, PROMPT), whole)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_the_reference_back_end_agrees_too(arch: str, tmp_path: Path) -> None:
    folder = rand_model(tmp_path, arch)
    model = load_model(folder, select_ops("reference")).model
    actual = prompt_logits(model, PROMPT[:40]).log_softmax(-1)
    assert float((actual - reference_logprobs(folder, PROMPT[:40])).abs().max()) < TOLERANCE


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_greedy_tokens_equal_transformers(arch: str, tmp_path: Path) -> None:
    folder = rand_model(tmp_path, arch)
    prompt = PROMPT[:30]
    expected = reference_model(folder).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=20,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert greedy(load(folder), prompt, 20) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("arch", "overrides"),
    [("llama", {"attention_bias": True}), ("llama", {"mlp_bias": True}), ("qwen2", {}), ("qwen3", {})],
)
def test_dropped_biases_and_norms_would_show(arch: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    """Power check of the parity tests: neutral biases and head norms change the logprobs by far more."""
    folder = rand_model(tmp_path, arch, **overrides)
    before = logprobs(folder, PROMPT[:20])
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith((".bias", "q_norm.weight", "k_norm.weight")):
            weight.fill_(0.0 if name.endswith(".bias") else 1.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert float((logprobs(folder, PROMPT[:20]) - before).abs().max()) > 100 * TOLERANCE


def test_a_stored_head_that_differs_wins_over_the_tie(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = rand_model(tmp_path)
    edit_json(folder / "config.json", {"tie_word_embeddings": True})
    with caplog.at_level(logging.WARNING, "octavo"):
        difference = largest_difference(folder, PROMPT)
    assert difference < TOLERANCE
    assert "ties embedding and head" in caplog.text


def test_a_stored_head_that_equals_the_embedding_is_tied_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = rand_model(tmp_path, tie_word_embeddings=True)
    before = logprobs(folder, PROMPT)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING, "octavo"):
        assert torch.equal(logprobs(folder, PROMPT), before)
    assert not caplog.records


def test_shards_load_as_one_file_does(tmp_path: Path) -> None:
    whole = rand_model(tmp_path / "whole")
    shards = rand_model(tmp_path / "shards", max_shard_size="200KB")
    index = json.loads((shards / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert torch.equal(logprobs(shards, PROMPT), logprobs(whole, PROMPT))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_widened(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = rand_model(tmp_path)
    weights = {name: weight.to(dtype) for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert largest_difference(folder, PROMPT) < TOLERANCE


@pytest.mark.parametrize("bias", [False, True])
def test_a_missing_tensor_is_named(bias: bool, tmp_path: Path) -> None:
    folder = rand_model(tmp_path, "qwen2")
    name = f"model.layers.2.self_attn.k_proj.{'bias' if bias else 'weight'}"
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=rf"tensor {name} is missing"):
        load(folder)


def test_an_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = rand_model(tmp_path, tie_word_embeddings=True)
    edit_json(folder / "config.json", {"tie_word_embeddings": False})
    with pytest.raises(ConfigurationError, match=r"tensor lm_head\.weight is missing"):
        load(folder)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = rand_model(tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    weights = load_file(folder / "model.safetensors")
    weights[name] = weights[name][:, :100].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=rf"{name} has shape \[64, 100\], but the config needs \[64, 128\]"):
        load(folder)


def test_extra_tensors_give_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = rand_model(tmp_path)
    before = logprobs(folder, PROMPT)
    weights = load_file(folder / "model.safetensors")
    extra = {"adapter.a": torch.ones(3), "adapter.b": torch.ones(3)}
    rotary = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(weights | extra | rotary, folder / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING, "octavo"):
        assert torch.equal(logprobs(folder, PROMPT), before)
    (record,) = caplog.records
    assert "2 tensors are not used by the model: adapter.a, adapter.b" in record.getMessage()


def test_rows_beyond_the_tokenizer_are_kept(tmp_path: Path) -> None:
    """B52: a head with more rows than the tokenizer has ids; which rows may be drawn is the sampler's part."""
    folder = rand_model(tmp_path, tokenizer_size=500)
    model = load(folder)
    assert model.config.vocab_size == RAND_VOCAB
    assert prompt_logits(model, PROMPT[:3]).shape == (3, RAND_VOCAB)
