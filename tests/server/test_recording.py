"""``--record``: what the log holds, whole lines whatever happens, and a server that goes on."""

import errno
import json
import logging
import os
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigurationError
from octavo.core.sampling_params import SamplingParams
from octavo.engine.interface import EngineLimits
from octavo.engine.messages import EngineRequest, OutputDelta
from octavo.server import recording
from octavo.server.record_file import Rotation
from octavo.server.recording import RequestRecorder
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.source import open_source
from tests.support.fake_server import running_server
from tests.support.waiting import wait_until

LIMITS = EngineLimits(max_model_len=1000, kv_cache_tokens=10_000, block_size=4, vocab_size=100)
LETTERS = "the secret words of a prompt that nobody may read"


def ask(recorder: RequestRecorder, name: str, prompt: list[int], answer: list[int], **more: Any) -> None:
    """A request that comes, gets its answer in two pieces, and ends."""
    params = more.pop("params", SamplingParams(max_tokens=50))
    recorder.begin(EngineRequest(name, prompt, params, time.time(), **more), LIMITS)
    recorder.note(OutputDelta(name, 0, token_ids=answer[:1]))
    recorder.note(OutputDelta(name, 0, token_ids=answer[1:], finish_reason="length"))
    recorder.forget(name)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def played(path: Path) -> list[TracedRequest]:
    return list(open_source(path).requests())


def test_lengths_and_names_are_recorded_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorder = RequestRecorder(path)
    ask(recorder, "a", [1, 2, 3, 4, 5], [6, 7, 8, 9])
    ask(recorder, "b", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11], tenant="north")
    ask(recorder, "c", [1, 2, 3, 4, 5], [6, 7, 8, 9], cache_salt="x")
    ask(recorder, "d", [1, 2, 3, 4, 5], [7], params=SamplingParams(max_tokens=None), tenant="north")
    recorder.close()
    a, b, c, d = played(path)
    assert [(each.prompt, each.output, each.max_tokens) for each in (a, b, c, d)] == [
        (5, 4, 50),
        (10, 1, 50),
        (5, 4, 50),
        (5, 1, 995),
    ]
    assert [len(each.blocks) for each in (a, b, c, d)] == [3, 3, 3, 2]
    assert a.blocks[:2] == b.blocks[:2]
    assert a.blocks[2] != b.blocks[2]
    assert a.blocks[0] == d.blocks[0]
    assert a.blocks[1] != d.blocks[1]
    assert not set(a.blocks) & set(c.blocks), "another salt shares nothing"
    assert a.tenant == ""
    assert b.tenant == d.tenant != "north"
    assert {each.block_size for each in (a, b, c, d)} == {4}


def test_another_run_has_other_names_for_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for _ in range(2):
        recorder = RequestRecorder(path)
        ask(recorder, "a", [1, 2, 3, 4, 5], [6], tenant="north")
        recorder.close()
    first, second = played(path)
    assert first.blocks != second.blocks
    assert first.tenant != second.tenant


def test_what_nobody_waits_for_is_recorded_as_far_as_it_came(tmp_path: Path) -> None:
    recorder = RequestRecorder(tmp_path / "log")
    params = SamplingParams(n=3, max_tokens=9)
    recorder.begin(EngineRequest("a", [1, 2], params, time.time()), LIMITS)
    recorder.note(OutputDelta("a", 0, token_ids=[3], finish_reason="stop"))
    recorder.note(OutputDelta("a", 2, token_ids=[3, 4]))
    recorder.forget("a")
    recorder.forget("unknown")
    recorder.note(OutputDelta("a", 1, token_ids=[5]))
    recorder.close()
    found = lines(tmp_path / "log")[1:]
    assert [(line["n"], line["output"]) for line in found] == [(0, 1), (2, 2)]
    assert len(played(tmp_path / "log")) == 2


def test_half_a_line_of_a_killed_process_goes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorder = RequestRecorder(path)
    ask(recorder, "a", [1], [2])
    recorder.close()
    path.write_text(path.read_text() + '{"n":1,"t":')
    recorder = RequestRecorder(path)
    ask(recorder, "b", [1], [2])
    recorder.close()
    assert len(played(path)) == 2


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "diary"
    path.write_text("Dear diary\n")
    with pytest.raises(ConfigurationError, match="is no request log"):
        RequestRecorder(path)
    assert path.read_text() == "Dear diary\n"
    with pytest.raises(ConfigurationError, match="cannot record requests in"):
        RequestRecorder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["diary"]


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path, moved = tmp_path / "log", tmp_path / "log.1"
    recorder = RequestRecorder(path)
    ask(recorder, "a", [1], [2])
    wait_until(lambda: len(path.read_text().splitlines()) == 2)
    path.rename(moved)
    ask(recorder, "b", [1, 2], [3])
    recorder.close()
    assert [each.prompt for each in played(moved)] == [1]
    assert [each.prompt for each in played(path)] == [2]
    assert lines(path)[0]["start"] == lines(moved)[0]["start"]


