"""A trace for the doctor: which reader it needs."""

from octavo.cli.doctor_progress import left_out, watched
from octavo.cli.simulate import find_source
from octavo.doctor.finding import Report
from octavo.doctor.trace import TraceExamination
from octavo.sim.traces.source import Pace


def examine_trace(
    trace: str, name: str | None, *, lenient: bool, limit: int | None, num_blocks: int | None, block_size: int | None
) -> Report:
    """What is wrong with the requests of a trace that ``octavo simulate`` reads.

    Raises:
        ConfigurationError: it is none.
    """
    source = find_source(trace, name, lenient=lenient)
    examination = TraceExamination(block_size, num_blocks)
    requests = source.requests(Pace(limit=limit))
    examination.read(
        watched(requests, lambda count: count / limit if limit else source.share_read),
        is_octavo=source.format == "octavo",
    )
    return examination.report(f"{trace} ({source.format})", (*source.notes, *left_out(source.skipped)))
