"""Chat templates against transformers (case B44)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from octavo.core.errors import InvalidRequestError
from octavo.loading.chat_template import ChatTemplate
from octavo.loading.interface import Tokenizer
from octavo.loading.tokenizer import load_tokenizer
from octavo.server.dialect import TOOL_PARSERS, find_dialect
from tests.loading.tokenizer_builders import byte_level, byte_level_metadata, sentencepiece, write_folder, write_gguf

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML = """
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call functions:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role != "system" %}
        {{- raise_exception('Unexpected role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

TEMPLATES = Path(__file__).parent / "templates"

# name: template, named tokens, kind of tokenizer, what begins every text
STYLES: dict[str, tuple[str, dict[str, str], str, str]] = {
    "llama3": (
        LLAMA3,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        "byte-level",
        "<|begin_of_text|>",
    ),
    "chatml": (CHATML, {"bos_token": "<s>", "eos_token": "<|im_end|>"}, "byte-level", ""),
    "mistral": (MISTRAL, {"bos_token": "<s>", "eos_token": "</s>"}, "sentencepiece", "<s>"),
    "qwen3": (
        (TEMPLATES / "qwen3.jinja").read_text(),
        {"bos_token": "<s>", "eos_token": "<|im_end|>"},
        "byte-level",
        "",
    ),
    "llama3.1": (
        (TEMPLATES / "llama31.jinja").read_text(),
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        "byte-level",
        "<|begin_of_text|>",
    ),
    "mistral v3": (
        (TEMPLATES / "mistral_v3.jinja").read_text(),
        {"bos_token": "<s>", "eos_token": "</s>"},
        "sentencepiece",
        "<s>",
    ),
    "gemma": (GEMMA, {"bos_token": "<bos>", "eos_token": "<end_of_turn>"}, "sentencepiece", "<bos>"),
}


def _say(*turns: str) -> list[dict[str, Any]]:
    roles = {"s": "system", "u": "user", "a": "assistant", "x": "narrator"}
    return [{"role": roles[turn[0]], "content": turn[1:]} for turn in turns]


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "title": "Größe <a>"}}}
ARGUMENTS = {"city": "Zürich", "days": [1, {"from": None}], "exact": True, "height": 1.50}
CALL = {"id": "a1B2c3D4e", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
RESULT = {"role": "tool", "tool_call_id": "a1B2c3D4e", "content": '{"t": 7}'}

CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "system and user": (_say("sBe brief.", "uHello"), {}),
    "user": (_say("uHello"), {}),
    "three turns": (_say("uHello", "aHi there", "uHow are you?"), {}),
    "null content with tool calls": (
        [*_say("uWeather?"), {"role": "assistant", "content": None, "tool_calls": [CALL]}, *_say("uAnd?")],
        {},
    ),
    "tool result": (
        [*_say("uWeather?"), {"role": "assistant", "tool_calls": [CALL]}, RESULT],
        {"tools": [TOOL]},
    ),
    "content, thinking and two calls": (
        [
            *_say("sBe brief.", "uWeather?"),
            {"role": "assistant", "content": "Well:", "reasoning_content": "\nTwo.\n", "tool_calls": [CALL, CALL]},
            RESULT,
            RESULT,
        ],
        {"tools": [TOOL, TOOL]},
    ),
    "an answer to a result": (
        [
            *_say("uWeather?"),
            {"role": "assistant", "tool_calls": [CALL]},
            RESULT,
            *_say("aWarm.", "uReally?"),
        ],
        {"tools": [TOOL]},
    ),
    "thinking in the content": (_say("uHello", "a<think>\nWell\n</think>\n\nHi", "uAnd?", "a<think>x</think>y"), {}),
    "no tools": (_say("uHello"), {"tools": []}),
    "tools": (_say("sBe brief.", "uWeather?"), {"tools": [TOOL]}),
    "blanks": (_say("u  leading and trailing \n "), {}),
    "newline and emoji": (_say("uone\ntwo\n\n👨‍👩‍👧‍👦 ❤️"), {}),
    "empty content": (_say("u"), {}),
    "two users": (_say("uone", "utwo"), {}),
    "assistant first": (_say("aone", "utwo"), {}),
    "unknown role": (_say("xonce upon a time"), {}),
    "no generation prompt": (_say("uHello", "aHi"), {"add_generation_prompt": False}),
    "continue": (_say("uHello", "aThe answer"), {"add_generation_prompt": False, "continue_final_message": True}),
    "continue after a blank": (
        _say("uHello", "aThe answer is "),
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "continue without content": (
        [*_say("uHello"), {"role": "assistant", "tool_calls": [CALL]}],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "continue and a generation prompt": (_say("uHello", "aHi"), {"continue_final_message": True}),
    "jinja in content": (_say("u{{ 7 * 7 }} {% for x in y %} {# note #}"), {}),
    "thinking": ([*_say("uHello"), {"role": "assistant", "content": "Hi", "reasoning": "so"}], {}),
    "plain added token in content": (_say("u<think> is what <tool_call> is not"), {}),
    "no messages": ([], {}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, (template, named, kind, _) in STYLES.items():
        backend = byte_level("llama-bpe") if kind == "byte-level" else sentencepiece(prefix=True)
        folder = tmp_path_factory.mktemp(name)
        made[name] = write_folder(folder, backend, **named, unk_token="<unk>", chat_template=template)
    return made


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, tuple[Tokenizer, PreTrainedTokenizerBase]]:
    return {name: (load_tokenizer(path), AutoTokenizer.from_pretrained(path)) for name, path in folders.items()}


Pairs = dict[str, tuple[Tokenizer, PreTrainedTokenizerBase]]


def _reference(reference: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **options: Any) -> list[int] | None:
    """Ids by transformers; None where it refuses."""
    options.setdefault("add_generation_prompt", True)
    try:
        ids = reference.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    except Exception:  # noqa: BLE001 - a refusal has many types there
        return None
    assert isinstance(ids, list)
    return ids


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("style", STYLES)
def test_ids_equal_transformers(style: str, case: str, tokenizers: Pairs) -> None:
    tokenizer, reference = tokenizers[style]
    messages, options = CASES[case]
    expected = _reference(reference, messages, **options)
    if expected is None and not options.get("continue_final_message"):
        # More than transformers takes: calls alone, of which clients make a turn.
        texts = [{**each, "content": each.get("content") or ""} if "tool_calls" in each else each for each in messages]
        expected = _reference(reference, texts, **options)
    if expected is None:
        with pytest.raises(InvalidRequestError):
            tokenizer.apply_chat_template(messages, **options)
        return
    ids = tokenizer.apply_chat_template(messages, **options)
    assert ids == expected
    assert tokenizer.encode_chat(asyncio.run(tokenizer.render_chat(messages, **options))) == expected
    begin = STYLES[style][3]
    assert tokenizer.decode(ids, skip_special_tokens=False).startswith(begin)
    if begin:
        assert ids.count(reference.convert_tokens_to_ids(begin)) == 1


def test_refusals_and_acceptances_are_as_expected(tokenizers: Pairs) -> None:
    """Otherwise the comparison above could be one of refusals only."""
    accepted = {
        style: {case for case, (m, o) in CASES.items() if _reference(tokenizers[style][1], m, **o)} for style in STYLES
    }
    assert {len(accepted["llama3"]) >= 14, len(accepted["chatml"]) >= 17, len(accepted["mistral"]) >= 9} == {True}
    with_calls = {"tool result", "an answer to a result", "tools"}
    assert with_calls | {"content, thinking and two calls"} <= accepted["qwen3"] & accepted["mistral v3"]
    assert with_calls <= accepted["llama3.1"]
    assert "two users" not in accepted["mistral"] | accepted["gemma"]
    assert "unknown role" not in accepted["chatml"]


@pytest.mark.parametrize("enable_thinking", [True, False])
def test_thinking_switched_off(enable_thinking: bool, tokenizers: Pairs) -> None:
    tokenizer, reference = tokenizers["qwen3"]
    expected = _reference(reference, _say("uHello"), enable_thinking=enable_thinking)
    ids = tokenizer.apply_chat_template(_say("uHello"), template_kwargs={"enable_thinking": enable_thinking})
    assert ids == expected
    assert tokenizer.decode(ids).endswith("</think>\n\n") is not enable_thinking


def test_dialects_of_the_styles(tokenizers: Pairs) -> None:
    """What the server reads out of each template."""
    found = {style: find_dialect(tokenizer, None, None) for style, (tokenizer, _) in tokenizers.items()}
    tools = {style: dialect.tools for style, dialect in found.items()}
    assert tools == {
        "llama3": None,
        "chatml": TOOL_PARSERS["hermes"],
        "mistral": None,
        "qwen3": TOOL_PARSERS["hermes"],
        "llama3.1": TOOL_PARSERS["llama3_json"],
        "mistral v3": TOOL_PARSERS["mistral"],
        "gemma": None,
    }
    assert {style for style, dialect in found.items() if dialect.reasoning} == {"qwen3"}


@pytest.mark.parametrize("texts", [["one part"], ["first part ", " second part"]])
@pytest.mark.parametrize("style", STYLES)
def test_content_parts(style: str, texts: list[str], tokenizers: Pairs) -> None:
    """A template that reads parts gets them; any other gets one string, a line a part."""
    tokenizer, reference = tokenizers[style]
    parts = [{"type": "text", "text": text} for text in texts]
    content = parts if style == "gemma" else "\n".join(texts)
    expected = _reference(reference, [{"role": "user", "content": content}])
    assert expected is not None
    assert tokenizer.apply_chat_template([{"role": "user", "content": parts}]) == expected


def test_parts_that_are_no_text_are_refused(tokenizers: Pairs) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(InvalidRequestError, match="'image_url'"):
        tokenizers["gemma"][0].apply_chat_template([{"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    ("style", "messages", "words"),
    [
        ("mistral", _say("uone", "utwo"), "Conversation roles must alternate"),
        ("mistral", _say("uone", "xtwo"), "Only user and assistant roles are supported!"),
        ("chatml", _say("xone"), "Unexpected role: narrator"),
    ],
)
def test_the_template_s_own_words(style: str, messages: list[dict[str, Any]], words: str, tokenizers: Pairs) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        tokenizers[style][0].apply_chat_template(messages)


def test_template_kwargs_reach_the_template(tokenizers: Pairs) -> None:
    tokenizer, reference = tokenizers["chatml"]
    expected = _reference(reference, _say("uHello"), enable_thinking=False)
    assert expected != _reference(reference, _say("uHello"))
    assert tokenizer.apply_chat_template(_say("uHello"), template_kwargs={"enable_thinking": False}) == expected


def test_messages_are_not_changed(tokenizers: Pairs) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}], "name": None}, *_say("ay")]
    before = repr(messages)
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    tokenizers["gemma"][0].apply_chat_template(messages, **options)
    assert repr(messages) == before


def test_no_template(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, byte_level("llama-bpe")))
    assert not tokenizer.has_chat_template
    assert tokenizer.encode("completions still work")
    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.apply_chat_template(_say("uHello"))


