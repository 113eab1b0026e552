"""The two files of a batch: what a line may be, and what an output lets a later run do."""

import io
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.core.errors import ConfigurationError
from octavo.server.batches.batch import Batch, Task, Unreadable
from octavo.server.batches.call import Reply
from octavo.server.batches.lines import ENVELOPE_BYTES, BadLineError, read_lines, read_request
from tests.support.batches import EMBEDDINGS, line, read_records, write_input

MODEL = "m"
MAX_BODY = 1000


def items(batch: Batch) -> Iterator[Task | Unreadable]:
    while (item := batch.next()) is not None:
        yield item


def answer_all(batch: Batch, status: int = 200, but: dict[str, int] | None = None) -> list[str]:
    """Each line gets its custom_id as the answer, and ``status``, or that in ``but``; which were answered."""
    answered = []
    for item in items(batch):
        if isinstance(item, Task):
            custom_id = item.request.custom_id
            found = (but or {}).get(custom_id, status)
            batch.write(item, Reply(found, "request", None, json.dumps({"said": custom_id}).encode()))
            answered.append(custom_id)
    return answered


def opened(tmp_path: Path, model_name: str = MODEL, *, overwrite: bool = False) -> Batch:
    return Batch(tmp_path / "in", tmp_path / "out", model_name, MAX_BODY, overwrite=overwrite)


def fault_of(data: bytes, max_body: int = MAX_BODY) -> tuple[str, str | None]:
    (found,) = read_lines(io.BytesIO(data), MODEL, max_body + ENVELOPE_BYTES)
    with pytest.raises(BadLineError) as caught:
        read_request(found, max_body)
    return caught.value.message, caught.value.custom_id


# --- lines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "custom_id"),
    [
        ("[1]", "The line is not a JSON object: Expected `object`, got `array`.", None),
        ("?\n", "The line is not a JSON object: JSON is malformed: invalid character (byte 0).", None),
        (
            '{"custom_id": "a", "met',
            (
                "The line is not a JSON object: Input data was truncated. It is the last one and has no line break: "
                "the file may have been cut off."
            ),
            None,
        ),
        (line(7), "custom_id must be a text that is not empty.", None),
        (line(""), "custom_id must be a text that is not empty.", None),
        ('{"method": "POST"}', "custom_id must be a text that is not empty.", None),
        (line("a", method="GET"), "method must be 'POST', got 'GET'.", "a"),
        (
            line("a", "/v1/models"),
            (
                "url must be one of /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses, "
                "got '/v1/models'."
            ),
            "a",
        ),
        (line("a", stream=True), "stream cannot be true in a batch: an answer is written when it is whole.", "a"),
        ('{"custom_id": "a", "method": "POST", "url": "/v1/completions"}', "The line has no body.", "a"),
        ('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": null}', "The line has no body.", "a"),
    ],
)
def test_a_line_that_cannot_be_done_says_why(text: str, message: str, custom_id: str | None) -> None:
    assert fault_of(text.encode() + (b"" if text.endswith('"met') else b"\n")) == (message, custom_id)


def test_a_line_that_nests_beyond_all_bounds_or_is_no_utf8_is_one_bad_line() -> None:
    deep = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": ' + b"[" * 30_000 + b"]" * 30_000
    assert "maximum recursion depth" in fault_of(deep + b"}\n", 10**6)[0]
    assert "JSON" in fault_of(b'{"custom_id": "\xff"}\n')[0]


