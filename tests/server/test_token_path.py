"""What a token costs on its way from the engine's message to the client's socket: counts, which no machine changes."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

import octavo
from octavo.core.sampling_params import SamplingParams
from octavo.engine.client import AsyncEngineClient
from octavo.engine.codec import News
from octavo.engine.messages import EngineOutputs, OutputDelta
from octavo.metrics.prometheus import EngineMetrics
from octavo.server.answers import PLAIN_EVENTS, AnyEvent, EventStreamResponse, named_events
from octavo.server.chat.answer import ChatAnswer
from octavo.server.chat.request import ChatRequest
from octavo.server.completions import CompletionAnswer, CompletionRequest
from octavo.server.envelope import Envelope
from octavo.server.generation import Generation
from octavo.server.prompts import Prompt
from octavo.server.protocol import ChunkWriter
from octavo.server.queueing.promises import Share
from octavo.server.queueing.timing import Timing
from octavo.server.reply import ReplyFormat
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState
from octavo.server.visit import Visit
from tests.support.byte_tokenizer import ByteTokenizer

NUM_TOKENS = 50
PACKAGE = str(Path(octavo.__file__).parent)


class Child:
    """An engine's process that is there and does nothing."""

    is_alive = True

    def send(self, command: object) -> None: ...


class Flow:
    write_paused = False


class Cycle:
    """What a ChunkWriter needs of uvicorn's."""

    def __init__(self) -> None:
        self.flow, self.transport = Flow(), self
        self.disconnected, self.chunked_encoding = False, True
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


class Served:
    """One streamed answer, without a socket on either side."""

    def __init__(self, make: Callable[[ServerState, Generation], AsyncGenerator[AnyEvent, None]]) -> None:
        self.client = AsyncEngineClient(lambda outputs, iterations: None)
        self.client.child.shutdown()
        self.client.child = Child()  # type: ignore[assignment]
        self.state = ServerState(ServerSettings("m"), self.client, EngineMetrics("m"), 0)
        self.state.become_ready(ByteTokenizer(), 1)
        place = self.state.queue.enter(Share(1, 3))
        generation = Generation(
            "id-0", Visit("trace"), [Prompt([1, 2, 3])], SamplingParams(), False, place, Timing(time.time())
        )
        self.events = make(self.state, generation)
        self.cycle, self.messages = Cycle(), Counter[str]()

    async def send(self, message: Any) -> None:
        self.messages[message["type"]] += 1
        self.cycle.written.append(message.get("body", b""))

    async def receive(self) -> Any:
        await asyncio.get_running_loop().create_future()

    def tell(self, text: str, finish_reason: str | None = None) -> None:
        """The engine's next message: one token."""
        delta = OutputDelta("id-0", 0, text, [65], finish_reason=finish_reason)
        self.client._take(News(EngineOutputs([delta], iteration_tokens=1), [1]))

    async def start(self) -> "asyncio.Task[None]":
        """The first event has been sent."""
        first = asyncio.create_task(anext(self.events))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        self.tell("first")
        response = EventStreamResponse(await first, self.events, PLAIN_EVENTS)
        writer = ChunkWriter(self.cycle)  # type: ignore[arg-type]
        scope = {"extensions": {"octavo.chunks": {"writer": writer}}}
        task = asyncio.create_task(response(scope, self.receive, self.send))
        await settle()
        return task


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def completion(state: ServerState, generation: Generation) -> AsyncGenerator[AnyEvent, None]:
    return CompletionAnswer(state, CompletionRequest(), generation).events()


def chat(state: ServerState, generation: Generation) -> AsyncGenerator[AnyEvent, None]:
    return ChatAnswer(state, ChatRequest(), generation, ReplyFormat(), "").events()


class Counts:
    """Calls of Octavo's functions and of what encodes, while they are counted."""

    def __init__(self) -> None:
        self.calls = Counter[str]()
        self.num_encodings = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls[frame.f_code.co_qualname] += 1
        elif event == "c_call" and argument.__name__ == "encode":
            self.num_encodings += 1


@pytest.mark.parametrize(("make", "most_calls"), [(completion, 19), (chat, 21)], ids=["completions", "chat"])
async def test_calls_a_token(make: Any, most_calls: int) -> None:
    served = Served(make)
    task = await served.start()
    written, messages = len(served.cycle.written), Counter(served.messages)
    counts = Counts()
    before = sys.getprofile()
    sys.setprofile(counts)
    try:
        for number in range(NUM_TOKENS):
            served.tell(f" {number}")
            await settle()
    finally:
        sys.setprofile(before)
    assert len(served.cycle.written) - written == NUM_TOKENS, "one write a token"
    assert served.messages == messages, "none of them through ASGI"
    assert counts.num_encodings == NUM_TOKENS, "what is the same in all is encoded once"
    assert counts.calls.total() <= most_calls * NUM_TOKENS, counts.calls.most_common(30)
    served.tell("", "stop")
    await task


async def test_a_slow_reader_is_waited_for() -> None:
    """Then pieces are sent as messages, and what comes meanwhile is one event."""
    served, free = Served(completion), asyncio.Event()
    free.set()
    plain_send = served.send

    async def slow_send(message: Any) -> None:
        await free.wait()
        await plain_send(message)

    served.send = slow_send  # type: ignore[method-assign]
    task = await served.start()
    free.clear()
    served.cycle.flow.write_paused = True
    for text in "abcd":
        served.tell(text)
        await settle()
    free.set()
    served.cycle.flow.write_paused = False
    await settle()
    served.tell("e", "stop")
    await task
    texts = [
        msgspec.json.decode(data.partition(b"data: ")[2])["choices"][0]["text"]
        for data in served.cycle.written
        if b"choices" in data
    ]
    assert texts == ["first", "a", "bcd", "e"]


@pytest.mark.parametrize("after", [{}, {"usage": None}])
@pytest.mark.parametrize(
    "text", ["", "plain", 'a"b\\c\n\x00\u2028', "é漢😀", "\ud800".encode(errors="replace").decode()]
)
def test_an_envelope_is_what_encoding_all_of_it_gives(text: str, after: dict[str, Any]) -> None:
    before = {"id": "cmpl-1", "object": "x", "created": 17, "model": 'm"é\\'}
    choice = {"index": 3, "text": text, "logprobs": {"tokens": [text], "token_logprobs": [-0.1]}, "finish_reason": None}
    whole = msgspec.json.encode(before | {"choices": [choice]} | after)
    assert bytes(Envelope(before, after).chunk(choice)) == whole


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\x85d", "“—” \u2030 \xc5", "\r\n\v\f\x1c\x1d\x1e\0\x7f"])
def test_an_event_is_one_line_for_all_that_split_text(text: str) -> None:
    event = {"type": "x", "text": text}
    raw = msgspec.Raw(msgspec.json.encode(event))
    for data in (PLAIN_EVENTS.encode(event), PLAIN_EVENTS.encode(raw), named_events(lambda _: {}).encode(event)):
        *names, shown, last = data.decode().splitlines()
        assert (names, last) in (([], ""), (["event: x"], ""))
        assert msgspec.json.decode(shown.removeprefix("data: ")) == event
