"""Lines of the log while weights are loaded."""

import logging

import pytest

from octavo.loading.load_progress import LoadProgress


def test_a_line_every_five_seconds_until_all_is_there(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    with caplog.at_level(logging.INFO):
        progress = LoadProgress({"a": 2**30, "b": 2**30, "c": 2**31}, lambda: now)
        for now, name in ((4.0, "a"), (6.0, "b"), (8.0, "b"), (11.5, "unknown"), (20.0, "c")):  # noqa: B007 read by the clock
            progress.note([name])
    assert [record.message for record in caplog.records] == [
        "Loading weights: 50 % of 4.00 GiB after 6 s",
        "Loading weights: 50 % of 4.00 GiB after 12 s",
    ]
