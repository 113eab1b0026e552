"""Tokenizers of GGUF files as they are kept: the same tokenizer, built once, and again when the file is another."""

import os
import shutil
from pathlib import Path

import pytest

from octavo.loading import tokenizer_cache
from octavo.loading.gguf_tokenizer import gguf_tokenizer
from octavo.loading.tokenizer import HFTokenizer, load_tokenizer
from octavo.loading.tokenizer_cache import cached_tokenizer
from octavo.loading.tokenizer_parts import TokenizerParts

TEXTS = ["", "Hello  world", "naïve ünïcode \U0001f600\n\n\ttabs", "<bos>user<end_of_turn>", "1234567890 x" * 20, "▁ a"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of tokenizers; vocabularies of any size are kept."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer_cache, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "tokenizers"


def must_not_build(_: Path) -> TokenizerParts:
    raise AssertionError("the tokenizer was built")


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_the_one_that_was_kept_is_the_one_that_was_built(
    cache: Path, model: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(model)
    built = cached_tokenizer(path, gguf_tokenizer)
    kept = cached_tokenizer(path, must_not_build)
    assert kept.backend.to_str() == built.backend.to_str()
    assert (kept.special_tokens, kept.eos_token_ids) == (built.special_tokens, built.eos_token_ids)
    assert kept.chat_templates == built.chat_templates
    before, after = HFTokenizer(built), HFTokenizer(kept)
    for text in TEXTS:
        ids = before.encode(text)
        assert after.encode(text) == ids
        assert after.decode(ids) == before.decode(ids)
        assert [after.token_bytes(i) for i in ids] == [before.token_bytes(i) for i in ids]
    assert len(list(cache.iterdir())) == 1


def test_another_file_and_a_damaged_one_are_built_again(cache: Path, smollm2_path: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(smollm2_path, tmp_path / "model.gguf"))
    cached_tokenizer(path, gguf_tokenizer)
    os.utime(path, ns=(0, 0))
    with pytest.raises(AssertionError, match="built"):
        cached_tokenizer(path, must_not_build)
    cached_tokenizer(path, gguf_tokenizer)
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(AssertionError, match="built"):
        cached_tokenizer(path, must_not_build)
    cached_tokenizer(path, gguf_tokenizer)
    cached_tokenizer(path, must_not_build)


def test_without_leave_to_keep_them_and_small_ones_leave_nothing(
    cache: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_tokenizer(smollm2_path)
    monkeypatch.setattr(tokenizer_cache, "LEAST_BYTES", 1 << 40)
    load_tokenizer(smollm2_path, cache=True)
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_costs_a_warning(
    cache: Path, smollm2_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert load_tokenizer(smollm2_path, cache=True).encode("a")
    assert "is not kept" in caplog.text
