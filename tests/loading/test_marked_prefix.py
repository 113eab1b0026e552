"""``num_tokens_before``: the tokens before a mark in a conversation, and never one of what follows it."""

from pathlib import Path
from typing import Any

import pytest

from octavo.loading.marked_prefix import Place, num_tokens_before
from octavo.loading.tokenizer import load_tokenizer
from tests.loading.test_chat_template import CHATML
from tests.loading.tokenizer_builders import byte_level, write_folder

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "One document."}, {"type": "text", "text": "A question?"}]},
    {"role": "assistant", "content": "An answer."},
    {"role": "user", "content": "More?"},
]
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"
DOCUMENT = SYSTEM + "<|im_start|>user\nOne document.\n"
QUESTION = DOCUMENT + "A question?<|im_end|>\n"
ANSWER = QUESTION + "<|im_start|>assistant\nAn answer.<|im_end|>\n"
ALL = ANSWER + "<|im_start|>user\nMore?<|im_end|>\n<|im_start|>assistant\n"


def before(folder: Path, place: Place, talk: list[dict[str, Any]] = TALK, template: str = CHATML) -> str:
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    path = write_folder(folder, byte_level("llama-bpe"), **named, chat_template=template)
    tokenizer = load_tokenizer(path)
    options = {"add_generation_prompt": True, "template_kwargs": None}
    token_ids = tokenizer.apply_chat_template(talk, **options)
    count = num_tokens_before(tokenizer, talk, place, token_ids, options)
    return tokenizer.decode(token_ids[:count], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place(None), SYSTEM + "<|im_start|>user\n"),
        (Place(0), SYSTEM + "<|im_start|>user\n"),
        (Place(1, 0), DOCUMENT),
        (Place(1), QUESTION + "<|im_start|>assistant\n"),
        (Place(1, 1), QUESTION + "<|im_start|>assistant\n"),
        (Place(2), ANSWER + "<|im_start|>user\n"),
        (Place(3), ALL),
    ],
)
def test_places(tmp_path: Path, place: Place, expected: str) -> None:
    assert before(tmp_path, place) == expected


def test_tools_without_a_system_message(tmp_path: Path) -> None:
    assert before(tmp_path, Place(None), TALK[1:]) == "<|im_start|>user\n"


def test_a_template_that_refuses_shows_nothing(tmp_path: Path) -> None:
    refusing = "{% if messages | length < 4 %}{{ raise_exception('too short') }}{% endif %}" + CHATML
    assert before(tmp_path, Place(0), template=refusing) == ""
    assert before(tmp_path / "all", Place(3), template=refusing) == ALL