def test_a_line_beyond_the_limit_is_never_in_memory_whole() -> None:
    with open(os.devnull, "rb") as nothing:
        assert list(read_lines(nothing, MODEL, 10)) == []
    long = b"x" * (8 * 2**20)
    file = io.BytesIO(line("a").encode() + b"\n" + long + b"\n" + line("b").encode() + b"\n")
    tracemalloc.start()
    found = list(read_lines(file, MODEL, 100_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [each.number for each in found] == [1, 2, 3]
    assert found[1].data is None
    assert peak < 4 * 2**20
    with pytest.raises(BadLineError, match="longer than the limit of 66536 bytes"):
        read_request(found[1], MAX_BODY)
    (fitting,) = read_lines(io.BytesIO(b"x" * 10 + b"\n"), MODEL, 10)
    assert fitting.data == b"x" * 10


def test_empty_lines_byte_order_marks_and_missing_ends_are_no_matter() -> None:
    written = line("a").encode()
    variants = [written + b"\n", written, written + b"\r\n", b"\xef\xbb\xbf" + written + b"\n\n  \n"]
    found = {next(iter(read_lines(io.BytesIO(each), MODEL, 1000)))[:3] for each in variants}
    assert len(found) == 1
    assert [each.number for each in read_lines(io.BytesIO(b"\n \r\n" + written), MODEL, 1000)] == [3]


def test_the_body_is_handed_on_as_it_stands_in_the_file() -> None:
    body = '{"input" :  "é\\u00e9", "x": 1e2, "x": 2}'
    text = f'{{"body": {body}, "url": "{EMBEDDINGS}", "method": "POST", "custom_id": "a"}}\n'
    (found,) = read_lines(io.BytesIO(text.encode()), MODEL, 1000)
    assert read_request(found, MAX_BODY) == ("a", EMBEDDINGS, body.encode())


# --- output ---------------------------------------------------------------------------------------------------------


def test_a_second_run_does_what_the_first_one_left(tmp_path: Path) -> None:
    write_input(tmp_path / "in", [line("a"), line("b"), "bad", line("a"), line("c"), line("d"), line("e")])
    with opened(tmp_path) as batch:
        assert batch.num_lines == 7
        assert batch.needs_model()
        task = batch.next()
        assert isinstance(task, Task)
        batch.write(task, Reply(200, "r", None, b'{"b": 1}'))
        assert answer_all(batch, but={"c": 500, "d": 429, "e": 400}) == ["b", "c", "d", "e"]
        assert batch.num_unreadable == 2
    first = read_records(tmp_path / "out")
    assert len(first) == 7
    assert first[0]["response"] == {"status_code": 200, "request_id": "r", "body": {"b": 1}}
    assert [record["error"]["line"] for record in first if record["error"]] == [3, 4]
    with opened(tmp_path) as batch:
        assert batch.num_before == 3
        assert batch.needs_model()
        assert answer_all(batch) == ["c", "d"]
    second = read_records(tmp_path / "out")
    assert sorted(record["id"] for record in first) == sorted(record["id"] for record in second)
    assert {each["custom_id"]: each["response"]["status_code"] for each in second if each["response"]} == {
        **dict.fromkeys("abcd", 200),
        "e": 400,
    }
    with opened(tmp_path) as batch:
        assert not batch.needs_model()
        assert (batch.num_before, batch.num_unreadable) == (5, 2)
    assert len(read_records(tmp_path / "out")) == 7


def test_cut_anywhere_an_output_is_gone_on_with(tmp_path: Path) -> None:
    """As a kill leaves it: after any byte."""
    write_input(tmp_path / "in", [line(f"{i}") for i in range(3)])
    with opened(tmp_path) as batch:
        answer_all(batch)
    whole = (tmp_path / "out").read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        (tmp_path / "out").write_bytes(whole[:cut])
        with opened(tmp_path) as batch:
            assert batch.num_before == sum(end <= cut for end in ends)
            answer_all(batch)
        assert (tmp_path / "out").read_bytes() == whole


def test_a_tail_of_zeros_as_a_loss_of_power_leaves_is_cut_off(tmp_path: Path) -> None:
    write_input(tmp_path / "in", [line("a"), line("b")])
    with opened(tmp_path) as batch:
        answer_all(batch)
    whole = (tmp_path / "out").read_bytes()
    (tmp_path / "out").write_bytes(whole[: whole.index(b"\n") + 1] + bytes(100))
    with opened(tmp_path) as batch:
        assert answer_all(batch) == ["b"]
    assert (tmp_path / "out").read_bytes() == whole


def test_lines_may_be_added_and_bad_ones_mended_between_runs(tmp_path: Path) -> None:
    write_input(tmp_path / "in", [line("a"), "bad"])
    with opened(tmp_path) as batch:
        answer_all(batch)
    write_input(tmp_path / "in", [line("a"), line("b"), line("c")])
    with opened(tmp_path) as batch:
        assert answer_all(batch) == ["b", "c"]
    assert [record["custom_id"] for record in read_records(tmp_path / "out")] == ["a", "b", "c"]


@pytest.mark.parametrize("later", [[], ["a", "c"], ["a"], ["a", "b", "c"]], ids=str)
def test_lines_that_change_during_a_run_are_told(tmp_path: Path, later: list[str]) -> None:
    write_input(tmp_path / "in", [line("a"), line("b")])
    with opened(tmp_path) as batch:
        if later:
            write_input(tmp_path / "in", [line(each) for each in later])
        assert answer_all(batch) == (later or ["a", "b"])
        assert batch.has_changed == bool(later)
    if later != ["a"]:
        with opened(tmp_path) as batch:
            assert not answer_all(batch)
            assert not batch.has_changed


def test_an_output_of_another_input_or_model_is_left_alone(tmp_path: Path) -> None:
    write_input(tmp_path / "in", [line("a"), line("b", prompt="x")])
    with opened(tmp_path) as batch:
        answer_all(batch, but={"a": 500})
    before = (tmp_path / "out").read_bytes() + b'{"id":"batch_'
    (tmp_path / "out").write_bytes(before)
    with pytest.raises(ConfigurationError, match=r"another input or model: 1 of its 1 answers .* --overwrite"):
        opened(tmp_path, "n")
    write_input(tmp_path / "in", [line("a"), line("b", prompt="y")])
    with pytest.raises(ConfigurationError, match="another input or model"):
        opened(tmp_path)
    assert (tmp_path / "out").read_bytes() == before
    with opened(tmp_path, overwrite=True) as batch:
        assert answer_all(batch) == ["a", "b"]


@pytest.mark.parametrize("content", ["my notes", "my notes\n", '{"a": 1}\n', '{"id":"batch_req_zz"}\n'])
def test_a_file_that_is_no_output_is_left_alone(tmp_path: Path, content: str) -> None:
    write_input(tmp_path / "in", [line("a")])
    (tmp_path / "out").write_text(content)
    with pytest.raises(ConfigurationError, match=r"line 1 of the output .* is no answer of a batch"):
        opened(tmp_path)
    assert (tmp_path / "out").read_text() == content


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no input"):
        opened(tmp_path)
    assert not (tmp_path / "out").exists()
    source = write_input(tmp_path / "in", [line("a")])
    (tmp_path / "loop").symlink_to("loop")
    for output, message in (
        (source, "the same file"),
        (tmp_path, "Is a directory"),
        (Path(os.devnull), "no plain file"),
        (tmp_path / "x" / "y", "No such file"),
        (tmp_path / "loop", "Too many levels of symbolic links"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Batch(source, output, MODEL, MAX_BODY)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="cannot be read twice"):
        Batch(tmp_path / "pipe", tmp_path / "out", MODEL, MAX_BODY)


def test_two_runs_never_write_to_one_output(tmp_path: Path) -> None:
    write_input(tmp_path / "in", [line("a"), line("b")])
    with opened(tmp_path) as batch:
        answer_all(batch, but={"a": 500})
        with pytest.raises(ConfigurationError, match="another run is writing"):
            opened(tmp_path, overwrite=True)
    with opened(tmp_path) as batch:  # has put another file in its place
        assert batch.num_before == 1
        with pytest.raises(ConfigurationError, match="another run is writing"):
            opened(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in", "out"]


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_input(tmp_path / "in", [line("a"), line("b")])
    with opened(tmp_path) as batch:
        task = batch.next()
        assert isinstance(task, Task)
        write = os.write
        room = [20]

        def write_some(fd: int, data: bytes) -> int:
            if not room:
                raise OSError(28, "No space left on device")
            return write(fd, data[: room.pop()])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write_some)
            with pytest.raises(ConfigurationError, match=r"cannot write the output .*out: No space left on device"):
                batch.write(task, Reply(200, "r", None, b"{}"))
        assert (tmp_path / "out").read_bytes() == b""
        assert answer_all(batch) == ["b"]
    with opened(tmp_path) as batch:
        assert answer_all(batch) == ["a"]


def test_an_output_that_cannot_be_rewritten_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_input(tmp_path / "in", [line("a"), line("b")])
    with opened(tmp_path) as batch:
        answer_all(batch, but={"a": 500})
    before = (tmp_path / "out").read_bytes()

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(ConfigurationError, match="No space left on device"):
            opened(tmp_path)
    assert (tmp_path / "out").read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in", "out"]
    with opened(tmp_path) as batch:
        assert answer_all(batch) == ["a"]


def test_a_rewritten_output_keeps_its_mode_and_a_link_to_it(tmp_path: Path) -> None:
    write_input(tmp_path / "in", [line("a"), line("b")])
    (tmp_path / "real").touch(0o640)
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with opened(tmp_path) as batch:
        answer_all(batch, but={"a": 500})
    with opened(tmp_path) as batch:
        answer_all(batch)
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    assert len(read_records(tmp_path / "real")) == 2


def test_a_loss_of_power_takes_no_output_that_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is on disk before its first record is, also where it takes the place of another file."""
    write_input(tmp_path / "in", [line("a"), line("b")])
    synced = list[int]()
    for name in ("fsync", "fdatasync"):
        inner = getattr(os, name)

        def sync(fd: int, inner: Callable[[int], None] = inner) -> None:
            synced.append(os.fstat(fd).st_ino)
            inner(fd)

        monkeypatch.setattr(os, name, sync)
    folder = tmp_path.stat().st_ino
    for status in (503, 200):
        synced.clear()
        with opened(tmp_path) as batch:
            answer_all(batch, status)
        file = (tmp_path / "out").stat().st_ino
        assert synced == ([file, folder, file] if status == 200 else [folder, file])


def test_of_many_lines_few_bytes_each_stay_in_memory(tmp_path: Path) -> None:
    num_lines = 20_000
    write_input(tmp_path / "in", (line(f"request-{i}", prompt="x" * 500) for i in range(num_lines)))
    tracemalloc.start()
    with opened(tmp_path) as batch:
        assert batch.num_lines == num_lines
        assert len(answer_all(batch)) == num_lines
    del batch
    with opened(tmp_path) as batch:
        assert not batch.needs_model()
        held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 400 * num_lines
    assert peak < 600 * num_lines
