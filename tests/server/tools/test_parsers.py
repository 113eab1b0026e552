"""Parsers of tool calls: what is a call, what is content, whatever the chunking (B42)."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.dialect import TOOL_PARSERS
from octavo.server.tools.call import MAX_HELD
from octavo.server.tools.events import Arguments, CallBegin, CallEnd, Content, Cut, Event
from octavo.server.tools.json_calls import NamedCall
from octavo.server.tools.parser import ToolParser
from tests.support.fake_engine import cut_randomly
from tests.support.tool_calls import WRITERS, complete_calls, content, hermes, parse, pythonic, qwen3_coder

NAMES = ("f", "weather.get")
UNTYPED = ("qwen3_coder", "pythonic", "llama 4")
"""Keys are words there, and values plain text or Python's."""
HERMES, LLAMA3, MISTRAL, JSON, QWEN, PYTHON = (
    TOOL_PARSERS[name].syntax for name in ("hermes", "llama3_json", "mistral", "json", "qwen3_coder", "pythonic")
)
BFCL = [json.loads(line) for line in (Path(__file__).parent / "bfcl/cases.jsonl").read_text().splitlines()]
F = '{"name": "f", "arguments": {"a": 1}}'
LONG = '{"name": "f", "arguments": {"a": "' + "x" * (MAX_HELD + 1)


def call(name: str, arguments: str, is_complete: bool = True) -> list[Event]:
    return [CallBegin(name), *([Arguments(arguments)] if arguments else []), CallEnd(is_complete)]


CALL = call("f", '{"a": 1}')

