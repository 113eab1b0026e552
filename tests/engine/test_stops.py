"""Stop strings: B20, the stop-string part of B25, D6, D8, and any text with any stops in any cut."""

import codecs
import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.core.sampling_params import SamplingParams
from octavo.engine.stops import StopChecker, StopMatch, TextStream

B20 = ("alpha", " be", "ta ga", "mma", " delta", " epsilon")


class Pieces:
    """A tokenizer whose token i adds ``pieces[i]``."""

    def __init__(self, pieces: list[bytes], special_token_ids: frozenset[int] = frozenset()) -> None:
        self.pieces = pieces
        self.special_token_ids = special_token_ids

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def pieces_of(*texts: str) -> Pieces:
    return Pieces([text.encode() for text in texts])


def type_out(
    pieces: Pieces, params: SamplingParams, num_suppressed: int = 0, stride: int = 1
) -> tuple[list[str], StopMatch | None, int]:
    """Feed all tokens as an engine does, taking a delta every ``stride`` tokens: deltas, match, tokens used."""
    stream = TextStream(pieces, params)
    deltas: list[str] = []
    for token_id in range(len(pieces.pieces)):
        match = stream.append(token_id, suppressed=token_id < num_suppressed)
        if token_id % stride == 0:
            deltas.append(stream.take_delta())
        if match is not None:
            assert stream.finish() == match
            return [*deltas, stream.take_delta()], match, token_id + 1
    match = stream.finish()
    return [*deltas, stream.take_delta()], match, len(pieces.pieces)


def offline(text: str, stops: tuple[str, ...], exempt: int = 0) -> StopMatch | None:
    """Spec D8, applied to a whole text whose first ``exempt`` characters cannot be part of a match."""
    found = [
        StopMatch(stop, start, start + len(stop))
        for stop in stops
        for start in range(exempt, len(text))
        if text.startswith(stop, start)
    ]
    return min(found, key=lambda match: (match.start, match.end), default=None)


@pytest.mark.parametrize("stop", ["beta gamma", ["beta gamma"], ["zeta", "beta gamma"]])
@pytest.mark.parametrize("stride", [1, 2, 10])
def test_b20_stop_string_of_several_tokens(stop: str | list[str], stride: int) -> None:
    deltas, match, num_tokens = type_out(pieces_of(*B20), SamplingParams(stop=stop), stride=stride)
    assert "".join(deltas) == "alpha "
    assert match == StopMatch("beta gamma", 6, 16)
    assert num_tokens == 4


def test_b20_with_the_stop_string_included() -> None:
    params = SamplingParams(stop="beta gamma", include_stop_str_in_output=True)
    deltas, _, num_tokens = type_out(pieces_of(*B20), params)
    assert "".join(deltas) == "alpha beta gamma"
    assert num_tokens == 4


def test_text_that_only_began_like_a_stop_string_comes_out() -> None:
    deltas, match, _ = type_out(pieces_of("alpha", " be", "ta", " ga", "te"), SamplingParams(stop="beta gamma"))
    assert match is None
    assert deltas == ["alpha", " ", "", "", "beta gate", ""]


@pytest.mark.parametrize(
    ("text", "stops", "cut", "stop"),
    [
        ("xabcd", ["bc", "abcd"], 1, "abcd"),  # the earlier start wins though it ends later
        ("xabce", ["bc", "abcd"], 2, "bc"),  # ... unless it is never completed
        ("xabc", ["bc", "abcd"], 2, "bc"),  # ... which the end of the text decides, too
        ("xabcd", ["abcd", "ab"], 1, "ab"),  # same start: the one that completes first
        ("aab", ["ab"], 1, "ab"),
        ("abababc", ["ababc"], 2, "ababc"),
        ("x漢字y", ["字"], 2, "字"),
    ],
)
def test_d8_whatever_the_tokens(text: str, stops: list[str], cut: int, stop: str) -> None:
    for pieces in (pieces_of(text), pieces_of(*text), Pieces([bytes([byte]) for byte in text.encode()])):
        deltas, match, _ = type_out(pieces, SamplingParams(stop=stops))
        assert match is not None
        assert match.stop == stop
        assert "".join(deltas) == text[:cut]


