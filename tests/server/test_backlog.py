"""Work handed to a thread: bounded, in order, counted where it is lost, and never the end of the thread."""

import logging

import pytest

from octavo.server.backlog import Backlog


def test_all_is_done_in_order_and_then_the_end() -> None:
    done: list[list[int]] = []
    backlog: Backlog[int] = Backlog(
        lambda batch: done.append(list(batch)), "t", most=100, batch_size=3, at_end=lambda: done.append([])
    )
    with backlog._news:
        backlog.put(range(7))
    backlog.close(60.0)
    backlog.close(60.0)
    assert done == [[0, 1, 2], [3, 4, 5], [6], []]
    assert backlog.take_lost() == (0, "")


def test_what_is_too_much_or_fails_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def work(batch: list[int]) -> None:
        if 1 in batch:
            raise ValueError(batch)
        done.extend(batch)

    backlog: Backlog[int] = Backlog(work, "t", most=4, batch_size=2, at_end=lambda: None)  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR), backlog._news:
        backlog.put(range(6))
        backlog.lose(10, "away")
    backlog.close(60.0)
    assert done == [2, 3]
    assert (backlog.take_lost(), backlog.take_lost()) == ((14, "ValueError"), (0, ""))
    assert "The thread t failed on 2 items." in caplog.text
