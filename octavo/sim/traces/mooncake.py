"""Traces as published with Mooncake ("Mooncake: Trading More Storage for Less Computation", Qin et al., FAST 2025).

JSON lines with ``timestamp`` in milliseconds, ``input_length``, ``output_length``, and ``hash_ids``, one a block of 512
tokens of the prompt, the last of them as a rule partly filled.
"""

from collections.abc import Iterator

from octavo.sim.traces.json_lines import parse_object, time, whole, wholes
from octavo.sim.traces.lines import Reader, TraceFile
from octavo.sim.traces.request import BadTraceLineError, TracedRequest, check_lengths

BLOCK_SIZE = 512


def read_mooncake(file: TraceFile, *, lenient: bool = False) -> tuple[Iterator[TracedRequest], Reader]:
    """Requests in order of arrival, and their reader, which counts what it leaves out. Many come at once: times were
    rounded.

    Raises:
        ConfigurationError: (while it is read) a line is no request.
    """
    reader = Reader(file, lenient=lenient)
    return reader.requests(_request, file.lines()), reader


def _request(text: str) -> TracedRequest:
    fields = parse_object(text)
    prompt, output = whole(fields, "input_length"), whole(fields, "output_length")
    check_lengths(prompt, output, names=("input_length", "output_length"))
    names = wholes(fields, "hash_ids")
    if len(names) != -(-prompt // BLOCK_SIZE):
        raise BadTraceLineError(
            f"the number of hash_ids is {len(names)}, but {prompt} tokens are {-(-prompt // BLOCK_SIZE)} blocks of "
            f"{BLOCK_SIZE}"
        )
    return TracedRequest(time(fields, "timestamp") / 1000, prompt, output, blocks=names, block_size=BLOCK_SIZE)
