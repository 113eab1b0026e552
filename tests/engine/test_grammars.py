"""Requests with constraints wait beside the line for their grammars, and end when their text is complete."""

from collections import defaultdict
from concurrent.futures import Future
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.speculation import Speculation
from octavo.core.structured import Constraint
from octavo.engine.codec import Add, decode_command, encode, read_request
from octavo.engine.engine import Engine, EngineParts
from octavo.engine.messages import EngineRequest, OutputDelta
from tests.engine.test_engine import DEPTHS, Pieces, spelled
from tests.support.drafters import HostileDrafter
from tests.support.fake_runner import VOCAB_SIZE, FakeRunner, expected_output

ANY = {"regex": ".*"}
START = 100.0


class Compiler:
    """Compiles when told to."""

    def __init__(self) -> None:
        self.asked: dict[Constraint, Future[Any]] = {}
        self.is_closed = False

    def begin(self, constraint: Constraint) -> Future[Any]:
        return self.asked.setdefault(constraint, Future())

    def close(self) -> None:
        self.is_closed = True

    def finish(self, error: Exception | None = None) -> None:
        for future in self.asked.values():
            if not future.done():
                future.set_result(object()) if error is None else future.set_exception(error)


class Bench:
    def __init__(self, depth: int = 1, speculation: Speculation | None = None, **runner: Any) -> None:
        cache = CacheConfig(64, 4, fingerprint=b"test")
        config = SchedulerConfig(8, 16, max_steps_in_flight=depth)
        self.compiler = Compiler()
        self.now = START
        self.engine = Engine(
            EngineParts(
                scheduler=Scheduler(config, KVCacheManager(cache), speculation),
                runner=FakeRunner(4, **runner),
                pieces=Pieces(),
                eos_token_ids=frozenset(),
                vocab_size=VOCAB_SIZE,
                clock=lambda: self.now,
                draw_seed=lambda: 0,
                block_bytes=1024,
                grammars=self.compiler,
            )
        )
        self.deltas: dict[str, list[OutputDelta]] = defaultdict(list)

    def add(self, request_id: str, prompt: list[int], asked: Any = None, **fields: Any) -> None:
        params = SamplingParams(temperature=0, max_tokens=12, n=fields.pop("n", 1), structured_outputs=asked)
        self.engine.add_request(EngineRequest(request_id, prompt, params, self.now, **fields))

    def step(self) -> None:
        for delta in self.engine.step().deltas:
            self.deltas[delta.request_id].append(delta)

    def run(self) -> None:
        while self.engine.has_work():
            self.step()
        assert self.engine.stats().num_active_blocks == 0

    def tokens(self, request_id: str) -> list[int]:
        return [token_id for delta in self.deltas[request_id] for token_id in delta.token_ids]

    def endings(self, request_id: str) -> list[str]:
        return [delta.finish_reason for delta in self.deltas[request_id] if delta.finish_reason]


def test_others_go_on_while_a_grammar_is_compiled() -> None:
    bench = Bench()
    bench.add("structured", [1, 2], ANY)
    bench.add("plain", [3, 4])
    bench.run()
    assert bench.tokens("plain") == expected_output([3, 4], 12)
    assert not bench.deltas["structured"]
    assert not bench.engine.has_work()
    assert bench.engine.idle_seconds()
    bench.step()
    bench.compiler.finish()
    assert bench.engine.has_work()
    bench.run()
    assert bench.tokens("structured") == expected_output([1, 2], 12)
    bench.add("again", [5], ANY)
    assert bench.engine.idle_seconds() is None, "what is compiled already is not waited for"
    bench.run()
    assert bench.tokens("again") == expected_output([5], 12)
    assert not bench.engine._requests.grammars._grammars, "a grammar is held as long as its request is open"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidRequestError("no such thing"), "structured_outputs: no such thing"),
        (MemoryError(), "structured_outputs cannot be compiled"),
    ],
)
def test_what_cannot_be_compiled_is_refused_now_and_later(error: Exception, message: str) -> None:
    bench = Bench()
    bench.add("first", [1], ANY)
    bench.compiler.finish(error)
    bench.add("second", [1], ANY)
    bench.run()
    for request_id in ("first", "second"):
        (delta,) = bench.deltas[request_id]
        assert (delta.finish_reason, delta.error, delta.invalid_param) == ("error", message, "structured_outputs")
    assert bench.engine.stats().num_waiting == 0


def test_a_request_can_be_aborted_while_its_grammar_is_compiled() -> None:
    bench = Bench()
    bench.add("gone", [1], ANY, n=2)
    bench.engine.abort("gone")
    bench.compiler.finish()
    bench.run()
    assert [(delta.index, delta.finish_reason) for delta in bench.deltas["gone"]] == [(0, "abort"), (1, "abort")]
    assert not bench.engine._requests.grammars._grammars