def test_a_file_that_is_full_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    """Each can be played by itself, and all together too, oldest first. No file is longer than it may be, but for a
    line that is by itself."""
    path, most = tmp_path / "log", 400
    recorder = RequestRecorder(path, Rotation(most, 3))
    for number in range(40):
        ask(recorder, str(number), [1] * (number + 1), [2])
        if number == 20:
            ask(recorder, "long", [3] * 500, [2])
    recorder.close()
    files = [tmp_path / name for name in ("log.2", "log.1", "log")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= most for file in files)
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    each = [[request.prompt for request in played(file)] for file in files]
    assert list(chain(*each)) == list(range(41 - sum(map(len, each)), 41))
    together = tmp_path / "together"
    together.write_text("".join(file.read_text() for file in files))
    assert [request.prompt for request in played(together)] == list(chain(*each))


def test_one_line_that_is_too_long_stands_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "log"
    recorder = RequestRecorder(path, Rotation(1, 10))
    for number in range(3):
        ask(recorder, str(number), [number] * 9, [2])
    recorder.close()
    assert [len(played(file)) for file in tmp_path.iterdir()] == [1, 1, 1]


def test_a_server_that_comes_back_goes_on_where_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(3):
        recorder = RequestRecorder(path, Rotation(300, 1))
        ask(recorder, "a", [1] * (number + 1), [2])
        recorder.close()
    assert [request.prompt for request in played(path)] == [3], "there is room for one run"
    recorder = RequestRecorder(path, Rotation(3000, 1))
    ask(recorder, "b", [1], [2])
    recorder.close()
    assert [request.prompt for request in played(path)] == [3, 1]


def test_what_would_go_for_a_log_and_is_none_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_text("Dear diary\n")
    with pytest.raises(ConfigurationError, match=r"log\.1 is no request log"):
        RequestRecorder(tmp_path / "log", Rotation(1000, 2))
    recorder = RequestRecorder(tmp_path / "log", Rotation(None, 2))
    recorder.close()
    assert (tmp_path / "log.1").read_text() == "Dear diary\n"


def test_where_a_full_file_cannot_be_put_aside_nothing_more_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    recorder = RequestRecorder(path, Rotation(250, 2))
    ask(recorder, "a", [1], [2])
    (tmp_path / "log.1").mkdir()
    ask(recorder, "b", [1, 2] * 9, [3])
    ask(recorder, "c", [1, 2] * 9, [3])
    recorder.close()
    assert [request.prompt for request in played(path)] == [1]
    assert "cannot be recorded" in caplog.text


def test_a_full_disk_costs_lines_and_leaves_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The write stops in the middle of a line."""
    path = tmp_path / "log"
    recorder = RequestRecorder(path)
    ask(recorder, "a", [1], [2])
    wait_until(lambda: len(path.read_text().splitlines()) == 2)
    real, calls = os.write, []

    def full(file: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) % 2:
            return real(file, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    ask(recorder, "b", [1, 2], [3])
    wait_until(lambda: len(calls) == 2)
    wait_until(lambda: len(path.read_text().splitlines()) == 2)
    monkeypatch.setattr(os, "write", real)
    ask(recorder, "c", [1, 2, 3], [4])  # too soon to be tried again
    wait_until(lambda: recorder._backlog._lost.number == 2)
    recorder._log._retry_at = 0.0
    with caplog.at_level(logging.WARNING):
        ask(recorder, "d", [1, 2, 3, 4], [5])
        recorder.close()
    assert [each.prompt for each in played(path)] == [1, 4]
    assert "No space left on device. Tried again in" in caplog.text
    assert "Requests are recorded again; 2 were not." in caplog.text


def test_what_waits_to_be_written_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "MAX_PENDING", 5)
    recorder = RequestRecorder(tmp_path / "log")
    with recorder._backlog._news:  # what the thread that writes waits for
        for number in range(12):
            ask(recorder, str(number), [1], [2])
        assert len(recorder._backlog._pending) == 5
    recorder.close()
    assert len(played(tmp_path / "log")) == 5
    assert "Requests are recorded again; 7 were not." in caplog.text


def test_a_server_records_what_it_serves_and_no_text(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with running_server(record=str(path)) as server:
        with server.wait_ready().client() as client:
            for max_tokens in (3, 7):
                body = {"prompt": LETTERS, "max_tokens": max_tokens}
                assert client.post("/v1/completions", json=body).status_code == 200
            assert client.post("/v1/completions", json={"prompt": "x" * 4000}).status_code == 400
        server.process.terminate()
        assert server.wait_exit() == 0
    text = path.read_text()
    assert not any(word in text for word in ("secret", "words", "nobody", "alpha"))
    first, second = played(path)
    assert (first.output, second.output) == (3, 7)
    assert first.prompt == second.prompt == 1 + len(LETTERS)  # BOS
    assert first.blocks[:3] == second.blocks[:3]
    assert second.seconds > 0
    assert path.stat().st_mode & 0o077 == 0
