"""Beam searches through the scheduler: the results of a search without memory, whatever happens to their blocks."""

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.request import Request, Status
from octavo.core.step import StepPlan
from tests.support import fake_runner
from tests.support.fake_runner import FREQUENT_EOS, expected_beams, expected_output
from tests.support.naive_beam_search import Search
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
CACHING = pytest.mark.parametrize("prefix_caching", [True, False])


def check_beams(harness: Harness, members: list[Request], prompt: list[int], search: Search) -> None:
    """The members have ended as the results, best first."""
    found = [member.token_ids[len(prompt) :] for member in members]
    assert found == expected_beams(prompt, search)
    for member, output in zip(members, found, strict=True):
        is_stopped = output[-1] in search.eos
        assert member.status is (Status.STOPPED if is_stopped else Status.LENGTH)
        assert harness.hypotheses[member].token_ids == tuple(output)
        assert harness.hypotheses[member].is_stopped == is_stopped


@DEPTHS
@CACHING
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length", [1, 7, 8, 21])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_search_alone(width: int, length: int, early_stopping: bool | str, prefix_caching: bool, depth: int) -> None:
    harness = Harness(num_blocks=200, max_num_batched_tokens=12, prefix_caching=prefix_caching, depth=depth)
    prompt = list(range(length))
    search = Search(width, 14, FREQUENT_EOS, 0.6, early_stopping)
    members = harness.add_beams(prompt, search)
    harness.run()
    check_beams(harness, members, prompt, search)
    counters = harness.scheduler.counters
    assert counters.prompt_tokens == length
    assert counters.prefix_queries == (length if prefix_caching else 0)
    assert counters.generation_tokens == sum(len(output) for output in expected_beams(prompt, search))
    assert counters.num_preemptions == 0


def test_eos_ends_some_sequences_and_length_others() -> None:
    """The power check of the searches above."""
    search = Search(4, 14, FREQUENT_EOS, 0.6, "never")
    lengths = [len(output) for n in (1, 7, 8, 21) for output in expected_beams(list(range(n)), search)]
    assert len(set(lengths)) >= 4
    assert 14 in lengths


@DEPTHS
@CACHING
@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("spare_blocks", [0, 1, 2, 5, 13])
def test_beams_beside_others_in_pools_of_every_size(
    spare_blocks: int, num_groups: int, prefix_caching: bool, depth: int
) -> None:
    """From the smallest pool that is allowed (every beam has blocks of its own) upwards."""
    prompt, search = list(range(10)), Search(3, 10)
    harness = Harness(
        num_blocks=(3 * 5 + spare_blocks) * num_groups,
        num_groups=num_groups,
        prefix_caching=prefix_caching,
        depth=depth,
    )
    before = harness.add(list(range(300, 307)), 22)
    harness.step()
    members = harness.add_beams(prompt, search)
    harness.step()
    after = harness.add(list(range(8)), 22)
    choices = harness.add_choices(list(range(6)), 3, 9)
    harness.run()
    check_beams(harness, members, prompt, search)
    assert before.token_ids[7:] == expected_output(before.token_ids[:7], 22)
    assert after.token_ids[8:] == expected_output(list(range(8)), 22)
    for index, choice in enumerate(choices):
        assert choice.token_ids[6:] == expected_output(list(range(6)), 9, choice=index)


@DEPTHS
@CACHING
@pytest.mark.parametrize("num_blocks", [20, 21, 23, 26, 30, 40])
@pytest.mark.parametrize("max_num_seqs", [4, 5, 8])
def test_searches_that_starve_each_other_do_not_hang(
    max_num_seqs: int, num_blocks: int, prefix_caching: bool, depth: int
) -> None:
    """Three searches, each of which fits the pool alone."""
    harness = Harness(num_blocks=num_blocks, max_num_seqs=max_num_seqs, prefix_caching=prefix_caching, depth=depth)
    search = Search(4, 11, length_penalty=1.0)
    prompts = [list(range(i * 100, i * 100 + 9)) for i in range(3)]
    searches = [harness.add_beams(prompt, search) for prompt in prompts]
    harness.run()
    for members, prompt in zip(searches, prompts, strict=True):
        check_beams(harness, members, prompt, search)


def test_starved_searches_do_preempt() -> None:
    """The power check of the test above."""
    num_preemptions = 0
    for max_num_seqs in (4, 5, 8):
        harness = Harness(num_blocks=20, max_num_seqs=max_num_seqs)
        for i in range(3):
            harness.add_beams(list(range(i * 100, i * 100 + 9)), Search(4, 11))
        harness.run()
        num_preemptions += harness.scheduler.counters.num_preemptions
    assert num_preemptions >= 3


