"""Which tokens a row's grammar allows, by hand and against the compiled grammar asked anew."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from octavo.core.structured import Constraint
from octavo.runner.row_grammar import RowGrammar
from octavo.structured import compiler
from octavo.structured.compiler import CompiledGrammar, compile_grammar
from octavo.structured.vocabulary import Vocabulary

SPECIAL = {260: b"<s>", 261: b"</s>", 262: b"<tool>"}
MERGED = {256: b"ab", 257: b"ab", 258: b'":', 259: "é".encode()[:1] + b""}
EOS, STOP = 261, 262


class Pieces:
    """All bytes, some merged tokens (two alike), special ones, and ids without a text."""

    vocab_size = 280
    special_token_ids = frozenset(SPECIAL)

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return {**MERGED, **SPECIAL}.get(token_id, b"")


WIDTH = 320
VOCABULARY = Vocabulary(Pieces(), WIDTH, frozenset({EOS, 9999}))
LIST = Constraint("json_schema", '{"type":"array","items":{"type":"integer"},"maxItems":3}')


def new(constraint: Constraint, stop_ids: Sequence[int] = (EOS,), output_ids: Sequence[int] = ()) -> RowGrammar:
    return RowGrammar(CompiledGrammar(constraint, VOCABULARY), stop_ids, output_ids)


def regex(pattern: str, stop_ids: Sequence[int] = (EOS,)) -> RowGrammar:
    return new(Constraint("regex", pattern), stop_ids)


def ids(grammar: RowGrammar) -> list[int]:
    bits = grammar.bits
    assert bits is not None
    assert len(bits) * 32 >= WIDTH
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def allowed(grammar: RowGrammar) -> list[int]:
    grammar.fill()
    return ids(grammar)


def test_a_text_from_its_beginning_to_its_end() -> None:
    grammar = regex("ab?c")
    assert allowed(grammar) == [ord("a"), 256, 257]
    grammar.consume(257)
    assert allowed(grammar) == [ord("c")]
    grammar.consume(ord("c"))
    assert grammar.is_complete
    assert grammar.bits is None


def test_where_the_text_may_end_the_end_may_come_unless_it_is_ignored() -> None:
    assert allowed(regex("x*")) == [ord("x"), EOS]
    assert allowed(regex("x*", stop_ids=())) == [ord("x")]
    assert allowed(regex("x*", stop_ids=(STOP, ord("y"), 5000))) == [ord("x"), STOP]


@pytest.mark.parametrize("stop_ids", [(), (EOS,), (STOP,)])
def test_where_the_text_must_end_the_end_comes_whatever_is_ignored(stop_ids: Sequence[int]) -> None:
    grammar = regex("", stop_ids)
    assert allowed(grammar) == sorted({EOS, *stop_ids})
    assert grammar.must_end
    grammar.consume(EOS)
    assert grammar.is_complete


def test_no_special_token_and_none_without_a_text_ever_comes() -> None:
    grammar = regex(r"(.|\n)*", stop_ids=())
    assert set(allowed(grammar)) <= set(range(260))
    named = new(Constraint("grammar", "start: (<[250-300]>)*"), stop_ids=())
    assert set(allowed(named)) <= set(range(250, 260))


def test_b41_half_a_character_may_come_only_where_the_other_half_can_follow() -> None:
    grammar = regex("é|aé")
    assert allowed(grammar) == [ord("a"), 0xC3, 259]
    grammar.consume(259)
    assert allowed(grammar) == [0xA9]


def test_a_text_that_left_its_grammar_is_a_fault_and_nothing_may_come() -> None:
    grammar = new(LIST, output_ids=list(b"[x"))
    assert grammar.fault is not None
    assert allowed(grammar) == []


def random_text(random: Random, length: int) -> list[int]:
    """Tokens that the grammar allows, to its end or so far."""
    grammar, tokens = new(LIST), list[int]()
    while len(tokens) < length:
        tokens.append(random.choice(allowed(grammar)))
        grammar.consume(tokens[-1])
        if grammar.is_complete:
            break
    return tokens


@pytest.mark.parametrize("seed", range(8))
def test_a_row_that_comes_back_goes_on_as_it_was(seed: int) -> None:
    random = Random(seed)
    tokens = random_text(random, 12)
    grammar = new(LIST)
    for place, token_id in enumerate(tokens):
        assert allowed(grammar) == allowed(new(LIST, output_ids=tokens[:place]))
        grammar.consume(token_id)
    assert grammar.is_complete == new(LIST, output_ids=tokens).is_complete


@pytest.mark.parametrize("seed", range(12))
def test_after_drafts_what_may_come_is_what_may_come_after_those_tokens(seed: int) -> None:
    """However many of the drafts come true, and wherever they leave the grammar."""
    random = Random(seed)
    tokens = random_text(random, 14)
    grammar, place = new(LIST), 0
    while place < len(tokens):
        drafts = tokens[place : place + random.randint(0, 4)]
        if drafts and random.random() < 0.5:
            drafts[random.randrange(len(drafts))] = random.choice([ord("x"), ord("]"), EOS, 999])
        grammar.fill(drafts)
        for number in range(len(drafts) + 1):
            assert ids(grammar) == allowed(new(LIST, output_ids=tokens[:place]))
            grammar.consume(tokens[place])
            place += 1
            if place == len(tokens) or number == len(drafts) or drafts[number] != tokens[place - 1]:
                break


def test_a_fault_while_masks_are_filled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.runner.grammar_masks import _fill

    class Broken:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("broken")

    broken, sound = regex("a"), regex("a")
    broken._matcher = Broken()  # type: ignore[assignment]
    _fill([(broken, ()), (sound, ())])
    assert broken.fault is not None
    assert broken.bits is not None
    assert not broken.bits.any()
    assert ids(sound) == [ord("a")]


TOO_COMPLEX = Constraint("regex", "(?:(?:a|b)*a(?:a|b){14}){1,30}")


def wander(compiled: CompiledGrammar, seed: int) -> RowGrammar:
    """A text of many turns, until its grammar can be followed no further."""
    random, grammar = Random(seed), RowGrammar(compiled, (EOS,))
    for _ in range(400):
        grammar.fill()
        if grammar.fault is not None:
            break
        grammar.consume(random.choice([ord("a"), ord("b")]))
    return grammar


def test_what_is_too_complex_for_one_text_is_not_so_for_others_of_the_same_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from llguidance import LLParserLimits

    limits = LLParserLimits(max_lexer_states=300, verbose_errors=False)
    monkeypatch.setattr("octavo.structured.compiler.matcher_limits", lambda _kind: limits)
    compiled = CompiledGrammar(TOO_COMPLEX, VOCABULARY)
    running = RowGrammar(compiled, (EOS,))
    running.fill()
    running.consume(ord("a"))
    assert wander(compiled, 1).fault is not None
    for grammar in (running, RowGrammar(compiled, (EOS,))):
        assert allowed(grammar) == [ord("a"), ord("b"), 256, 257]
        assert grammar.fault is None


@pytest.mark.parametrize(("quick_seconds", "renewals"), [(60.0, compiler.MAX_RENEWALS), (0.0, 0)])
def test_a_step_compiles_a_bounded_number_of_times_and_what_takes_long_never(
    monkeypatch: pytest.MonkeyPatch, quick_seconds: float, renewals: int
) -> None:
    from llguidance import LLParserLimits

    limits = LLParserLimits(max_lexer_states=300, verbose_errors=False)
    monkeypatch.setattr("octavo.structured.compiler.matcher_limits", lambda _kind: limits)
    monkeypatch.setattr(compiler, "QUICK_SECONDS", quick_seconds)
    grammars = compiler.GrammarCompiler(lambda: VOCABULARY)
    grammar = grammars.get(TOO_COMPLEX)
    compiled = count_compilations(monkeypatch)
    assert all(wander(grammar, seed).fault is not None for seed in range(8))
    assert len(compiled) == renewals
    assert grammar.is_spent
    assert grammars.get(TOO_COMPLEX) is grammar
    fresh = grammars.begin(TOO_COMPLEX).result()
    assert fresh is not grammar
    assert allowed(RowGrammar(fresh, (EOS,))) == [ord("a"), ord("b"), 256, 257]
    grammars.close()


AMBIGUOUS = Constraint("grammar", 'start: s\ns: s s | s s s | "x"')


def count_compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the grammars that are compiled from now on."""
    compiled: list[str] = []

    def noting(constraint: Constraint, vocabulary: Vocabulary) -> object:
        compiled.append(constraint.text)
        return compile_grammar(constraint, vocabulary)

    monkeypatch.setattr("octavo.structured.compiler.compile_grammar", noting)
    return compiled


