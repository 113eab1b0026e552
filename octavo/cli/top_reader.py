"""A server's figures and its latest requests, read over HTTP with the standard library."""

import json
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from octavo.core.errors import ConfigurationError, OctavoError
from octavo.doctor.words import one_line

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0

MAX_INTERVAL = 86_400.0
"""Seconds between two looks."""

PIECE_BYTES, MAX_BODY_BYTES = 1 << 16, 64 << 20

MAX_MESSAGE = 200
"""Characters of an error's body that are told."""

MAX_FIGURE = 1e18
"""No server of Octavo counts further, nor below 0."""


@dataclass(frozen=True, slots=True)
class Reading:
    """``time``: of a clock that only grows. ``figures``: samples by name, those of all labels together, and by name
    and the value of the label besides the model's. ``requests``: as GET /debug/requests tells them, newest first;
    None: the key does not allow it, ``refusal`` says why."""

    time: float
    model: str
    figures: dict[str | tuple[str, str], float]
    requests: list[dict[str, Any]] | None
    refusal: str = ""

    def value(self, name: str, label: str | None = None) -> float:
        """0 where there is no such sample."""
        return self.figures.get(name if label is None else (name, label), 0.0)


class PoolReader(Protocol):
    """What the screen of ``octavo top`` is read from; see ServerReader."""

    url: str

    def read(self) -> Reading: ...

    def read_pool(self) -> dict[str, Any] | None: ...

    def read_block(self, block: int) -> dict[str, Any]: ...


class ServerReader:
    """``limit``: how many requests to read.

    Raises:
        ConfigurationError: a URL that is none.
    """

    def __init__(self, url: str, api_key: str | None, limit: int) -> None:
        self.url = url
        self._parts = _split(url)
        self._limit = limit
        self._num_looks = 0
        self._headers = (
            {} if api_key is None else {"Authorization": f"Bearer {api_key}".encode(errors="surrogateescape")}
        )

    def read(self) -> Reading:
        """
        Raises:
            OctavoError: the server cannot be reached, or does not let this key see its figures.
        """
        status, page = self._get("/metrics")
        if status != HTTPStatus.OK:
            raise OctavoError(f"{self.url}/metrics answers {status}: {_message(page)}")
        model, figures = self._understood(lambda: parse_figures(page.decode()))
        status, body = self._get(f"/debug/requests?limit={self._limit}")
        if status != HTTPStatus.OK:
            return Reading(time.monotonic(), model, figures, None, _message(body))
        requests: list[dict[str, Any]] = self._understood(lambda: json.loads(body)["data"])
        return Reading(time.monotonic(), model, figures, requests)

    def read_pool(self) -> dict[str, Any] | None:
        """As GET /debug/pool tells it; None where the key does not allow it.

        Raises:
            OctavoError: the server cannot be reached.
        """
        status, body = self._get(f"/debug/pool?after={self._num_looks}")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return None
        pool: dict[str, Any] = self._answer("/debug/pool", status, body)
        self._num_looks = self._understood(lambda: int(pool["look"]))
        return pool

    def read_max_num_seqs(self) -> int | None:
        """None where the key does not allow it, or no engine runs that could tell it.

        Raises:
            OctavoError: the server cannot be reached, or is not Octavo's.
        """
        status, body = self._get("/debug/pool")
        if status != HTTPStatus.OK:
            return None
        return self._understood(lambda: int(json.loads(body)["max_num_seqs"]))

    def read_block(self, block: int) -> dict[str, Any]:
        """As GET /debug/pool/blocks tells it.

        Raises:
            OctavoError: the server cannot be reached, or does not tell it.
        """
        path = f"/debug/pool/blocks/{block}"
        found: dict[str, Any] = self._answer(path, *self._get(path))
        return found

    def _answer(self, path: str, status: int, body: bytes) -> Any:
        if status != HTTPStatus.OK:
            raise OctavoError(f"{self.url}{path} answers {status}: {_message(body)}")
        return self._understood(lambda: json.loads(body))

    def _understood(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (LookupError, ValueError, TypeError) as error:
            raise OctavoError(f"{self.url} does not answer as a server of Octavo does") from error

    def _get(self, path: str) -> tuple[int, bytes]:
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        try:
            with closing(kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_SECONDS)) as connection:
                connection.request("GET", self._parts.path.rstrip("/") + path, headers=self._headers)
                with connection.getresponse() as response:
                    return response.status, _body(response)
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise OctavoError(f"cannot reach {self.url}: {reason}") from error


def _split(url: str) -> SplitResult:
    """
    Raises:
        ConfigurationError: it is no address of a server.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigurationError(f"{url!r} is no address of a server; give one such as http://127.0.0.1:8000")
    return parts


def parse_figures(page: str) -> tuple[str, dict[str | tuple[str, str], float]]:
    """The served model's name and the samples of a page of metrics.

    Raises:
        LookupError, ValueError: it is not that of a server of Octavo.
    """
    model, figures = "", dict[str | tuple[str, str], float]()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not (math.isnan(sample.value) or 0 <= sample.value <= MAX_FIGURE):
                raise ValueError("it counts what no server does")
            labels = {name: one_line(label) for name, label in sample.labels.items()}
            model = labels.pop("model_name", model)
            figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
            for label in labels.values():
                figures[sample.name, label] = sample.value
    if "octavo:kv_blocks_total" not in figures:
        raise ValueError("it tells nothing of a pool")
    return model, figures


def _body(response: HTTPResponse) -> bytes:
    """
    Raises:
        OSError: there is no end to it.
    """
    give_up, body = time.monotonic() + TIMEOUT_SECONDS, bytearray()
    while piece := response.read1(PIECE_BYTES):
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise OSError(f"its answer is longer than {MAX_BODY_BYTES >> 20} MiB")
        if time.monotonic() > give_up:
            raise TimeoutError("timed out")
    return bytes(body)


def _message(body: bytes) -> str:
    """Of an error's body, so that a terminal acts on nothing in it."""
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")
    return one_line(message[:MAX_MESSAGE])
