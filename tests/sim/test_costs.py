"""What a step computes, and how long that takes."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.core.errors import ConfigurationError
from octavo.core.step import BlockCopy, StepPlan
from octavo.sim.cost_text import DEFAULT, costs_document, parse_costs
from octavo.sim.costs import (
    BlockCosts,
    Front,
    LinearCosts,
    RooflineCosts,
    StepWork,
    TableCosts,
    served_seconds,
    work_of,
)
from octavo.sim.front_line import FrontLine


def plan(*rows: tuple[int, int, bool], copies: int = 0) -> StepPlan:
    """``rows``: start, count, samples."""
    starts, counts, samples = zip(*rows, strict=True)
    moved = tuple(BlockCopy(0, 1) for _ in range(copies))
    return StepPlan(0, (), (), moved, (), (), tuple(range(len(rows))), starts, counts, samples, ())


def naive_work(rows: list[tuple[int, int, bool]]) -> StepWork:
    """Token by token."""
    decodes = [row for row in rows if row[1] == 1 and row[2]]
    chunks = [row for row in rows if row not in decodes]
    return StepWork(
        len(decodes),
        sum(start + 1 for start, _, _ in decodes),
        len(chunks),
        sum(count for _, count, _ in chunks),
        sum(start + count for start, count, _ in chunks),
        sum(position + 1 for start, count, _ in chunks for position in range(start, start + count)),
    )


def test_work_is_counted_as_token_by_token() -> None:
    source = random.Random(0)
    for _ in range(200):
        rows = [
            (source.randint(0, 300), source.choice([1, 1, source.randint(1, 40)]), source.random() < 0.8)
            for _ in range(source.randint(1, 12))
        ]
        assert work_of(plan(*rows)) == naive_work(rows)
    assert work_of(plan((5, 1, True), copies=3)).num_moved_blocks == 3


def test_linear_costs_add_up() -> None:
    costs = LinearCosts(1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001, 2.0)
    assert costs.step_seconds(StepWork(2, 30, 1, 10, 50, 400, 3)) == pytest.approx(
        1 + 0.2 + 0.1 + 0.03 + 0.005 + 0.004 + 6
    )


def test_a_roofline_takes_the_longer_of_arithmetic_and_traffic() -> None:
    costs = RooflineCosts(1e12, 1e11, 1e9, 2e9, 1e5, 1e3, 0.001, 1e6, 1e9)
    few = costs.step_seconds(StepWork(1, 100))
    assert few == pytest.approx(0.001 + (1e9 + 1e5 * 101) / 1e11)
    many = costs.step_seconds(StepWork(num_chunks=1, chunk_tokens=500, chunk_context=500, chunk_pairs=125_250))
    assert many == pytest.approx(0.001 + (500 * 2e9 + 125_250 * 1e3) / 1e12)
    assert costs.step_seconds(StepWork(1, 100, num_moved_blocks=10)) == pytest.approx(few + 0.01)


def test_a_table_is_read_along_straight_lines() -> None:
    costs = TableCosts([(1, 1.0), (11, 2.0), (21, 4.0)], [(100, 3.0), (200, 5.0)], 0.5)
    assert costs.step_seconds(StepWork(num_decodes=6)) == pytest.approx(1.5)
    assert costs.step_seconds(StepWork(num_decodes=31)) == pytest.approx(6.0)
    assert costs.step_seconds(StepWork(num_chunks=1, chunk_tokens=50)) == pytest.approx(2.0)
    assert costs.step_seconds(StepWork(6, 0, 1, 150)) == pytest.approx(1.5 + 4.0 - 0.5)


def test_costs_as_text_and_as_a_file(tmp_path: Path) -> None:
    assert parse_costs(DEFAULT) == LinearCosts(0.024, 0.0001, 0.0001)
    path = tmp_path / "costs.json"
    table = {"decode": [[1, 1.0], [2, 1.5]], "prefill": [[1, 1.0], [9, 2.0]]}
    path.write_text(json.dumps({"format": 1, "kind": "table", **table}))
    assert parse_costs(str(path)).step_seconds(StepWork(num_decodes=2)) == 1.5


def test_a_calibration_comes_back_from_its_file(tmp_path: Path) -> None:
    costs = LinearCosts(1e-3, 2e-4, 3e-4, 4e-7, 5e-7, 6e-7, per_chunk=7e-5, front=Front(1e-3, 2e-3, 3e-4, 4e-5))
    costs = replace(costs, blocks=BlockCosts(1e-6, [[8, 2.5], [16, 1.0]]))
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(costs_document(costs, {"model": "a model", "machine": {"cores": 2}})))
    assert parse_costs(str(path)) == costs
    assert json.loads(path.read_text())["calibration"]["model"] == "a model"


def test_a_step_beside_clients_takes_longer() -> None:
    costs = LinearCosts(1.0, 0.1, 0.01, front=Front(per_step=0.25, per_token=0.5))
    assert costs.step_seconds(StepWork(num_decodes=2)) == pytest.approx(1.2)
    assert served_seconds(costs, StepWork(num_decodes=2)) == pytest.approx(1.2 + 0.25 + 1.0)


def test_the_front_takes_requests_in_one_after_the_other() -> None:
    line = FrontLine(Front(per_request=0.25, delay=1.0), 1)
    assert [line.pass_through(due) for due in (0.0, 0.0, 0.0, 5.0)] == [1.25, 1.5, 1.75, 6.25]
    two = FrontLine(Front(per_request=0.25, delay=1.0), 2)
    assert [two.pass_through(due) for due in (0.0, 0.0, 0.0, 5.0)] == [1.25, 1.25, 1.5, 6.25]
    assert FrontLine(Front(), 3).pass_through(7.0) == 7.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linear:base=x", "'base=x'.* is not of the form name=number"),
        ("linear:base=1,bass=2", "no bass"),
        ("linear:base=1", "lacks parameters"),
        ("linear:base=-1,per_decode=1,per_chunk_token=1", "base .* takes 0 or more"),
        ("linear:base=inf,per_decode=1,per_chunk_token=1", "base .* takes 0 or more"),
        ("table:a=1", "give a JSON file"),
        ("absent.json", "cannot read the cost model absent.json"),
    ],
)
def test_costs_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_costs(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "no cost model of format 1"),
        ('{"format": 2, "kind": "linear"}', "no cost model of format 1"),
        ('{"format": 1, "kind": "cubic"}', "kind 'cubic'"),
        ('{"format": 1, "kind": "table", "decode": [3], "prefill": []}', "decode .* takes 0 or more"),
        ('{"format": 1, "kind": "linear", "front": 3}', "front is 3; it takes an object"),
        ('{"format": 1, "kind": "linear", "front": {"delays": 3}}', "a front has no delays"),
        ('{"format": 1, "kind": "linear", "front": {"delay": -3}}', "delay of the front is -3"),
    ],
)
def test_files_that_are_no_costs_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        parse_costs(str(path))


@pytest.mark.parametrize("decode", [[], [[1, 1.0]], [[1, 1.0], [1, 2.0]], [[2, 1.0], [1, 2.0]], [[1], [2, 1.0]], 3])
def test_tables_that_are_none(decode: object, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"format": 1, "kind": "table", "decode": decode, "prefill": [[1, 1.0], [9, 2.0]]}))
    with pytest.raises(ConfigurationError, match=r"decode of the table cost model is .* two or more pairs"):
        parse_costs(str(path))


@pytest.mark.parametrize("name", ["flops", "bytes_per_second", "moved_bytes_per_second"])
def test_a_machine_that_stands_still(name: str) -> None:
    numbers = {"flops": 1, "bytes_per_second": 1, "weight_bytes": 1, "flops_per_token": 1, "kv_bytes_per_token": 1}
    text = "roofline:" + ",".join(f"{key}={value}" for key, value in (numbers | {name: 0}).items())
    with pytest.raises(ConfigurationError, match=f"^{name} of the roofline cost model is 0; it takes more than 0"):
        parse_costs(text)
