"""Plans: what follows from sizes by hand, and what the real scheduler has to say."""

from dataclasses import replace

import pytest

from octavo.core.errors import ConfigurationError
from octavo.sim.costs import BlockCosts, LinearCosts
from octavo.sim.planning.block_size import BLOCK_SIZES, advised, block_choices
from octavo.sim.planning.lengths import draw_requests, quantile
from octavo.sim.planning.plan import PREEMPTED_SHARE, Model, Plan, Wishes, make_plan
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


def test_where_all_are_as_long_as_the_longest_from_the_start_paging_gains_nothing() -> None:
    """145 tokens on average, of 150 in the end; the last block of each has 7.5 free ones."""
    (remark,) = make_plan(MODEL, WISHES, [TracedRequest(0.0, 140, 10)] * 20, COSTS).remarks
    assert remark == (
        "paging gains nothing here: a sequence holds 152 slots on average, with the empty end of its last block, and "
        "150 reserved to the longest"
    )


def test_where_all_get_equally_long_but_begin_short_paging_gains() -> None:
    """400 blocks of 16 tokens hold ten sequences of 600; more than that run when they come one after the other."""
    requests = [TracedRequest(0.0, 10, 590)] * 60
    plan = make_plan(MODEL, replace(WISHES, memory_bytes=1_240_000), requests, COSTS, rate=1.0)
    assert plan.remarks == []
    assert plan.held_reserved == 10
    assert plan.paced is not None
    assert plan.paced["running_max"] > plan.held_reserved  # type: ignore[operator]


def test_where_few_run_at_once_paging_gains_nothing() -> None:
    """One every 100 seconds, which takes less than three."""
    (remark,) = make_plan(MODEL, WISHES, REQUESTS, COSTS, rate=0.01).remarks
    assert remark.startswith("paging gains nothing here: at the rate asked for at most 1 run at once, and the memory ")


def test_what_is_shared_is_said_even_then() -> None:
    shared = TracedRequest(0.0, 140, 10, blocks=(1,) * 96, block_size=1)
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


def test_what_no_number_of_devices_holds_says_how_many_there_may_be() -> None:
    """Eight KV heads go over eight devices at most, which hold 8 GiB of the 9."""
    model = MODEL._replace(weight_bytes=9 << 30)
    with pytest.raises(ConfigurationError, match=r"8\.00 GiB are missing on one device, 1\.00 GiB on 8, the most that"):
        make_plan(model, replace(WISHES, memory_bytes=1 << 30), REQUESTS, COSTS)


def test_blocks_of_a_size_that_holds_no_sequence_are_not_advised() -> None:
    """136 tokens are 17 blocks of 8; a device that holds just these has no room for five of 32, which would be advised
    here."""
    measured = BlockCosts(context_factors=[(size, 1.0) for size in BLOCK_SIZES])
    quick = LinearCosts(base=1e-4, per_decode=1e-6, per_chunk_token=0.0, blocks=measured)
    requests, wishes = [TracedRequest(0.0, 100, 36)] * 10, replace(WISHES, block_size=None)
    assert make_plan(MODEL, wishes, requests, quick).block.block_size == 32
    plan = make_plan(MODEL, replace(wishes, memory_bytes=600_000 + 136 * 100), requests, quick)
    assert (plan.block.block_size, plan.num_blocks) == (8, 17)


def test_blocks_that_a_kernel_has_to_gather_are_advised_only_where_they_were_measured() -> None:
    """Short requests and slow steps: blocks of 8 would leave the fewest slots empty."""
    slow = LinearCosts(base=1.0, per_decode=1e-3, per_chunk_token=0.0)
    measured = replace(slow, blocks=BlockCosts(context_factors=[(8, 1.0), (16, 1.0)]))
    wishes = replace(WISHES, block_size=None)
    assert make_plan(MODEL, wishes, REQUESTS, slow).block.block_size == 16
    assert make_plan(MODEL, wishes, REQUESTS, measured).block.block_size == 8
    assert make_plan(MODEL, replace(WISHES, block_size=8), REQUESTS, slow).block.block_size == 8


def test_swap_space_counts_the_blocks_that_a_window_leaves() -> None:
    windows = MODEL._replace(windows=(None, 32))
    wishes = replace(WISHES, admission_quantile=0.0, memory_bytes=700_000, max_num_batched_tokens=64)
    requests = [TracedRequest(0.0, 30, 450)] * 60
    plan = make_plan(windows, wishes, requests, COSTS)
    share, most = plan.full["preempted_share"], plan.full["running_max"]
    assert isinstance(share, float)
    assert isinstance(most, int)
    sequence = (30 + 7) * 16 * 50  # half of the layers hold 480 tokens; the others 32 + 64, and what a block cuts off
    assert plan.swap_bytes == (1 + int(share * most)) * sequence


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


def test_sizes_that_a_kernel_is_slow_at_are_not_advised() -> None:
    """As measured: blocks cost nothing to give out, and attention takes 14 times as long with the smallest."""
    costs = LinearCosts(base=1e-3, per_decode=1e-4, per_chunk_token=0.0, per_decode_context=1e-6)
    free = replace(costs, blocks=BlockCosts(0.0))
    slow = replace(costs, blocks=BlockCosts(0.0, [(8, 14.0), (16, 1.0), (32, 1.1)]))
    assert advised(block_choices(REQUESTS, free, 64)).block_size == 8
    assert advised(block_choices(REQUESTS, slow, 64)).block_size == 16
    (eight,) = block_choices([TracedRequest(0.0, 1000, 2)], slow, 1, [8])
    context = 1001 * 1e-6
    assert eight.overhead == pytest.approx(13 * context / (1.1e-3 + context), rel=0.01)


def test_lengths_drawn_have_the_quantiles_they_were_drawn_from() -> None:
    drawn = draw_requests((100, 400, 1000), (50, 90, 200), 20_000)
    for place, share in enumerate((0.5, 0.9, 0.99)):
        assert quantile([each.prompt for each in drawn], share) == pytest.approx((100, 400, 1000)[place], rel=0.05)
        assert quantile([each.output for each in drawn], share) == pytest.approx((50, 90, 200)[place], rel=0.05)
    assert drawn == draw_requests((100, 400, 1000), (50, 90, 200), 20_000)


def preempted_share(plan: Plan) -> float:
    assert plan.paced is not None
    share = plan.paced["preempted_share"]
    assert isinstance(share, float)
    return share


@pytest.mark.parametrize(("output", "is_burst"), [(150, False), (35, True)])
def test_at_the_rate_found_more_are_preempted_and_just_below_fewer(output: int, is_burst: bool) -> None:
    """Also where fewer are at what the server manages at most: then the rate is that of a burst."""
    wishes = replace(WISHES, admission_quantile=0.0, memory_bytes=700_000)
    requests = [TracedRequest(0.0, 30, output)] * 60
    plan = make_plan(MODEL, wishes, requests, COSTS)
    rate, most = plan.preemption_rate, plan.full["requests_per_second"]
    assert rate is not None
    assert (rate > most) is is_burst  # type: ignore[operator]
    assert preempted_share(make_plan(MODEL, wishes, requests, COSTS, rate)) > PREEMPTED_SHARE
    assert preempted_share(make_plan(MODEL, wishes, requests, COSTS, rate * 31 / 32)) <= PREEMPTED_SHARE


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
