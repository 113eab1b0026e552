"""``num_system_tokens``: the tokens of a system message, and never one of what follows it."""

from pathlib import Path
from typing import Any

import pytest

from octavo.loading.system_prefix import num_system_tokens
from octavo.loading.tokenizer import load_tokenizer
from tests.loading.test_chat_template import CHATML, GEMMA, LLAMA3, STYLES
from tests.loading.tokenizer_builders import byte_level, sentencepiece, write_folder

Conversation = list[dict[str, Any]]

SYSTEM = {"role": "system", "content": "Be brief."}
HEADS = {
    "llama3": (
        LLAMA3,
        (
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n"
        ),
    ),
    "chatml": (CHATML, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"),
    "gemma": (GEMMA, "<bos><start_of_turn>user\nBe brief.\n\n"),
}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def head_of(folder: Path, messages: Conversation, **options: Any) -> str:
    """The text of what is counted."""
    tokenizer = load_tokenizer(folder)
    token_ids = tokenizer.apply_chat_template(messages, **options)
    return tokenizer.decode(token_ids[: num_system_tokens(tokenizer, messages, token_ids)], skip_special_tokens=False)


def with_template(folder: Path, template: str) -> Path:
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return write_folder(folder, byte_level("llama-bpe"), **named, chat_template=template)


@pytest.mark.parametrize("style", HEADS)
@pytest.mark.parametrize("words", ["a", "b", "a secret", "Zebra", "7", "日本", "(so it is)"])
def test_published_templates(tmp_path: Path, style: str, words: str) -> None:
    """The same head, whatever the user says: also where a made-up conversation begins with the same words."""
    template, named, kind, _ = STYLES[style]
    backend = byte_level("llama-bpe") if kind == "byte-level" else sentencepiece(prefix=False)
    folder = write_folder(tmp_path, backend, **named, unk_token="<unk>", chat_template=template)
    assert head_of(folder, [SYSTEM, user(words)]) == HEADS[style][1]
    assert head_of(folder, [SYSTEM, user(words), {"role": "assistant", "content": "x"}, user("y")]) == HEADS[style][1]


def test_what_does_not_follow_from_the_system_message_ends_it(tmp_path: Path) -> None:
    folder = with_template(tmp_path, "{{ note }}" + CHATML)
    assert head_of(folder, [SYSTEM, user("x")]) == HEADS["chatml"][1]
    assert head_of(folder, [SYSTEM, user("x")], template_kwargs={"note": "for you: "}) == ""
    assert head_of(folder, [SYSTEM, {"role": "assistant", "content": "x"}]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>"
    )
    assert head_of(folder, [SYSTEM]) == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>"


@pytest.mark.parametrize(
    ("template", "head"),
    [
        ("{{ messages[-1].content }}{{ messages[0].content }}", ""),
        ("<s>{{ messages | length }}{{ messages[0].content }}{{ messages[1].content }}", "<s>"),
        ("<s>{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}{{ messages[0].content }}", ""),
    ],
)
def test_templates_that_cannot_be_cut(tmp_path: Path, template: str, head: str) -> None:
    assert head_of(with_template(tmp_path, template), [SYSTEM, user("secret"), user("more")]) == head


def test_no_system_message(tmp_path: Path) -> None:
    assert head_of(with_template(tmp_path, CHATML), [user("Be brief."), SYSTEM]) == ""