def test_idle_members_wait_for_their_search_and_no_request() -> None:
    harness = Harness(num_blocks=40)
    members = harness.add_beams(list(range(18)), Search(4, 9))
    most_idle = 0
    while harness.step():
        families = harness.scheduler.population.families
        most_idle = max(most_idle, len(families))
        assert not any(map(families.is_parent, members))
    assert most_idle >= 3
    assert not harness.scheduler.population.families


@DEPTHS
@CACHING
@pytest.mark.parametrize("which", [0, 1, 3])
@pytest.mark.parametrize("when", [0, 1, 2, 3, 5, 8, 13, 16])
def test_an_aborted_beam_ends_its_search_and_no_other(when: int, which: int, prefix_caching: bool, depth: int) -> None:
    harness = Harness(num_blocks=40, max_num_batched_tokens=12, prefix_caching=prefix_caching, depth=depth)
    prompt, search = list(range(18)), Search(4, 9)
    aborted = harness.add_beams(prompt, search)
    kept = harness.add_beams(prompt, search)
    for _ in range(when):
        harness.step()
    harness.scheduler.abort(aborted[which])
    harness.check()
    assert all(member.is_finished for member in aborted)
    harness.run()
    check_beams(harness, kept, prompt, search)
    assert {member.status for member in aborted} == {Status.ABORTED}


@DEPTHS
@CACHING
@pytest.mark.parametrize("failing", range(10))
def test_a_fault_that_passes_costs_no_search_its_results(failing: int, prefix_caching: bool, depth: int) -> None:
    harness = Harness(num_blocks=40, max_num_batched_tokens=12, prefix_caching=prefix_caching, depth=depth)
    prompt, search = list(range(15)), Search(4, 9)
    members = harness.add_beams(prompt, search)
    beside = harness.add([700, 701, 702], 12)
    failed: list[StepPlan] = []

    def fails(plan: StepPlan) -> None:
        if plan.step_id >= failing and len(plan.row_ids) > 1 and not failed:
            failed.append(plan)
            raise RuntimeError("a fault that passes")

    harness.runner.fails = fails
    harness.run()
    assert failed
    check_beams(harness, members, prompt, search)
    assert beside.token_ids[3:] == expected_output([700, 701, 702], 12)


@DEPTHS
@pytest.mark.parametrize("as_fault", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 4])
def test_a_beam_that_fails_ends_its_search_and_no_other(num_tokens: int, as_fault: bool, depth: int) -> None:
    harness = Harness(num_blocks=60, depth=depth)
    prompt, search = list(range(15)), Search(3, 9)
    failing = harness.add_beams(prompt, search)
    kept = harness.add_beams(list(range(7)), search)

    def is_culprit(row_id: int) -> bool:
        return any(m.row_id == row_id and m.num_output_tokens == num_tokens for m in failing if not m.is_finished)

    def fails(plan: StepPlan) -> None:
        if any(map(is_culprit, plan.row_ids)):
            raise RuntimeError("this beam always fails here")

    if as_fault:
        harness.runner.faults = is_culprit
    else:
        harness.runner.fails = fails
    harness.run()
    assert {member.status for member in failing} == {Status.FAILED}
    check_beams(harness, kept, list(range(7)), search)


@DEPTHS
def test_beams_share_blocks_and_copy_only_what_they_write(depth: int) -> None:
    harness = Harness(num_blocks=200, max_num_batched_tokens=64, prefix_caching=False, depth=depth)
    prompt, search = list(range(41)), Search(4, 16)
    members = harness.add_beams(prompt, search)
    logical = physical = num_shared = 0
    while harness.step():
        tables = [member.tables.groups[0] for member in members if member.tables]
        logical += sum(map(len, tables))
        physical += len({block for table in tables for block in table})
        num_shared = max(num_shared, harness.kv.pool.num_shared)
        if len(tables) == 4:
            assert len({tuple(table[:10]) for table in tables}) == 1, "the prompt is shared by all beams"
    harness.run()
    check_beams(harness, members, prompt, search)
    assert num_shared >= 10
    assert physical < 0.55 * logical
    copies = sum(len(plan.copies) for plan in harness.runner.plans)
    assert copies == harness.kv.num_copies > 0
    assert copies <= 3 * 15, "of the beams that share a tail, the last to write owns it"
    assert sum(plan.num_tokens for plan in harness.runner.plans) == 41 + 4 * 15, "nothing is computed twice"


@DEPTHS
def test_beams_of_a_prompt_in_the_cache(depth: int) -> None:
    """B06 for a search: of every prompt at least one token is computed."""
    for length in (1, 3, 4, 5, 8, 9, 12, 13, 16):
        harness = Harness(num_blocks=64, depth=depth)
        prompt, search = list(range(length)), Search(3, 7)
        for turn in range(2):
            members = harness.add_beams(prompt, search)
            harness.run()
            check_beams(harness, members, prompt, search)
            assert members[0].num_cached_tokens == (0 if turn == 0 else length - 1)


