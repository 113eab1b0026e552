"""Cost models from a machine: the sweep, the front, and the command on a small model."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from octavo.bench.calibrate.front import step_extras
from octavo.bench.calibrate.predict import predict, settings_like, traced
from octavo.bench.calibrate.sweep import SCENES, PlanWatch, Sweep
from octavo.bench.serve.workload import Planned
from octavo.build import build_engine
from octavo.cli.calibrate import serve_arguments
from octavo.cli.main import octavo as command
from octavo.engine.interface import EngineLimits
from octavo.engine_args import EngineArgs
from octavo.sim.cost_text import parse_costs
from octavo.sim.costs import Front, LinearCosts, StepWork
from octavo.sim.fit import TERMS
from octavo.sim.planning.block_size import BLOCK_SIZES
from tests.support.models import rand_model

SMALL = ("--num-blocks", "64", "--max-num-seqs", "4", "--threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("calibrate") / "model")


def test_a_sweep_knows_what_each_step_computed(model: Path) -> None:
    watch = PlanWatch()
    engine = build_engine(EngineArgs(str(model), num_blocks=64, speculation="off"), timed=watch)
    sweep = Sweep(engine, watch, random.Random(0))
    assert 1 < len(sweep.scenes) < len(SCENES), "what the pool cannot hold is left out"
    for number in [*range(len(sweep.scenes))] * 2:
        sweep.play(number)
    cells = sweep.cells()
    works = [cell.work for cell in cells]
    assert StepWork(num_chunks=1, chunk_tokens=16, chunk_context=16, chunk_pairs=16 * 17 // 2) in works
    rows = {work.num_decodes: work for work in works if not work.num_chunks}
    assert {1, 2, 4} <= rows.keys()
    assert rows[2].decode_context == 2 * (17 + 39) // 2, "of the middle of the answers"
    assert any(work.num_chunks and work.num_decodes for work in works), "late prompts are computed beside answers"
    assert all(cell.seconds > 0 for cell in cells)
    assert sum(cell.num_steps for cell in cells) > 2 * 24 * 3


def run_command(*flags: str) -> str:
    result = CliRunner().invoke(command, ["calibrate", *flags])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_small_model_from_end_to_end(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    said = run_command(str(model), "--output", str(path), "--rounds", "1", *SMALL)
    assert f"octavo simulate TRACE --cost-model {path}" in said
    assert "kinds of steps held out of the fit: " in said
    costs = parse_costs(str(path))
    assert isinstance(costs, LinearCosts)
    assert costs.step_seconds(StepWork(num_decodes=1, decode_context=16)) > 0
    assert all(getattr(costs, name) >= 0 for name in TERMS)
    sizes, factors = zip(*costs.blocks.context_factors, strict=True)
    assert sizes == BLOCK_SIZES
    assert min(factors) == 1.0
    origin = json.loads(path.read_text())["calibration"]
    assert (origin["model"], origin["threads"]) == (str(model), 1)
    assert origin["machine"]["date"]
    settings = {"num_blocks": 64, "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 512}
    assert settings.items() <= origin["settings"].items()
    assert origin["relative_errors"]["held_out"]["p90"] >= origin["relative_errors"]["held_out"]["median"] >= 0
    simulated = CliRunner().invoke(command, ["simulate", "azure", "--limit", "5", "--cost-model", str(path)])
    assert simulated.exit_code == 0, simulated.output
    assert "as the server that was calibrated: --num-blocks 64 --block-size 16 --max-num-seqs 4" in simulated.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-steps-in-flight", "2"], "one step after the other"),
        (["--output", "absent/costs.json"], "cannot write absent/costs.json"),
        (["--num-blocks", "1", "--block-size", "16"], "too small"),
    ],
)
def test_what_cannot_be_calibrated(model: Path, flags: Sequence[str], message: str) -> None:
    result = CliRunner().invoke(command, ["calibrate", str(model), *flags])
    assert result.exit_code == 1
    assert message in result.output


def test_a_server_with_the_same_settings() -> None:
    args = EngineArgs("a", num_blocks=7, enable_prefix_caching=False, speculation="off", swap_space=1.5)
    arguments = serve_arguments(args)
    assert arguments[0] == "a"
    assert " ".join(arguments[1:]).split(" --") == [
        *("--num-blocks 7", "no-enable-prefix-caching", "swap-space 1.5", "speculation off"),
    ]
    assert serve_arguments(EngineArgs("b")) == ["b"]


COSTS = LinearCosts(base=0.004, per_decode=0.001, per_chunk_token=0.0005)


def test_what_steps_take_more_beside_clients() -> None:
    """0.3 ms a step and 0.02 ms a token are put on top, and found again; and nothing where steps take less."""
    steps = {size: COSTS.step_seconds(StepWork(num_decodes=size)) for size in (1, 4, 16)}
    found = step_extras(COSTS, {size: seconds + 0.0003 + 0.00002 * size for size, seconds in steps.items()})
    assert found == pytest.approx((0.0003, 0.00002))
    assert step_extras(COSTS, {size: 0.9 * seconds for size, seconds in steps.items()}) == (0.0, 0.0)
    assert step_extras(COSTS, {1: steps[1] + 0.001}) == pytest.approx((0.001, 0.0))


LIMITS = EngineLimits(max_model_len=2048, kv_cache_tokens=16_384, block_size=16, vocab_size=1000)


def test_prompts_share_in_the_simulation_what_they_share_on_a_server() -> None:
    source = random.Random(0)
    head = source.choices(range(1000), k=160)
    plan = [Planned(float(number), head + source.choices(range(1000), k=20), 4) for number in range(5)]
    settings = settings_like(EngineArgs("a"), LIMITS)
    row = predict(plan, COSTS, settings)
    assert row["prefix_hit_tokens"] == 4 * 160
    assert row["output_tokens"] == 20
    assert traced(plan[0], 16).blocks[:10] == traced(plan[1], 16).blocks[:10]
    assert traced(plan[0], 16).blocks[10:] != traced(plan[1], 16).blocks[10:]


def test_a_delay_is_part_of_the_time_to_the_first_token() -> None:
    plan, settings = [Planned(0.0, [1] * 8, 3)], settings_like(EngineArgs("a"), LIMITS)
    plain = predict(plan, COSTS, settings)
    late = predict(plan, replace(COSTS, front=Front(per_request=0.01, delay=0.02)), settings)
    assert plain["ttft_mean"] == pytest.approx(8.0)
    assert late["ttft_mean"] == pytest.approx(38.0)
    assert late["itl_mean"] == pytest.approx(plain["itl_mean"])
