"""The bar that a long call of ``LLM`` shows at a terminal, and nowhere else."""

import io
import sys
from pathlib import Path

import pytest

from octavo import progress
from octavo.engine.messages import EngineOutputs, EngineStats, OutputDelta, RequestTimes
from octavo.progress import CallProgress
from tests.support.models import rand_model
from tests.support.terminal import wait_until_shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def news(num_finished: int) -> EngineOutputs:
    ended = [RequestTimes("a", 0, 0.0, 0.0, 0.0, 1.0, 1, 1, "stop")] * num_finished
    return EngineOutputs([OutputDelta("a", 0, token_ids=[1, 2, 3])], finished=ended)


def test_what_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    stats = EngineStats(num_blocks=100, num_cached_blocks=25, num_active_blocks=20, num_idle_pinned_blocks=5)
    with CallProgress(4, lambda: stats) as shown:
        for _ in range(4):
            shown.note(news(1))
            shown._bar.refresh()
    told = sys.stderr.getvalue()
    assert "answers: 100%" in told
    assert "4/4" in told
    assert "tokens/s, 25% of the pool in use" in told


def test_where_there_is_no_terminal_nothing_is_asked_or_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with CallProgress(4, lambda: pytest.fail("asked")) as shown:
        shown.note(news(4))
    assert sys.stderr.getvalue() == ""


def test_before_the_first_figures_nothing_is_in_use() -> None:
    assert EngineStats().kv_cache_usage == 0.0


CALL = """
from octavo import LLM, SamplingParams, progress
progress.SHOWN_AFTER_SECONDS = progress.LEAST_SECONDS = 0.0
llm = LLM({model!r}, num_blocks=400)
llm.generate([[number] for number in range(1, 9)], SamplingParams(max_tokens=800, ignore_eos=True))
"""


def test_at_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CALL.format(model=str(rand_model(tmp_path)))]
    wait_until_shown(command, "of the pool in use", holds_output=False)
