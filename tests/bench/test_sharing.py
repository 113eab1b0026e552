"""Blocks saved by sharing: hand-made cases."""

import random

import pytest

from octavo.bench.paged import add_request, make_scheduler
from octavo.bench.sharing import Beams, BlockCount, Mode, ParallelSampling, SharedPrefix, measure_sharing, run
from octavo.bench.traces import Lengths
from octavo.sim.baselines.memory import Memory

MEMORY = Memory(num_blocks=64)


def steps(mode: Mode, *lengths: Lengths) -> list[BlockCount]:
    scheduler, source = make_scheduler(MEMORY), random.Random(0)
    for number, request in enumerate(lengths):
        add_request(scheduler, *mode.requests(number, request, source))
    return list(run(scheduler))


@pytest.mark.parametrize(("n", "used"), [(1, 4), (2, 5), (4, 7)])
def test_choices_share_the_prompt_but_not_what_they_generate(n: int, used: int) -> None:
    """A prompt of 3 full blocks and 1 token: each choice has one block of its own."""
    counts = steps(ParallelSampling(n), Lengths(49, 10))
    assert BlockCount(logical=4 * n, used=used, waiting=0) in counts
    assert max(count.used for count in counts) == used
    assert max(count.logical for count in counts) == 4 * n


def test_choices_never_share_their_own_full_blocks() -> None:
    """Prompt and output of 2 blocks each: 2 shared, 2 of its own for each of 3 choices."""
    counts = steps(ParallelSampling(3), Lengths(32, 33))
    assert max(count.used for count in counts) == 2 + 3 * 2
    assert max(count.logical for count in counts) == 3 * 4


@pytest.mark.parametrize("width", [2, 4, 6])
def test_beams_share_the_prompt_and_more(width: int) -> None:
    """A prompt of 3 full blocks. In the last step the beams have come to share some of their output, too, but never
    more than all but the block that each writes to."""
    counts = steps(Beams(width), Lengths(48, 100))
    last = counts[-1]
    assert last.logical == width * 10
    assert 9 + width <= last.used < 3 + width * 7
    assert len(counts) == 100


def test_what_beams_share_depends_on_nothing_but_the_seed() -> None:
    lengths = [Lengths(20, 30)] * 3
    assert steps(Beams(4), *lengths) == steps(Beams(4), *lengths)


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    """80 tokens are 5 blocks; 20 more of a prompt of its own are 2."""
    counts = steps(SharedPrefix(80), *[Lengths(20, 8)] * 3)
    assert BlockCount(logical=3 * 7, used=5 + 3 * 2, waiting=0) in counts
    assert max(count.used for count in counts) == 5 + 3 * 2


def test_figures_are_means_over_the_steps_in_which_requests_wait() -> None:
    """Memory for two sequences of a block; the third runs when both have ended."""
    memory = Memory(num_blocks=2)
    figures = measure_sharing([Lengths(8, 2)] * 3, ParallelSampling(1), memory, seed=0)
    assert (figures.saved_share, figures.logical_blocks, figures.used_blocks) == (0, 2, 2)
    assert (figures.num_steps, figures.num_steps_waiting) == (4, 2)


def test_no_figure_where_no_request_waits() -> None:
    figures = measure_sharing([Lengths(8, 2)], ParallelSampling(1), MEMORY, seed=0)
    assert (figures.saved_share, figures.num_steps_waiting) == (None, 0)


def test_saved_share() -> None:
    assert BlockCount(logical=8, used=6, waiting=0).saved_share == 0.25