@pytest.mark.parametrize(("bound", "kind"), [("start_by", "queue"), ("end_by", "deadline")])
def test_its_time_goes_on_while_its_grammar_is_compiled(bound: str, kind: str) -> None:
    bench = Bench()
    bench.add("late", [1], ANY, **{bound: START + 5})
    bench.now += 6
    bench.step()
    (delta,) = bench.deltas["late"]
    assert (delta.finish_reason, delta.timeout) == ("error", kind)
    bench.compiler.finish()
    bench.run()
    assert len(bench.deltas["late"]) == 1


def test_an_id_is_in_use_while_its_grammar_is_compiled() -> None:
    bench = Bench()
    bench.add("same", [1], ANY)
    bench.add("same", [2])
    bench.step()
    (delta,) = bench.deltas["same"]
    assert delta.invalid_param == "request_id"


def test_a_bad_request_is_refused_once_its_grammar_is_there() -> None:
    bench = Bench()
    bench.add("bad", [VOCAB_SIZE], ANY, end_by=START + 1000)
    bench.compiler.finish()
    bench.run()
    assert bench.deltas["bad"][0].invalid_param == "prompt"
    assert not bench.engine._requests.grammars._grammars


def test_without_a_compiler_constraints_are_refused() -> None:
    bench = Bench()
    bench.engine._requests.grammars._compiler = None
    bench.add("refused", [1], ANY)
    bench.step()
    assert bench.deltas["refused"][0].invalid_param == "structured_outputs"


def test_closing_ends_what_waits_for_a_grammar() -> None:
    bench = Bench()
    bench.add("waits", [1], ANY)
    bench.engine.close()
    bench.step()
    assert bench.endings("waits") == ["abort"]
    assert bench.compiler.is_closed


def test_a_constraint_crosses_to_the_engine_as_it_is() -> None:
    params = SamplingParams(structured_outputs={"json": {"const": "東京"}})
    command = decode_command(encode(Add(EngineRequest("a", [1], params, 0.0))))
    assert isinstance(command, Add)
    assert read_request(command).params == params


def is_complete(tokens: list[int]) -> bool:
    return tokens[-1] % 5 == 0 and len(tokens) > 4


@DEPTHS
@pytest.mark.parametrize("drafts", [False, True])
def test_a_complete_text_ends_with_its_last_token(depth: int, drafts: bool) -> None:
    """Alone and in the decode batch, with drafts or without; nothing drawn after it counts."""
    speculation = Speculation(4, HostileDrafter) if drafts else None
    prompts = {f"r{i}": [1 + i, 2, 3 + i] for i in range(6)}
    bench = Bench(depth, speculation, completes=is_complete)
    for request_id, prompt in prompts.items():
        bench.add(request_id, prompt)
    bench.run()
    for request_id, prompt in prompts.items():
        expected = expected_output(prompt, 12)
        length = next((n for n in range(1, 13) if is_complete(prompt + expected[:n])), None)
        assert bench.tokens(request_id) == expected[:length]
        assert bench.endings(request_id) == ["stop" if length else "length"]
        text = "".join(delta.text for delta in bench.deltas[request_id])
        assert text == spelled(bench.tokens(request_id)), "the last token is part of the text"


def traced(bench: Bench, request_id: str) -> tuple[list[str], list[str]]:
    (trace,) = bench.engine.traces([request_id], 0)
    return [event.kind for event in trace.events], trace.statuses


def test_a_request_that_waits_for_its_grammar_is_seen_from_its_arrival_on() -> None:
    bench = Bench()
    bench.add("goes on", [1], ANY, n=2)
    bench.add("leaves", [1], ANY)
    bench.add("is late", [1], ANY, end_by=START + 5)
    bench.add("is refused", [1], {"regex": "b"})
    for name in ("goes on", "leaves", "is late", "is refused"):
        assert traced(bench, name)[0] == ["arrived", "waits_for_grammar"]
    assert traced(bench, "goes on")[1] == ["waiting", "waiting"]
    bench.engine.abort("leaves")
    assert traced(bench, "leaves") == (["arrived", "waits_for_grammar", "finished"], [])
    bench.now += 6
    bench.step()
    assert traced(bench, "is late") == (["arrived", "waits_for_grammar", "timed_out", "finished"], [])
    bench.compiler.asked[Constraint("regex", "b")].set_exception(InvalidRequestError("no"))
    bench.compiler.finish()
    bench.run()
    assert traced(bench, "is refused") == (["arrived", "waits_for_grammar", "refused"], [])
    kinds, statuses = traced(bench, "goes on")
    assert kinds[:3] == ["arrived", "waits_for_grammar", "admitted"]
    assert not statuses
    assert not bench.engine._requests.decisions._held


def test_an_engine_does_not_look_again_at_what_its_server_has_looked_at() -> None:
    params = SamplingParams(structured_outputs={"json": {"type": "object"}})
    request = EngineRequest("x", [1], params, START)
    read = read_request(decode_command(encode(Add(request))))  # type: ignore[arg-type]
    assert read == request
    assert read.params.constraint is not None
    assert read.params.constraint.nesting == 1
