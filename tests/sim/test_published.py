"""Cost models from published measurements."""

import pytest

from octavo.core.errors import ConfigurationError
from octavo.sim.cost_text import parse_costs
from octavo.sim.costs import StepWork, TableCosts
from octavo.sim.published import Cell, Times, costs_of

NAMES = [
    f"{system}{degree}" for system in ("llama2-70b-a100", "llama2-70b-h100") for degree in ("", "-tp2", "-tp4", "-tp8")
] + [f"bloom-176b-{device}{degree}" for device in ("a100", "h100") for degree in ("", "-tp8")]


def decodes(rows: int) -> StepWork:
    return StepWork(num_decodes=rows)


def prompts(tokens: int) -> StepWork:
    return StepWork(num_chunks=1, chunk_tokens=tokens)


@pytest.mark.parametrize("name", NAMES)
def test_more_work_takes_no_less_time(name: str) -> None:
    costs = parse_costs(f"splitwise:{name}")
    for rows in range(1, 100, 7):
        assert costs.step_seconds(decodes(rows)) > 0
        for tokens in (1, 100, 1000, 20_000):
            both = costs.step_seconds(StepWork(num_decodes=rows, num_chunks=1, chunk_tokens=tokens))
            assert both >= costs.step_seconds(decodes(rows))
            assert both >= costs.step_seconds(prompts(tokens))
    assert costs.step_seconds(prompts(20_000)) > costs.step_seconds(prompts(5_000)) > costs.step_seconds(prompts(1))


def test_times_are_the_medians_of_the_file() -> None:
    """Of Llama-2-70B on 8 A100: 1,549.8 ms for a prompt of 8,192 tokens and 2,084.4 ms for 16 of 512; 71.605 ms for a
    step of 64 answers."""
    costs = parse_costs("splitwise:llama2-70b-a100")
    assert costs.step_seconds(prompts(8192)) == pytest.approx(1.817112, abs=1e-6)  # 1 x 8192 and 16 x 512
    assert costs.step_seconds(decodes(64)) == pytest.approx(0.071605, abs=1e-6)
    assert costs == parse_costs("splitwise:llama2-70b-a100-tp8")
    assert costs != parse_costs("splitwise:llama2-70b-a100-tp4")


def test_a_batch_that_did_not_fit_is_left_out() -> None:
    """On two devices the prompts of 64 took less time than those of 32."""
    costs = parse_costs("splitwise:llama2-70b-a100-tp2")
    assert isinstance(costs, TableCosts)
    assert max(count for count, _ in costs.decode) == 32
    assert costs.step_seconds(prompts(32_768)) > costs.step_seconds(prompts(16_384))


def test_answers_are_of_equal_contexts() -> None:
    cells = {
        Cell(128, 1, 128): Times(0.1, 0.05),
        Cell(512, 1, 128): Times(0.2, 0.06),
        Cell(512, 2, 128): Times(0.3, 0.07),
        Cell(512, 2, 4096): Times(0.5, 0.09),
        Cell(8192, 1, 128): Times(3.0, 0.2),
    }
    costs = costs_of(cells)
    assert list(costs.decode) == [(1, 0.06), (2, 0.07)]
    assert list(costs.prefill) == [(128, 0.1), (512, 0.2), (1024, 0.4), (8192, 3.0)]
    assert costs.shared_seconds == 0.06


def test_names_that_there_are_not() -> None:
    with pytest.raises(ConfigurationError, match=r"has no 'opt-13b'; it has bloom-176b-a100, .*llama2-70b-h100-tp8"):
        parse_costs("splitwise:opt-13b")
