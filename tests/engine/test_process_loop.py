"""The engine process with whatever may come over its socket: a request's fault ends that request and no other."""

from collections import deque
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.beam_search import BeamSearchParams
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import PendingStep, StepPlan
from octavo.engine.codec import Add, News, Shutdown, decode_event, encode
from octavo.engine.messages import EngineRequest, OutputDelta
from octavo.engine.process import EngineProcessLoop
from tests.engine.test_engine import Bench
from tests.support.fake_runner import VOCAB_SIZE, expected_output

PROMPT = [1, 2, 3, 4, 5]


class Wire:
    """Both sockets of the loop: what it will receive, what it has sent. There is always room to send."""

    def __init__(self, messages: list[bytes]) -> None:
        self.incoming = deque(messages)
        self.sent: list[OutputDelta] = []
        self.started: list[str] = []

    def recv(self, _flags: int) -> bytes:
        if not self.incoming:
            raise zmq.Again
        return self.incoming.popleft()

    def poll(self, _timeout: int, _flags: int) -> int:
        return zmq.POLLOUT

    def send(self, data: bytes, _flags: int) -> None:
        event = decode_event(data)
        assert isinstance(event, News)
        self.sent += event.outputs.deltas
        self.started += event.outputs.started


def deltas_of(messages: list[bytes]) -> dict[str, list[OutputDelta]]:
    """What the loop answers to these messages, and to a good request behind them, by request."""
    bench = Bench()
    good = EngineRequest("good", PROMPT, SamplingParams(temperature=0, max_tokens=6), 1.0)
    wire: Any = Wire([*messages, encode(Add(good))])
    loop = EngineProcessLoop(bench.engine, wire, wire, log_stats=False)
    loop._drain_commands()
    while bench.engine.has_work():
        loop._step()
        loop._flush()
    loop._flush()
    answers: dict[str, list[OutputDelta]] = {}
    for delta in wire.sent:
        answers.setdefault(delta.request_id, []).append(delta)
    tokens = [token_id for delta in answers.pop("good") for token_id in delta.token_ids]
    assert tokens == expected_output(PROMPT, 6)
    return answers


def plain_request() -> dict[str, Any]:
    """A good request as it crosses, to spoil."""
    request = EngineRequest("bad", PROMPT, SamplingParams(temperature=0, max_tokens=2), 1.0)
    plain: dict[str, Any] = msgspec.to_builtins(request)
    return plain


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"params": {"temperature": -1.0}}, "temperature"),
        ({"params": {"temperature": float("nan")}}, "temperature"),
        ({"params": {"temperature": "hot"}}, "temperature"),
        ({"params": {"top_p": None}}, "top_p"),
        ({"params": {"stop": [5]}}, "stop"),
        ({"params": {"stop": {"a": 1}}}, "stop"),
        ({"params": {"logit_bias": {"a": 1}}}, "logit_bias"),
        ({"params": {"n": 65}}, "n"),
        ({"params": {"limits": {"n": "many"}}}, ""),
        ({"params": {"limits": 5}}, ""),
        ({"params": {"warmth": 1}}, ""),
        ({"params": None}, ""),
        ({"beam_search": {"beam_width": 0}}, "beam_width"),
        ({"beam_search": {"beam_width": 2, "depth": 3}}, ""),
        ({"beam_search": 4}, ""),
        ({"prompt_token_ids": None}, ""),
        ({"prompt_token_ids": ["a"]}, ""),
        ({"prompt_token_ids": []}, "prompt"),
        ({"prompt_token_ids": [VOCAB_SIZE]}, "prompt"),
        ({"prompt_token_ids": [-1]}, "prompt"),
        ({"cache_salt": 5}, ""),
        ({"cache_salt": ""}, "cache_salt"),
        ({"num_open_tokens": 3}, "cache_open_tokens"),
        ({"priority": "high"}, ""),
        ({"age": 7}, ""),
    ],
    ids=str,
)
def test_a_request_that_is_none_is_answered_and_nobody_else_hears_of_it(changes: dict[str, Any], param: str) -> None:
    plain = plain_request()
    for name, value in changes.items():
        plain[name] = plain[name] | value if isinstance(value, dict) and name == "params" else value
    ((delta,),) = deltas_of([encode(Add(plain))]).values()
    assert (delta.request_id, delta.finish_reason, delta.invalid_param) == ("bad", "error", param)
    assert delta.error


def test_messages_that_are_no_commands_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    whole = encode(Add(plain_request()))
    nonsense = [b"", b"\xc1", b"hello", whole[:-1], whole + b"\x00", msgspec.msgpack.encode({"type": "dance"})]
    nonsense += [encode(Add(None)), encode(Add({"request_id": 7}))]
    assert deltas_of(nonsense) == {}
    assert len(caplog.records) == len(nonsense)


def test_a_request_that_lacks_a_field_is_answered() -> None:
    for name in plain_request():
        plain = plain_request()
        del plain[name]
        answers = deltas_of([encode(Add(plain))])
        assert answers == {} if name == "request_id" else answers["bad"][0].finish_reason == "error"


numbers = st.integers(-(2**63), 2**64 - 1) | st.floats()
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=6,
)
names = st.sampled_from([*msgspec.to_builtins(EngineRequest("", [], SamplingParams(), 0.0)), "other"])
param_names = st.sampled_from([*msgspec.to_builtins(SamplingParams()), "other"])
beam_names = st.sampled_from([*msgspec.to_builtins(BeamSearchParams(2)), "other"])


@given(
    st.dictionaries(names, anything, max_size=2),
    st.dictionaries(param_names, anything, max_size=3),
    st.none() | st.dictionaries(beam_names, anything, max_size=3),
)
def test_whatever_a_request_holds(fields: dict[str, Any], params: dict[str, Any], beams: dict[str, Any] | None) -> None:
    """Each ends, with an answer or with an error, if it can be told whose it is."""
    plain = plain_request() | {"beam_search": beams and {"beam_width": 2} | beams}
    plain["params"] |= params
    plain |= fields
    answers = deltas_of([encode(Add(plain))])
    if isinstance(plain["request_id"], str) and plain["request_id"] != "good":
        ended = [delta for delta in answers.get(plain["request_id"], []) if delta.finish_reason is not None]
        assert ended
        assert len(ended) == len({delta.index for delta in ended})


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_whatever_bytes_come(messages: list[bytes]) -> None:
    assert deltas_of([message for message in messages if message != encode(Shutdown())]) == {}


def test_the_start_of_a_request_is_told_before_its_step_is_computed() -> None:
    bench = Bench()
    wire: Any = Wire([encode(Add(EngineRequest("a", [*range(1, 40)], SamplingParams(n=2, max_tokens=2), 1.0)))])
    loop = EngineProcessLoop(bench.engine, wire, wire, log_stats=False)
    loop._drain_commands()
    told_by_then: list[list[str]] = []
    submit = bench.runner.submit

    def watched(plan: StepPlan) -> PendingStep:
        told_by_then.append(wire.started.copy())
        return submit(plan)

    bench.runner.submit = watched  # type: ignore[method-assign]
    while bench.engine.has_work():
        loop._step()
        loop._flush()
    assert len(told_by_then) > 3
    assert all(told == ["a"] for told in told_by_then)
