"""The parts of a reply: their order is the text's, however the text is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from octavo.server.reasoning import REASONING_PARSERS
from octavo.server.reply import CallDelta, Reply, ReplyDelta, ReplyFormat, TextDelta, ToolFormat
from octavo.server.tools.hermes import read_hermes
from tests.support.tool_calls import hermes

CALLS = [{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {}}]
TEXT = f"<think>Well</think>First {hermes(CALLS)} and {hermes(CALLS)}\nso"


def reply() -> Reply:
    return Reply(ReplyFormat(ToolFormat(read_hermes, ["add"], lambda: "id"), REASONING_PARSERS["qwen3"]))


def joined(deltas: list[ReplyDelta]) -> ReplyDelta:
    whole = ReplyDelta()
    for part in (part for delta in deltas for part in delta.parts):
        if isinstance(part, TextDelta):
            whole.add_text(part.text, part.is_reasoning)
        elif part.call_id is not None:
            whole.parts.append(part)
        else:
            whole.add_arguments(part.index, part.arguments)
    return whole


def test_parts_are_in_the_order_of_the_text() -> None:
    calls = [CallDelta(index, "id", "add", arguments) for index, arguments in enumerate(['{"a": 1}', "{}"] * 2)]
    first, last = calls[:2], calls[2:]
    assert reply().add(TEXT, "stop").parts == [
        TextDelta("Well", is_reasoning=True),
        *(TextDelta("First "), *first, TextDelta(" and "), *last, TextDelta("\nso")),
    ]


@given(st.sets(st.integers(1, len(TEXT) - 1)))
def test_deltas_joined_are_the_whole(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    streamed = reply()
    deltas = [
        streamed.add(TEXT[start:end], "stop" if end == len(TEXT) else None) for start, end in itertools.pairwise(edges)
    ]
    assert joined(deltas) == reply().add(TEXT, "stop")
