"""The comparison of memory: invariants of its figures, and hand-made cases."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.contiguous_reserve import ContiguousReserve
from octavo.bench.memory import memory_command
from octavo.bench.memory_system import System, measure
from octavo.bench.paged import Paged
from octavo.bench.traces import Lengths, draw_lengths
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.reservation import reserve_maximum

MEMORY = Memory(num_blocks=600, max_num_batched_tokens=512)


@pytest.fixture(scope="module")
def lengths() -> list[Lengths]:
    return draw_lengths(20, seed=0)


def both(memory: Memory, lengths: list[Lengths]) -> tuple[System, System]:
    longest = max(request.total for request in lengths)
    return Paged(memory, lengths, random.Random(0)), ContiguousReserve(memory, lengths, reserve_maximum(longest))


def test_paged_memory_is_fuller_and_sooner_done(lengths: list[Lengths]) -> None:
    octavo, reserve = (measure(system, MEMORY) for system in both(MEMORY, lengths))
    for figures in (octavo, reserve):
        assert figures.filled_share_once_full is not None
        assert figures.held_share is not None
        assert 0 < figures.filled_share_once_full <= figures.held_share <= 1
        assert 0 < figures.num_steps_short_of_memory <= figures.num_steps_waiting <= figures.num_steps
    assert octavo.filled_share_once_full > 2 * reserve.filled_share_once_full  # type: ignore[operator]
    assert octavo.resident > reserve.resident  # type: ignore[operator]
    assert octavo.num_steps < reserve.num_steps


def test_a_run_is_the_same_each_time(lengths: list[Lengths]) -> None:
    first, second = (measure(Paged(MEMORY, lengths, random.Random(0)), MEMORY) for _ in range(2))
    assert first == second


def test_every_sample_adds_up(lengths: list[Lengths]) -> None:
    for system in both(MEMORY, lengths):
        samples = list(system.run())
        assert samples[0].filled_slots == MEMORY.max_num_batched_tokens, "the first step fills what it computes"
        for sample in samples:
            assert 0 <= sample.filled_slots <= sample.held_slots <= MEMORY.num_slots
            assert 0 < sample.resident <= len(lengths) - sample.waiting
        assert samples[-1].waiting == 0


def test_no_figure_where_no_request_waits() -> None:
    figures = measure(Paged(MEMORY, [Lengths(10, 5)], random.Random(0)), MEMORY)
    assert (figures.filled_share_once_full, figures.filled_share, figures.num_steps_waiting) == (None, None, 0)
    assert figures.num_steps == 5


def test_shared_slots_count_once() -> None:
    """Two equal prompts of three full blocks: these hold their tokens once."""

    class Same(random.Random):
        def random(self) -> float:
            return 0.5

    memory = Memory(num_blocks=64, max_num_batched_tokens=256)
    system = Paged(memory, [Lengths(48, 40), Lengths(48, 40)], Same())
    fullest = max(sample.filled_slots for sample in system.run())
    assert fullest <= 48 + 2 * 39  # 40 tokens are drawn after each, of which the last is not written


@pytest.fixture
def sharegpt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up lengths instead of the fetched ones: half of them short."""
    source = random.Random(0)
    lengths = [Lengths(source.randint(4, 64), source.randint(4, 112)) for _ in range(60)]
    lengths += [Lengths(source.randint(65, 300), source.randint(113, 400)) for _ in range(60)]
    monkeypatch.setattr("octavo.bench.sharegpt.sharegpt_lengths", lambda: lengths)


def test_command(sharegpt: None, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--lengths", "sharegpt", "--num-requests", "60", "--num-blocks", "260", "--json", str(file)]
    result = CliRunner().invoke(memory_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    figures = json.loads(file.read_text())["figures"]
    assert list(figures) == ["memory_sharegpt"]
    rows = {row["what"]: row for row in figures["memory_sharegpt"]}
    filled = [row["filled_percent"] for row in rows.values() if "filled_percent" in row]
    assert filled == sorted(filled), "each way is better than the one before"
    assert filled[-1] > 90
    saved = [row["saved_percent"] for what, row in rows.items() if what.startswith("parallel sampling")]
    assert saved == [*sorted(saved[:3]), *sorted(saved[3:])], "the more choices, the more is shared"
    assert (
        0 < rows["shared prefix of 80 tokens"]["saved_percent"] < rows["shared prefix of 341 tokens"]["saved_percent"]
    )
    for row in rows.values():
        assert row["what"] in result.output
    paper = [row["paper_filled_percent"] for row in figures["memory_sharegpt"][:6]]
    assert paper == [20.4, 26.8, 38.2, None, 96.3, 96.3]


def test_command_for_azure_alone(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--lengths", "azure", "--num-requests", "5", "--num-blocks", "400", "--json", str(file)]
    result = CliRunner().invoke(memory_command, arguments, catch_exceptions=False)
    assert "Azure" in result.output
    assert "ShareGPT" not in result.output
    assert [row["system"] for row in json.loads(file.read_text())["figures"]["memory"]] == [
        "Octavo",
        "Octavo, not looking ahead",
        "reserve to the maximum",
    ]
