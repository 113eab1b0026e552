"""A batch: an input file, what of it is answered already, and the records of the rest."""

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from octavo.core.errors import ConfigurationError
from octavo.server.batches.call import Reply
from octavo.server.batches.lines import (
    ENVELOPE_BYTES,
    BadLineError,
    BatchRequest,
    Line,
    read_lines,
    read_request,
    record_digest,
    text_digest,
)
from octavo.server.batches.output import OutputFile


class Task(NamedTuple):
    """A line that is to be answered."""

    line: Line
    request: BatchRequest


class Unreadable(NamedTuple):
    """A line that cannot be answered, whose record is written."""

    line: Line


class Batch:
    """One run over ``input_path``, whose answers go to ``output_path``. ``num_lines``: all that hold something;
    ``num_before``: those of them that an earlier run has answered; ``num_unreadable``: those that cannot be, so far.
    ``has_changed``: the lines, once all have been read, are not those that were counted at the beginning.

    Of the lines nothing stays in memory but 16 bytes of each custom_id, and of each that an earlier run has answered.

    Raises:
        ConfigurationError: a file cannot be used, or the output is of another input; nothing has been changed then.
    """

    def __init__(
        self, input_path: Path, output_path: Path, model_name: str, max_body_bytes: int, *, overwrite: bool = False
    ) -> None:
        self._input_path = input_path
        self._model_name = model_name
        self._max_body_bytes = max_body_bytes
        self._check_input(output_path)
        # Where links lead in a circle, opening it says so.
        self._output = OutputFile(Path(os.path.realpath(output_path)), overwrite=overwrite)
        found = self._output.found
        self.num_before = len(found.record_ids)
        self.num_unreadable = 0
        self.has_changed = False
        self._custom_ids = set(found.custom_ids)
        try:
            self.num_lines, self._counted = self._count_lines()
            self._output.prepare()
        except BaseException:
            self._output.close()
            raise
        self._items: Iterator[Task | Unreadable] = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._output.close()

    def needs_model(self) -> bool:
        """Is there a line to be answered? Records of those before it that cannot be are written."""
        for item in self._items:
            if isinstance(item, Task):
                self._items = itertools.chain([item], self._items)
                return True
        return False

    def next(self) -> Task | Unreadable | None:
        """The next line that has no final record, in order."""
        return next(self._items, None)

    def _read(self) -> Iterator[Task | Unreadable]:
        whole = hashlib.blake2b()
        for line in self._lines():
            whole.update(line.record_id.encode())
            if record_digest(line.record_id) in self._output.found.record_ids:
                continue
            try:
                request = read_request(line, self._max_body_bytes)
                self._note(request.custom_id)
            except BadLineError as error:
                self._write_error(line, error)
                yield Unreadable(line)
                continue
            yield Task(line, request)
        self.has_changed = whole.digest() != self._counted

    def write(self, task: Task, reply: Reply) -> None:
        """The answer to a line.

        Raises:
            ConfigurationError: see OutputFile.append.
        """
        response = {
            "status_code": reply.status,
            "request_id": reply.request_id,
            "body": msgspec.Raw(reply.body or b"null"),
        }
        self._append(task.line, task.request.custom_id, response, None)

    def sync(self) -> None:
        """See OutputFile.sync."""
        self._output.sync()

    def _write_error(self, line: Line, error: BadLineError) -> None:
        self.num_unreadable += 1
        shown = {
            "code": "invalid_line",
            "message": f"Line {line.number}: {error.message}",
            "param": None,
            "line": line.number,
        }
        self._append(line, error.custom_id, None, shown)

    def _append(self, line: Line, custom_id: str | None, response: Any, error: Any) -> None:
        record = {"id": line.record_id, "custom_id": custom_id, "response": response, "error": error}
        self._output.append(msgspec.json.encode(record) + b"\n")

    def _note(self, custom_id: str) -> None:
        digest = text_digest(custom_id)
        if digest in self._custom_ids:
            raise BadLineError("An earlier line has this custom_id; each needs one of its own.", custom_id)
        self._custom_ids.add(digest)

    def _lines(self) -> Iterator[Line]:
        try:
            with self._input_path.open("rb") as file:
                yield from read_lines(file, self._model_name, self._max_body_bytes + ENVELOPE_BYTES)
        except OSError as error:
            raise ConfigurationError(f"cannot read the input {self._input_path}: {error.strerror}") from error

    def _check_input(self, output_path: Path) -> None:
        path = self._input_path
        if path.exists() and not path.is_file():
            raise ConfigurationError(f"the input {path} is no plain file, so that it cannot be read twice")
        if output_path.exists() and path.exists() and output_path.samefile(path):
            raise ConfigurationError("input and output are the same file")
        if not path.exists():
            raise ConfigurationError(f"there is no input {path}")

    def _count_lines(self) -> tuple[int, bytes]:
        """And what stands for all of them."""
        answered = self._output.found.record_ids
        whole = hashlib.blake2b()
        num_lines = num_answered = 0
        for line in self._lines():
            whole.update(line.record_id.encode())
            num_lines += 1
            num_answered += record_digest(line.record_id) in answered
        if num_answered < len(answered):
            raise ConfigurationError(
                f"the output {self._output.path} is of another input or model: {len(answered) - num_answered} of its "
                f"{len(answered)} answers are to no line of {self._input_path} as {self._model_name} would answer it; "
                "name another output, or have it overwritten with --overwrite"
            )
        return num_lines, whole.digest()
