"""config.json: what each field means, and what is refused by name (DECISION D31)."""

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigurationError
from octavo.kernels.registry import select_ops
from octavo.loading.model_config import parse_model_config, read_model_config
from octavo.loading.summary import model_summary
from octavo.loading.weights import load_model, open_checkpoint
from octavo.models.config import LayerConfig, RopeConfig
from tests.support.models import RAND_VOCAB, edit_json, rand_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 2}
GEMMA3 = LLAMA | {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}


def test_defaults_are_those_of_transformers() -> None:
    from transformers import AutoConfig

    for raw in (LLAMA, QWEN2, MISTRAL, GEMMA3):
        ours = parse_model_config(raw)
        fields = {key: value for key, value in raw.items() if key not in ("architectures", "model_type")}
        theirs = AutoConfig.for_model(raw["model_type"], **fields)
        windows = [
            theirs.sliding_window if kind == "sliding_attention" else None
            for kind in getattr(theirs, "layer_types", None) or ["full_attention"] * 4
        ]
        if raw is MISTRAL:
            windows = [theirs.sliding_window] * 4
        assert ours.num_kv_heads == theirs.num_key_value_heads
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 16)
        assert ours.max_position == theirs.max_position_embeddings
        assert ours.norm_eps == theirs.rms_norm_eps
        assert ours.tie_embeddings == theirs.tie_word_embeddings
        assert [layer.window for layer in ours.layers] == windows


def test_gemma3_numbers() -> None:
    config = parse_model_config(GEMMA3 | {"query_pre_attn_scalar": 100, "num_hidden_layers": 6, "sliding_window": 8})
    assert config.scale == 0.1
    assert config.embedding_scale == 8.0
    assert config.activation == "gelu_tanh"
    assert config.layers[0] == LayerConfig(8, RopeConfig(theta=10_000.0))
    assert config.layers[5] == LayerConfig(None, RopeConfig(theta=1_000_000.0))


def test_older_gemma3_files_give_a_pattern() -> None:
    config = parse_model_config(GEMMA3 | {"sliding_window_pattern": 2})
    assert [layer.window is None for layer in config.layers] == [False, True, False, True]


