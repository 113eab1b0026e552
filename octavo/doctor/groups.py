"""Prompts that have much in common, wherever it stands in them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from heapq import nsmallest
from zlib import crc32

from octavo.doctor.spelling import UNIT_BYTES, Spelled

SKETCH = 64
"""Of a prompt, the runs with the smallest checksums: of what two have in common, both have the same ("On the
resemblance and containment of documents", Broder, SEQUENCES 1997)."""

MIN_COMMON = 4
"""Of a sketch: fewer may be chance."""

MAX_LEADERS = 16
"""Of groups in which one run is."""


def sketch(prompt: Spelled, run: int) -> list[int]:
    data, width = prompt.data, UNIT_BYTES * run
    return nsmallest(SKETCH, {crc32(data[at : at + width]) for at in range(0, len(data) - width + 1, UNIT_BYTES)})


def grouped(prompts: Sequence[Spelled], run: int) -> list[list[int]]:
    """Numbers of prompts; each is in the group whose first one it has most in common with."""
    leaders: defaultdict[int, list[int]] = defaultdict(list)
    groups: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        marks = sketch(prompt, run)
        votes = Counter(leader for mark in marks for leader in leaders.get(mark, ()))
        best, common = max(votes.items(), key=lambda item: item[1], default=(number, 0))
        if common >= MIN_COMMON:
            groups[best].append(number)
            continue
        groups[number] = [number]
        for mark in marks:
            if len(leaders[mark]) < MAX_LEADERS:
                leaders[mark].append(number)
    return list(groups.values())
