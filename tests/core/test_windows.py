"""Layer groups with windows: what a sequence gives back while it runs, what it takes, and what a prefix hit needs."""

import random
from collections.abc import Sequence

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.hashing import group_names, pack_tokens
from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import UNBOUNDED, CacheConfig, FilledBlocks, PrefixHit
from octavo.core.pin_types import PinWish
from octavo.core.request import Request
from octavo.core.step import NO_BLOCK
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
SIZE = 4
GEMMA: tuple[int | None, ...] = (None, 512, 512, 512, 512, 512)
"""Layer groups of Gemma 3 270M."""


def _live(request: Request) -> list[int]:
    """Blocks that a sequence has, by layer group."""
    return [len(live_ids) for live_ids in request.tables.live_groups] if request.tables else []


def _most_held(harness: Harness) -> int:
    """The most blocks that are in use while the harness runs to the end."""
    most = 0
    while harness.step():
        most = max(most, harness.num_blocks - harness.kv.pool.num_free)
    harness.run()
    return most


# What a sequence takes


@pytest.mark.parametrize("seed", range(30))
def test_as_many_tokens_fit_as_their_blocks_say(seed: int) -> None:
    rng = random.Random(seed)
    windows = tuple(rng.choice([None, 1, 3, 16, 40]) for _ in range(rng.randint(1, 4)))
    config = CacheConfig(
        0, rng.choice([1, 4, 16]), len(windows), windows=windows, max_unlanded_tokens=rng.randint(1, 30)
    )
    for num_blocks in range(150):
        num_tokens = config.num_tokens_in(num_blocks)
        if num_tokens == UNBOUNDED:
            assert None not in windows
            continue
        assert config.num_blocks_for(num_tokens) <= num_blocks < config.num_blocks_for(num_tokens + 1)


def test_a_window_bounds_what_a_sequence_takes() -> None:
    config = CacheConfig(0, 16, 6, windows=GEMMA, max_unlanded_tokens=512)
    assert config.num_blocks_for(500) == 6 * 32
    assert config.num_blocks_for(10_000) == 625 + 5 * 65
    assert config.num_blocks_for(20_000) == 1250 + 5 * 65
    assert CacheConfig(0, 16, 6).num_blocks_for(10_000) == 6 * 625


