"""B20, B23, B25 through the engine on models that type a script: stop strings, split characters, min_tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.llm import LLM
from tests.support.driving import Driver, Job
from tests.support.models import Piece, ScriptModel, edit_json, script_model, script_w_model

START = [0]
PIECES = ["alpha", " be", "ta ga", "mma", " delta", " epsilon"]


def pool(**more: Any) -> dict[str, Any]:
    return {"block_size": 4, "num_blocks": 64} | more


def streamed(llm: LLM, params: SamplingParams) -> list[list[str]]:
    """The deltas' texts of each choice, in order."""
    texts: list[list[str]] = [[] for _ in range(params.n)]
    for delta in llm.stream(START, params):
        texts[delta.index].append(delta.text)
    return texts


@pytest.fixture(scope="module")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(script_model(tmp_path_factory.mktemp("script"), PIECES).path), **pool())


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stop", ["beta gamma", ["beta gamma"], ["nothing", "beta gamma"]], ids=str)
def test_b20_stop_string_over_several_tokens(stop: Any, n: int, alphabet: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=20, stop=stop, n=n)
    (answer,) = alphabet.generate([START], params)
    for output in answer.outputs:
        assert output.text == "alpha "
        assert (output.finish_reason, output.stop_reason) == ("stop", "beta gamma")
        assert len(output.token_ids) == 4  # D10
    for texts in streamed(alphabet, params):
        assert "".join(texts) == "alpha "
    (whole,) = alphabet.generate([START], replace(params, include_stop_str_in_output=True))
    assert {output.text for output in whole.outputs} == {"alpha beta gamma"}


def test_b20_without_a_stop_the_script_is_whole(alphabet: LLM) -> None:
    (answer,) = alphabet.generate([START], SamplingParams(temperature=1.0, seed=1, max_tokens=20))
    assert answer.outputs[0].text == "".join(PIECES)
    assert answer.outputs[0].finish_reason == "stop"
    assert len(answer.outputs[0].token_ids) == len(PIECES) + 1  # EOS counts (D10)


FAMILY, FLAG = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e8\U0001f1ff"
TEXT_PARTS = ["a", FAMILY, " ", "ď", "漢字", "e", "\u0301", FLAG, " end"]
TEXT = "".join(TEXT_PARTS)


def broken_pieces() -> list[Piece]:
    """The text in tokens of one byte wherever a character has several."""
    pieces: list[Piece] = []
    for part in TEXT_PARTS:
        pieces += [part] if part.isascii() else [bytes([byte]) for byte in part.encode()]
    return pieces


def chain(pieces: list[Piece]) -> list[Piece]:
    """The same text in pieces of which none comes twice (a token has one successor): one that would is joined with the
    next."""
    unique: list[Piece] = []
    begun = b""
    for piece in pieces:
        raw = begun + (piece.encode() if isinstance(piece, str) else piece)
        shown: Piece = piece if not begun else raw
        begun = raw if shown in unique else b""
        if not begun:
            unique.append(shown)
    assert not begun
    return unique


