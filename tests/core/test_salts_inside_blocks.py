"""Salts, and open tokens before them, where they end inside a block."""

import pytest

from tests.core.sharing import (
    DEPTHS,
    GROUPS,
    ask,
    check,
    small,
)


@GROUPS
def test_salts_isolate_inside_blocks(num_groups: int) -> None:
    harness = small(num_groups=num_groups)
    prompt = list(range(22))
    found = [ask(harness, [*prompt, 900 + i], salt=salt) for i, salt in enumerate(["a", "a", "b", None, None, "b"])]
    assert found == [0, 22, 0, 0, 22, 22]


@pytest.mark.parametrize("salts", [("a", "b"), ("a", None), (None, "a")])
def test_nobody_waits_for_a_foreign_salt(salts: tuple[str | None, str | None]) -> None:
    harness = small(max_num_batched_tokens=8)
    harness.add([*range(30), 900], 2, salt=salts[0])
    other = harness.add([*range(30), 800], 2, salt=salts[1])
    harness.step()
    assert other not in harness.scheduler.prefix_waits
    harness.run()
    check(harness)
    assert other.num_cached_tokens == 0


@GROUPS
@pytest.mark.parametrize("num_open", [0, 1, 3, 4, 5, 8, 10, 11, 12, 20])
def test_open_tokens_are_shared_by_all_and_the_rest_within_the_salt(num_open: int, num_groups: int) -> None:
    """In both directions, and at any count, of which few are full blocks of 4."""
    prompt = list(range(22))
    for first, second in (("a", "b"), ("a", None), (None, "a")):
        harness = small(num_groups=num_groups)
        kwargs = [{"salt": salt, "num_open": num_open if salt else 0} for salt in (first, second)]
        assert ask(harness, [*prompt, 900], **kwargs[0]) == 0
        assert ask(harness, [*prompt, 901], **kwargs[1]) == num_open
        assert [ask(harness, [*prompt, 902], **kwarg) for kwarg in kwargs] == [22, 22]


@GROUPS
@pytest.mark.parametrize("counts", [(4, 6), (6, 4), (4, 6, 5), (5, 7)])
def test_one_salt_opens_more_or_less_of_a_block_that_is_there(counts: tuple[int, ...], num_groups: int) -> None:
    """What has been opened stays so, and the sanitizer knows it, whoever of the salt has computed the block."""
    harness, prompt = small(num_groups=num_groups), list(range(22))
    for num_open in counts:  # prompt logprobs: computed again, so published again
        assert ask(harness, [*prompt, 900], salt="a", num_open=num_open, prompt_logprobs=0) == 0
    assert ask(harness, [*prompt, 901]) == max(counts)
    assert ask(harness, [*prompt, 902], salt="a", num_open=counts[0]) == 22


@DEPTHS
@pytest.mark.parametrize("num_open", [3, 4, 10, 16])
def test_open_tokens_at_once(depth: int, num_open: int) -> None:
    harness = small(max_num_batched_tokens=8, depth=depth)
    requests = [
        harness.add([*range(22), 900 + i], 3, salt=salt, num_open=num_open) for i, salt in enumerate(["a", "b", "a"])
    ]
    harness.run()
    check(harness)
    first, foreign, own = [request.num_cached_tokens for request in requests]
    assert first == 0
    assert foreign is not None
    assert foreign <= num_open
    assert own == 22


def test_open_tokens_end_before_a_foreign_text_begins() -> None:
    """The private ends are the same token by token: they are not found, however far the open part goes."""
    harness = small()
    private = [*range(10), 70, 71, 72, 73, 74, 75]
    assert ask(harness, private, salt="a", num_open=10) == 0
    assert ask(harness, private, salt="b", num_open=10) == 10
    assert ask(harness, private, salt="c", num_open=14) == 10
    assert ask(harness, private) == 14, "what c has opened, and no more"
