"""What ``octavo top`` and ``octavo doctor`` make of servers that answer with anything at all."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result

from octavo.cli import top_reader
from octavo.cli.main import octavo
from octavo.cli.top_reader import parse_figures

PAGE = """\
octavo:kv_blocks_total{model_name="m"} 100.0
octavo:kv_block_tokens{model_name="m"} 16.0
octavo:filled_slot_ratio{model_name="m"} NaN
"""

Answers = dict[str, tuple[int, bytes]]
"""By path, status and body."""

Serve = Callable[[Answers], str]


class _Handler(BaseHTTPRequestHandler):
    answers: ClassVar[Answers]

    def do_GET(self) -> None:
        status, body = self.answers.get(self.path.partition("?")[0], (404, b"{}"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves these answers; the address."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: Answers) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"answers": answers}))
        servers.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def doctor(url: str) -> Result:
    return CliRunner().invoke(octavo, ["doctor", url, "--interval", "0.1"])


def page(text: str) -> Answers:
    return {"/metrics": (200, text.encode()), "/debug/pool": (200, b'{"look": 1, "max_num_seqs": 4}')}


def test_a_terminal_acts_on_nothing_that_a_server_says(serve: Serve) -> None:
    refused = doctor(serve({"/metrics": (401, b'{"error": {"message": "no \\u001b[31mkey\\n\\u202e"}}')}))
    assert refused.exit_code == 1
    assert refused.stderr.endswith("/metrics answers 401: no \\x1b[31mkey\\n\\u202e\n")
    told = doctor(serve(page(PAGE.replace('"m"', '"m\x1b[31m"'))))
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("looked at: Model m\\x1b[31m: 100 blocks")


@pytest.mark.parametrize("figure", ["-1", "+Inf", "-Inf", "1e300"])
def test_figures_that_no_server_counts(figure: str, serve: Serve) -> None:
    refused = doctor(serve(page(PAGE.replace("100.0", figure))))
    assert refused.exit_code == 1
    assert "does not answer as a server of Octavo does" in refused.stderr


def test_a_figure_that_is_no_number_says_nothing(serve: Serve) -> None:
    told = doctor(serve(page(PAGE.replace("16.0", "NaN"))))
    assert told.exit_code == 0, told.output
    assert "100 blocks of 0 tokens" in told.stdout
    assert parse_figures(PAGE)[1]["octavo:kv_block_tokens"] == 16


@pytest.mark.parametrize(
    "body", [b"[]", b'{"look": 1}', b'{"look": 1, "max_num_seqs": "x"}', b'{"max_num_seqs": null}', b"\xff"]
)
def test_a_pool_that_is_none(body: bytes, serve: Serve) -> None:
    refused = doctor(serve(page(PAGE) | {"/debug/pool": (200, body)}))
    assert refused.exit_code == 1
    assert "does not answer as a server of Octavo does" in refused.stderr


def test_no_engine_that_tells_of_its_pool(serve: Serve) -> None:
    """While one is started again, the series say what has happened."""
    told = doctor(serve(page(PAGE) | {"/debug/pool": (503, b"{}")}))
    assert told.exit_code == 0, told.output
    assert "while an engine runs" in told.stdout


def test_an_answer_without_an_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_reader, "MAX_BODY_BYTES", 1 << 20)
    refused = doctor(serve(page("# more\n" * (1 << 18))))
    assert refused.exit_code == 1
    assert "its answer is longer than 1 MiB" in refused.stderr


@pytest.mark.parametrize("interval", ["nan", "inf", "1e300", "-1"])
def test_intervals_that_nobody_can_wait_for(interval: str) -> None:
    for command in ("doctor", "top"):
        assert CliRunner().invoke(octavo, [command, "http://127.0.0.1:1", "--interval", interval]).exit_code == 2


def test_a_key_of_any_bytes(serve: Serve) -> None:
    told = CliRunner().invoke(octavo, ["doctor", serve(page(PAGE)), "--interval", "0.1", "--api-key", "\udcff"])
    assert told.exit_code == 0, told.output
