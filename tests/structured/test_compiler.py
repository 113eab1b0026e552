"""From constraints to grammars: what they accept, what is refused and in which words, and what is kept."""

import json
import threading
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured import Constraint
from octavo.structured import compiler
from octavo.structured.compiler import GrammarCompiler, compile_grammar
from octavo.structured.trial import try_texts
from octavo.structured.vocabulary import Vocabulary
from tests.support.byte_tokenizer import EOS, ByteTokenizer

WIDTH = 300
VOCABULARY = Vocabulary(ByteTokenizer(), WIDTH, frozenset({EOS}))


def constraint(**asked: Any) -> Constraint:
    found = SamplingParams(structured_outputs=asked).constraint
    assert found is not None
    return found


def accepts(asked: Constraint, text: str) -> bool:
    matcher = compile_grammar(asked, VOCABULARY)
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


TEXTS = ["München", "東京", "😀", 'a"b', "tab\there", "back\\slash", "", "a/b", "x\ny", "a.b", "[a]", "é", "e\u0301"]


def test_choices_are_exact() -> None:
    asked = constraint(choice=TEXTS)
    assert all(accepts(asked, text) for text in TEXTS)
    assert not any(accepts(asked, text) for text in ["axb", "Munchen", "a/", "b", "e", "tab", "a\\/b"])


@pytest.mark.parametrize("texts", [[""], ["a"], ["", "a"], ["a", "a"], ["a", "ab", ""]])
def test_choices_may_be_empty_beginnings_of_others_and_named_twice(texts: list[str]) -> None:
    asked = constraint(choice=texts)
    assert {text for text in ("", "a", "ab", "aa", "b") if accepts(asked, text)} == set(texts)


def test_as_many_choices_as_a_request_may_hold_are_followed_to_the_end() -> None:
    asked = constraint(choice=[f"x{i}" for i in range(20_000)] + ["a" * i for i in range(1, 300)])
    assert all(accepts(asked, text) for text in ("x0", "x19", "x19999", "x12345", "a", "a" * 299))
    assert not any(accepts(asked, text) for text in ("x", "x20000", "a" * 300, ""))


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("^abc$", ["abc"], ["ab", "abcd"]),
        ("a\nb/c", ["a\nb/c"], ["a b/c", "anb/c"]),
        (r"a\/c", ["a/c"], ["a\\/c"]),
        (r"\\", ["\\"], ["", "\\\\"]),
        (r"\d{2}", ["42"], ["4", "423", "٤٢"]),
        ("[äöü]{3}", ["äöü", "üüü"], ["äö", "aou"]),
        ("(?i)abc", ["aBC"], ["abd"]),
        ("", [""], ["a"]),
        ("a|", ["a", ""], ["aa"]),
    ],
)
def test_a_regular_expression_is_of_the_whole_text(pattern: str, right: list[str], wrong: list[str]) -> None:
    asked = constraint(regex=pattern)
    assert [text for text in right if not accepts(asked, text)] == []
    assert [text for text in wrong if accepts(asked, text)] == []


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= item ("," item)*\nitem ::= [a-c]+', ["a", "ab,c"], ["", "a,", "d"]),
        ('start: start "a" | "b"', ["b", "baa"], ["a", ""]),
        ('root ::= root "a" | "b"', ["b", "ba"], ["ab"]),
        ('start: "x" %json {"type": "integer"}', ["x12"], ["x", "12", "x1.5"]),
    ],
)
def test_a_grammar_is_in_ebnf_or_lark(grammar: str, right: list[str], wrong: list[str]) -> None:
    asked = constraint(grammar=grammar)
    assert [text for text in right if not accepts(asked, text)] == []
    assert [text for text in wrong if accepts(asked, text)] == []


def test_json_in_the_usual_layouts_and_no_endless_blanks() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    asked, value = constraint(json=schema), {"a": [1, 2], "b": {"c": "é"}}
    for layout in ({}, {"separators": (",", ":")}, {"indent": 2}, {"indent": "\t"}):
        text = json.dumps(value, ensure_ascii=False, **layout)  # type: ignore[arg-type]
        assert accepts(asked, text), text
    assert not accepts(asked, '{"a":[1]' + " " * 200 + "}")
    assert not accepts(asked, '{"a":["1"]}')
    assert accepts(constraint(json_object=True), '{"x": null}')
    assert not accepts(constraint(json_object=True), "[]")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"regex": "["}, "unclosed"),
    ({"regex": "(?P<"}, "unclosed"),
    ({"regex": "a{2,1}"}, "repetition"),
    ({"regex": "\\"}, "backslash"),
    ({"regex": "(?=x)x"}, "look-around"),
    ({"regex": r"(a)\1"}, "backreferences"),
    ({"regex": r"\bfoo"}, "lookarounds"),
    ({"grammar": "start: undefined"}, "undefined"),
    ({"grammar": "root ::= undefined"}, "undefined"),
    ({"grammar": ""}, "start"),
    ({"grammar": "start: start"}, "no text fits"),
    ({"grammar": "start: <|im_end|>"}, "special token"),
    ({"grammar": "start: <[257]>"}, "no text fits"),
    ({"grammar": "start: <end of text>"}, "."),
    ({"grammar": '%llguidance {"no_forcing": false}\nstart: "a"'}, "options"),
    ({"grammar": 'start: %json {"not": {}, "x-guidance": {"lenient": true}}'}, "options"),
    ({"grammar": "root ::= " + "(" * 3000}, "."),
    ({"json": {"type": "nope"}}, "nope"),
    ({"json": {"type": 5}}, "type must be"),
    ({"json": {"$ref": "#/nope"}}, "nope"),
    ({"json": {"$ref": "#"}}, "no text fits"),
    ({"json": {"$ref": "http://127.0.0.1:9/x"}}, "fetch"),
    ({"json": {"$ref": "file:///etc/passwd"}}, "fetch"),
    ({"json": {"enum": []}}, "empty"),
    ({"json": {"minimum": "x"}}, "minimum"),
    ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "greater"),
    ({"json": {"type": "string", "minLength": 5, "maxLength": 3}}, "greater"),
    ({"json": {"type": "object", "properties": {"a": 5}}}, "object or boolean"),
    ({"json": {"type": "string", "pattern": "["}}, "unclosed"),
    ({"json": {"not": {}}}, "not"),
    ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, "not"),
    ({"json": {"properties": {"a": {"x-guidance": {"lenient": True}, "not": {}}}}}, "not"),
    ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"json": {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(14)]}}, "too large"),
]


