"""Prompts that have much in common, wherever it stands in them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from zlib import crc32

from octavo.doctor.spelling import UNIT_BYTES, Spelled

SKETCH = 64
"""Of a prompt, the runs with the smallest checksums: of what two have in common, both have the same ("On the
resemblance and containment of documents", Broder, SEQUENCES 1997)."""

MIN_COMMON = 4
"""Of a sketch: fewer may be chance."""

MOST_OF_IT = 0.5
"""Of a sketch: templates that have phrases in common are told apart."""

MIN_MEMBERS = 3

MAX_LEADERS = 16
"""Of groups in which one run is."""


def sketch(prompt: Spelled, run: int) -> list[int]:
    data, width = prompt.data, UNIT_BYTES * run
    return nsmallest(SKETCH, {crc32(data[at : at + width]) for at in range(0, len(data) - width + 1, UNIT_BYTES)})


def grouped(prompts: Sequence[Spelled], run: int) -> list[list[int]]:
    """Numbers of prompts, in groups of ``MIN_MEMBERS`` and more: first those that have most of their text in common,
    then, of what is left, those that have something in common."""
    sketches = [sketch(prompt, run) for prompt in prompts]
    close = _grouped(range(len(prompts)), sketches, MOST_OF_IT)
    left = sorted(number for group in close if len(group) < MIN_MEMBERS for number in group)
    groups = [*close, *_grouped(left, sketches, 0.0)]
    return [group for group in groups if len(group) >= MIN_MEMBERS]


def _grouped(numbers: Iterable[int], sketches: Sequence[Sequence[int]], part: float) -> list[list[int]]:
    """Each is in the group whose first one it has most in common with, ``part`` of its sketch at least."""
    leaders: defaultdict[int, list[int]] = defaultdict(list)
    groups: dict[int, list[int]] = {}
    for number in numbers:
        marks = sketches[number]
        votes = Counter(leader for mark in marks for leader in leaders.get(mark, ()))
        best, common = max(votes.items(), key=lambda item: item[1], default=(number, 0))
        if common >= max(MIN_COMMON, part * len(marks)):
            groups[best].append(number)
            continue
        groups[number] = [number]
        for mark in marks:
            if len(leaders[mark]) < MAX_LEADERS:
                leaders[mark].append(number)
    return list(groups.values())
