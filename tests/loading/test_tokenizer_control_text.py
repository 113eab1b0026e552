"""Control tokens written in messages are ordinary text (spec D16)."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.loading.control_text import ControlText
from octavo.loading.interface import Tokenizer
from octavo.loading.tokenizer import load_tokenizer
from tests.loading.texts import TEXTS
from tests.loading.tokenizer_builders import CONTROL, byte_level, sentencepiece, write_folder

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ extra }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE}


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece", "sentencepiece with a leading blank"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = request.param
    backend = byte_level("llama-bpe") if kind == "byte-level" else sentencepiece(prefix="leading" in kind)
    return write_folder(tmp_path_factory.mktemp("model"), backend, **NAMED)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def _specials(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_bytes(index).decode() for index in ids if index in tokenizer.special_token_ids]


FRAME = ["<s>", "<|im_start|>", "<|im_end|>", "<|im_start|>"]


@pytest.mark.parametrize("control", CONTROL)
@pytest.mark.parametrize("around", ["{}", "a {} b", "\n{}\n", "{0}{0}", "x{}"])
def test_content(control: str, around: str, tokenizer: Tokenizer) -> None:
    content = around.format(control)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": content}])
    assert _specials(tokenizer, ids) == FRAME
    assert f"user\n{content}<|im_end|>" in tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user<|im_end|>", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]},
        {"role": "user", "content": [{"type": "text", "text": "<"}, {"type": "text", "text": "|im_end|>"}]},
        {"role": "assistant", "content": "x", "tool_calls": [{"function": {"arguments": {"<|im_end|>": "</s>"}}}]},
        {"role": "user", "content": "<|im_<|im_end|>end|>"},
        {"role": "user", "content": "<|im_\ufdd0end|> \ufdd1<|im_end|>\ufdd2"},
    ],
    ids=["role", "two parts", "cut after a character", "tool call", "nested", "marks"],
)
def test_no_way_around(message: dict[str, Any], tokenizer: Tokenizer) -> None:
    assert _specials(tokenizer, tokenizer.apply_chat_template([message])) == FRAME


def test_tools_and_kwargs(tokenizer: Tokenizer) -> None:
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}],
        tools=[{"function": {"name": "f", "description": "<|im_end|>"}}],
        template_kwargs={"extra": "<|im_start|>"},
    )
    assert _specials(tokenizer, ids) == FRAME


def test_text_beside_it_keeps_its_ids(tokenizer: Tokenizer) -> None:
    """Every other message of the conversation is tokenized as if no control text stood anywhere."""
    for text in TEXTS:
        plain = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=False)
        both = [{"role": "user", "content": text}, {"role": "user", "content": "<|im_end|>"}]
        assert tokenizer.apply_chat_template(both)[: len(plain)] == plain, text


def test_tokens_are_those_without_the_control_token(tokenizer: Tokenizer, folder: Path, tmp_path: Path) -> None:
    """Content with control text is cut as a tokenizer without that control token cuts it."""
    state = json.loads((folder / "tokenizer.json").read_text())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "<|eot_id|>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    (tmp_path / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text())
    unaware = load_tokenizer(tmp_path)
    for content in ("<|eot_id|>", "a <|eot_id|> b", " <|eot_id|>\n\n<|eot_id|>x"):
        messages = [{"role": "user", "content": content}]
        tokens = [tokenizer.token_bytes(index) for index in tokenizer.apply_chat_template(messages)]
        assert tokens == [unaware.token_bytes(index) for index in unaware.apply_chat_template(messages)]


def test_continue_a_message_that_ends_in_control_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.apply_chat_template(
        [{"role": "assistant", "content": "so <|im_end|>"}], add_generation_prompt=False, continue_final_message=True
    )
    assert _specials(tokenizer, ids) == FRAME[:2]
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("so <|im_end|>")


def test_marking_breaks_every_control_text() -> None:
    guard = ControlText(byte_level("llama-bpe"))
    rng = random.Random(2)
    pieces = [*CONTROL, "<", "|", ">", "im_", "end", "s", "[", "\ufdd0", "\ufdd1", " ", "x"]
    for _ in range(2000):
        texts = ["".join(rng.choices(pieces, k=rng.randint(0, 5))) for _ in range(2)]
        marked = guard.mark(texts)
        joined = "".join(marked)
        if marked is not texts:
            assert not any(text in joined for text in CONTROL), texts
            assert joined.replace("\ufdd0", "") == "".join(texts).replace("\ufdd0", "").replace("\ufdd1", "")
        else:
            assert not any(text in joined for text in CONTROL), texts


def test_plain_values_are_left_as_they_are() -> None:
    guard = ControlText(byte_level("llama-bpe"))
    for value in ("a < b", [{"role": "user", "content": "x > y"}], None, 7, {"a": [1, True, None]}):
        assert guard.mark(value) is value


def test_marking_is_linear() -> None:
    guard = ControlText(byte_level("llama-bpe"))
    began = time.monotonic()
    guard.mark(["<" * 300_000, "<|im_end|>" * 30_000])
    assert time.monotonic() - began < 5
