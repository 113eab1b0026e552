"""``octavo run-batch`` over the fake engine: answers as over HTTP, kills, signals, dead engines, room."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.types import Receive, Scope, Send

from octavo.core.errors import EngineDeadError
from octavo.engine.messages import EngineStats
from octavo.server.batches.batch import Batch
from octavo.server.batches.progress import Progress
from octavo.server.batches.workers import MAX_OPEN_BYTES, LineWorkers
from tests.support.batches import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    answers,
    finish,
    line,
    read_records,
    start_fake_batch,
    wait_for_records,
    write_input,
)
from tests.support.fake_server import ServerProcess, engine_pid_of, engine_stopped
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "Hello"}]
CHANGING = re.compile(r'"(id|call_id|created|created_at|completed_at)":("[^"]*"|\d+)')


def unchanging(body: str) -> str:
    return CHANGING.sub(r'"\1":0', body)


BODIES: dict[str, tuple[str, str]] = {
    "text": (COMPLETIONS, '{"prompt": "x", "max_tokens": 5}'),
    "unicode": (COMPLETIONS, '{"prompt": "\\ud83d\\ude00 \\u00e9", "max_tokens": 30, "echo": true}'),
    "prompts": (COMPLETIONS, '{"prompt": ["a", "b"], "n": 2, "max_tokens": 4, "logprobs": 2}'),
    "ids": (COMPLETIONS, '{"prompt": [65, 66], "max_tokens": 3, "return_token_ids": true}'),
    "chat": (CHAT, json.dumps({"messages": MESSAGES, "max_tokens": 9, "logprobs": True, "top_logprobs": 2})),
    "response": (RESPONSES, '{"input": "Hello", "max_output_tokens": 20}'),
    "vector": (EMBEDDINGS, '{"input": ["a", "b"], "encoding_format": "base64"}'),
    "other model": (CHAT, json.dumps({"model": "gpt-4o", "messages": MESSAGES})),
    "no prompt": (COMPLETIONS, "{}"),
    "no object": (COMPLETIONS, "[1]"),
    "stream no flag": (COMPLETIONS, '{"prompt": "x", "stream": "yes"}'),
    "too long": (COMPLETIONS, '{"prompt": "x", "max_tokens": 9999}'),
    "deep": (COMPLETIONS, '{"prompt": ' + "[" * 99 + "]" * 99 + "}"),
    "fault": (COMPLETIONS, '{"prompt": "!fault"}'),
    "twice": (COMPLETIONS, '{"prompt": "x", "max_tokens": 2, "max_tokens": 3}'),
}


def test_an_answer_is_the_one_over_http_to_the_byte(server: ServerProcess, tmp_path: Path) -> None:
    lines = [
        f'{{"custom_id": {json.dumps(name)}, "method": "POST", "url": "{url}", "body": {body}}}'
        for name, (url, body) in BODIES.items()
    ]
    source = write_input(tmp_path / "in", lines)
    code, said = finish(start_fake_batch(source, tmp_path / "out"))
    assert code == 1  # one has failed, as it was told to
    assert "15 of 15 lines are answered; in this run 6 got an error as their answer and 1 failed." in said
    written = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    raw = {json.loads(each)["custom_id"]: each for each in written}
    found = answers(tmp_path / "out")
    with server.client() as client:
        for name, (url, body) in BODIES.items():
            headers = {"content-type": "application/json"}
            over_http = client.post(url, content=body.encode(), headers=headers)
            assert found[name]["status_code"] == over_http.status_code, name
            assert f'"body":{unchanging(over_http.text)}' in unchanging(raw[name]), name
            assert re.fullmatch("[0-9a-f]{32}", found[name]["request_id"])


def test_bad_lines_are_told_and_stop_no_others(tmp_path: Path) -> None:
    bad = [
        "{",
        line("x", prompt="\ud800"),
        line("x", method="GET"),
        line("x", "/v1/files"),
        line("x", stream=True),
        line("a"),
        "x" * 200_000,
    ]
    source = tmp_path / "in"
    lines = [line("a", prompt="x"), *bad, line("b", prompt="x")]
    source.write_text("\n".join(lines) + "\n" + line("c")[:30])
    code, said = finish(start_fake_batch(source, tmp_path / "out"))
    assert code == 0, said
    assert "10 of 10 lines are answered; in this run 8 got an error as their answer and 0 failed." in said
    assert set(answers(tmp_path / "out")) == {"a", "b"}
    errors = [record["error"] for record in read_records(tmp_path / "out") if record["error"]]
    assert [error["line"] for error in errors] == [2, 3, 4, 5, 6, 7, 8, 10]
    assert all(error["message"].startswith(f"Line {error['line']}: ") for error in errors)


def test_killed_again_and_again_each_line_is_answered_once(tmp_path: Path) -> None:
    lines = [line(f"{i}", prompt=f"x{i}", max_tokens=4) for i in range(200)]
    source, output = write_input(tmp_path / "in", lines), tmp_path / "out"
    for count in (10, 30):
        process = start_fake_batch(source, output, step_seconds=0.05)
        wait_for_records(output, count, process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        finish(process)
        assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []
        assert len(answers(output)) < 200
    code, said = finish(start_fake_batch(source, output))
    assert code == 0, said
    assert "200 of 200 lines are answered" in said
    found = answers(output)
    assert set(found) == {f"{i}" for i in range(200)}
    assert {response["status_code"] for response in found.values()} == {200}


def test_lines_added_during_a_run_are_answered_and_told(tmp_path: Path) -> None:
    lines = [line(f"{i}", prompt="x" * 100, max_tokens=2) for i in range(100)]
    source, output = write_input(tmp_path / "in", lines), tmp_path / "out"
    process = start_fake_batch(source, output, step_seconds=0.02)
    wait_for_records(output, 2, process)
    with source.open("a", encoding="utf-8") as file:
        file.write(line("late", prompt="x", max_tokens=2) + "\n")
    code, said = finish(process)
    assert code == 1
    assert "Error: the input was changed meanwhile" in said
    assert len(answers(output)) == 101
    assert finish(start_fake_batch(source, output))[0] == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_lines_finish_and_begins_no_others(tmp_path: Path, number: int) -> None:
    source = write_input(tmp_path / "in", [line(f"{i}", prompt="x", max_tokens=20) for i in range(200)])
    log, output = tmp_path / "log", tmp_path / "out"
    with log.open("w") as stderr:
        process = start_fake_batch(source, output, max_open=4, stderr=stderr.fileno(), step_seconds=0.02)
    wait_for_records(output, 2, process)
    with engine_stopped(process):
        process.send_signal(number)
        wait_until(lambda: "Stopping." in log.read_text())
        num_before = len(answers(output))
    assert finish(process)[0] == 128 + number
    num_done = len(answers(output))
    assert num_before <= num_done <= num_before + 4
    assert f"Stopped after {num_done} of 200 lines; the same command goes on from there." in log.read_text()
    code, said = finish(start_fake_batch(source, output))
    assert code == 0, said
    assert len(answers(output)) == 200


@pytest.mark.parametrize(("shutdown_timeout", "num_signals"), [(0.2, 1), (1000.0, 2)])
def test_open_lines_get_their_time_and_a_second_signal_none(
    tmp_path: Path, shutdown_timeout: float, num_signals: int
) -> None:
    source = write_input(tmp_path / "in", [line(f"{i}", prompt="x", max_tokens=400) for i in range(4)])
    log, settings = tmp_path / "log", {"shutdown_timeout": shutdown_timeout}
    with log.open("w") as stderr:
        process = start_fake_batch(
            source, tmp_path / "out", settings=settings, stderr=stderr.fileno(), step_seconds=1.0
        )
    wait_until(lambda: log.read_text().count("the fake engine has got request") == 4)
    for _ in range(num_signals):
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Stopping." in log.read_text())
    assert finish(process)[0] == 128 + signal.SIGTERM
    assert answers(tmp_path / "out") == {}


def catches(process: "subprocess.Popen[str]", number: signal.Signals) -> bool:
    """Has it a handler for this signal?"""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def test_a_signal_while_the_model_loads_ends_it(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", [line("a", prompt="x")])
    process = start_fake_batch(source, tmp_path / "out", start_seconds=600.0)
    wait_until(lambda: catches(process, signal.SIGTERM))
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 128 + signal.SIGTERM


def test_a_dead_engine_ends_it_and_writes_nothing_of_what_was_open(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", [line("a", prompt="x", max_tokens=1), line("b", prompt="!crash")])
    process = start_fake_batch(source, tmp_path / "out", max_open=1)
    code, said = finish(process)
    assert code == 1
    assert re.search(r"Error: The engine process ended with code \S+ after 1 of 2 lines; the same command goes", said)
    assert set(answers(tmp_path / "out")) == {"a"}


def test_an_engine_that_ends_is_started_again_and_open_lines_are_asked_anew(tmp_path: Path) -> None:
    lines = [line(f"{i}", prompt=f"x{i}", max_tokens=4) for i in range(40)]
    source, output = write_input(tmp_path / "in", lines), tmp_path / "out"
    process = start_fake_batch(source, output, settings={"restart_engine": 1}, step_seconds=0.05)
    wait_for_records(output, 10, process)
    psutil.Process(engine_pid_of(process)).kill()
    code, said = finish(process)
    assert code == 0, said
    found = answers(output)
    assert set(found) == {f"{i}" for i in range(40)}
    assert {response["status_code"] for response in found.values()} == {200}


def test_a_line_that_ends_every_engine_ends_the_run(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", [line("a", prompt="x", max_tokens=1), line("b", prompt="!crash")])
    code, said = finish(start_fake_batch(source, tmp_path / "out", max_open=1, settings={"restart_engine": 1}))
    assert code == 1
    assert said.count("another one is started") == 1
    assert "Error: The engine process ended with code" in said
    assert set(answers(tmp_path / "out")) == {"a"}


def test_an_engine_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", [line("a", prompt="x")])
    code, said = finish(start_fake_batch(source, tmp_path / "out", start_error="there is no room"))
    assert (code, said.splitlines()[-1]) == (1, "Error: there is no room")


def test_more_new_forms_at_once_than_the_server_tries_are_all_answered(tmp_path: Path) -> None:
    """What over HTTP would be told to come back later waits."""
    bodies = [{"prompt": "x", "max_tokens": 1, "guided_regex": f"a{{{i}}}b"} for i in range(1, 120)]
    source = write_input(tmp_path / "in", [line(f"{i}", **body) for i, body in enumerate(bodies)])
    code, said = finish(start_fake_batch(source, tmp_path / "out", max_open=200), 200.0)
    assert code == 0, said
    assert {response["status_code"] for response in answers(tmp_path / "out").values()} == {200}


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    source = write_input(tmp_path / "in", [line(f"{i}", prompt="x", max_tokens=30) for i in range(9)])
    process = start_fake_batch(source, tmp_path / "out", max_open=3, stderr=theirs, step_seconds=0.05)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 4096):
            seen += piece
    os.close(ours)
    assert finish(process)[0] == 0
    assert re.search(r"\d+%\|.*\| \d/9 \[\d\d:\d\d<\d\d:\d\d, .* tokens/s, \d+% of the pool in use\]", seen.decode())
    assert "9/9" in seen.decode()


def test_elsewhere_the_log_says_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress(2000, 10)
    with caplog.at_level(logging.INFO):
        for second in range(21):
            now[0] += 1.0
            progress.note(200)
            progress.tick(EngineStats(prompt_tokens=60 * second, generation_tokens=40 * second))
    progress.close()
    assert caplog.messages == [
        "20 of 2,000 lines, 100.0 tokens/s, 33:00 left",
        "30 of 2,000 lines, 100.0 tokens/s, 32:50 left",
    ]


# --- the workers over an app that answers as it is told --------------------------------------------------------------


class StubApp:
    """Answers each request when it is let go, with what its prompt says: [status, code]."""

    def __init__(self) -> None:
        self.num_open = self.most_open = self.num_asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, code = json.loads((await receive())["body"])["answer"]
        self.num_asked += 1
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        await asyncio.sleep(0)
        self.num_open -= 1
        headers = [(b"x-request-id", b"r"), (b"retry-after", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": {"code": code}}).encode()})


async def work(app: Any, batch: Batch, max_open: int, is_dead: bool = False) -> list[int | None]:
    statuses: list[int | None] = []
    workers = LineWorkers(app, batch, statuses.append, lambda: is_dead, asyncio.Event())
    await asyncio.gather(*(workers.answer_lines() for _ in range(max_open)))
    return statuses


def batch_of(tmp_path: Path, *bodies: dict[str, Any]) -> Batch:
    source = write_input(tmp_path / "in", [line(f"{i}", **body) for i, body in enumerate(bodies)])
    return Batch(source, tmp_path / "out", "m", 2**30)


async def test_a_line_that_set_its_own_time_gets_the_refusal_and_no_other_try(tmp_path: Path) -> None:
    app = StubApp()
    with batch_of(tmp_path, {"answer": [429, "queue_timeout"]}, {"answer": [504, "deadline_exceeded"]}) as batch:
        assert sorted(await work(app, batch, 2)) == [429, 504]  # type: ignore[type-var]
    assert app.num_asked == 2


async def test_what_there_is_no_room_for_is_asked_again_until_there_is(tmp_path: Path) -> None:
    class Full(StubApp):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            body = (await receive())["body"] if self.num_asked == 5 else b'{"answer": [429, "queue_full"]}'

            async def given() -> dict[str, bytes]:
                return {"body": body}

            await super().__call__(scope, given, send)  # type: ignore[arg-type]

    app = Full()
    with batch_of(tmp_path, {"answer": [200, None]}) as batch:
        assert await work(app, batch, 1) == [200]
    assert app.num_asked == 6


async def test_a_503_of_a_dead_engine_is_written_nowhere(tmp_path: Path) -> None:
    with batch_of(tmp_path, {"answer": [503, None]}) as batch, pytest.raises(EngineDeadError):
        await work(StubApp(), batch, 1, is_dead=True)
    assert read_records(tmp_path / "out") == []


async def test_lines_that_are_open_are_bounded_by_number_and_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [{"answer": [200, None], "pad": "x" * 1000} for _ in range(50)]
    for max_bytes, most in ((MAX_OPEN_BYTES, 16), (5000, 4), (10, 1)):
        monkeypatch.setattr("octavo.server.batches.workers.MAX_OPEN_BYTES", max_bytes)
        app = StubApp()
        with batch_of(tmp_path, *bodies) as batch:
            assert await work(app, batch, 16) == [200] * 50
        assert app.most_open == most
        os.unlink(tmp_path / "out")