def test_where_templates_stand(tmp_path: Path) -> None:
    backend = byte_level("llama-bpe")
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    folder = write_folder(tmp_path, backend, chat_template=named)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.has_chat_template
    assert tokenizer.decode(tokenizer.apply_chat_template(_say("ux"))) == "plain"
    assert tokenizer.decode(tokenizer.apply_chat_template(_say("ux"), tools=[TOOL])) == "tools"
    (folder / "chat_template.jinja").write_text("from the file")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.apply_chat_template(_say("ux"))) == "from the file"
    tokenizer = load_tokenizer(folder, chat_template="given")
    assert tokenizer.decode(tokenizer.apply_chat_template(_say("ux"), tools=[TOOL])) == "given"


@pytest.mark.parametrize("style", ["llama3", "qwen3"])
def test_gguf_twin(style: str, tmp_path: Path, tokenizers: Pairs) -> None:
    backend = byte_level("llama-bpe")
    metadata = byte_level_metadata(backend, "llama-bpe")
    template, named, *_ = STYLES[style]
    metadata |= {
        "tokenizer.chat_template": template,
        "tokenizer.ggml.bos_token_id": backend.token_to_id(named["bos_token"]),
    }
    twin = load_tokenizer(write_gguf(tmp_path / "twin.gguf", metadata))
    cases = ["system and user", "three turns", "blanks", "newline and emoji", "continue", "continue after a blank"]
    for case in cases + (["tools", "tool result", "content, thinking and two calls"] if style == "qwen3" else []):
        messages, options = CASES[case]
        assert twin.apply_chat_template(messages, **options) == tokenizers[style][0].apply_chat_template(
            messages, **options
        )


def test_calls_without_content_where_the_template_knows_only_content() -> None:
    """As clients send an answer back that was a call; a template without tools adds its content to a text."""
    template = ChatTemplate("{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}")
    turns = [*_say("uWeather?"), {"role": "assistant", "content": None, "tool_calls": [CALL]}, *_say("uAnd?")]
    assert template.render(turns, add_generation_prompt=False) == "<user>Weather?<assistant><user>And?"


def test_calls_without_content_stay_so_where_the_template_reads_calls() -> None:
    source = "{% for m in messages %}{{ m.role }}{% if m.content is defined %}: {{ m.content }}{% endif %};{% endfor %}"
    turns = [*_say("uWeather?"), {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    assert ChatTemplate(source).render(turns, add_generation_prompt=False) == "user: Weather?;assistant;"


def test_a_process_that_the_system_has_ended_is_no_fault_of_the_template() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(_say("uone")) == "one"
    (idle,) = template._workers._idle
    idle.kill()
    idle.wait()
    assert template.render(_say("utwo")) == "two"