@DEPTHS
@pytest.mark.parametrize("windows", [(8,), (None, 8), (8, 3)], ids=str)
def test_a_sequence_never_holds_more_than_its_windows_need(windows: tuple[int | None, ...], depth: int) -> None:
    harness = Harness(
        num_blocks=300, num_groups=len(windows), windows=windows, depth=depth, max_num_batched_tokens=16, max_num_seqs=4
    )
    request = harness.add(list(range(200)), 100)
    most = harness.kv.num_blocks_for(300)
    assert _most_held(harness) <= most
    assert most <= (300 // SIZE if None in windows else 0) + len(windows) * ((8 + 16 * depth) // SIZE + 1)
    harness.check_answer(request)


@DEPTHS
def test_a_long_prompt_runs_in_a_pool_that_holds_a_window(depth: int) -> None:
    """As in Mistral: every layer sees 8 tokens, so a pool of a few blocks has room for any prompt."""
    budget = 8
    num_blocks = -(-(8 + budget * depth) // SIZE) + 1
    harness = Harness(num_blocks, windows=(8,), depth=depth, max_num_batched_tokens=budget, max_num_seqs=2)
    assert harness.scheduler.door.max_tokens_per_sequence == harness.scheduler.config.max_model_len
    requests = [harness.add([number] + [7] * 400, 60) for number in range(3)]
    harness.run()
    for request in requests:
        harness.check_answer(request)


def test_what_the_global_layers_cannot_hold_is_refused() -> None:
    harness = Harness(num_blocks=40, num_groups=2, windows=(None, 8), max_num_batched_tokens=8)
    limit = harness.scheduler.door.max_tokens_per_sequence
    assert limit == (40 - 5) * SIZE
    harness.add(list(range(limit - 10)), 10)
    with pytest.raises(InvalidRequestError, match="the KV pool holds 140 tokens"):
        harness.add(list(range(limit - 10)), 11)
    harness.run()


def test_decoding_gives_a_block_back_for_each_it_gets() -> None:
    harness = Harness(num_blocks=100, num_groups=2, windows=(None, 8), max_num_batched_tokens=8)
    request = harness.add(list(range(20)), 60)
    held = []
    while harness.step():
        if request.num_output_tokens > 1 and request.tables:
            held.append(_live(request)[1])
    assert set(held) <= {3, 4}
    assert request.num_tokens == 80


def test_steps_that_merely_decode_look_at_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence is looked at once a block, and not at all where no group has a window."""
    looked_at = 0

    def first_look(harness: Harness) -> int:
        nonlocal looked_at
        looked_at = 0
        due = harness.kv._slider.due

        def counting(sequences: object) -> object:
            nonlocal looked_at
            sequences = list(sequences)  # type: ignore[call-overload]
            looked_at += len(sequences)
            return due(sequences)

        monkeypatch.setattr(harness.kv._slider, "due", counting)
        harness.add(list(range(8)), 81)
        harness.run()
        return looked_at

    assert first_look(Harness(num_blocks=100, num_groups=2, windows=(None, 8), max_num_batched_tokens=8)) == 20


def test_gemma_holds_a_third_of_the_blocks_at_4000_tokens() -> None:
    """The figure in docs/benchmarks.md."""
    held = []
    for windows in (GEMMA, ()):
        harness = Harness(
            num_blocks=1600,
            block_size=16,
            num_groups=6,
            windows=windows,
            max_num_batched_tokens=512,
            prefix_caching=False,
        )
        request = harness.add(list(range(100)) * 39, 101)
        while request.num_output_tokens < 100:
            assert harness.step()
        held.append(sum(_live(request)))
        harness.run()
    assert held == [250 + 5 * 33, 6 * 250]


# Prefix hits


class _Cached:
    """A prompt of 40 tokens in the cache, by layer group a block every four tokens; some of them are taken out."""

    def __init__(self, windows: tuple[int | None, ...], **settings: int) -> None:
        self.tokens = list(range(40))
        given = {"num_blocks": 200, "max_num_batched_tokens": 16} | settings
        self.harness = Harness(num_groups=len(windows), windows=windows, **given)
        self.harness.add(self.tokens, 1)
        self.harness.run()

    def lose(self, group: int, indices: Sequence[int]) -> None:
        """These logical blocks leave the cache."""
        pool, (request,) = self.harness.kv.pool, self.harness.requests
        for name in group_names(group, [request.chain.hashes[index] for index in indices]):
            block_id = pool.lookup(name)
            assert block_id is not None
            pool.acquire([block_id])
            pool.forget([block_id])
            pool.release([block_id])

    def lookup(self, tokens: list[int]) -> PrefixHit:
        kv = self.harness.kv
        chain = kv.hasher.chain(None)
        kv.hasher.extend(chain, tokens, len(tokens))
        return kv.lookup_prefix(chain, tokens)

    def ask(self, tokens: list[int]) -> int | None:
        """Cached tokens of a prompt that is answered; the answer is checked."""
        request = self.harness.add(tokens, 30)
        self.harness.run()
        self.harness.check_answer(request)
        return request.num_cached_tokens


@pytest.mark.parametrize("windows", [(None, 8), (8,), (None, 8, 8)], ids=str)
def test_a_hit_needs_of_a_window_only_its_last_blocks(windows: tuple[int | None, ...]) -> None:
    cached = _Cached(windows)
    last = len(windows) - 1
    cached.lose(last, range(8))
    hit = cached.lookup([*cached.tokens, 1, 2, 3])
    assert hit.num_tokens == 40
    assert hit.block_ids[last][:8] == (NO_BLOCK,) * 8
    assert NO_BLOCK not in hit.block_ids[last][8:]
    assert cached.ask([*cached.tokens, 1, 2, 3]) == 40


def test_a_block_that_is_missing_in_a_window_shortens_the_hit_in_all_groups() -> None:
    cached = _Cached((None, 8))
    cached.lose(1, [9])
    assert cached.lookup([*cached.tokens, 1]).num_tokens == 36
    cached.lose(1, [6])  # the window of position 32 begins in block 6, that of 24 ends before it
    assert cached.lookup([*cached.tokens, 1]).num_tokens == 36
    cached.lose(1, [8])
    assert cached.lookup([*cached.tokens, 1]).num_tokens == 24
    assert cached.ask([*cached.tokens, 1]) == 24


def test_the_longest_length_that_is_there_in_all_groups() -> None:
    cached = _Cached((None, 4, 12))
    cached.lose(0, [8])  # at most 8 blocks, then
    cached.lose(1, [7])  # 7, for which the third group needs blocks 4 to 6
    cached.lose(2, [5])  # so 5, which is all that it has before
    assert cached.lookup([*cached.tokens, 1]).num_tokens == 20
    assert cached.ask([*cached.tokens, 1]) == 20


@pytest.mark.parametrize("windows", [(None, 8), (8,)], ids=str)
@DEPTHS
def test_hits_inside_a_block(windows: tuple[int | None, ...], depth: int) -> None:
    cached = _Cached(windows, depth=depth)
    cached.lose(len(windows) - 1, range(6))
    assert cached.ask([*cached.tokens[:38], 99]) == 38
    assert cached.ask(cached.tokens) == 39


@DEPTHS
def test_blocks_behind_the_window_stay_in_the_cache(depth: int) -> None:
    """They are published before they are given back, so another prompt finds them while the first one runs on."""
    harness = Harness(num_blocks=400, num_groups=2, windows=(None, 8), max_num_batched_tokens=16, depth=depth)
    head = list(range(60))
    first = harness.add([*head, *range(100, 160)], 40)
    while first.num_output_tokens < 20:
        assert harness.step()
    assert first.tables is not None
    assert first.tables.starts[1] > 60 // SIZE
    second = harness.add([*head, *range(200, 220)], 40)
    harness.run()
    assert second.num_cached_tokens == 60
    harness.check_answer(first)
    harness.check_answer(second)


def test_blocks_from_all_tiers_make_one_hit() -> None:
    """What is behind the window left for the host first, so parts of one hit lie on both sides."""
    harness = Harness(
        num_blocks=40,
        num_groups=2,
        windows=(None, 8),
        max_num_batched_tokens=16,
        num_host_blocks=200,
        keep_evicted=True,
    )
    head = list(range(40))
    harness.add([*head, 1, 2, 3], 1)
    harness.run()
    for number in range(4):
        harness.add([300 + 10 * number] * 30, 5)
        harness.run()
    again = harness.add([*head, 5, 6, 7], 5)
    harness.run()
    assert again.num_cached_tokens == 40
    harness.check_answer(again)


@DEPTHS
def test_a_pin_keeps_what_a_hit_needs(depth: int) -> None:
    harness = Harness(num_blocks=80, num_groups=2, windows=(None, 8), max_num_batched_tokens=16, depth=depth)
    prompt = list(range(40))
    harness.add(prompt, 1, pins=(PinWish(40),))
    harness.run()
    (info,) = harness.kv.keeping.pins.infos()
    assert (info.num_tokens, info.num_blocks) == (40, 10 + 3)
    for number in range(8):
        harness.add([100 + 20 * number + place for place in range(19)], 40)
        harness.run()
    for tokens, num_cached in ((prompt, 39), ([*prompt, 77], 40)):
        request = harness.add(tokens, 4)
        harness.run()
        assert request.num_cached_tokens == num_cached
        harness.check_answer(request)


# Preemption


@DEPTHS
def test_swapping_moves_what_the_windows_show(depth: int) -> None:
    harness = Harness(
        num_blocks=200, num_groups=2, windows=(None, 8), max_num_batched_tokens=16, depth=depth,
        prefix_caching=False, num_host_blocks=100, preemption_mode="swap",
    )  # fmt: skip
    request = harness.add(list(range(40)), 40)
    while request.num_output_tokens < 20:
        assert harness.step()
    while harness.pending:
        harness.land()
    harness.scheduler.population.preempt(request)
    assert request.swapped is not None
    num_blocks = -(-request.swapped.num_tokens // SIZE)
    assert len(request.swapped.host_ids[0]) == num_blocks
    assert len(request.swapped.host_ids[1]) in (2, 3)
    harness.run()
    harness.check_answer(request)
    assert sum(map(len, (plan.swap_ins for plan in harness.runner.plans))) <= num_blocks + 3


def test_a_swapped_sequence_goes_on_in_a_block_of_its_own() -> None:
    """It was swapped out in the midst of a block, which another then filled and published."""
    config = CacheConfig(100, SIZE, 2, num_host_blocks=20, windows=(None, 8), max_unlanded_tokens=40)
    kv = KVCacheManager(config)
    tokens = list(range(40))
    first = kv.allocate(kv.lookup_prefix(None, tokens), 10, row_id=0, step_id=0)
    assert first is not None
    swapped = kv.save(first.tables, 10)
    assert swapped is not None
    kv.free(first.tables)
    chain = kv.hasher.chain(None)
    kv.hasher.extend(chain, tokens, 40)
    other = kv.allocate(kv.lookup_prefix(None, tokens), 40, row_id=1, step_id=0)
    assert other is not None
    packed = [pack_tokens(tokens[start : start + SIZE]) for start in range(0, 40, SIZE)]
    kv.publish(other.tables, FilledBlocks(0, chain.hashes, chain.parents[:10], packed), None)
    kv.pool.forget(other.tables.groups[1])
    hit = kv.lookup_prefix(chain, tokens, swapped)
    assert hit.num_tokens == 10
    assert hit.block_ids[0] == (*other.tables.groups[0][:2], NO_BLOCK)
    assert [place.logical_block for place in hit.host_places[0]] == [2]
    assert [place.logical_block for place in hit.host_places[1]] == [0, 1, 2]


@DEPTHS
def test_forks_share_what_neither_has_given_back(depth: int) -> None:
    harness = Harness(num_blocks=200, num_groups=2, windows=(None, 8), max_num_batched_tokens=16, depth=depth)
    choices = harness.add_choices(list(range(40)), 3, 40)
    while min(choice.num_output_tokens for choice in choices) < 10:
        assert harness.step()
    assert harness.kv.pool.num_shared >= 10
    assert all(_live(choice)[1] <= 4 for choice in choices)
    harness.run()
    for choice in choices:
        harness.check_answer(choice)
