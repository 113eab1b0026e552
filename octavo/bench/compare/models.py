"""The same model in the other formats that engines want, written once into the cache folder.

Q8_0 and Q4_0 are made from the stored weights unpacked to fp32, by the rounding of the ``gguf`` package, which is that
of llama.cpp bit for bit; a tensor that is stored as Q8_0 already is kept in both (the head, in the built-in file), as
are vectors. F32 and the fp32 folder hold what the file's weights unpack to. All of it follows from the file alone.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from filelock import FileLock
from gguf import GGMLQuantizationType, GGUFValueType, ReaderTensor, quants
from safetensors.torch import save_file

from octavo.core.errors import ConfigurationError
from octavo.loading.checkpoint import fingerprint
from octavo.loading.gguf_reader import QuickReader
from octavo.loading.gguf_weights import GGUFCheckpoint, dequantize
from octavo.loading.pull import cache_dir
from octavo.models.config import ModelConfig
from octavo.models.names import weight_shapes

_KINDS = {
    "Q8_0": (GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "F32": (GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
_WRITTEN_BY_THE_WRITER = ("general.architecture", "general.file_type")


def model_as(path: Path, weights: str) -> Path:
    """The model of the .gguf file ``path``: "stored" is that file, "Q8_0", "Q4_0" and "F32" are .gguf files,
    "float32" is a folder as transformers keeps it (without a tokenizer).

    Raises:
        ConfigurationError: ``path`` is no .gguf file, or its architecture is not one that the fp32 folder is written
            for.
    """
    if weights == "stored":
        return path
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder; octavo bench compare needs a .gguf file, which all engines read")
    folder = cache_dir() / "compare" / f"{path.stem}-{fingerprint(GGUFCheckpoint(path)).hex()[:8]}"
    if weights == "float32":
        return _made_once(folder / "float32", lambda target: _write_float32(path, target))
    return _made_once(folder / f"{weights}.gguf", lambda target: _write_gguf(path, weights, target))


def _made_once(wanted: Path, write: Callable[[Path], None]) -> Path:
    """``wanted``, written first if it is not there; whoever else looks sees all of it or nothing."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(wanted.with_name(f".{wanted.name}.lock")):
            if not wanted.exists():
                with tempfile.TemporaryDirectory(prefix=f".{wanted.name}-", dir=wanted.parent) as scratch:
                    write(Path(scratch) / wanted.name)
                    shutil.move(Path(scratch) / wanted.name, wanted)
    except OSError as error:
        raise ConfigurationError(f"cannot keep {wanted.name} in the cache {cache_dir()}: {error}") from error
    return wanted


def _write_gguf(path: Path, weights: str, target: Path) -> None:
    source, (kind, file_type) = QuickReader(path), _KINDS[weights]
    writer = gguf.GGUFWriter(target, source.contents(source.fields["general.architecture"]))
    writer.add_file_type(file_type)
    for key, field in source.fields.items():
        if key not in _WRITTEN_BY_THE_WRITER and not key.startswith("GGUF."):  # those are the header's own numbers
            is_array = field.types[0] == GGUFValueType.ARRAY
            writer.add_key_value(key, source.contents(field), field.types[0], field.types[-1] if is_array else None)
    for tensor in source.tensors:
        data, stored_as = _requantized(tensor, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _requantized(tensor: ReaderTensor, kind: GGMLQuantizationType) -> tuple[np.ndarray[Any, Any], GGMLQuantizationType]:
    """Data and kind of a tensor of the new file."""
    is_kept = tensor.tensor_type is GGMLQuantizationType.Q8_0 and kind is not GGMLQuantizationType.F32
    if len(tensor.shape) < 2 or tensor.tensor_type is kind or is_kept:
        return np.asarray(tensor.data), tensor.tensor_type
    return quants.quantize(dequantize(tensor).numpy(), kind), kind


def _write_float32(path: Path, target: Path) -> None:
    checkpoint = GGUFCheckpoint(path)
    target.mkdir()
    names = weight_shapes(checkpoint.config)
    save_file({name: checkpoint.read(name) for name in names}, target / "model.safetensors", {"format": "pt"})
    config = _hub_config(checkpoint.config) | {"eos_token_id": sorted(checkpoint.eos_token_ids)}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _hub_config(config: ModelConfig) -> dict[str, object]:
    """``config.json`` of a llama."""
    if config.architecture != "llama" or any(layer.rope.kind != "default" for layer in config.layers):
        raise ConfigurationError(
            f"fp32 peers are compared on llama models with plain rotary positions, not on this {config.architecture}; "
            "leave transformers and vllm out of --peers"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_position,
        "rope_theta": config.layers[0].rope.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
        "torch_dtype": "float32",
    }
