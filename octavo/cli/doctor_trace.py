"""A trace for the doctor: which reader it needs, and how far it has been read."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from octavo.cli.simulate import find_source
from octavo.doctor.finding import Report
from octavo.doctor.trace import TraceExamination
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.source import Pace, Source

REQUESTS_A_LOOK = 256
"""The bar is looked at so often."""


def examine_trace(
    trace: str, name: str | None, *, lenient: bool, limit: int | None, num_blocks: int | None, block_size: int | None
) -> Report:
    """What is wrong with the requests of a trace that ``octavo simulate`` reads.

    Raises:
        ConfigurationError: it is none.
    """
    source = find_source(trace, name, lenient=lenient)
    examination = TraceExamination(block_size, num_blocks)
    with _progress(source, limit) as requests:
        examination.read(requests, is_octavo=source.format == "octavo")
    left_out = [f"Left out: {count} lines of the trace: {what}." for what, count in source.skipped.items()]
    return examination.report(f"{trace} ({source.format})", (*source.notes, *left_out))


@contextmanager
def _progress(source: Source, limit: int | None) -> Iterator[Iterator[TracedRequest]]:
    layout = "{desc} {percentage:3.0f}% |{bar}| {elapsed} gone, {remaining} left"
    with tqdm(total=1.0, desc="reading", bar_format=layout, disable=not sys.stderr.isatty(), leave=False) as bar:

        def read() -> Iterator[TracedRequest]:
            for number, request in enumerate(source.requests(Pace(limit=limit))):
                if number % REQUESTS_A_LOOK == 0:
                    bar.update(max(0.0, (number / limit if limit else source.share_read) - bar.n))
                yield request

        yield read()
