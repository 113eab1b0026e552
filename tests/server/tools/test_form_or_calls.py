"""Texts that are calls or of a form: what the grammars let through, and that the parsers read it as what it is."""

import json
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint, form_or_calls, json_schema
from octavo.server.dialect import TOOL_PARSERS
from octavo.server.tools.callee import Callee, callee_of
from octavo.server.tools.form_or_calls import FormOrCalls
from octavo.structured.compiler import CompiledGrammar, compile_grammar
from octavo.structured.vocabulary import Vocabulary
from tests.support.byte_tokenizer import EOS, ByteTokenizer
from tests.support.tool_calls import WRITERS, complete_calls, content, parse

WIDTH = 300
VOCABULARY = Vocabulary(ByteTokenizer(), WIDTH, frozenset({EOS}))
FORM = json_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, "response_format")
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["city", "days", "unit"],
    "$defs": {"place": {"type": "object", "properties": {"at": {"type": "number"}}}},
}
WEATHER = {"name": "get_weather", "parameters": PARAMETERS}
NOW = {"name": "now"}
WRITTEN = {name: found for name, found in WRITERS.items() if name != "fenced json"}
"""A fence is taken where a model writes one, but not asked for."""

CALLS: list[dict[str, Any]] = [
    {"name": "get_weather", "arguments": {"city": "Köln (東京)", "days": 3, "unit": "F"}},
    {"name": "now", "arguments": {}},
    {"name": "get_weather", "arguments": {"city": "a b", "days": -1, "unit": "C", "note": "x", "place": {"at": 0.5}}},
]


def callees(*, is_strict: bool) -> list[Callee]:
    return [callee_of(function, is_strict=is_strict) for function in (WEATHER, NOW)]


def constraint(parser: str, *, is_strict: bool = True, is_parallel: bool = True, form: Constraint = FORM) -> Constraint:
    dialect = TOOL_PARSERS[parser]
    return form_or_calls(form, dialect.rules(callees(is_strict=is_strict), is_parallel), dialect.markers, "tools")


def accepts(asked: Constraint, text: str) -> bool:
    matcher = compile_grammar(asked, VOCABULARY)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def read(parser: str, text: str) -> Any:
    dialect = TOOL_PARSERS[parser]
    names = {each.name: each.parameters for each in callees(is_strict=True)}
    events = parse(FormOrCalls(dialect.syntax, dialect.openings), names, list(text))
    assert events == parse(FormOrCalls(dialect.syntax, dialect.openings), names, [text])
    return complete_calls(events), content(events)


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize(("parser", "write"), WRITTEN.values(), ids=WRITTEN)
def test_what_models_write_is_let_through_and_read(parser: str, write: Any, is_strict: bool) -> None:
    asked = constraint(parser, is_strict=is_strict)
    for calls in (CALLS, CALLS[:1], CALLS[1:2], CALLS[2:]):
        text = write(calls).replace("'", '"')
        assert accepts(asked, text), text
        assert read(parser, text) == (calls, "")


@pytest.mark.parametrize(("parser", "write"), WRITTEN.values(), ids=WRITTEN)
def test_strict_arguments_follow_their_schema_and_others_are_any(parser: str, write: Any) -> None:
    strict, free = constraint(parser), constraint(parser, is_strict=False)
    for wrong in (
        {"days": 3, "unit": "F"},
        {"city": "x", "days": 3, "unit": "K"},
        {"city": "x", "days": "many", "unit": "C"},
    ):
        text = write([{"name": "get_weather", "arguments": wrong}]).replace("'", '"')
        assert not accepts(strict, text)
        assert accepts(free, text)
    more = write([{"name": "get_weather", "arguments": {"city": "x", "days": 3, "unit": "F", "more": 1}}])
    assert not accepts(strict, more.replace("'", '"'))
    assert not accepts(free, write([{"name": "other", "arguments": {}}]))


@pytest.mark.parametrize(("parser", "write"), WRITTEN.values(), ids=WRITTEN)
def test_one_call_where_more_are_not_wanted(parser: str, write: Any) -> None:
    asked = constraint(parser, is_parallel=False)
    assert accepts(asked, write(CALLS[1:2]))
    assert not accepts(asked, write([CALLS[1], CALLS[1]]))


