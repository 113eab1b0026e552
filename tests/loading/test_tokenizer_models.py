"""The tokenizers of the two real models against transformers."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from octavo.loading.interface import Tokenizer
from octavo.loading.tokenizer import load_tokenizer
from tests.loading.texts import TEXTS

pytestmark = pytest.mark.slow

SMOLLM2_SPECIAL = (
    "<|im_start|>user\nhi<|im_end|>\n",
    " <|endoftext|> <repo_name>x",
    "<|im_start|><|im_start|>",
    "<s> no",
)
GEMMA_SPECIAL = ("<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n", " <eos> <pad><unused5>[multimodal]")
GEMMA_IDS = json.loads(Path(__file__).with_name("gemma3_ids.json").read_text())["ids"]

load = cache(load_tokenizer)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load(smollm2_path)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Tokenizer:
    return load(gemma3_path)


@pytest.fixture(scope="module")
def smollm2_reference(smollm2_path: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)


def _assert_bytes_join(tokenizer: Tokenizer, texts: tuple[str, ...]) -> None:
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_smollm2_ids(smollm2: Tokenizer, smollm2_reference: PreTrainedTokenizerBase) -> None:
    for text in (*TEXTS, *SMOLLM2_SPECIAL):
        assert smollm2.encode(text) == smollm2_reference.encode(text), text
    assert smollm2.vocab_size == len(smollm2_reference)
    assert smollm2.eos_token_ids == {smollm2_reference.eos_token_id}
    assert len(smollm2.special_token_ids) == 17


def test_smollm2_cuts_blanks_before_digits_as_the_original(
    smollm2: Tokenizer, smollm2_reference: PreTrainedTokenizerBase
) -> None:
    """transformers takes tokenizer.ggml.pre "smollm" for plain GPT-2; the original tokenizer.json cuts digits first."""
    original = smollm2_reference.backend_tokenizer
    original.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in ("a  1", "x =    42\n\n  7", *TEXTS):
        assert smollm2.encode(text) == original.encode(text).ids


def test_smollm2_bytes(smollm2: Tokenizer) -> None:
    _assert_bytes_join(smollm2, (*TEXTS, *SMOLLM2_SPECIAL))


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([{"role": "user", "content": "Hello"}], {}),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " What is 2 + 2?\n"}], {}),
        (
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}],
            {"add_generation_prompt": False},
        ),
        (
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is "}],
            {"add_generation_prompt": False, "continue_final_message": True},
        ),
    ],
)
def test_smollm2_chat(
    messages: list[dict[str, str]],
    options: dict[str, Any],
    smollm2: Tokenizer,
    smollm2_reference: PreTrainedTokenizerBase,
) -> None:
    expected = smollm2_reference.apply_chat_template(
        messages, tokenize=True, return_dict=False, **{"add_generation_prompt": True, **options}
    )
    assert smollm2.apply_chat_template(messages, **options) == expected


def test_gemma3_ids(gemma3: Tokenizer) -> None:
    assert len(GEMMA_IDS) == len(TEXTS)
    for text, ids in zip(TEXTS, GEMMA_IDS, strict=True):
        assert gemma3.encode(text) == ids, text
    assert gemma3.vocab_size == 262_144
    assert gemma3.bos_token_id == 2
    assert gemma3.eos_token_ids == {1, 106}
    assert gemma3.encode("<bos>hi") == gemma3.encode("hi")
    assert gemma3.encode(GEMMA_SPECIAL[0])[:4] == [2, 105, 2364, 107]


def test_gemma3_bytes(gemma3: Tokenizer) -> None:
    _assert_bytes_join(gemma3, (*TEXTS, *GEMMA_SPECIAL))


def test_gemma3_has_no_chat_template(gemma3: Tokenizer) -> None:
    assert not gemma3.has_chat_template


@pytest.mark.soak
def test_gemma3_ids_are_still_those_of_transformers(gemma3_path: Path) -> None:
    """transformers takes half a minute to build this tokenizer: hence the stored ids."""
    reference = AutoTokenizer.from_pretrained(gemma3_path.parent, gguf_file=gemma3_path.name)
    assert [reference.encode(text) for text in TEXTS] == GEMMA_IDS