# syntax, text, what is found in it
TEXTS: dict[str, tuple[Any, str, list[Event]]] = {
    "no call": (HERMES, "a < b, <tool> <tool_call", [Content("a < b, <tool> <tool_call")]),
    "nothing": (HERMES, "", []),
    "blanks only": (HERMES, " \n", [Content(" \n")]),
    "blanks around": (HERMES, f"\n\n<tool_call>{F}</tool_call>\n", CALL),
    "content around": (HERMES, f"Hi.\n<tool_call>{F}</tool_call> So.", [Content("Hi.\n"), *CALL, Content(" So.")]),
    "two": (HERMES, f"<tool_call>\n{F}\n</tool_call>\n<tool_call>{F}</tool_call>", CALL * 2),
    "no closing marker": (HERMES, f"<tool_call>{F}", CALL),
    "two, no closing marker": (HERMES, f"<tool_call>{F}\n<tool_call>{F}", CALL * 2),
    "arguments first": (HERMES, '<tool_call>{"arguments": {}, "name": "f"}', call("f", "{}")),
    "no arguments": (HERMES, '<tool_call>{"name": "weather.get"}', call("weather.get", "{}")),
    "more keys": (HERMES, '<tool_call>{"type": "function", "id": 7, "name": "f", "parameters": {}}', call("f", "{}")),
    "as it was written": (
        HERMES,
        '<tool_call>{"name": "\\u0066", "arguments": { "n": -1.50E+2 ,"s":"\\u00e9\\n" } }',
        call("f", '{ "n": -1.50E+2 ,"s":"\\u00e9\\n" }'),
    ),
    "newline in a string": (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty"}}',
        call("f", '{"a": "x\\n\\ty"}'),
    ),
    "marker in a string": (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call><tool_call>"}}</tool_call>',
        call("f", '{"a": "</tool_call><tool_call>"}'),
    ),
    "second marker": (HERMES, f"<tool_call><tool_call>{F}</tool_call>", [Content("<tool_call>"), *CALL]),
    "long and broken": (
        HERMES,
        f'<tool_call>{LONG}" oops</tool_call>',
        [*call("f", LONG.partition('ments": ')[2] + '" ', is_complete=False), Content("oops</tool_call>")],
    ),
    "llama: two": (LLAMA3, f"{F}; {F}", CALL * 2),
    "llama: tag": (LLAMA3, f"Wait. <|python_tag|>{F}", [Content("Wait. "), *CALL]),
    "llama: in mid-text": (LLAMA3, f"Like {F}", [Content(f"Like {F}")]),
    "llama: an answer in JSON": (LLAMA3, '{"answer": 5}', [Content('{"answer": 5}')]),
    "llama: blanks first": (LLAMA3, f"\n {F}", CALL),
    "llama: code": (LLAMA3, "<|python_tag|>print(1)", [Content("<|python_tag|>print(1)")]),
    "mistral: list": (MISTRAL, f"So: [TOOL_CALLS] [{F}, {F}]", [Content("So: "), *CALL, *CALL]),
    "mistral: object": (MISTRAL, f"[TOOL_CALLS]{F}", CALL),
    "mistral: named": (MISTRAL, '[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}[TOOL_CALLS]f{"a": 1}', CALL * 2),
    "mistral: list that breaks": (MISTRAL, f"[TOOL_CALLS][{F}, 5]", [*CALL, Content("5]")]),
    "json: in mid-text": (JSON, f"See [1]: {F} {{ok}}", [Content("See [1]: "), *CALL, Content(" {ok}")]),
    "json: fenced": (JSON, f"```json\n[{F},\n {F}]\n``` Done.", [*CALL, *CALL, Content(" Done.")]),
    "json: other fence": (JSON, "```python\n[1, {2: 3}]\n```", [Content("```python\n[1, {2: 3}]\n```")]),
    "qwen: as its template writes it": (
        QWEN,
        "Hi. <tool_call>\n<function=f>\n<parameter=a>\nx\n\n</parameter>\n<parameter=b>\n</parameter>\n</function>",
        [Content("Hi. "), *call("f", '{"a": "x\\n", "b": ""}')],
    ),
    "qwen: no markers around, two": (
        QWEN, "<function=f></function>\n<function=f><parameter=a>1</parameter></function>",
        [*call("f", "{}"), *call("f", '{"a": "1"}')],
    ),
    "qwen: half tags in a value": (
        QWEN, '<function=f><parameter=a></param "\\</parameter></function>', call("f", '{"a": "</param \\"\\\\"}')),
    "qwen: no such function": (QWEN, "<function=x></function>", [Content("<function=x></function>")]),
    "qwen: twice the same": (
        QWEN, "<function=f><parameter=a>1</parameter><parameter=a>",
        [Content("<function=f><parameter=a>1</parameter><parameter=a>")],
    ),
    "qwen: JSON": (QWEN, f"<tool_call>{F}</tool_call>", [Content(f"<tool_call>{F}</tool_call>")]),
    "python: two": (PYTHON, "[f(a=1), f(\n a = 1,\n)]", CALL * 2),
    "python: values": (
        PYTHON,
        """[f(a='it\\'s "x"\\n\\x41\\u00e9\\q', b=[True, None, (-1.5e3,)], c={'k': {}, "l": []}, d=false)]""",
        call("f", '{"a": "it\'s \\"x\\"\\nAé\\\\q", "b": [true, null, [-1.5e3]], "c": {"k": {}, "l": []}, "d": false}'),
    ),
    "python: no arguments": (PYTHON, " [weather.get()]", call("weather.get", "{}")),
    "python: half a pair": (PYTHON, r"[f(a='\ud83d')]", call("f", r'{"a": "\ud83d"}')),
    "python: marked, in mid-text": (
        PYTHON, "So <|python_start|>[f(a=1)]<|python_end|> done", [Content("So "), *CALL, Content(" done")]),
    "python: in mid-text": (PYTHON, "So [f(a=1)]", [Content("So [f(a=1)]")]),
    "python: a list": (PYTHON, "[1, 2]", [Content("[1, 2]")]),
    "python: one that breaks": (PYTHON, "[f(a=1), g(a=2)]", [*CALL, Content("g(a=2)]")]),
    "python: an expression": (PYTHON, "[f(a=1 + 2)]", [Content("[f(a=1 + 2)]")]),
    "python: twice the same": (PYTHON, "[f(a=1, a=2)]", [Content("[f(a=1, a=2)]")]),
    "named": (NamedCall("f"), '{"a": 1}\n', CALL),
    "named: no object": (NamedCall("f"), "[1]", [Content("[1]")]),
}  # fmt: skip