MARKED = json.dumps({"a": '<tool_call>{"name": "now", "arguments": {}}</tool_call>[TOOL_CALLS]now[ARGS]{}'})
NESTED = '{"a": "x", "b": [{"name": "now", "arguments": {}}, "<|python_tag|>"]}'


@pytest.mark.parametrize("parser", TOOL_PARSERS)
def test_the_form_is_let_through_and_read_as_content_whatever_it_holds(parser: str) -> None:
    asked = constraint(parser)
    for text in ('{"a": "b"}', MARKED, NESTED):
        assert accepts(asked, text)
        assert read(parser, text) == ([], text)
    for text in ("{}", "hello", '{"a": 1}', '{"a": "b"} {"name": "now", "arguments": {}}', "", "now()"):
        assert not accepts(asked, text)


@pytest.mark.parametrize("parser", TOOL_PARSERS)
@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Constraint("regex", "[ab]{2}"), "ab"),
        (Constraint("choice", '["yes","no",""]'), "no"),
        (Constraint("choice", '["yes",""]'), ""),
        (Constraint("grammar", 'start: call call\ncall: "x{" | "}y"'), "}yx{"),
        (Constraint("grammar", 'root ::= "a" object\nobject ::= "b" | "c"'), "ac"),
    ],
)
def test_every_kind_of_form(parser: str, form: Constraint, text: str) -> None:
    asked = constraint(parser, form=form)
    assert accepts(asked, text)
    assert not accepts(asked, "z")
    assert read(parser, text) == ([], text)


class MarkedTokenizer(ByteTokenizer):
    """Has markers of calls as control tokens."""

    vocab_size = EOS + 3
    special_token_ids = frozenset({EOS, EOS + 1, EOS + 2})

    def token_bytes(self, token_id: int) -> bytes:
        marks = {EOS + 1: b"<tool_call>", EOS + 2: b"</tool_call>"}
        return marks.get(token_id) or super().token_bytes(token_id)


def test_marks_that_are_control_tokens_come_as_these_and_no_others_do() -> None:
    vocabulary = Vocabulary(MarkedTokenizer(), WIDTH, frozenset({EOS}))
    grammar = CompiledGrammar(constraint("hermes"), vocabulary)
    call = [EOS + 1, *b'\n{"name": "now", "arguments": {}}\n', EOS + 2]
    for ids in (call, [*call, *b"\n", *call], list(b'{"a": "b"}')):
        matcher = grammar.new_matcher()
        assert matcher.try_consume_tokens(ids) == len(ids)
        assert matcher.is_accepting()
    assert grammar.new_matcher().try_consume_tokens(list(b"<tool_call>")) == 0
    assert set(call) - set(range(256)) == {EOS + 1, EOS + 2}
    differing = grammar.text_bits ^ vocabulary.text_bits
    assert [token_id for token_id in range(WIDTH) if differing[token_id >> 5] >> (token_id & 31) & 1] == [
        EOS + 1,
        EOS + 2,
    ]


BOUNDED: list[dict[str, Any]] = [
    {"a": {"type": "string", "pattern": "x+"}},
    {"a": {"type": "string", "maxLength": 3}},
    {"a": {"anyOf": [{"type": "string"}, {"type": "object"}]}},
    {"a": {"enum": ["1", 1]}},
    {"a": {}},
    {"a<b": {"type": "string"}},
]


@pytest.mark.parametrize("properties", BOUNDED)
def test_texts_with_bounds_cannot_be_kept_to_in_tags(properties: dict[str, Any]) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    rules = TOOL_PARSERS["qwen3_coder"].rules
    with pytest.raises(InvalidRequestError, match="function 'f' is strict and has a "):
        rules([callee_of(function, is_strict=True)], True)
    assert rules([callee_of(function, is_strict=False)], True)


@pytest.mark.parametrize("parser", ["qwen3_coder", "pythonic"])
@pytest.mark.parametrize(
    "more", [{"additionalProperties": True}, {"anyOf": [{"required": ["a"]}]}, {"patternProperties": {}}]
)
def test_what_is_more_than_properties_cannot_be_written_argument_by_argument(parser: str, more: dict[str, Any]) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}} | more}
    with pytest.raises(InvalidRequestError, match="parameters that are more than a list of properties") as caught:
        TOOL_PARSERS[parser].rules([callee_of(function, is_strict=True)], True)
    assert caught.value.param == "tools"
