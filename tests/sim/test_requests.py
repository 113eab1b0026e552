"""What requests of a trace share in the prefix cache."""

import random
from itertools import islice

import pytest

from octavo.core.kv_types import CacheConfig
from octavo.core.request import Request
from octavo.core.scheduler_types import SchedulerConfig
from octavo.sim.costs import LinearCosts
from octavo.sim.requests import answer_token_ids, make_request, prompt_token_ids
from octavo.sim.simulation import ServerSettings, Simulation
from octavo.sim.traces.request import TracedRequest

COSTS = LinearCosts(0.01, 0.0, 0.0)


def hits(requests: list[TracedRequest], num_blocks: int = 4000) -> list[int]:
    """Cached prompt tokens of each request, by number."""
    settings = ServerSettings(SchedulerConfig(max_model_len=num_blocks * 16), CacheConfig(num_blocks))
    ended: dict[int, Request] = {}
    Simulation(requests, settings, COSTS).run(
        lambda step: ended.update({int(each.request_id): each for each in step.outcome.finished})
    )
    return [ended[number].num_cached_tokens or 0 for number in range(len(requests))]


def test_what_has_no_names_shares_nothing() -> None:
    assert hits([TracedRequest(10.0 * number, 100, 50) for number in range(3)]) == [0, 0, 0]


def test_names_are_shared_up_to_the_first_that_differs() -> None:
    """The last token of a prompt is computed again, whatever is cached."""
    assert hits(
        [
            TracedRequest(0, 1100, 5, None, [0, 1, 2], 512),
            TracedRequest(10, 700, 5, None, [0, 3], 512),
            TracedRequest(20, 1100, 5, None, [0, 1, 2], 512),
            TracedRequest(30, 1300, 5, None, [0, 1, 4], 512),
            TracedRequest(40, 600, 5, None, [9, 1], 512),
        ]
    ) == [0, 512, 1099, 1024, 0]


def test_names_of_blocks_of_another_size_than_the_cache_has() -> None:
    """Blocks of 24 tokens in a cache of 16: sharing ends within a block."""
    first, second = TracedRequest(0, 72, 1, None, [5, 6, 7], 24), TracedRequest(9, 72, 1, None, [5, 6, 8], 24)
    assert hits([first, second]) == [0, 48]


def test_an_answer_whose_names_are_known_is_found_by_the_next_turn() -> None:
    turn = TracedRequest(0, 40, 30, None, [1, 2, 3, 4, 5], 16)
    following = TracedRequest(60, 90, 10, None, [1, 2, 3, 4, 6, 7, 8], 16)
    unknown = TracedRequest(0, 40, 30, None, [1, 2], 16)
    assert hits([turn, following]) == [0, 64]
    assert hits([unknown, following]) == [0, 32]


def test_names_that_agree_in_their_low_bits_are_told_apart_by_what_they_follow() -> None:
    assert prompt_token_ids(TracedRequest(0, 3, 1, None, [1 << 31], 2), 0)[:2] == [1 << 31] * 2


def test_token_ids_fit_what_the_hasher_takes() -> None:
    ids = prompt_token_ids(TracedRequest(0, 5, 1, None, [2**63, 0], 2), 2**40 + 1)
    assert len(ids) == 5
    assert all(0 <= token_id < 2**32 for token_id in ids)


@pytest.mark.parametrize("seed", range(20))
def test_prompt_and_answer_are_the_named_blocks_in_a_row(seed: int) -> None:
    source = random.Random(seed)
    size, prompt, output = source.randint(1, 9), source.randint(1, 40), source.randint(1, 40)
    names = list(range(source.randint(0, 20)))
    traced = TracedRequest(0, prompt, output, None, names, size)
    whole = [1 << 31 | name for name in names for _ in range(size)] + [1 << 30 | 7] * 200
    assert prompt_token_ids(traced, 7) == whole[:prompt]
    answer = answer_token_ids(traced, 7)
    if answer is not None:
        assert list(islice(answer, output)) == whole[prompt : prompt + output]
    else:
        assert len(names) * size <= prompt


def test_a_request_may_have_what_it_asked_for() -> None:
    assert make_request(TracedRequest(0, 5, 3), 0).max_total_tokens == 8
    assert make_request(TracedRequest(0, 5, 3, 20, tenant="a"), 0).max_total_tokens == 25
    assert make_request(TracedRequest(0, 5, 3, 20, tenant="a"), 0).tenant == "a"