@pytest.fixture(scope="module")
def split_characters(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    script = script_model(tmp_path_factory.mktemp("split"), chain(broken_pieces()))
    return LLM(str(script.path), **pool())


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """SentencePiece: pieces of text, and one byte a token for what the vocabulary lacks: "ď" and half a flag."""
    pieces: list[Piece] = [" a", *(bytes([byte]) for byte in "ď".encode()), " 漢字", *(
        bytes([byte]) for byte in "\U0001f1e8".encode()), " end"]  # fmt: skip
    return LLM(str(script_model(tmp_path_factory.mktemp("fallback"), pieces, "sentencepiece").path), **pool())


@pytest.mark.parametrize("which", ["split_characters", "byte_fallback"])
def test_b23_no_delta_holds_part_of_a_character(which: str, request: pytest.FixtureRequest) -> None:
    llm: LLM = request.getfixturevalue(which)
    text = TEXT if which == "split_characters" else " aď 漢字\U0001f1e8 end"
    params = SamplingParams(temperature=0, max_tokens=100, logprobs=2, n=2)
    whole = llm.generate([START, START], params)
    for answer in whole:
        for output in answer.outputs:
            assert output.text == text
            assert output.logprobs is not None
            assert [entry.token_id for entry in output.logprobs] == output.token_ids
            tokenizer = llm.get_tokenizer()
            joined = b"".join(tokenizer.token_bytes(token_id) for token_id in output.token_ids[:-1])
            assert joined.decode() == text
    for texts in streamed(llm, params):
        assert "".join(texts) == text
        assert not any("\ufffd" in delta for delta in texts)
        assert len([delta for delta in texts if delta]) >= 4  # power check: it did come in pieces


def test_b23_a_character_cut_by_max_tokens_is_one_mark(split_characters: LLM) -> None:
    """DECISION D5."""
    params = SamplingParams(temperature=0, max_tokens=3)
    (answer,) = split_characters.generate([START], params)
    assert answer.outputs[0].text == "".join(*streamed(split_characters, params)) == "a\ufffd"


# B25: the best next id is always one that ends, the second best is always "x".

ENDS = ["EOS1", "EOS2", "S"]


def ending_model(folder: Path) -> ScriptModel:
    """x is followed by S (best) or x."""
    return script_w_model(folder, best={"x": "S", "S": "S"}, second={"x": "x", "S": "x"})


@pytest.fixture(scope="module", params=ENDS)
def ending(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Driver, dict[str, Any]]:
    """An engine whose best next token ends, and the parameters by which it does: S is an EOS of config.json, an EOS
    that only generation_config.json lists, or an ordinary token that the request names."""
    script = ending_model(tmp_path_factory.mktemp(request.param))
    s = script.piece_ids[1]
    if request.param == "EOS1":
        edit_json(script.path / "config.json", {"eos_token_id": s})
    elif request.param == "EOS2":
        edit_json(script.path / "generation_config.json", {"eos_token_id": [script.eos_id, s]})
    return Driver(script.path, **pool()), {"stop_token_ids": [s]} if request.param == "S" else {}


X = ord("x")
Ending = tuple[Driver, dict[str, Any]]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("more", [{}, {"stop": "xx"}, {"bias": 100.0}], ids=str)
def test_b25_min_tokens(more: dict[str, Any], n: int, ending: Ending) -> None:
    """DECISION D6: five x and then the end, whatever else would end it before."""
    driver, by = ending
    s = ord("S")
    others: dict[str, Any] = {"logit_bias": {s: more["bias"]}} if "bias" in more else more
    params = SamplingParams(temperature=0, max_tokens=20, min_tokens=5, n=n, **by, **others)
    neighbour = SamplingParams(temperature=0, max_tokens=20, **by)
    (alone,) = driver.run([Job([X], neighbour)])
    choices, beside = driver.run([Job([X], params), Job([X], neighbour)])
    for choice in choices:
        assert choice.token_ids[:5] == [X] * 5
        assert len(choice.token_ids) == 6
        assert choice.finish_reason == "stop"
        assert choice.text.startswith("xxxxx")
    assert beside[0].bits == alone[0].bits


def test_b25_zero_ends_at_once_and_the_equal_case_by_length(ending: Ending) -> None:
    driver, by = ending
    for min_tokens, max_tokens, count, reason in ((0, 20, 1, "stop"), (5, 5, 5, "length")):
        params = SamplingParams(temperature=0, min_tokens=min_tokens, max_tokens=max_tokens, **by)
        ((choice,),) = driver.run([Job([X], params)])
        assert (len(choice.token_ids), choice.finish_reason) == (count, reason)
        assert choice.token_ids == ([X] * 5 if min_tokens else [ord("S")])


@pytest.mark.parametrize("min_tokens", [6, -1])
def test_b25_what_cannot_be_is_refused(min_tokens: int) -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens") as error:
        SamplingParams(min_tokens=min_tokens, max_tokens=5)
    assert error.value.param == "min_tokens"
