"""Masks that are remembered are those that the library finds; whatever is not surely understood is left to it."""

import random
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint
from octavo.runner.row_grammar import RowGrammar
from octavo.structured import mask_memory as memories
from octavo.structured.byte_expressions import Expressions, Node
from octavo.structured.compiler import CompiledGrammar
from octavo.structured.mask_memory import MAX_CHARACTERS, MAX_NODES, MaskMemory, mask_memory
from octavo.structured.regex_reader import UnknownSyntaxError, read_regex
from octavo.structured.vocabulary import Vocabulary

WORDS = ["ab", "abc", "ba", "aa", "aaaaaa", " a", "b b", "-1", "12", "1.", "é", "日", "日本", "a\n", ", ", '"', "😀"]
HALF = ["é".encode()[:1], "日".encode()[1:], "😀".encode()[:3], b"a\xe6"]
TEXTS = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS] + HALF


class Pieces:
    """All bytes, words of several, and parts of characters."""

    vocab_size = len(TEXTS) + 1
    special_token_ids = frozenset({len(TEXTS)})

    def token_bytes(self, token_id: int) -> bytes:
        return TEXTS[token_id] if token_id < len(TEXTS) else b""


EOS = len(TEXTS)
VOCABULARY = Vocabulary(Pieces(), EOS + 1, frozenset({EOS}))


def rows(compiled: CompiledGrammar) -> tuple[RowGrammar, RowGrammar]:
    """One that remembers, and one for which each mask is found anew."""
    remembering = RowGrammar(compiled, (EOS,))
    memory, compiled.memory = compiled.memory, None
    asking = RowGrammar(compiled, (EOS,))
    compiled.memory = memory
    return remembering, asking


def follow(pattern: str, seed: int, num_texts: int = 6, num_tokens: int = 30) -> CompiledGrammar:
    """Random texts of the pattern, with equal masks at every token, also after drafts."""
    compiled = CompiledGrammar(Constraint("regex", pattern), VOCABULARY)
    source = random.Random(seed)
    for _ in range(num_texts):
        pair = rows(compiled)
        for _ in range(num_tokens):
            drafts = [source.choice((97, 98, 256, 257)) for _ in range(source.choice((0, 0, 2)))]
            for row in pair:
                row.fill(drafts)
            bits = [row.bits for row in pair]
            if pair[1].is_complete:
                break
            assert bits[0] is not None
            assert bits[1] is not None
            assert (bits[0] == bits[1]).all(), (pattern, pair[1]._tokens)
            ids = np.flatnonzero(np.unpackbits(bits[1].view(np.uint8), bitorder="little"))
            is_drafted = bool(drafts) and drafts[0] in ids
            drawn = drafts[0] if is_drafted else int(source.choice(ids))
            for row in pair:
                row.consume(drawn)
            if is_drafted and not pair[1].is_complete:
                after = [row.bits for row in pair]
                assert after[0] is not None
                assert after[1] is not None
                assert (after[0] == after[1]).all()
    return compiled