def test_a_text_that_can_be_read_in_too_many_ways_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes the square of their number; to read all of it again would take all that time in one step."""
    compiled = CompiledGrammar(AMBIGUOUS, VOCABULARY)
    anew = count_compilations(monkeypatch)
    grammar, num_tokens = RowGrammar(compiled, (EOS,)), 0
    while grammar.fault is None:
        assert ord("x") in allowed(grammar)
        grammar.consume(ord("x"))
        num_tokens += 1
    assert grammar.fault == "the grammar is too ambiguous to be followed"
    assert allowed(grammar) == []
    assert 20 < num_tokens < 100
    assert anew == []
    assert new(AMBIGUOUS, output_ids=[ord("x")] * num_tokens).fault == grammar.fault
    assert ord("x") in allowed(RowGrammar(compiled, (EOS,)))


def test_drafts_that_can_be_read_in_too_many_ways_are_no_fault_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = CompiledGrammar(AMBIGUOUS, VOCABULARY)
    anew = count_compilations(monkeypatch)
    grammar = RowGrammar(compiled, (EOS,))
    for _ in range(40):
        grammar.fill([ord("x")] * 80)
        grammar.consume(ord("x"))
        assert grammar.fault is None
    assert allowed(grammar) == allowed(RowGrammar(compiled, (EOS,), [ord("x")] * 40))
    assert anew == []


def test_a_panic_while_masks_are_filled_ends_its_own_request_alone() -> None:
    from octavo.runner.grammar_masks import _fill

    class PanicError(BaseException):
        """What a panic of native code is in Python."""

    class Broken:
        def __getattr__(self, name: str) -> object:
            raise PanicError

    broken, sound = regex("a"), regex("a")
    broken._matcher = Broken()  # type: ignore[assignment]
    _fill([(broken, ()), (sound, ())])
    assert broken.fault == "the grammar failed: PanicError"
    assert ids(sound) == [ord("a")]
