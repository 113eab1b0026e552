"""Pins: a prefix stays in the cache whatever else needs its blocks; what there is no room for is refused."""

from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.request import Request, Status
from octavo.core.retention import Retention
from tests.support.naive_beam_search import Search
from tests.support.scheduling import Harness

HEAD = list(range(10, 22))
"""Three blocks of four."""


def pin(harness: Harness, prompt: list[int], salt: str | None = None, **wish: Any) -> Request:
    """As an admin does: a request of one token, of which the whole prompt is pinned."""
    request = harness.add(prompt, 1, salt=salt, pins=(PinWish(len(prompt), **wish),))
    harness.run()
    return request


def crowd(harness: Harness, count: int = 6) -> None:
    """Enough other prompts to push everything out that can be."""
    for number in range(count):
        harness.add([100 + 20 * number + place for place in range(12)], 4)
        harness.run()


def cached(harness: Harness, prompt: list[int], salt: str | None = None) -> int:
    """Tokens of a prompt that need not be computed; nothing of the request stays that was not there."""
    request = harness.add(prompt, 1, salt=salt)
    harness.run()
    assert request.num_cached_tokens is not None
    return request.num_cached_tokens


def pinned(harness: Harness) -> int:
    return harness.kv.keeping.pins.num_blocks


@pytest.mark.parametrize("policy", ["lru", "reuse"])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_pin_outlives_pressure(policy: str, num_groups: int) -> None:
    harness = Harness(num_blocks=12 * num_groups, num_groups=num_groups, eviction_policy=policy)
    request = pin(harness, [*HEAD, 1, 2])
    assert request.pin_claim is not None
    (info,) = request.pin_claim.report.pins
    assert (info.num_tokens, info.num_blocks) == (12, 3 * num_groups)
    assert pinned(harness) == 3 * num_groups
    crowd(harness)
    assert cached(harness, [*HEAD, 7]) == 12
    assert harness.kv.keeping.pins.release(info.pin_id)
    assert not harness.kv.keeping.pins.release(info.pin_id)
    crowd(harness)
    assert cached(harness, [*HEAD, 7]) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefix_caching": False}, r"the prefix cache, which is off \(enable_prefix_caching\); turn it on"),
        ({"pin_quota": 0.0}, "pin_quota 0 of a pool of 12 blocks leaves none to pins; raise it"),
        ({"pin_quota": 0.05}, "pin_quota 0.05 of a pool of 12 blocks leaves none to pins; raise it"),
    ],
)
def test_the_refusal_names_the_setting_that_leaves_no_room(settings: dict[str, Any], message: str) -> None:
    harness = Harness(num_blocks=12, **settings)
    for length in (12, 3):
        with pytest.raises(InvalidRequestError, match=message):
            pin(harness, HEAD[:length])


def test_a_pin_outlives_preemption_of_its_request() -> None:
    harness = Harness(num_blocks=9, max_num_seqs=2, pin_quota=0.4)
    older = harness.add([1, 2, 3], 21)
    owner = harness.add([*HEAD, 1], 11, pins=(PinWish(12),))
    harness.run()
    assert (older.status, owner.status) == (Status.LENGTH, Status.LENGTH)
    assert owner.num_preemptions > 0
    assert pinned(harness) == 3
    assert cached(harness, [*HEAD, 7]) == 12


def test_time_ends_a_pin_and_asking_again_prolongs_it() -> None:
    harness = Harness(num_blocks=12)
    keeping = harness.kv.keeping
    keeping.tell_time(1000.0)
    pin(harness, HEAD, ttl=60)
    keeping.tell_time(1059.0)
    assert pinned(harness) == 3
    pin(harness, [*HEAD, 1, 1], ttl=60)
    (info,) = keeping.pins.infos()
    assert info.expires_at == 1119.0
    keeping.tell_time(1118.9)
    assert pinned(harness) == 3
    assert keeping.pins.next_end == 1119.0
    keeping.tell_time(1119.0)
    assert pinned(harness) == 0
    assert keeping.pins.next_end == float("inf")
    harness.check()
    assert cached(harness, [*HEAD, 7]) == 12, "what is released is cached as anything else"