@pytest.mark.parametrize(
    ("raw", "changes", "message"),
    [
        (LLAMA, {"architectures": ["FooForCausalLM"]}, "architecture FooForCausalLM .* supported: LlamaForCausalLM"),
        (LLAMA, {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        (LLAMA, {"model_type": "mixtral"}, "LlamaForCausalLM with model_type mixtral is not supported"),
        (LLAMA, {"architectures": None, "model_type": None}, r"architecture \(none named\) is not supported"),
        (LLAMA, {"hidden_size": "64"}, r"Expected `int`, got `str` - at `\$\.hidden_size`"),
        (LLAMA, {"hidden_size": 0}, "hidden_size"),
        (LLAMA, {"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple of .* \(3\)"),
        (LLAMA, {"head_dim": 15}, "head_dim must be even and at least 2, got 15"),
        (LLAMA, {"hidden_act": "relu"}, "activation 'relu' is not supported; supported: silu"),
        (LLAMA, {"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        (GEMMA3, {"hidden_activation": "gelu"}, "activation 'gelu' is not supported"),
        (LLAMA, {"sliding_window": 16}, r"sliding_window \(16\) is not supported for llama models"),
        (MISTRAL, {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "layer_types of mixed kinds"),
        (
            QWEN2,
            {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]},
            "layer_types holds 'chunked_attention'",
        ),
        (QWEN2, {"layer_types": ["full_attention"] * 3}, "layer_types has 3 entries for num_hidden_layers 4"),
        (QWEN2, {"layer_types": ["sliding_attention"] * 4}, "although use_sliding_window is false"),
        (GEMMA3, {"sliding_window": None}, "sliding_window is null although some layers are sliding_attention"),
        (GEMMA3, {"rope_parameters": {"rope_type": "default"}}, "must hold full_attention and sliding_attention"),
        (MISTRAL, {"attention_bias": True}, "attention_bias true is not supported for mistral models"),
        (QWEN2, {"mlp_bias": True}, "mlp_bias true is not supported for qwen2 models"),
        (MISTRAL, {"use_sliding_window": True}, "use_sliding_window true is not supported for mistral models"),
    ],
)
def test_what_cannot_be_served_is_refused(raw: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_model_config(raw | changes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alibi", True),
        ("attention_multiplier", 0.5),
        ("attn_logit_softcapping", 50.0),
        ("clip_qkv", 8.0),
        ("embedding_multiplier", 12.0),
        ("final_logit_softcapping", 30.0),
        ("logit_scale", 0.0625),
        ("num_local_experts", 8),
        ("num_experts", 64),
        ("partial_rotary_factor", 0.5),
        ("quantization_config", {"quant_method": "gptq"}),
        ("residual_multiplier", 0.22),
        ("rope_interleave", True),
        ("use_bidirectional_attention", True),
        ("use_qk_norm", True),
        ("vision_config", {"hidden_size": 8}),
    ],
)
def test_fields_that_change_results_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} is .*, which would change the results and is not supported"):
        parse_model_config(LLAMA | {field: value})


@pytest.mark.parametrize(
    "changes",
    [
        {"alibi": False},
        {"final_logit_softcapping": None},
        {"logit_scale": 1.0},
        {"num_experts": 0},
        {"partial_rotary_factor": 1.0},
        {"quantization_config": None},
        {"sliding_window": None},
        {"sliding_window": 4096, "use_sliding_window": False},
        {"layer_types": ["full_attention"] * 4},
        {"hidden_act": "swish"},
        {"pretraining_tp": 2, "some_new_field": [1]},
    ],
)
def test_neutral_fields_are_accepted(changes: dict[str, Any]) -> None:
    ours, plain = parse_model_config(LLAMA | changes), parse_model_config(LLAMA)
    assert ours.layers == plain.layers
    assert ours.activation == plain.activation


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"config\.json does not exist"):
        read_model_config(tmp_path)
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"config\.json is not valid JSON"):
            read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="must hold a JSON object"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": None}))
    with pytest.raises(ConfigurationError, match=r"Expected `int`, got `null` - at `\$\.vocab_size`"):
        read_model_config(tmp_path)


def test_weight_files_that_are_missing_or_broken_are_named(tmp_path: Path) -> None:
    folder = rand_model(tmp_path)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for broken in (content[: len(content) // 2], content[:5], b"", b"PK\x03\x04" + bytes(50)):
        file.write_bytes(broken)
        with pytest.raises(ConfigurationError, match=r"model\.safetensors is not a safetensors file or is cut short"):
            open_checkpoint(folder)
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"holds neither model\.safetensors nor"):
        open_checkpoint(folder)
    with pytest.raises(ConfigurationError, match="does not exist; give a folder"):
        open_checkpoint(folder / "nothing")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = rand_model(tmp_path, max_shard_size="200KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ConfigurationError, match=f"{shard.name} does not exist"):
        open_checkpoint(folder)
    edit_json(folder / "model.safetensors.index.json", {"weight_map": {"a": "../elsewhere.safetensors"}})
    with pytest.raises(ConfigurationError, match="weight_map must map tensor names to file names of the folder"):
        open_checkpoint(folder)


def test_eos_ids_are_the_union_of_both_configs(tmp_path: Path) -> None:
    """DECISION D7; the tokenizer's own are added where the tokenizer is made."""
    folder = rand_model(tmp_path)
    edit_json(folder / "config.json", {"eos_token_id": 3})
    edit_json(folder / "generation_config.json", {"eos_token_id": [5, 7], "temperature": 0.7})
    loaded = load_model(folder, select_ops())
    assert loaded.eos_token_ids == {3, 5, 7}
    assert loaded.generation_config["temperature"] == 0.7
    edit_json(folder / "generation_config.json", {"eos_token_id": "x"})
    with pytest.raises(ConfigurationError, match=r"generation_config\.json: eos_token_id must be a token id"):
        load_model(folder, select_ops())
    (folder / "generation_config.json").unlink()
    assert load_model(folder, select_ops()).eos_token_ids == {3}


def test_the_context_can_be_shortened_but_not_stretched(tmp_path: Path) -> None:
    folder = rand_model(tmp_path)
    assert load_model(folder, select_ops(), max_model_len=100).model.config.max_position == 100
    with pytest.raises(ConfigurationError, match=r"max_model_len \(5000\) is above the model's context of 4096"):
        load_model(folder, select_ops(), max_model_len=5000)


def test_fingerprints_tell_weights_apart(tmp_path: Path) -> None:
    prints = {load_model(rand_model(tmp_path / str(seed), seed=seed), select_ops()).fingerprint for seed in (0, 1)}
    assert len(prints) == 2
    again = load_model(rand_model(tmp_path / "again", seed=1), select_ops()).fingerprint
    assert again in prints


def test_summary_of_a_folder(tmp_path: Path) -> None:
    summary = model_summary(rand_model(tmp_path, "gemma3"))
    embedding, layers = RAND_VOCAB * 64, 6 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 + 4 * 64 + 2 * 16)
    assert summary.num_parameters == embedding + layers + 64
    assert summary.weight_bytes == summary.num_parameters * 4
    assert [len(group.layers) for group in summary.groups] == [1] * 6
    assert summary.kv_bytes_per_token == 6 * 2 * 2 * 16 * 4