PATTERNS = [
    r"([a-z]{1,12}[ ,.]){10000}",
    r"[a-z ]{1,400}",
    r"(ab|ba|[abc]{2,}){3,9}x?",
    r"\d{3}-\d{4}",
    r"^[A-Z][a-z]*( [A-Z][a-z]*){0,3}$",
    r"(a?b?){5}c",
    r"(a*)*b",
    r"[^\n]{1,9}",
    r".*é.+",
    r"a{3}|b{2,}|(?:c|d)",
    r"\D\D日{2}[^a-y]",
    r"\[\"[a\-b]*\"\]",
    r"[\]a-b-]{2}",
    "",
    "()",
    r"a{0}b",
    r"(a|ab)(c|bcd)",
    r" ?-?(0|[1-9][0-9]*)(\.[0-9]{1,3})?",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_are_those_that_are_found_anew(pattern: str) -> None:
    compiled = follow(pattern, 1)
    assert compiled.memory is not None


ATOMS = st.sampled_from(
    ["a", "b", "[ab]", "[a-c]", ".", r"\d", "é", "[^a]", r"\.", r"\D", "1", " ", "日", r"[\d-]", "😀"]
)
QUANTIFIERS = st.sampled_from(["", "", "", "?", "*", "+", "{2}", "{0,2}", "{1,}", "{3,40}", "{200}"])


def _joined(parts: list[tuple[str, str]]) -> str:
    return "".join(atom + quantifier for atom, quantifier in parts)


REGEXES = st.recursive(
    st.lists(st.tuples(ATOMS, QUANTIFIERS), min_size=1, max_size=3).map(_joined),
    lambda inner: st.lists(
        st.tuples(st.lists(inner, min_size=1, max_size=3).map(lambda each: f"({'|'.join(each)})") | ATOMS, QUANTIFIERS),
        min_size=1,
        max_size=3,
    ).map(_joined),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(REGEXES, st.integers(0, 1000))
def test_masks_of_any_expression_are_those_that_are_found_anew(pattern: str, seed: int) -> None:
    with suppress(InvalidRequestError):  # the library's bounds
        follow(pattern, seed, num_texts=3, num_tokens=12)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\w+", r"\s", r"\bx", r"(?i)a", r"a+?", r"a**", r"[[:alpha:]]", r"[a&&b]", r"[a~~b]", r"[a--b]", r"[é]"),
        *(
            r"\p{L}",
            r"\x41",
            r"\<a",
            "a{",
            "}",
            "a]",
            "[]a]",
            "[",
            "(a",
            "a)",
            "a|b)",
            "(?P<n>a)",
            "a$b",
            "b^",
            "\\",
            "[a-",
        ),
        *(
            "a]",
            "[z-a]",
            r"[a-\d]",
            r"[\D]",
            "a{3,2}",
            "a{9999999}",
            "(" * 21 + ")" * 21,
            "*a",
            "(|*)",
            "[b-a-c]",
            "[^]",
        ),
    ],
)
def test_what_is_not_surely_understood_is_left_to_the_library(pattern: str) -> None:
    with pytest.raises(UnknownSyntaxError):
        read_regex(pattern, Expressions())


def after(memory: MaskMemory, *texts: bytes) -> Node:
    node = memory.after(texts)
    assert node is not None
    return node


def test_a_mask_is_found_once_for_texts_that_go_on_alike() -> None:
    memory = MaskMemory("([a-z]{1,12}[ ,.]){10000}", 8)
    mask = np.ones(3, dtype=np.uint32)
    assert memory.mask(after(memory, b"ab", b",c")) is None
    memory.keep(after(memory, b"ab", b",c"), mask)
    mask[:] = 0
    for texts in ([b"x"], [b"abc d"], [b"q."] * 500 + [b"r"]):
        found = memory.mask(after(memory, *texts))
        assert found is not None
        assert found.tolist() == [1, 1, 1]
    assert memory.mask(after(memory, b"abcdefgh")) is None


def test_close_to_the_end_of_a_count_masks_are_others() -> None:
    memory = MaskMemory("a{100}", 8)
    memory.keep(after(memory, b"a"), np.ones(1, dtype=np.uint32))
    assert [num for num in range(101) if memory.mask(after(memory, b"a" * num)) is not None] == list(range(91))


def test_memory_is_bounded_and_goes_on_after_it_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "MAX_NODES", 60)
    monkeypatch.setattr(memories, "MAX_MASKS", 2)
    follow("([ab]{1,12}[ ,.]){300}", 2, num_tokens=80)


def test_an_expression_that_costs_more_than_it_saves_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memories, "MAX_NEW_NODES", 10)
    compiled = follow("((a|b){1,9}(ab|c){1,9}){1,9}", 3)
    assert compiled.memory is not None
    assert compiled.memory.after([b"a"]) is None


def test_an_expression_that_nests_too_deeply_for_python_is_given_up() -> None:
    assert MaskMemory("a?" * 2000, 8).after([b"a"]) is None


def test_longer_expressions_and_other_constraints_have_no_memory() -> None:
    assert mask_memory(Constraint("regex", "a" * (MAX_CHARACTERS + 1)), VOCABULARY) is None
    assert mask_memory(Constraint("choice", '["a"]'), VOCABULARY) is None


def test_a_long_text_that_comes_back_is_read_again() -> None:
    """After preemption, where what was known of it was forgotten."""
    memory = MaskMemory("([a-z]{1,12}[ ,.]){10000}", 8)
    assert memory.after([b"abcdef,"] * 5000) is not None
    assert memory._made.num_nodes > MAX_NODES
    assert memory.after([b"abcdef,"] * 5000) is not None
    assert memory.after([b"a"]) is not None
