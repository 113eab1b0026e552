"""Several servers: who goes where, what a split costs, and that nothing is lost."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from octavo.core.kv_types import CacheConfig
from octavo.core.scheduler_types import SchedulerConfig
from octavo.sim.costs import Front, LinearCosts
from octavo.sim.figures import figures
from octavo.sim.repeated import repeated
from octavo.sim.routers import ROUTERS, LeastLoaded, PrefixAware, RoundRobin
from octavo.sim.simulation import TOO_LONG, ServerSettings, Simulation
from octavo.sim.split import Split, SplitSimulation
from octavo.sim.traces.request import TracedRequest

SECOND = LinearCosts(base=1.0, per_decode=0.0, per_chunk_token=0.0)
ABOUT = LinearCosts(base=0.02, per_decode=1e-4, per_chunk_token=1e-4)


def settings(num_blocks: int = 200) -> ServerSettings:
    return ServerSettings(SchedulerConfig(max_model_len=num_blocks * 16), CacheConfig(num_blocks))


def requests(count: int, rate: float = 100.0, num_prefixes: int = 0) -> Iterator[TracedRequest]:
    source, now = random.Random(0), 0.0
    for _ in range(count):
        now += source.expovariate(rate)
        blocks = (source.randrange(num_prefixes) + 1,) * 4 if num_prefixes else ()
        yield TracedRequest(now, 64 + source.randrange(60), 1 + source.randrange(40), None, blocks, 16)


def placed(simulation: Simulation) -> list[int]:
    """Requests whose first token each server drew."""
    counts = [0] * len(simulation.replicas)

    def count(step) -> None:  # type: ignore[no-untyped-def]
        counts[step.place] += sum(request.num_output_tokens == 1 for request in step.outcome.sampled)

    simulation.run(count)
    return counts


def test_round_robin_gives_each_the_same_number() -> None:
    simulation = Simulation(requests(40), settings(), SECOND, num_replicas=4, router=RoundRobin())
    assert placed(simulation) == [10, 10, 10, 10]


def test_least_loaded_passes_over_who_has_much_to_do() -> None:
    """Two short ones go where the long one is not."""
    coming = [TracedRequest(0.0, 10, 50), TracedRequest(0.5, 10, 2), TracedRequest(20.0, 10, 2)]
    simulation = Simulation(coming, settings(), SECOND, num_replicas=2, router=LeastLoaded())
    assert placed(simulation) == [1, 2]


def test_a_prefix_goes_where_it_went_before() -> None:
    hits = {}
    for name, make in ROUTERS.items():
        simulation = Simulation(requests(300, num_prefixes=24), settings(), ABOUT, num_replicas=6, router=make())
        row = figures(simulation.run())
        assert row["num_completed"] == 300
        hits[name] = row["prefix_hit_tokens"]
    assert hits["prefix-aware"] > max(hits["round-robin"], hits["least-loaded"])  # type: ignore[call-overload]


def test_a_router_forgets_prefixes_beyond_its_bound() -> None:
    router = PrefixAware(max_known=10)
    Simulation(requests(50, num_prefixes=50), settings(), ABOUT, num_replicas=3, router=router).run()
    assert len(router._places) == 10


def test_one_replica_is_the_simulation_of_one_server() -> None:
    one, of_fleet = (
        figures(Simulation(requests(60), settings(30), ABOUT, router=router).run()) for router in (None, PrefixAware())
    )
    assert one == of_fleet


def test_a_split_by_hand() -> None:
    """The prompt takes the step from 0 to 1; 10 tokens of 1 byte at 5 bytes a second are there at 3; then a step for
    each further token. The second request waits for the link: 1 to 3, so its own is there at 5."""
    coming = [TracedRequest(0.0, 10, 3), TracedRequest(0.0, 10, 2)]
    simulation = SplitSimulation(coming, settings(), SECOND, Split(1, 1, 1.0, 5.0))
    steps: list[tuple[float, int, int]] = []
    recorder = simulation.run(lambda step: steps.append((step.now, step.place, len(step.outcome.token_ids))))
    assert steps == [(1, 0, 2), (4, 1, 1), (5, 1, 1), (6, 1, 1)]
    row = figures(recorder)
    assert (row["num_completed"], row["output_tokens"], row["prompt_tokens"]) == (2, 5, 20)
    assert (row["ttft_max"], row["e2el_max"]) == (1000, 6000)
    assert row["itl_max"] == 5000  # of the second: from 1 to 6
    assert row["tpot_max"] == 5000


def test_what_was_received_is_not_computed_again() -> None:
    costs = LinearCosts(base=0.0, per_decode=1.0, per_chunk_token=100.0)
    simulation = SplitSimulation([TracedRequest(0.0, 10, 2)], settings(), costs, Split(1, 1, 1.0, 1e9))
    recorder = simulation.run()
    assert recorder.last_end == pytest.approx(1000 + 1, abs=1e-6)


def test_the_front_is_before_those_that_compute_prompts() -> None:
    """Each front takes half a second for a request and delays it by one; each step takes two seconds more."""
    costs = replace(SECOND, front=Front(per_request=0.5, delay=1.0, per_step=2.0))
    coming = [TracedRequest(0.0, 10, 2)] * 2
    two = SplitSimulation(coming, settings(), costs, Split(2, 1, 1.0, 1e9)).run()
    assert figures(two)["ttft_max"] == pytest.approx(1500 + 3000, rel=1e-3)
    one = SplitSimulation(coming, settings(), costs, Split(1, 1, 1.0, 1e9)).run()
    assert figures(one)["ttft_max"] == pytest.approx(1500 + 2 * 3000, rel=1e-3), "the second misses the first step"
    assert figures(one)["itl_max"] == pytest.approx(3000, rel=1e-3)


def test_what_is_on_its_way_counts_where_it_goes() -> None:
    """Six prompts are computed in one step, and no transfer has ended when the last of them is sent."""
    coming = [TracedRequest(0.0, 10, 3)] * 6
    simulation = SplitSimulation(coming, settings(), SECOND, Split(1, 3, 1.0, 5.0))
    drawn = [0] * 4

    def count(step) -> None:  # type: ignore[no-untyped-def]
        drawn[step.place] += len(step.outcome.token_ids)

    simulation.run(count)
    assert drawn == [6, 4, 4, 4]
    assert [replica.load for replica in simulation.replicas] == [0] * 4


@pytest.mark.parametrize("num_blocks", [200, 40])
def test_a_split_answers_everything(num_blocks: int) -> None:
    """With few blocks some are preempted after they were received, and computed again."""
    split = Split(2, 3, 1000.0, 1e6)
    simulation = SplitSimulation(requests(200), settings(num_blocks), ABOUT, split, {"itl": 1e9})
    recorder = simulation.run()
    assert recorder.num_completed == recorder.num_good == 200
    assert recorder.output_tokens == sum(each.output for each in requests(200))
    assert recorder.num_open == 0
    for replica in simulation.replicas:
        assert replica.scheduler.kv.pool.num_free == num_blocks


def test_a_refused_part_ends_its_request() -> None:
    crowded = ServerSettings(SchedulerConfig(max_num_seqs=1, max_model_len=1000), CacheConfig(200), max_num_queued=1)
    recorder = SplitSimulation(requests(30, rate=1e6), crowded, ABOUT, Split(1, 1, 1.0, 1e9)).run()
    assert recorder.num_completed + recorder.rejected.total() == 30
    assert recorder.rejected.total() > 0
    assert recorder.num_open == 0


def test_what_can_never_run_is_refused_before_its_prompt_is_computed() -> None:
    """Its prompt would fit, its answer would not."""
    simulation = SplitSimulation([TracedRequest(0.0, 100, 4000)], settings(), ABOUT, Split(1, 1, 1.0, 1e9))
    row = figures(simulation.run())
    assert (row["rejected"], row["num_steps"], row["output_tokens"]) == ({TOO_LONG: 1}, 0, 0)
    assert [replica.load for replica in simulation.replicas] == [0, 0]


def test_sixty_four_replicas_keep_nothing_of_what_has_ended() -> None:
    most = 0

    def watch(_step: object) -> None:
        nonlocal most
        most = max(most, simulation.recorder.num_open)

    simulation = Simulation(requests(3000, rate=800.0), settings(), ABOUT, num_replicas=64, router=LeastLoaded())
    row = figures(simulation.run(watch))
    assert row["num_completed"] == 3000
    assert most < 1500
    assert simulation.recorder.num_open == len(simulation._coming) == 0


def test_a_trace_that_is_played_again_goes_on_in_time() -> None:
    def trace() -> list[TracedRequest]:
        return [TracedRequest(0.0, 1, 1), TracedRequest(2.0, 1, 1), TracedRequest(4.0, 1, 1)]

    assert [each.seconds for each in repeated(trace, 2)] == [0, 2, 4, 6, 8, 10]