def test_overlapping_pins_count_shared_blocks_once() -> None:
    harness = Harness(num_blocks=12, pin_quota=0.5)
    pin(harness, HEAD)
    pin(harness, [*HEAD, *range(30, 38)])
    pin(harness, [*HEAD, *range(40, 44)])
    pins = harness.kv.keeping.pins
    assert (len(pins), pins.num_blocks, pins.num_claimed) == (3, 6, 6)
    pins.release(pins.infos()[1].pin_id)
    assert pinned(harness) == 4
    harness.check()
    crowd(harness)
    assert cached(harness, [*HEAD, *range(40, 44), 7]) == 16


def test_salts_pin_apart() -> None:
    harness = Harness(num_blocks=14)
    pin(harness, HEAD, salt="a")
    pin(harness, HEAD, salt="b")
    assert pinned(harness) == 6
    assert [info.cache_salt for info in harness.kv.keeping.pins.infos()] == ["a", "b"]
    crowd(harness)
    assert [cached(harness, [*HEAD, 7], salt) for salt in ("a", "b", None)] == [12, 12, 0]


def test_the_quota_refuses_and_keeps_what_is_pinned() -> None:
    harness = Harness(num_blocks=12, pin_quota=0.4)
    pin(harness, HEAD)
    wish = PinWish(8)
    other = list(range(50, 60))
    with pytest.raises(InvalidRequestError, match=r"needs 2 more blocks, but pins may hold 4 .* and hold 3") as refused:
        harness.add(other, 2, pins=(wish,))
    assert refused.value.param == "pin_prefix"
    request = harness.add(other, 2, pins=(PinWish(8, is_required=False),))
    harness.run()
    assert request.status is Status.LENGTH
    assert request.pin_claim is not None
    assert len(request.pin_claim.report.refusals) == 1
    assert not request.pin_claim.report.pins
    assert harness.kv.keeping.pins.refusals == {"quota": 2}
    assert pinned(harness) == 3


def test_a_claim_counts_before_it_lands() -> None:
    harness = Harness(num_blocks=12, pin_quota=0.4)
    first = harness.add(HEAD, 2, pins=(PinWish(12),))
    with pytest.raises(InvalidRequestError, match="pin_quota"):
        harness.add(list(range(50, 60)), 2, pins=(PinWish(8),))
    twin = harness.add(HEAD, 3, pins=(PinWish(12),))
    assert harness.kv.keeping.pins.num_claimed == 3
    harness.scheduler.abort(first)
    harness.run()
    assert twin.status is Status.LENGTH
    assert pinned(harness) == 3
    assert harness.kv.keeping.pins.refusals["lost"] == 1


def test_open_requests_and_pins_leave_room_for_each_other() -> None:
    harness = Harness(num_blocks=12, pin_quota=0.5)
    assert harness.scheduler.door.max_tokens_per_sequence == 48
    large = harness.add([1, 2, 3], 38)  # 11 blocks
    with pytest.raises(InvalidRequestError, match="an open request may need 11 of the pool's 12"):
        harness.add(HEAD, 1, pins=(PinWish(12),))
    harness.run()
    assert large.status is Status.LENGTH
    pin(harness, HEAD)
    assert harness.scheduler.door.max_tokens_per_sequence == 36
    with pytest.raises(InvalidRequestError, match=r"the KV pool \(beside 3 blocks for pins\) holds 36 tokens"):
        harness.add([1, 2, 3], 38)
    with pytest.raises(
        InvalidRequestError, match=r"need 10 blocks, but the KV pool \(beside 3 blocks for pins\) has 9"
    ):
        harness.add_beams([1, 2, 3], Search(2, 17, frozenset(), 1.0, False))
    fits = harness.add([1, 2, 3], 33)
    harness.run()
    assert fits.status is Status.LENGTH


def test_a_wish_that_leaves_no_room_for_its_request() -> None:
    harness = Harness(num_blocks=12, pin_quota=0.5)
    with pytest.raises(InvalidRequestError, match=r"beside 3 blocks for pins"):
        harness.add(HEAD, 30, pins=(PinWish(12),))
    assert harness.kv.keeping.pins.num_claimed == 0
    request = harness.add(HEAD, 30, pins=(PinWish(12, is_required=False),))
    assert harness.kv.keeping.pins.num_claimed == 0
    harness.run()
    assert request.status is Status.LENGTH


def test_only_whole_blocks_of_a_prompt_that_is_long_enough() -> None:
    harness = Harness(num_blocks=12)
    with pytest.raises(InvalidRequestError, match="whole blocks of 4 tokens, but this prefix has 3"):
        harness.add([1, 2, 3], 1, pins=(PinWish(3),))
    with pytest.raises(InvalidRequestError, match="5 tokens are to be pinned, but the prompt has 4"):
        harness.add([1, 2, 3, 4], 1, pins=(PinWish(5),))
    assert harness.kv.keeping.pins.num_claimed == 0