@pytest.mark.parametrize(("asked", "words"), REFUSED, ids=[str(asked)[:50] for asked, _ in REFUSED])
def test_b38_what_cannot_be_is_refused_in_words_that_help(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        compile_grammar(constraint(**asked), VOCABULARY)
    message = caught.value.message
    assert len(message) <= 320
    assert not any(inner in message for inner in ("panic", "backtrace", 'x-guidance":', 'no_forcing":', "\n"))


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": "(.{1,500}x){1,500}"},
        {"regex": "((a{0,100}){0,100}){0,100}"},
        {"regex": "(?:(?:(?:(?:(?:a|b)*a(?:a|b){12}){1,30}){1,30}){1,30})"},
        {"grammar": 'root ::= "a"{1,100000}'},
        {"json": {"type": "array", "minItems": 1_000_000}},
        {"json": {"type": "string", "pattern": "(a{1,1000}){1,1000}(b{1,1000}){1,1000}"}},
        {"json": {"enum": [f"x{i}" for i in range(20_000)]}},
        {"choice": [f"x{i}" for i in range(20_000)]},
    ],
    ids=lambda asked: str(asked)[:40],
)
def test_large_ones_are_compiled_or_refused_in_bounded_work(asked: dict[str, Any]) -> None:
    try:
        matcher = compile_grammar(constraint(**asked), VOCABULARY)
    except InvalidRequestError:
        return
    for _ in range(20):
        bits = matcher.compute_bitmask()
        token_id = next(i for i in range(WIDTH + 1) if bits[i // 8] >> i % 8 & 1)
        if token_id == WIDTH or not matcher.consume_token(token_id):
            break


def test_equal_constraints_are_compiled_once_and_kept_as_long_as_somebody_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "MAX_KEPT", 2)
    made: list[Vocabulary] = []

    def make() -> Vocabulary:
        made.append(VOCABULARY)
        return VOCABULARY

    grammars = GrammarCompiler(make)
    patterns = [Constraint("regex", letter) for letter in "abc"]
    held = grammars.begin(patterns[0])
    compiled = held.result()
    for pattern in patterns:
        assert grammars.get(pattern) is grammars.get(Constraint(*[pattern.kind, pattern.text]))
    assert grammars.get(patterns[0]) is compiled, "one that a request holds stays"
    assert len(grammars._kept) == 2
    assert len(made) == 1
    with pytest.raises(InvalidRequestError):
        grammars.get(Constraint("regex", "["))
    grammars.close()


def test_grammars_are_compiled_on_other_threads() -> None:
    names: list[str] = []

    def make() -> Vocabulary:
        names.append(threading.current_thread().name)
        return VOCABULARY

    grammars = GrammarCompiler(make)
    grammars.get(Constraint("regex", "a"))
    grammars.close()
    assert names[0].startswith("octavo-grammar")


def test_what_failed_for_want_of_memory_is_compiled_again() -> None:
    grammars = GrammarCompiler(lambda: VOCABULARY)
    asked, compile_one = constraint(regex="a"), grammars._compile
    grammars._compile = lambda _: (_ for _ in ()).throw(MemoryError())  # type: ignore[method-assign]
    assert isinstance(grammars.begin(asked).exception(), MemoryError)
    grammars._compile = compile_one  # type: ignore[method-assign]
    assert grammars.begin(asked).result() is grammars.get(asked)
    refused = constraint(regex="[")
    first = grammars.begin(refused)
    assert first.exception() is not None
    assert grammars.begin(refused) is first
    grammars.close()


def many_optional(number: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"property_{i}": {"type": "integer"} for i in range(number)}}


def test_an_object_of_many_properties_that_may_be_left_out_is_followed_to_its_end() -> None:
    asked = constraint(json=many_optional(1500) | {"additionalProperties": False})
    try_texts(compile_grammar(asked, VOCABULARY))
    assert accepts(asked, '{"property_3":1,"property_1000":2,"property_1499":3}')
    assert not accepts(asked, '{"property_1000":2,"property_3":1}')


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"json": many_optional(3000)}, "too complex|too long"),
        (
            {"json": {"$defs": {"a": {"anyOf": [
                {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": i % 7} for i in range(400)
            ]}}, "$ref": "#/$defs/a"}},
            "too long",
        ),
    ],
)  # fmt: skip
def test_what_could_not_be_followed_in_time_is_refused_when_it_is_tried(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        try_texts(compile_grammar(constraint(**asked), VOCABULARY))
