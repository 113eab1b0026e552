"""How far the doctor has read a file, and what it left out."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")

ITEMS_A_LOOK = 256
"""The bar is looked at so often."""


def watched(items: Iterable[T], share: Callable[[int], float]) -> Iterator[T]:
    """The same, with a bar at a terminal. ``share``: what has been read when so many have."""
    layout = "{desc} {percentage:3.0f}% |{bar}| {elapsed} gone, {remaining} left"
    with tqdm(total=1.0, desc="reading", bar_format=layout, disable=not sys.stderr.isatty(), leave=False) as bar:
        for count, item in enumerate(items):
            if count % ITEMS_A_LOOK == 0:
                bar.update(max(0.0, share(count) - bar.n))
            yield item


def left_out(skipped: Mapping[str, int]) -> list[str]:
    """``skipped``: lines, by what was wrong with them."""
    return [f"Left out: {count} lines of the trace: {what}." for what, count in skipped.items()]