NOT_CALLS = {
    "words": "not json",
    "brace": "{not json}",
    "single quotes": "{'name': 'f', 'arguments': {}}",
    "no such function": '{"name": "other", "arguments": {"a": 1}}',
    "no name": '{"arguments": {}}',
    "name twice": '{"name": "f", "name": "f", "arguments": {}}',
    "arguments twice": '{"name": "f", "arguments": {}, "parameters": {}}',
    "name is a number": '{"name": 5, "arguments": {}}',
    "arguments are a list": '{"name": "f", "arguments": [1]}',
    "arguments are a text": '{"name": "f", "arguments": "{}"}',
    "arguments are null": '{"name": "f", "arguments": null}',
    "other key": '{"name": "f", "arguments": {}, "why": 1}',
    "comma too many": '{"name": "f", "arguments": {"a": 1,}}',
    "comma missing": '{"name": "f", "arguments": {"a": 1 "b": 2}}',
    "value missing": '{"name": "f", "arguments": {"a": }}',
    "word as a value": '{"name": "f", "arguments": {"a": None}}',
    "octal": '{"name": "f", "arguments": {"a": 01}}',
    "escape": '{"name": "f", "arguments": {"a": "\\x"}}',
    "half an escape": '{"name": "f", "arguments": {"a": "\\u12g4"}}',
    "wrong brackets": '{"name": "f", "arguments": {"a": [1}]}',
    "unfinished": '{"name": "f", "arguments": {"a": 1',
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_is_found(case: str) -> None:
    syntax, text, expected = TEXTS[case]
    assert parse(syntax, NAMES, [text]) == expected
    assert parse(syntax, NAMES, list(text)) == expected


@pytest.mark.parametrize("case", NOT_CALLS)
@pytest.mark.parametrize(
    ("syntax", "around"),
    [(HERMES, "<tool_call>{}</tool_call>"), (LLAMA3, "{}"), (MISTRAL, "[TOOL_CALLS][{}]"), (JSON, "Hi {} there")],
    ids=["hermes", "llama3", "mistral", "json"],
)
def test_what_is_no_call_is_content(syntax: Any, around: str, case: str) -> None:
    """To the letter: it may be an answer that speaks of calls."""
    text = around.replace("{}", NOT_CALLS[case], 1)
    assert parse(syntax, NAMES, [text]) == [Content(text)]
    assert parse(syntax, NAMES, list(text)) == [Content(text)]


@pytest.mark.parametrize("writer", WRITERS)
def test_bfcl_round_trip(writer: str) -> None:
    parser, write = WRITERS[writer]
    for seed, case in enumerate(BFCL):
        text = write(case["calls"])
        names = {function["name"]: function["parameters"] for function in case["functions"]}
        for pieces in ([text], list(text), cut_randomly(text, seed)):
            events = parse(TOOL_PARSERS[parser].syntax, names, pieces)
            assert complete_calls(events) == case["calls"], text
            assert content(events) == ""


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(NAMES), "arguments": st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3)}
    ),
    min_size=1,
    max_size=3,
)


TYPED = {"s": "string", "i": "integer", "n": "number", "b": "boolean", "o": "object", "l": "array", "z": "null"}
STRATEGIES: dict[str, Any] = {
    "s": st.text().filter(lambda text: "</parameter>" not in text and "\r" not in text),
    "i": st.integers(),
    "n": st.floats(allow_nan=False, allow_infinity=False),
    "b": st.booleans(),
    "o": st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3),
    "l": st.lists(JSON_VALUES, max_size=3),
    "z": st.none(),
}
SCHEMA = {"type": "object", "properties": {key: {"type": kind} for key, kind in TYPED.items()}}


@given(arguments=st.fixed_dictionaries({}, optional=STRATEGIES), seed=st.integers(0, 2**32))
def test_plain_values_come_back_by_their_types(arguments: dict[str, Any], seed: int) -> None:
    text = qwen3_coder([{"name": "f", "arguments": arguments}])
    assert complete_calls(parse(QWEN, {"f": SCHEMA}, cut_randomly(text, seed))) == [
        {"name": "f", "arguments": arguments}
    ]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "5", 5),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": "string"}, "5", "5"),
        ({"anyOf": [{"type": "boolean"}, {"type": "string"}]}, "True", True),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": None}, "None", None),
        ({"$ref": "#/$defs/x"}, "[1]", [1]),
        ({"type": "float"}, "1.5", 1.5),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "array"}, "[1", "[1"),
        (None, "5", "5"),
        ("any", "[]", "[]"),
    ],
)
def test_what_plain_values_stand_for(schema: Any, text: str, value: Any) -> None:
    asked = {"f": {"properties": {"a": schema}}}
    written = f"<function=f><parameter=a>{text}</parameter></function>"
    assert complete_calls(parse(QWEN, asked, list(written))) == [{"name": "f", "arguments": {"a": value}}]


