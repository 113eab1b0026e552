"""Tokenizers of model folders."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.loading.tokenizer import load_tokenizer
from octavo.loading.tokenizer_parts import frame
from tests.loading.texts import TEXTS
from tests.loading.tokenizer_builders import CONTROL, byte_level, sentencepiece, write_folder, write_json

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BACKENDS = {"byte-level": lambda: byte_level("llama-bpe"), "sentencepiece": lambda: sentencepiece(prefix=True)}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Tokenizer:
    return BACKENDS[request.param]()


@pytest.mark.parametrize("framed", [(None, None), ("<s>", None), ("<s>", "</s>")])
def test_ids_equal_transformers(backend: Tokenizer, framed: tuple[str | None, str | None], tmp_path: Path) -> None:
    frame(backend, *framed)
    folder = write_folder(tmp_path, backend, **NAMED, add_bos_token=framed == (None, None))
    reference = AutoTokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    for text in (*TEXTS, "a <|im_start|>user\nb<|im_end|> <think>c"):
        expected = reference.encode(text)
        assert tokenizer.encode(text) == expected, text
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)
        for skip in (True, False):
            assert tokenizer.decode(expected, skip) == reference.decode(expected, skip_special_tokens=skip)
    assert tokenizer.vocab_size == len(reference)
    assert tokenizer.special_token_ids >= set(reference.all_special_ids)
    assert tokenizer.bos_token_id == reference.bos_token_id


def test_token_bytes_join_to_the_text(backend: Tokenizer, tmp_path: Path) -> None:
    """Case B23: characters of several tokens come out whole when their bytes are joined."""
    tokenizer = load_tokenizer(write_folder(tmp_path, backend, **NAMED))
    prefix = " " if backend.normalizer is not None else ""  # this SentencePiece kind puts a blank before a text
    family = "a👨‍👩‍👧‍👦 ď漢字e\u0301🇫🇷 end"
    for text in (family, *TEXTS):
        ids = tokenizer.encode(text)
        joined = b"".join(map(tokenizer.token_bytes, ids))
        assert joined.decode() == (prefix + text if text else ""), text
    assert len(tokenizer.encode(family)) > len(family)


def test_token_bytes_of_odd_ids(backend: Tokenizer, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, backend, **NAMED))
    assert tokenizer.token_bytes(-1) == tokenizer.token_bytes(tokenizer.vocab_size) == b""
    (end,) = tokenizer.encode("<|im_end|>")
    assert tokenizer.token_bytes(end) == b"<|im_end|>"


def test_no_second_bos(backend: Tokenizer, tmp_path: Path) -> None:
    """Spec D17."""
    frame(backend, "<s>", None)
    tokenizer = load_tokenizer(write_folder(tmp_path, backend, **NAMED))
    bos = tokenizer.bos_token_id
    assert tokenizer.encode("x").count(bos) == 1
    assert tokenizer.encode("<s>x").count(bos) == 1
    assert tokenizer.encode("<s><s>x").count(bos) == 2, "what the text itself says twice stays"
    assert tokenizer.encode("<s>x", add_special_tokens=False).count(bos) == 1


def test_eos_ids_are_a_union(backend: Tokenizer, tmp_path: Path) -> None:
    """Spec D7."""
    folder = write_folder(tmp_path, backend, **NAMED)
    ids = {text: backend.token_to_id(text) for text in CONTROL}
    assert load_tokenizer(folder).eos_token_ids == {ids["</s>"]}
    write_json(folder / "config.json", {"eos_token_id": ids["<|im_end|>"]})
    write_json(folder / "generation_config.json", {"eos_token_id": [ids["<|eot_id|>"], ids["</s>"]]})
    assert load_tokenizer(folder).eos_token_ids == {ids["</s>"], ids["<|im_end|>"], ids["<|eot_id|>"]}
    write_json(folder / "config.json", {"text_config": {"eos_token_id": ids["<end_of_turn>"]}})
    assert ids["<end_of_turn>"] in load_tokenizer(folder).eos_token_ids


def test_added_tokens_of_the_config(backend: Tokenizer, tmp_path: Path) -> None:
    new = backend.get_vocab_size()
    declared = {
        str(new): {"content": "<extra>", "special": True, "normalized": False},
        str(new + 1): {"content": "<word>", "special": False, "normalized": False, "__type": "AddedToken"},
    }
    folder = write_folder(tmp_path, backend, **NAMED, added_tokens_decoder=declared, pad_token={"content": "<pad>"})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("<extra><word><pad>", add_special_tokens=False) == [new, new + 1, new + 2]
    assert {new, new + 2} <= tokenizer.special_token_ids
    assert new + 1 not in tokenizer.special_token_ids
    assert tokenizer.vocab_size == new + 3


def test_special_tokens_map_is_read(backend: Tokenizer, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, backend)
    write_json(folder / "special_tokens_map.json", {"bos_token": {"content": "<bos>"}})
    assert load_tokenizer(folder).bos_token_id == backend.token_to_id("<bos>")


def test_truncation_in_the_file_is_off(backend: Tokenizer, tmp_path: Path) -> None:
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = load_tokenizer(write_folder(tmp_path, backend, **NAMED))
    assert len(tokenizer.encode("one two three four five six seven eight nine ten")) > 8
    assert len(tokenizer.encode("e")) < 4


def test_half_a_surrogate_pair_is_refused(backend: Tokenizer, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, backend, **NAMED))
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tokenizer.encode("\ud83d")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{", "not a tokenizer that can be read"),
        ("tokenizer_config.json", "{", "cannot be read as JSON"),
        ("tokenizer_config.json", "[]", "holds a list"),
    ],
)
def test_refusals(file: str, content: str | None, words: str, backend: Tokenizer, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, backend)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(ConfigurationError, match=words):
        load_tokenizer(folder)


def test_added_token_at_a_wrong_id(backend: Tokenizer, tmp_path: Path) -> None:
    declared: dict[str, Any] = {"5000": {"content": "<extra>", "special": True}}
    with pytest.raises(ConfigurationError, match="'<extra>' the id 5000"):
        load_tokenizer(write_folder(tmp_path, backend, added_tokens_decoder=declared))
