"""The server's queue: bounds that no burst passes, places that are always given back, and when to try again (D24)."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from octavo.core.errors import InvalidRequestError
from octavo.server.errors import ApiError
from octavo.server.queueing.promises import Promises, Share
from octavo.server.queueing.queue import Place, Queue, QueueBounds


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(max_requests: int | None = None, max_tokens: int | None = None) -> tuple[Queue, Clock, list[str]]:
    clock, refused = Clock(), list[str]()
    return Queue(QueueBounds(max_requests, max_tokens), refused.append, clock), clock, refused


def refusal(queue: Queue, num_requests: int, num_tokens: int) -> ApiError:
    with pytest.raises(ApiError) as caught:
        queue.enter(Share(num_requests, num_tokens))
    return caught.value


def test_a_full_queue_says_its_bound_and_is_counted() -> None:
    queue, _, refused = make(max_requests=3)
    queue.enter(Share(2, 10))
    error = refusal(queue, 2, 10)
    assert (error.status, error.code, error.retry_after) == (429, "queue_full", 1)
    assert error.message == "2 requests are queued; the limit is 3."
    assert refused == ["queue_full"]
    queue.enter(Share(1, 10))  # a smaller one still has room
    assert (queue.num_requests, queue.num_tokens) == (3, 20)


def test_tokens_are_bounded_by_the_least_there_can_be_and_then_exactly() -> None:
    queue, _, refused = make(max_tokens=100)
    first, second = queue.enter(Share(1, 10)), queue.enter(Share(1, 10))
    first.settle(1, [70])
    with pytest.raises(ApiError) as caught:
        second.settle(1, [31])
    assert caught.value.message == "70 prompt tokens are queued; the limit is 100."
    assert (queue.num_requests, queue.num_tokens, refused) == (1, 70, ["queue_full"])
    assert refusal(queue, 1, 31).status == 429  # before it is tokenized
    queue.enter(Share(1, 1)).settle(1, [30])


@pytest.mark.parametrize(("shape", "param"), [((4, 1), "n"), ((1, 101), "messages")])
def test_what_is_larger_than_a_bound_is_refused_for_good(shape: tuple[int, int], param: str) -> None:
    queue, _, _ = make(3, 100)
    with pytest.raises(InvalidRequestError, match=r"more than may ever wait: (3|100)") as caught:
        queue.enter(Share(*shape), "messages")
    assert caught.value.param == param
    with pytest.raises(InvalidRequestError):
        queue.enter(Share(1, 1), "messages").settle(shape[0], [shape[1]])
    assert (queue.num_requests, queue.num_tokens) == (0, 0)


def test_a_failure_inside_gives_the_place_back() -> None:
    queue, _, _ = make(1)
    with pytest.raises(RuntimeError), queue.enter(Share(1, 5)):
        raise RuntimeError("the tokenizer failed")
    with queue.enter(Share(1, 5)) as kept:
        pass
    assert queue.num_requests == 1
    kept.leave()
    kept.leave()
    assert queue.num_requests == 0


def drain(queue: Queue, clock: Clock, seconds: float, lengths: Sequence[int]) -> None:
    """One of these prompts is started every ``seconds``, with others behind."""
    places = [queue.enter(Share(1, length)) for length in lengths]
    for place in places:
        clock.now += seconds
        place.start(0)


def test_retry_after_is_what_the_queue_needs_to_have_room() -> None:
    queue, clock, _ = make(max_tokens=1000)
    drain(queue, clock, 2.0, [100] * 10)  # 50 tokens a second
    queue.enter(Share(1, 900))
    assert refusal(queue, 1, 300).retry_after == 4  # 200 too many
    clock.now += 4.0  # it had been told so
    assert refusal(queue, 1, 105).retry_after == 1  # at least
    clock.now += 600.0
    assert refusal(queue, 1, 300).retry_after == 60  # nothing has left for long: at most


def test_retry_after_by_requests() -> None:
    queue, clock, _ = make(max_requests=10)
    drain(queue, clock, 5.0, [7] * 10)
    places = [queue.enter(Share(1, 1000)) for _ in range(10)]
    assert refusal(queue, 3, 5).retry_after == 14  # 3 too many, and what was just started counts most
    clock.now += 14.0
    places[0].end(0)  # aborted: has not been served
    assert refusal(queue, 3, 5).retry_after == 16  # 2 too many, and for a while nothing has left


def test_those_who_are_refused_at_once_are_told_one_after_the_other() -> None:
    """As many a second as leave, over the time in which the queue empties once, then from the beginning."""
    queue, clock, _ = make(max_requests=10)
    for _ in range(20):
        drain(queue, clock, 0.5, [7] * 10)  # two a second
    for _ in range(10):
        queue.enter(Share(1, 7))
    told = [refusal(queue, 1, 7).retry_after for _ in range(40)]
    assert told == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5] * 4
    clock.now += 3.0  # half of them have had their time, so who comes now follows those that have not
    assert queue._promises.ahead() == Share(16, 112)
    assert refusal(queue, 1, 7).retry_after == 4


def test_the_same_by_tokens_and_for_those_who_could_not_wait() -> None:
    queue, clock, _ = make(max_tokens=1000)
    for _ in range(5):
        drain(queue, clock, 2.0, [100] * 10)  # 50 tokens a second
    queue.enter(Share(1, 900))
    assert [refusal(queue, 1, 300).retry_after for _ in range(4)] == [4, 10, 16, 22]
    queue, clock, _ = make()
    drain(queue, clock, 2.0, [100] * 50)
    queue.enter(Share(1, 1000))
    told = [queue.retry_after(Share(1, 300)) for _ in range(4)]
    assert told == pytest.approx([20, 26, 32, 38], abs=1)
    told = [queue.retry_after(Share(1, 300)) for _ in range(4)]
    assert told == pytest.approx([24, 30, 36, 22], abs=1)  # from the beginning
    with pytest.raises(ApiError) as caught:
        queue.enter(Share(1, 100), patience=6.0)
    assert caught.value.retry_after in (23, 24)  # 16 to wait as things are, and 8 behind the others


def test_nobody_is_told_longer_than_at_most_whoever_hammers() -> None:
    queue, clock, _ = make(max_requests=4)
    for _ in range(10):
        drain(queue, clock, 1.0, [5] * 4)
    for _ in range(4):
        queue.enter(Share(1, 5))
    told = [refusal(queue, 1, 5).retry_after for _ in range(10_000)]
    assert set(told) == {1, 2, 3, 4}
    clock.now += 61.0
    assert queue._promises.ahead() == Share(0, 0)


def test_promises_end_with_their_time() -> None:
    clock = Clock()
    promises = Promises(60, clock)
    promises.note(Share(1, 10), 3)
    promises.note(Share(2, 5), 60)
    assert promises.ahead() == Share(3, 15)
    clock.now += 2.5
    assert promises.ahead() == Share(3, 15)
    clock.now += 0.5
    assert promises.ahead() == Share(2, 5)
    clock.now += 1e9
    assert promises.ahead() == Share(0, 0)


def test_idle_time_does_not_slow_the_rate() -> None:
    queue, clock, _ = make(max_requests=1)
    drain(queue, clock, 4.0, [10])
    clock.now += 20.0
    queue.enter(Share(1, 1))
    assert refusal(queue, 1, 1).retry_after == 4


def test_a_wait_is_predicted_from_what_is_queued() -> None:
    queue, clock, refused = make()
    drain(queue, clock, 2.0, [100] * 20)  # 50 tokens a second
    queue.enter(Share(1, 400))
    with pytest.raises(ApiError) as caught:
        queue.enter(Share(1, 100), patience=6.0)
    assert (caught.value.status, caught.value.code, refused) == (429, "queue_slow", ["queue_slow"])
    assert caught.value.message.startswith("400 prompt tokens are queued before this request; by what is computed")
    assert caught.value.retry_after in (3, 4)  # from 9 or 10 s down to 6
    late = queue.enter(Share(1, 10), patience=10.0)
    with pytest.raises(ApiError, match="may take 10 s"):
        late.settle(1, [400])  # longer than it could have been known to be
    assert queue.num_requests == 1
    queue.enter(Share(1, 400))  # who says nothing of time may wait


def test_nothing_is_predicted_from_too_little() -> None:
    queue, clock, _ = make()
    queue.enter(Share(1, 10**6), patience=0.001)  # nothing waits, and nothing has been seen
    queue.enter(Share(1, 10), patience=0.001).leave()
    drain(queue, clock, 0.001, [10] * 100)
    queue.enter(Share(1, 10), patience=0.001)
    assert queue.retry_after(Share(1, 10)) == 60  # a million tokens


def test_what_is_long_ago_predicts_nothing() -> None:
    queue, clock, _ = make()
    drain(queue, clock, 10.0, [10] * 5)
    clock.now += 200.0
    queue.enter(Share(1, 1000))
    queue.enter(Share(1, 1000), patience=0.1)


@given(st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(1, 40), min_size=1, max_size=3)), max_size=40))
@settings(max_examples=200)
def test_no_burst_passes_a_bound(burst: list[tuple[int, list[int]]]) -> None:
    queue, _, _ = make(8, 100)
    entered: list[tuple[Place, int, list[int]]] = []
    for n, lengths in burst:
        try:
            entered.append((queue.enter(Share(n * len(lengths), sum(lengths) // 4)), n, lengths))
        except (ApiError, InvalidRequestError):
            continue
    settled: list[Place] = []
    for place, n, lengths in entered:
        try:
            place.settle(n, lengths)
            settled.append(place)
        except (ApiError, InvalidRequestError):
            continue
        assert queue.num_requests <= 8
        assert queue.num_tokens <= 100
    for place in settled:
        place.leave()
    assert (queue.num_requests, queue.num_tokens) == (0, 0)


class QueueMachine(RuleBasedStateMachine):
    """Whatever order things happen in, the counts are those of what waits, and never above the bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.clock, _ = make(12, 200)
        self.waiting: dict[tuple[Place, int], tuple[int, int]] = {}

    places = Bundle("places")

    @rule(target=places, n=st.integers(1, 5), fewest=st.integers(0, 80))
    def enter(self, n: int, fewest: int) -> Any:
        try:
            place = self.queue.enter(Share(n, fewest))
        except ApiError:
            return multiple()
        self.waiting[place, 0] = (n, fewest)
        return place

    @rule(place=places, n=st.integers(1, 3), lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4))
    def settle(self, place: Place, n: int, lengths: list[int]) -> None:
        for key in [key for key in self.waiting if key[0] is place]:
            del self.waiting[key]
        try:
            place.settle(n, lengths)
        except (ApiError, InvalidRequestError):
            return
        self.waiting |= {(place, index): (n, length) for index, length in enumerate(lengths)}

    @rule(place=places, index=st.integers(0, 3), is_started=st.booleans())
    def one_leaves(self, place: Place, index: int, is_started: bool) -> None:
        (place.start if is_started else place.end)(index)
        self.waiting.pop((place, index), None)

    @rule(place=consumes(places))
    def leave(self, place: Place) -> None:
        place.leave()
        for key in [key for key in self.waiting if key[0] is place]:
            del self.waiting[key]

    @rule(seconds=st.floats(0, 1000))
    def time_goes(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def counts_are_those_of_what_waits(self) -> None:
        assert self.queue.num_requests == sum(n for n, _ in self.waiting.values()) <= 12
        assert self.queue.num_tokens == sum(length for _, length in self.waiting.values()) <= 200


TestQueueMachine = QueueMachine.TestCase
