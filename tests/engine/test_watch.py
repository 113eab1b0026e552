"""What those see who look at the pool; and that nobody else pays for it."""

import cProfile
import random

from octavo.core.beam_search import BeamSearchParams
from octavo.core.block_map import ONLY_PINNED
from octavo.core.pin_types import PinWish
from octavo.engine.codec import LookAtBlock, LookAtRequests, TakeLook, decode_command, encode
from octavo.engine.looks import BlockHolder, Look
from octavo.engine.watch import MAX_REQUESTS, MAX_STEPS, WATCH_SECONDS
from tests.engine.test_deadlines import Bench
from tests.engine.test_engine import DEPTHS


def references(look: Look) -> list[int]:
    return [byte >> 1 for byte in look.blocks]


@DEPTHS
def test_requests_and_their_blocks(depth: int) -> None:
    bench = Bench(depth=depth, max_num_seqs=2)
    bench.add("a", list(range(10)), 20, n=2, tenant="t")
    bench.add("b", [1], 20)
    bench.run(lambda: bench.engine.stats().num_steps >= 4)
    look = bench.engine.watch.look()
    assert [(each.request_id, each.choice, each.place) for each in look.requests] == [
        ("a", 0, "running"),
        ("a", 1, "running"),
        ("b", 0, "waiting"),
    ]
    first = look.requests[0]
    assert (first.tenant, first.priority, first.num_prompt_tokens, first.max_total_tokens) == ("t", 0, 10, 30)
    assert first.num_computed_tokens >= 10 + first.num_generated_tokens - 1
    assert first.num_blocks == -(-first.num_computed_tokens // 4)
    assert (look.num_running, look.num_waiting, look.token_budget, look.max_num_seqs) == (2, 1, 16, 2)
    assert sorted(references(look)) == sorted(bench.scheduler.kv.pool.ref_counts)
    assert references(look).count(2) == 2  # the two full blocks of the prompt
    (one, other) = bench.engine.watch.choices(["a"])
    assert (one.look, one.tables[0][:2]) == (first, other.tables[0][:2])
    shared = bench.engine.watch.block(one.tables[0][1], with_tokens=True)
    assert shared is not None
    assert (shared.num_references, shared.num_pins, shared.num_filled) == (2, 0, 4)
    assert shared.holders == [BlockHolder("a", 0, 0, 1), BlockHolder("a", 1, 0, 1)]
    assert shared.token_ids == [4, 5, 6, 7]
    assert bench.engine.watch.choices(["nobody"]) == []


@DEPTHS
def test_every_look_tells_the_same(depth: int) -> None:
    """Of a choice and of a block, whichever way it is asked for; also of blocks that nothing is in yet."""
    bench = Bench(depth=depth, num_blocks=24, max_num_seqs=4)
    for name in "abc":
        bench.add(name, list(range(ord(name), ord(name) + 40)), 20)
    bench.add("beams", [1, 2, 3], 12, beam_search=BeamSearchParams(3))
    seen = set[str]()
    for _ in range(60):
        look = bench.engine.watch.look()
        choices = bench.engine.watch.choices(["a", "b", "c", "beams", "nobody"])
        assert sorted(choice.look for choice in choices) == sorted(look.requests)
        seen.update(each.place for each in look.requests)
        for block_id in range(24):
            block = bench.engine.watch.block(block_id, with_tokens=True)
            assert block is not None
            assert 0 <= block.num_filled <= 4
            if block.holders:
                assert block.num_filled == len(block.token_ids)
        if bench.engine.has_work():
            bench.step()
    assert seen >= {"running", "waiting", "preempted"}


def test_blocks_that_nobody_has() -> None:
    bench = Bench()
    bench.add("a", list(range(12)), 2, pins=(PinWish(4, 100.0),))
    bench.run()
    watch = bench.engine.watch
    look = watch.look()
    assert references(look).count(ONLY_PINNED) == 1
    cached = next(place for place, byte in enumerate(look.blocks) if byte == 1)
    block = watch.block(cached, with_tokens=True)
    assert block is not None
    assert block.token_ids in ([4, 5, 6, 7], [8, 9, 10, 11])
    assert (block.is_named, block.holders, block.num_filled) == (True, [], 4)
    hidden = watch.block(cached, with_tokens=False)
    assert hidden is not None
    assert hidden.token_ids == []
    free = watch.block(look.blocks.index(0), with_tokens=True)
    assert free is not None
    assert (free.is_named, free.num_filled, free.token_ids) == (False, 0, [])
    assert watch.block(-1, with_tokens=True) is None
    assert watch.block(64, with_tokens=True) is None


def test_steps_and_decisions_since_the_last_look() -> None:
    bench = Bench()
    bench.add("early", [1, 2], 3)
    bench.run()
    assert bench.engine.watch.look().steps == []  # nobody watched
    bench.add("a", list(range(20)), 3)
    bench.run()
    look = bench.engine.watch.look()
    assert [(step.num_prompt_tokens, step.num_decode_tokens, step.num_rows) for step in look.steps] == [
        (16, 0, 1),
        (4, 0, 1),
        (0, 1, 1),
        (0, 1, 1),
    ]
    assert [each.event.kind for each in look.events] == ["arrived", "admitted", "chunk", "first_token", "finished"]
    assert {each.request_id for each in look.events} == {"a"}
    again = bench.engine.watch.look()
    assert (again.steps, again.events) == ([], [])


def test_it_ends_when_nobody_looks_any_more() -> None:
    bench = Bench()
    bench.engine.watch.look()
    bench.add("a", [1], 3 + int(WATCH_SECONDS))
    bench.run()
    assert not bench.engine.watch.is_on
    look = bench.engine.watch.look()
    assert (look.steps, look.events) == ([], [])


def test_what_is_told_is_bounded() -> None:
    bench = Bench(max_num_seqs=1)
    for number in range(MAX_REQUESTS + 50):
        bench.add(str(number), [1], 3)
    look = bench.engine.watch.look()
    assert (len(look.requests), look.num_waiting) == (MAX_REQUESTS, MAX_REQUESTS + 50)
    for _ in range(MAX_STEPS + 50):
        bench.engine.step()
    assert len(bench.engine.watch.look().steps) == MAX_STEPS


@DEPTHS
def test_whoever_looks_changes_nothing(depth: int) -> None:
    """At any time, whatever is going on: answers and blocks are those of an engine that nobody looks at."""

    def run(watched: bool) -> Bench:
        rng = random.Random(7)
        bench = Bench(depth=depth, num_blocks=24, num_host_blocks=8)
        for number in range(40):
            prompt = [rng.randrange(4) for _ in range(rng.randrange(1, 20))]
            bench.add(str(number), prompt, rng.randrange(1, 20), n=rng.choice([1, 1, 3]))
            for _ in range(rng.randrange(4)):
                if watched:
                    look = bench.engine.watch.look()
                    assert len(look.requests) == look.num_running + look.num_waiting
                    bench.engine.watch.block(number % 24, with_tokens=True)
                    bench.engine.watch.choices([str(number)])
                bench.step()
        bench.run()
        return bench

    watched, alone = run(watched=True), run(watched=False)
    assert watched.deltas == alone.deltas
    assert watched.engine.stats() == alone.engine.stats()


def calls_of_steps(is_watched: bool) -> int:
    """Function calls of 100 steps of 8 sequences."""
    bench = Bench(num_blocks=400)
    for number in range(8):
        bench.add(str(number), [number], 130)
    for _ in range(3):
        bench.engine.step()
    if is_watched:
        bench.engine.watch.look()
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(100):
        bench.engine.step()
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


def test_a_step_that_is_watched_costs_little_more() -> None:
    alone, watched = calls_of_steps(False), calls_of_steps(True)
    assert watched - alone <= 100 * 20


def test_the_questions_cross_to_the_engine_process() -> None:
    for command in (TakeLook(7), LookAtBlock(8, 3, True), LookAtRequests(9, ["a"])):
        assert decode_command(encode(command)) == command