@pytest.mark.parametrize("writer", [each for each in WRITERS if each not in UNTYPED])
@given(calls=CALLS, seed=st.integers(0, 2**32))
def test_any_arguments_come_back(writer: str, calls: list[dict[str, Any]], seed: int) -> None:
    parser, write = WRITERS[writer]
    text = write(calls)
    assert complete_calls(parse(TOOL_PARSERS[parser].syntax, NAMES, cut_randomly(text, seed))) == calls


@given(
    calls=st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(NAMES),
                "arguments": st.dictionaries(st.sampled_from(["a", "b_2", "größe"]), JSON_VALUES, max_size=3),
            }
        ),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 2**32),
)
def test_any_arguments_in_python_come_back(calls: list[dict[str, Any]], seed: int) -> None:
    assert complete_calls(parse(PYTHON, NAMES, cut_randomly(pythonic(calls), seed))) == calls


MARKUP = [
    "<function=f>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "<|python_start|>",
    "[f(",
    "a=",
    ")",
    "'",
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "```json",
    "```",
]
PARTS = ["{", "}", '"', ":", ",", ";", "[", "]", '{"name": ', '"f"', '"arguments": ', '{"a": ', "12", "true", "f", F]
OTHER = ["\\", "\\u00", "e9", " ", "\n", "漢😀", LONG]
SHARDS = st.lists(st.sampled_from(MARKUP + PARTS + OTHER), max_size=12).map("".join)


@pytest.mark.parametrize("parser", TOOL_PARSERS)
@given(text=SHARDS, seed=st.integers(0, 2**32), is_cut=st.booleans())
def test_chunking_changes_nothing(parser: str, text: str, seed: int, is_cut: bool) -> None:
    syntax = TOOL_PARSERS[parser].syntax
    whole = parse(syntax, NAMES, [text], is_cut)
    assert parse(syntax, NAMES, list(text), is_cut) == whole
    if text:
        assert parse(syntax, NAMES, cut_randomly(text, seed), is_cut) == whole


@given(text=SHARDS)
def test_nothing_is_lost_without_a_call(text: str) -> None:
    for dialect in TOOL_PARSERS.values():
        assert parse(dialect.syntax, (), [text]) == ([Content(text)] if text else [])


@pytest.mark.parametrize("writer", ["hermes", "mistral list", "mistral named"])
def test_a_call_cut_anywhere_shows_no_markup(writer: str) -> None:
    """A limit ended the text: what there is of the call, and no more."""
    parser, write = WRITERS[writer]
    arguments = {"a": "x", "b": [1, True]}
    text = write([{"name": "f", "arguments": arguments}])
    seen = set()
    for end in range(len("[TOOL_CALLS]"), len(text) + 1):
        events = parse(TOOL_PARSERS[parser].syntax, NAMES, [text[:end]], is_cut=True)
        assert not content(events), text[:end]
        given = "".join(event.text for event in events if isinstance(event, Arguments))
        assert json.dumps(arguments).startswith(given)
        seen.add((isinstance(events[-1], Cut), given))
    assert {(True, ""), (False, '{"a": "x'), (False, json.dumps(arguments))} <= seen


def test_arguments_are_streamed() -> None:
    """Long ones come as they are typed; short ones at once, when they are known to be whole."""
    parser = ToolParser(HERMES, NAMES)
    text = hermes([{"name": "f", "arguments": {"a": "x" * 1000}}])
    events = [event for char in text for event in parser.feed(char)]
    assert isinstance(events[0], CallBegin)
    assert len([event for event in events if isinstance(event, Arguments)]) > 1000 - MAX_HELD
    assert len(parse(HERMES, NAMES, list(hermes([{"name": "f", "arguments": {"a": 1}}])))) == 3


def test_content_is_not_held_back() -> None:
    parser = ToolParser(HERMES, NAMES)
    assert parser.feed("Hello <b>") == [Content("Hello <b>")]
    assert parser.feed("<tool") == []
    assert parser.feed("s>") == [Content("<tools>")]


def test_depth_costs_no_recursion() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>'
    assert parse(HERMES, NAMES, [text]) == call("f", f'{{"a": {deep}}}')