@DEPTHS
def test_the_prefix_cache_is_reset_while_beams_share(depth: int) -> None:
    prompt, search = list(range(15)), Search(4, 12)
    for when in range(12):
        harness = Harness(num_blocks=40, depth=depth)
        members = harness.add_beams(prompt, search)
        for _ in range(when):
            harness.step()
        harness.scheduler.reset_prefix_cache()
        harness.check()
        harness.run()
        check_beams(harness, members, prompt, search)


def test_beams_keep_the_salt_of_their_search() -> None:
    harness = Harness(num_blocks=64)
    prompt = list(range(17))
    harness.add_beams(prompt, Search(3, 7), salt="a")
    harness.run()
    for salt in ("a", "b", None):
        again = harness.add(prompt, 1, salt=salt)
        harness.run()
        assert again.num_cached_tokens == (16 if salt == "a" else 0)


def test_searches_that_can_never_run_are_refused_with_the_numbers() -> None:
    harness = Harness(num_blocks=16, max_num_seqs=5)
    with pytest.raises(InvalidRequestError, match=r"beam_width 6.*5 sequences"):
        harness.add_beams([1, 2], Search(6, 2))
    with pytest.raises(InvalidRequestError, match=r"4 beams of 20 tokens need 20 blocks.*has 16"):
        harness.add_beams([1] * 10, Search(4, 10))
    with pytest.raises(InvalidRequestError, match=r"64 tokens.*65"):
        harness.add_beams([1] * 55, Search(1, 10))
    assert not harness.scheduler.has_work
    members = harness.add_beams([1] * 10, Search(4, 6))
    harness.run()
    check_beams(harness, members, [1] * 10, Search(4, 6))


def test_beams_that_need_the_last_blocks_go_on() -> None:
    """One beam was preempted, the other waits for it, and the free blocks are just enough: nothing is kept back for
    growth where nothing grows."""
    harness = Harness(num_blocks=128, max_num_batched_tokens=64)
    beams = harness.add_beams([1], Search(2, 255, frozenset(), 1.0, False))
    while not all(beam.num_tokens >= 254 for beam in beams):
        assert harness.plan()
        harness.land()
    harness.scheduler.population.preempt(beams[1])
    for _ in range(20):
        if not harness.scheduler.has_work:
            break
        assert harness.plan()
        harness.land()
    assert all(beam.is_finished for beam in beams)


def test_the_source_of_a_last_copy_does_not_outlive_its_parent_in_the_cache() -> None:
    """The first search ends with the step that copied a beam's tail; the third needs blocks, oldest first."""
    harness = Harness(num_blocks=21, block_size=2, max_num_seqs=5, max_num_batched_tokens=5, max_prefix_wait_steps=1)
    harness.add_beams([0, 0], Search(2, 3))
    for _ in range(4):
        harness.step()
    harness.add_beams([1, 2, 3, 4, 5, 0], Search(4, 2))
    harness.add_beams([1, 0], Search(4, 6))
    while harness.step():
        harness.check_leaves_go_first()
    harness.run()


@pytest.mark.parametrize("num_steps", range(2, 19))
@pytest.mark.parametrize("num_groups", [1, 2])
def test_beams_share_no_block_that_the_cache_has_already(num_groups: int, num_steps: int) -> None:
    """A search finds again what another has left in the cache. When a beam of it gives its blocks up, others hold
    what they share with it under the names of the cache, so that nothing outlives what it follows."""
    search, prompt = Search(3, 20), [1, 2, 3]
    harness = Harness(num_blocks=36 * num_groups, num_groups=num_groups, block_size=2)
    harness.add_beams(prompt, Search(3, 8))
    harness.run()
    members = harness.add_beams(prompt, search)
    for _ in range(num_steps):
        harness.plan()
        harness.land()
    beams = [member for member in members if member.status is Status.RUNNING]
    harness.scheduler.population.preempt(beams[0])
    for table in (table for beam in beams[1:] if beam.tables for table in beam.tables.groups):
        is_named = [harness.kv.pool.names[block_id] is not None for block_id in table]
        assert is_named == sorted(is_named, reverse=True), "a beam holds a named block, and not what it follows"
    harness.run()
    check_beams(harness, members, prompt, search)


def test_a_search_with_more_beams_than_tokens_ends_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tokenizer knows fewer ids than there are beams, some beams have no result; the loop goes on."""
    few = fake_runner.next_candidates
    monkeypatch.setattr(fake_runner, "next_candidates", lambda context, count, choice=0: few(context, 5, choice))
    harness = Harness(num_blocks=60, max_num_seqs=8)
    beams = harness.add_beams([1, 2, 3], Search(8, 1, frozenset(), 1.0, early_stopping=False))
    other = harness.add([4, 5], 6)
    harness.run()
    assert [beam.status for beam in beams] == [Status.LENGTH] * 5 + [Status.FAILED] * 3
    harness.check_answer(other)
