"""Thinking before a form, token by token, against the same found by reading the whole text anew."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from octavo.core.structured import Constraint, Thinking
from octavo.runner.row_grammar import RowGrammar
from octavo.runner.thinking_grammar import ThinkingGrammar
from octavo.structured.compiler import CompiledGrammar
from octavo.structured.thinking_marks import thinking_marks
from octavo.structured.vocabulary import Vocabulary

PIECES = [
    b"<",
    b"/",
    b"think",
    b">",
    b"</",
    b"</th",
    b"ink>",
    b"nk",
    b">x",
    b"</think>y",
    b"a",
    b"b",
    b"<<",
    b"aab",
    b" ",
]
SPECIAL = {16: b"<think>", 17: b"</think>", 18: b"<eos>", 19: b"<other>"}
EOS, OPEN, CLOSE = 18, 16, 17
WIDTH = 24


class Marked:
    """Marks as special tokens, and all ways to spell them."""

    vocab_size = 20
    special_token_ids = frozenset(SPECIAL)

    def token_bytes(self, token_id: int) -> bytes:
        return SPECIAL.get(token_id, PIECES[token_id] if token_id < len(PIECES) else b"")


VOCABULARY = Vocabulary(Marked(), WIDTH, frozenset({EOS}))
COMPILED = CompiledGrammar(Constraint("regex", "(a|b){2,6}"), VOCABULARY)
TEXT = set(range(len(PIECES)))


def new(is_open: bool, output_ids: Sequence[int] = ()) -> ThinkingGrammar:
    answer = RowGrammar(COMPILED, (EOS,))
    return ThinkingGrammar(answer, Thinking("<think>", "</think>", is_open), VOCABULARY, output_ids)


def ids(grammar: ThinkingGrammar) -> set[int]:
    bits = grammar.bits
    assert bits is not None
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def allowed(grammar: ThinkingGrammar) -> set[int]:
    grammar.fill()
    return ids(grammar)


def spelled(token_ids: Sequence[int]) -> bytes:
    return b"".join(Marked().token_bytes(token_id) for token_id in token_ids)


def expected(is_open: bool, token_ids: Sequence[int]) -> set[int]:
    """By the text alone: whichever tokens keep it a beginning of what it has to be."""
    if not is_open and not token_ids:
        return {10, 11, 13, OPEN}
    if is_open or token_ids[0] == OPEN:
        thought = spelled(token_ids if is_open else token_ids[1:])
        if b"</think>" not in thought:
            return (
                {
                    token_id
                    for token_id in TEXT | {CLOSE}
                    if b"</think>" not in (there := thought + Marked().token_bytes(token_id))
                    or there.endswith(b"</think>")
                }
                - ({OPEN} if True else set())
                - {15}
            )
        answer = thought.partition(b"</think>")[2]
    else:
        answer = spelled(token_ids)
    found = {token_id for token_id in (10, 11, 13) if len(answer) + len(PIECES[token_id]) <= 6}
    return found | ({EOS} if len(answer) >= 2 else set())


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_masks_follow_the_text_however_it_is_spelled(is_open: bool, seed: int) -> None:
    source, token_ids, grammar = Random(seed), list[int](), new(is_open)
    for _ in range(60):
        if grammar.is_complete:
            break
        found = allowed(grammar)
        assert found == expected(is_open, token_ids), token_ids
        assert found == allowed(new(is_open, token_ids))
        assert grammar.fault is None
        drawn = source.choice(sorted(found))
        grammar.consume(drawn)
        if drawn == EOS:
            break
        token_ids.append(drawn)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_after_drafts_masks_are_those_without_drafts(is_open: bool, seed: int) -> None:
    source, token_ids, grammar = Random(seed), list[int](), new(is_open)
    for _ in range(20):
        drafts = [source.choice([0, 2, 10, 11, 13, OPEN, CLOSE, 5, 6, EOS]) for _ in range(source.randrange(5))]
        if source.random() < 0.3:
            drafts = [CLOSE, 10, 11, 10][: len(drafts)]
        grammar.fill(drafts)
        for draft in [*drafts, None]:
            if grammar.is_complete:
                return
            found = ids(grammar)
            assert found == allowed(new(is_open, token_ids)), (token_ids, drafts)
            drawn = draft if draft in found else source.choice(sorted(found))
            grammar.consume(drawn)
            token_ids.append(drawn)
            if drawn != draft:
                break


def test_where_no_token_is_the_opening_mark_the_answer_begins_at_once() -> None:
    class Plain(Marked):
        special_token_ids = frozenset({EOS})

        def token_bytes(self, token_id: int) -> bytes:
            return b"" if token_id in (OPEN, CLOSE) else super().token_bytes(token_id)

    vocabulary = Vocabulary(Plain(), WIDTH, frozenset({EOS}))
    compiled = CompiledGrammar(Constraint("regex", "a"), vocabulary)
    grammar = ThinkingGrammar(RowGrammar(compiled, (EOS,)), Thinking("<think>", "</think>"), vocabulary)
    assert allowed(grammar) == {10}
    assert not grammar.must_end


def test_marks_are_made_once_for_a_vocabulary() -> None:
    assert thinking_marks("<think>", "</think>", VOCABULARY) is thinking_marks("<think>", "</think>", VOCABULARY)


def test_a_fault_is_the_answers() -> None:
    grammar = new(is_open=False)
    grammar.fault = "broken"
    assert grammar.fault == "broken"
    assert not allowed(grammar)
