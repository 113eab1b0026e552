"""The paper's figures: what is compared, by hand where it can be."""

import pytest

from octavo.sim.costs import LinearCosts
from octavo.sim.paper.experiment import Experiment, Load, poisson, sustained_rate
from octavo.sim.paper.figures import FIGURES, with_prefix
from octavo.sim.paper.machines import OPT_13B, OPT_66B, OPT_175B, PaperModel
from octavo.sim.paper.systems import ALLOCATOR_ALONE, MAXIMUM, ORACLE, PAGED, SYSTEMS
from octavo.sim.traces.request import TracedRequest

STEP = LinearCosts(base=1.0, per_decode=0.0, per_chunk_token=0.0)
LENGTHS = [TracedRequest(0.0, 40 + 13 * number % 400, 20 + 29 * number % 300) for number in range(40)]


@pytest.mark.parametrize(("model", "thousands"), [(OPT_13B, 15.7), (OPT_66B, 9.6), (OPT_175B, 60.1)])
def test_slots_are_those_of_the_paper(model: PaperModel, thousands: float) -> None:
    assert round(model.num_slots / 1e3, 1) == thousands


def test_a_decode_step_reads_the_weights_at_the_bandwidth_of_the_data_sheet() -> None:
    assert OPT_13B.costs.step_seconds(_decode_work()) == pytest.approx(26e9 / 1555e9, rel=1e-3)


def _decode_work():  # type: ignore[no-untyped-def]
    from octavo.sim.costs import StepWork

    return StepWork(num_decodes=1, decode_context=10)


def test_latency_and_memory_by_hand() -> None:
    """One request: five steps of a second for four tokens and a wait of none."""
    experiment = Experiment(MAXIMUM, OPT_13B.memory(), STEP, watches=True)
    experiment.run([TracedRequest(0.0, 10, 4), TracedRequest(1.5, 10, 2)])
    # The second is due at 1.5, in the step from 2 to 3 and ends at 4.
    assert experiment.normalized_latency == ((4 - 0) / 4 + (4 - 1.5) / 2) / 2
    assert experiment.watch is not None
    assert experiment.watch.running.value == (1 + 1 + 2 + 2) / 4
    assert experiment.watch.filled.value is None, "nobody waited"


def test_every_system_serves_everything_and_paging_holds_the_most() -> None:
    filled = {}
    for system in SYSTEMS:
        experiment = Experiment(system, OPT_13B.memory(), OPT_13B.costs, watches=True)
        experiment.run(LENGTHS * 2)
        assert experiment.num_ended == 80
        assert experiment.watch is not None
        filled[system.name] = experiment.watch.filled.value or 0.0
    assert filled["Orca (Max)"] < filled["Orca (Pow2)"] < filled["Orca (Oracle)"] < filled[ALLOCATOR_ALONE.name]


def test_the_sustained_rate_is_where_latency_passes_the_limit() -> None:
    load = Load(LENGTHS, 30.0)
    found = sustained_rate(ORACLE, OPT_13B.memory(), OPT_13B.costs, load, latency=0.03)
    kept, passed = (
        Experiment(ORACLE, OPT_13B.memory(), OPT_13B.costs),
        Experiment(ORACLE, OPT_13B.memory(), OPT_13B.costs),
    )
    kept.run(poisson(LENGTHS, found, 30.0))
    passed.run(poisson(LENGTHS, 1.05 * found, 30.0))
    assert (kept.normalized_latency or 0) <= 0.03 < (passed.normalized_latency or 0)
    assert sustained_rate(PAGED, OPT_13B.memory(), OPT_13B.costs, Load(LENGTHS[:2], 1.0), latency=1e-6) == 0.0


def test_a_shared_prefix_is_computed_once() -> None:
    lengths = with_prefix(LENGTHS[:8], 341)
    assert [each.prompt for each in lengths] == [each.prompt + 341 for each in LENGTHS[:8]]
    shared, apart = Experiment(PAGED, OPT_13B.memory(), STEP), Experiment(PAGED, OPT_13B.memory(), STEP)
    shared.run(each._replace(seconds=100.0 * number) for number, each in enumerate(lengths))
    apart.run(each._replace(seconds=100.0 * number, blocks=()) for number, each in enumerate(lengths))
    assert (shared.num_ended, apart.num_ended) == (8, 8)
    # Seven of eight find the prefix, and compute what is theirs alone.
    assert apart.num_computed - shared.num_computed == 7 * 341


@pytest.mark.parametrize("name", ["batched", "blocks"])
def test_rows_have_what_the_table_shows(name: str) -> None:
    figure = FIGURES[name]
    rows = list(figure.rows(Load(LENGTHS[:12], 3.0)))
    assert set(figure.columns) <= set(rows[0])
    assert all(row[figure.value] for row in rows)
