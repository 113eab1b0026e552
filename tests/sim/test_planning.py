"""Plans: what follows from sizes by hand, and what the real scheduler has to say."""

from dataclasses import replace

import pytest

from octavo.core.errors import ConfigurationError
from octavo.sim.costs import LinearCosts
from octavo.sim.planning.block_size import advised, block_choices
from octavo.sim.planning.lengths import draw_requests, quantile
from octavo.sim.planning.plan import Model, Wishes, make_plan
from octavo.sim.traces.request import TracedRequest

COSTS = LinearCosts(base=0.02, per_decode=1e-4, per_chunk_token=1e-4)
MODEL = Model(weight_bytes=600_000, kv_bytes_per_token=100, windows=(None,), num_kv_heads=8, max_position=4096)
WISHES = Wishes(memory_bytes=1_000_000, utilization=1.0, block_size=16, max_num_seqs=64)
REQUESTS = [TracedRequest(0.0, 30 + number % 50, 20 + number % 31) for number in range(80)]


def test_sizes_by_hand() -> None:
    """400,000 bytes in blocks of 1,600: 250 of them. The longest request has 129 tokens, nine blocks."""
    plan = make_plan(MODEL, WISHES, REQUESTS, COSTS)
    assert (plan.kv_bytes, plan.block_bytes, plan.num_blocks, plan.num_slots) == (400_000, 1600, 250, 4000)
    totals = sorted(each.prompt + each.output for each in REQUESTS)
    assert plan.lengths == (totals[39], totals[71], totals[79])
    assert plan.held == tuple(min(64, 250 // -(-total // 16)) for total in plan.lengths)
    assert plan.max_model_len == max(totals)
    assert plan.held_reserved == 250 // -(-max(totals) // 16)
    assert (plan.degree, plan.missing_bytes) == (1, 0)
    assert plan.full["num_completed"] == 80
    assert plan.preemption_rate is None or plan.preemption_rate > 0
    assert plan.pin_quota == 0.25
    assert plan.remarks == []


def test_a_pool_is_no_larger_than_what_the_sequences_can_use() -> None:
    plan = make_plan(MODEL, replace(WISHES, max_num_seqs=4, max_num_batched_tokens=64), REQUESTS, COSTS)
    assert plan.num_blocks == 4 * -(-plan.max_model_len // 16)
    (remark,) = plan.remarks
    assert remark.startswith("paging gains nothing here: the memory holds 4 sequences (max_num_seqs) of the full ")


def test_where_all_are_equally_long_paging_gains_nothing() -> None:
    (remark,) = make_plan(MODEL, WISHES, [TracedRequest(0.0, 100, 50)] * 20, COSTS).remarks
    assert remark == "paging gains nothing here: all sequences are about as long as the longest"


def test_what_is_shared_is_said_even_then() -> None:
    shared = TracedRequest(0.0, 100, 50, blocks=(1,) * 96, block_size=1)
    remarks = make_plan(MODEL, WISHES, [shared] * 60, COSTS).remarks
    assert "prompt tokens are shared" in remarks[-1]


def test_what_does_not_fit_on_one_device_is_spread_over_several() -> None:
    """600,000 bytes of weights and nine blocks of 1,600 on devices of 250,000: four of them, since two are too few."""
    plan = make_plan(MODEL, replace(WISHES, memory_bytes=250_000), REQUESTS, COSTS)
    needed = 600_000 + 1600 * -(-plan.max_model_len // 16)
    assert plan.missing_bytes == needed - 250_000
    assert plan.degree == 4
    assert plan.num_blocks == (4 * 250_000 - 600_000) // 1600


def test_what_cannot_hold_one_sequence_says_by_how_much() -> None:
    model = MODEL._replace(num_kv_heads=1, weight_bytes=5 << 30)
    with pytest.raises(ConfigurationError, match=r"not even one sequence fits.*1\.00 GiB are missing"):
        make_plan(model, replace(WISHES, memory_bytes=4 << 30), REQUESTS, COSTS)


def test_requests_beyond_the_limit_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigurationError, match=r"has \d+ tokens, but the longest sequence here has 64"):
        make_plan(MODEL, replace(WISHES, max_model_len=64), REQUESTS, COSTS)


def test_large_blocks_where_tables_cost_and_small_ones_where_tokens_do() -> None:
    quick = LinearCosts(base=1e-4, per_decode=1e-6, per_chunk_token=0.0)
    slow = LinearCosts(base=1.0, per_decode=1e-3, per_chunk_token=0.0)
    assert (
        advised(block_choices(REQUESTS, quick, 64)).block_size > advised(block_choices(REQUESTS, slow, 64)).block_size
    )
    (one,) = block_choices([TracedRequest(0.0, 15, 2)], slow, 1, [1])
    assert one.tail_waste == 0.0


def test_lengths_drawn_have_the_quantiles_they_were_drawn_from() -> None:
    drawn = draw_requests((100, 400, 1000), (50, 90, 200), 20_000)
    for place, share in enumerate((0.5, 0.9, 0.99)):
        assert quantile([each.prompt for each in drawn], share) == pytest.approx((100, 400, 1000)[place], rel=0.05)
        assert quantile([each.output for each in drawn], share) == pytest.approx((50, 90, 200)[place], rel=0.05)
    assert drawn == draw_requests((100, 400, 1000), (50, 90, 200), 20_000)


def test_the_rate_at_which_preemption_begins_is_below_what_is_managed_at_most() -> None:
    """Nobody looks ahead, and the memory is small: many are preempted once it is full."""
    wishes = replace(WISHES, admission_quantile=0.0, memory_bytes=700_000)
    plan = make_plan(MODEL, wishes, [TracedRequest(0.0, 30, 150)] * 60, COSTS, rate=0.5)
    most = plan.full["requests_per_second"]
    assert isinstance(most, float)
    assert plan.preemption_rate is not None
    assert 0 < plan.preemption_rate <= most
    assert plan.swap_bytes > 0
    assert plan.paced is not None
    assert plan.paced["num_completed"] == 60
