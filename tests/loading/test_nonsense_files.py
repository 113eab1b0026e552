"""Files with values of the wrong kind or size: one sentence, and never a machine out of memory."""

import threading
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from octavo.core.errors import ConfigurationError
from octavo.loading.gguf_config import gguf_model_config
from octavo.loading.summary import model_summary
from octavo.loading.tokenizer import load_tokenizer
from octavo.loading.unsupported import MAX_LAYERS
from tests.support.models import edit_json, rand_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return rand_model(tmp_path)


@pytest.mark.parametrize("num_layers", [MAX_LAYERS + 1, 10**9])
def test_a_nonsense_number_of_layers_is_refused_before_anything_is_built(folder: Path, num_layers: int) -> None:
    edit_json(folder / "config.json", {"num_hidden_layers": num_layers})
    with pytest.raises(ConfigurationError, match="num_hidden_layers"):
        model_summary(folder)


def test_a_nonsense_number_of_layers_in_a_gguf_file_is_refused() -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": 64,
        "llama.attention.head_count": 4,
        "llama.block_count": 10**9,
    }
    with pytest.raises(ConfigurationError, match="block_count"):
        gguf_model_config(metadata, vocab_size=100, tensor_names=set(), rope_freqs=None)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_model_that_no_memory_holds_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load_model(*_args: object) -> None:
        raise error

    monkeypatch.setattr("octavo.build.load_model", load_model)
    with pytest.raises(ConfigurationError, match="max_model_len"):
        LLM(str(folder), num_blocks=16)


BAD_VALUES: list[tuple[str, str, Any]] = [
    ("config.json", "eos_token_id", [[1]]),
    ("tokenizer_config.json", "added_tokens_decoder", 5),
    ("tokenizer_config.json", "added_tokens_decoder", {"x": {}}),
    ("tokenizer_config.json", "chat_template", [5]),
    ("tokenizer_config.json", "chat_template", [{"name": "default"}]),
]


@pytest.mark.parametrize(("file", "field", "value"), BAD_VALUES)
def test_a_value_of_the_wrong_kind_beside_the_tokenizer_is_refused(
    folder: Path, file: str, field: str, value: Any
) -> None:
    edit_json(folder / file, {field: value})
    with pytest.raises(ConfigurationError, match="wrong kind"):
        load_tokenizer(folder)


def test_other_threads_run_while_a_long_text_is_tokenized(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    work = threading.Thread(target=tokenizer.encode, args=("word " * 60_000,))
    work.start()
    num_turns = 0
    while work.is_alive():
        work.join(0.002)
        num_turns += 1
    assert num_turns > 10
