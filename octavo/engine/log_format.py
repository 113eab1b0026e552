"""How lines of the log are written: as text, or as one JSON object a line, in every process of a server alike."""

import json
import logging
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, get_args

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)

TEXT_FORMAT = "%(levelname)s %(asctime)s [%(processName)s] %(message)s"

served_request_id: ContextVar[str] = ContextVar("served_request_id")
"""The X-Request-Id of the request that is being served where a line is written, for lines in JSON."""


class JsonFormatter(logging.Formatter):
    """``time`` (UTC), ``level``, ``process``, ``logger``, ``message``, always; ``request_id`` where a request is
    being served; ``stack`` of an exception; and what the line was given as ``extra=named(...)``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": record.processName,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = served_request_id.get(None)
        if request_id is not None:
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # in ASCII, so that half a surrogate pair harms nobody


def named(**fields: Any) -> Mapping[str, Any]:
    """For ``extra`` of a line in the log: these are fields of their own where it is written in JSON."""
    return {"fields": fields}


def set_up_logging(level: int, log_format: LogFormat) -> None:
    """The process's log goes to standard error, from ``level`` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    if log_format == "json":
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _log_uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    """What Python would print as it is."""
    if not issubclass(kind, KeyboardInterrupt | SystemExit):
        found = error or kind()
        logging.getLogger(__name__).critical("Uncaught %s.", kind.__name__, exc_info=(kind, found, traceback))


def log_format_in_use() -> LogFormat:
    """Of this process, for those that it starts."""
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
    return "json" if is_json else "text"