def test_several_wishes_of_one_request() -> None:
    harness = Harness(num_blocks=12, pin_quota=0.4)
    wishes = (PinWish(20, is_required=False), PinWish(12, ttl=60), PinWish(4, is_required=False))
    request = harness.add([*HEAD, *range(30, 40)], 2, pins=wishes)
    harness.run()
    assert request.pin_claim is not None
    assert [info.num_tokens for info in request.pin_claim.report.pins] == [4, 12]
    assert len(request.pin_claim.report.refusals) == 1
    assert pinned(harness) == 3


def test_a_reset_leaves_pins_and_what_they_pin() -> None:
    harness = Harness(num_blocks=16)
    pin(harness, HEAD)
    cached(harness, [*HEAD, *range(30, 36)])
    harness.scheduler.reset_prefix_cache()
    harness.check()
    assert pinned(harness) == 3
    assert cached(harness, [*HEAD, *range(30, 36)]) == 12
    assert cached(harness, HEAD[:10]) == 9, "also inside a block"


def test_a_reset_before_the_landing_loses_the_pin() -> None:
    harness = Harness(num_blocks=12)
    request = harness.add(HEAD, 2, pins=(PinWish(12),))
    harness.plan()
    harness.scheduler.reset_prefix_cache()
    harness.run()
    assert request.status is Status.LENGTH
    assert request.pin_claim is not None
    assert len(request.pin_claim.report.refusals) == 1
    assert (pinned(harness), harness.kv.keeping.pins.num_claimed) == (0, 0)


def test_a_failed_request_pins_nothing() -> None:
    harness = Harness(num_blocks=12)

    def fail(_plan: object) -> None:
        raise RuntimeError("injected")

    harness.runner.fails = fail
    request = harness.add(HEAD, 2, pins=(PinWish(12),))
    harness.run()
    assert request.status is Status.FAILED
    assert (pinned(harness), harness.kv.keeping.pins.num_claimed) == (0, 0)


def test_a_long_prompt_is_pinned_as_it_lands() -> None:
    harness = Harness(num_blocks=12, max_num_batched_tokens=8)
    request = harness.add([*HEAD, 1, 2, 3], 2, pins=(PinWish(8),))
    harness.plan()
    assert pinned(harness) == 0
    harness.land()
    assert pinned(harness) == 2
    harness.scheduler.abort(request)
    harness.run()
    assert pinned(harness) == 2


def test_swapped_and_host_tiers_leave_pins_on_the_device() -> None:
    harness = Harness(num_blocks=12, num_host_blocks=12, keep_evicted=True, preemption_mode="swap")
    pin(harness, HEAD)
    crowd(harness)
    assert harness.kv.host.num_cached > 0
    assert pinned(harness) == 3
    assert cached(harness, [*HEAD, 7]) == 12
    assert harness.kv.host.num_swapped_in == 0


def test_a_pin_of_a_prefix_that_is_on_the_host_brings_it_back() -> None:
    harness = Harness(num_blocks=12, num_host_blocks=24, keep_evicted=True)
    cached(harness, HEAD)
    crowd(harness, 3)
    assert harness.kv.host.num_cached > 0
    request = pin(harness, HEAD)
    assert request.num_cached_tokens == 8
    assert pinned(harness) == 3


def test_the_last_plan_takes_pinned_prefixes_to_disk() -> None:
    harness = Harness(num_blocks=12, num_disk_slots=12)
    pin(harness, HEAD)
    assert harness.scheduler.plan_last() is not None
    assert pinned(harness) == 0


def test_the_priority_of_a_pin_counts_when_it_has_ended() -> None:
    harness = Harness(num_blocks=12)
    pin(harness, HEAD, priority=80)
    pins = harness.kv.keeping.pins
    pins.release(pins.infos()[0].pin_id)
    crowd(harness)
    assert cached(harness, [*HEAD, 7]) == 12


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"ttl": True}, "ttl"),
        ({"priority": 101}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"num_tokens": -1}, "number of tokens"),
    ],
)
def test_wishes_out_of_range(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        PinWish(**({"num_tokens": 4} | wish))


@pytest.mark.parametrize("retention", [{"priority": 101}, {"priority": 90, "duration": 0}, {"duration": 3}])
def test_retention_out_of_range(retention: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Retention(**retention)
