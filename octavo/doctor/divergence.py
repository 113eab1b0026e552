"""Prompts of one group that would share much, were it not for something early that differs."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from octavo.doctor.alignment import Aligner, Run, common_prefix
from octavo.doctor.groups import MIN_MEMBERS, grouped
from octavo.doctor.kinds import Difference, kind_of
from octavo.doctor.spelling import Spelled, Spelling

MAX_SHOWN = 64
"""Prompts of a group whose difference is looked at."""

CONTEXT = 64
"""Characters around it that are looked at (and not shown)."""


class Divergence(NamedTuple):
    """``num_prompts`` of the sample, of ``num_groups``, that have ``num_common`` units in common with others of their
    group, in order, part ways after ``start`` of them. ``line``, ``column``: the same place in the text, from 1.
    ``lost``: units that are the same in another one and come too late to be shared, of all of them; ``num_places``:
    where they differ before one of those. ``fields``: what differs, ``kind``: what it is; ``before``: the text before
    it."""

    num_prompts: int
    num_common: float
    start: int
    line: int
    column: int
    lost: int
    num_places: int
    kind: str
    fields: Sequence[str]
    before: str
    num_groups: int = 1


class _Member(NamedTuple):
    prompt: Spelled
    runs: list[Run]
    lost: int


def divergences(prompts: Sequence[Spelled], spelling: Spelling) -> list[Divergence]:
    """Those that lose most first. Groups in which the same kind of thing differs at the same place are one."""
    shared = _longest_shared(prompts)
    found = [_examine(numbers, prompts, shared, spelling) for numbers in grouped(prompts, spelling.run)]
    alike = defaultdict[tuple[str, int, int], list[Divergence]](list)
    for each in found:
        if each is not None:
            alike[each.kind, each.start, each.line].append(each)
    return sorted(map(_merged, alike.values()), key=lambda each: -each.lost)


def _merged(alike: list[Divergence]) -> Divergence:
    """The largest, with the numbers of all."""
    largest = max(alike, key=lambda each: each.lost)
    return largest._replace(
        num_prompts=sum(each.num_prompts for each in alike),
        lost=sum(each.lost for each in alike),
        num_groups=len(alike),
    )


def _longest_shared(prompts: Sequence[Spelled]) -> list[int]:
    """Of each prompt the units with which another one begins too: a neighbour, if they are sorted."""
    order = sorted(range(len(prompts)), key=lambda number: prompts[number].data)
    shared = [0] * len(prompts)
    for one, other in pairwise(order):
        length = common_prefix(prompts[one].data, prompts[other].data)
        shared[one], shared[other] = max(shared[one], length), max(shared[other], length)
    return shared


def _examine(
    numbers: list[int], prompts: Sequence[Spelled], shared: Sequence[int], spelling: Spelling
) -> Divergence | None:
    """``numbers``: of the prompts of a group; each is held against its first one, and that against the second."""
    aligner = Aligner(prompts[numbers[0]], spelling.run)
    members = [_member(prompts[number], aligner, shared[number]) for number in numbers[1:]]
    first = _member(prompts[numbers[0]], Aligner(prompts[numbers[1]], spelling.run), shared[numbers[0]])
    affected = [member for member in (first, *members) if member.lost >= spelling.run]
    if len(affected) < MIN_MEMBERS:
        return None
    return _divergence(affected, spelling)


def _member(prompt: Spelled, aligner: Aligner, shared: int) -> _Member:
    """``shared``: what it has in common with some other prompt from the beginning."""
    runs = aligner.runs(prompt)
    return _Member(prompt, runs, sum(max(0, run.end - max(run.start, shared)) for run in runs[1:]))


def _divergence(affected: list[_Member], spelling: Spelling) -> Divergence:
    prefixes = sorted(member.runs[0].length for member in affected)
    start = prefixes[len(prefixes) // 10]  # a few that have less in common with all others do not count
    shown = [member for member in affected if member.runs[0].length >= start][:MAX_SHOWN]
    kind, fields = kind_of([_difference(member, start, spelling) for member in shown])
    before = spelling.text(shown[0].prompt.units(0, start))
    return Divergence(
        num_prompts=len(affected),
        num_common=median(sum(run.length for run in member.runs) for member in affected),
        start=start,
        line=before.count("\n") + 1,
        column=len(before) - before.rfind("\n"),
        lost=sum(member.lost for member in affected),
        num_places=round(median(len(member.runs) - 1 for member in affected)),
        kind=kind,
        fields=fields,
        before=before[-CONTEXT:],
    )


def _difference(member: _Member, start: int, spelling: Spelling) -> Difference:
    """From the place where the group parts ways to where this one is again as its first."""
    ends = [run.start for run in member.runs[1:]]
    end = ends[bisect_left(ends, start)]
    text = spelling.text
    prompt = member.prompt
    return Difference(
        text(prompt.units(start - CONTEXT, start)),
        text(prompt.units(start, min(end, start + 4 * CONTEXT))),
        text(prompt.units(end, end + CONTEXT)) if end <= start + 4 * CONTEXT else "",
    )
