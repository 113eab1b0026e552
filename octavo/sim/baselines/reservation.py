"""How much contiguous memory a sequence is given when it is admitted, for all that it may come to hold.

The ways to reserve are those that "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(Kwon et al., SOSP 2023), section 6.1, compares with: Orca (Max), Orca (Pow2) and Orca (Oracle).
"""

from collections.abc import Callable
from typing import NamedTuple

from octavo.core.request import Request
from octavo.sim.baselines.allocators import Allocator, Buddy, FirstFit


class Reservation(NamedTuple):
    """``slots_for``: how many slots are reserved for a request; ``allocator``: made from the memory's slots."""

    name: str
    slots_for: Callable[[Request], int]
    allocator: Callable[[int], Allocator]


def reserve_maximum(max_model_len: int) -> Reservation:
    """The longest sequence there can be, for each."""
    return Reservation("reserve to the maximum", lambda _: max_model_len, FirstFit)


def reserve_power_of_two(max_model_len: int) -> Reservation:
    """The prompt, and for the output the power of two that turns out to suffice: at most twice too much.

    Pieces come from a buddy system, as the paper has it for Orca, and so are powers of two themselves.
    """
    return Reservation(
        "reserve to a power of two",
        lambda request: min(request.num_prompt_tokens + (1 << (max_output(request) - 1).bit_length()), max_model_len),
        Buddy,
    )


def reserve_exactly(allocator: Callable[[int], Allocator]) -> Reservation:
    """The true length of each, which no server knows."""
    how = "buddy system" if allocator is Buddy else "first fit"
    return Reservation(f"all-knowing, {how}", lambda request: request.max_total_tokens, allocator)


def max_output(request: Request) -> int:
    """Tokens of its answer; here, answers are as long as they may be."""
    return request.max_total_tokens - request.num_prompt_tokens