def test_b25_stop_string_is_suppressed_until_min_tokens() -> None:
    """D6: "xx" lies in the first five tokens and across their end; only one wholly after them counts."""
    deltas, match, num_tokens = type_out(pieces_of(*"xxxxxxxx"), SamplingParams(stop="xx"), num_suppressed=5)
    assert match == StopMatch("xx", 5, 7)
    assert "".join(deltas) == "xxxxx"
    assert num_tokens == 7
    assert deltas[:5] == list("xxxxx")  # nothing is held back while suppressed


def test_tokens_after_a_match_add_nothing() -> None:
    stream = TextStream(pieces_of("a", "b", "c"), SamplingParams(stop="b"))
    matches = [stream.append(token_id) for token_id in range(3)]
    assert matches == [None, StopMatch("b", 1, 2), StopMatch("b", 1, 2)]
    assert stream.finish() == StopMatch("b", 1, 2)
    assert stream.take_delta() == "a"


@pytest.mark.parametrize(
    ("include", "skip_special", "text"),
    [(False, False, "hi"), (False, True, "hi"), (True, False, "hi<end>"), (True, True, "hi")],
)
def test_token_that_ends_by_its_id(include: bool, skip_special: bool, text: str) -> None:
    pieces = Pieces([b"hi", b"<end>"], frozenset({1}))
    params = SamplingParams(include_stop_str_in_output=include, skip_special_tokens=skip_special)
    stream = TextStream(pieces, params)
    assert stream.append(0) is None
    assert stream.finish(end_token_id=1) is None
    assert stream.take_delta() == text


def test_held_back_text_and_half_a_character_come_out_at_the_end() -> None:
    deltas, match, _ = type_out(Pieces([b"ab", b"c\xf0\x9f"]), SamplingParams(stop="bcd"))
    assert match is None
    assert deltas == ["a", "", "bc\ufffd"]


def test_without_detokenizing_there_is_no_text_but_stops_work() -> None:
    deltas, match, _ = type_out(pieces_of(*B20), SamplingParams(detokenize=False, stop="gamma"))
    assert set(deltas) == {""}
    assert match == StopMatch("gamma", 11, 16)
    deltas, match, _ = type_out(pieces_of(*B20), SamplingParams(detokenize=False))
    assert set(deltas) == {""}
    assert match is None


LETTERS = "abé漢\U0001f468"


@given(
    text=st.text(LETTERS, max_size=30),
    stops=st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4).map(tuple),
    cuts=st.lists(st.integers(0, 100), max_size=12),
    include=st.booleans(),
    num_suppressed=st.integers(0, 6),
    tail=st.sampled_from([b"", b"\xf0\x9f"]),
)
@example("ab", ("b", "ab漢"), [1], False, 0, b"")
def test_any_text_any_stops_any_cut_equal_the_offline_rule(
    text: str, stops: tuple[str, ...], cuts: list[int], include: bool, num_suppressed: int, tail: bytes
) -> None:
    whole = text.encode() + tail
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(bounds)]
    exempt = len(codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(pieces[:num_suppressed])))
    whole_text = whole.decode("utf-8", "replace")
    expected = offline(whole_text, stops, exempt)
    end = len(whole_text) if expected is None else expected.end if include else expected.start

    params = SamplingParams(stop=stops, include_stop_str_in_output=include)
    deltas, match, _ = type_out(Pieces(pieces), params, num_suppressed)

    assert match == expected
    assert "".join(deltas) == whole_text[:end]


@given(st.text("ab", max_size=30), st.lists(st.text("abc", min_size=2, max_size=5), min_size=1, max_size=4))
def test_no_more_is_held_back_than_could_become_a_stop(text: str, stops: list[str]) -> None:
    stops = [stop + "c" for stop in stops]  # cannot occur: the text has no c
    checker = StopChecker(tuple(stops))
    released = ""
    for num_seen, character in enumerate(text, start=1):
        released += checker.feed(character)
        seen = text[:num_seen]
        open_tails = [size for stop in stops for size in range(len(stop)) if seen.endswith(stop[:size])]
        assert released == seen[: num_seen - max(open_tails)]


def test_cost_does_not_grow_with_the_text_or_the_stops() -> None:
    """200,000 characters that always look like the beginning of 16 stops of 256 characters: a rescan of what was held
    back, at every token, would take minutes."""
    stops = tuple("a" * 200 + chr(ord("b") + index) * 56 for index in range(16))
    checker = StopChecker(stops)
    start = time.perf_counter()
    num_released = sum(len(checker.feed("aaaa")) for _ in range(50_000))
    assert num_released == 200_000 - 200
    assert time.perf_counter() - start < 5.0
