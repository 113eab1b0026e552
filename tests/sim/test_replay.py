"""The loop: what happens when, and in which order."""

from itertools import islice

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import SchedulerConfig
from octavo.core.step import StepPlan
from octavo.sim.replay import Arrival, Replay, Server


def request(name: str, prompt: int = 3, output: int = 2) -> Request:
    return Request(name, [ord(name)] * prompt, SamplingParams(), max_tokens=output)


def server(seconds: float = 1.0, num_blocks: int = 100) -> Server:
    config = SchedulerConfig(max_model_len=num_blocks * 16)
    return Server(Scheduler(config, KVCacheManager(CacheConfig(num_blocks))), lambda _plan: seconds)


def told(replay: Replay) -> list[tuple[float, int, list[str]]]:
    """When each step landed, where, and who drew a token."""
    return [(step.now, step.place, [each.request_id for each in step.outcome.sampled]) for step in replay.steps()]


def test_a_step_takes_in_who_has_come_by_its_start() -> None:
    coming = [
        Arrival(0.5, request("a")),
        Arrival(0.5, request("b")),
        Arrival(1.0, request("c")),
        Arrival(9, request("d")),
    ]
    assert told(Replay([server()], coming)) == [
        (1.5, 0, ["a", "b"]),
        (2.5, 0, ["a", "b", "c"]),  # c came while a step was on its way
        (3.5, 0, ["c"]),
        (10.0, 0, ["d"]),
        (11.0, 0, ["d"]),
    ]


def test_who_comes_at_the_moment_at_which_a_step_lands_is_in_the_next() -> None:
    coming = [Arrival(0, request("a", output=3)), Arrival(1, request("b", output=1))]
    assert told(Replay([server()], coming)) == [(1, 0, ["a"]), (2, 0, ["a", "b"]), (3, 0, ["a"])]


def test_servers_go_on_each_at_its_own_speed() -> None:
    names = iter([0, 1, 0])
    coming = [Arrival(0, request(name)) for name in "abc"]
    replay = Replay([server(1.0), server(1.5)], coming, route=lambda _request, _servers: next(names))
    assert told(replay) == [(1, 0, ["a", "c"]), (1.5, 1, ["b"]), (2, 0, ["a", "c"]), (3.0, 1, ["b"])]
    assert replay.now == 3.0


def test_arrivals_are_read_one_ahead() -> None:
    read: list[str] = []

    def endless():  # type: ignore[no-untyped-def]
        for number in range(10**9):
            read.append(str(number))
            yield Arrival(10.0 * number, request(chr(97 + number), output=1))

    steps = list(islice(Replay([server()], endless()).steps(), 3))
    assert [step.now for step in steps] == [1, 11, 21]
    assert len(read) <= 4


def test_the_time_of_a_step_is_asked_when_it_is_planned() -> None:
    asked: list[int] = []

    def seconds(plan: StepPlan) -> float:
        asked.append(plan.num_tokens)
        return plan.num_tokens

    one = Server(server().scheduler, seconds)
    assert told(Replay([one], [Arrival(2, request("a", prompt=5, output=3))])) == [
        (7, 0, ["a"]),
        (8, 0, ["a"]),
        (9, 0, ["a"]),
    ]
    assert asked == [5, 1, 1]
