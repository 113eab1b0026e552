"""Workloads, figures and the picture of ``octavo bench serve``, from made-up answers."""

import re
from itertools import pairwise
from statistics import fmean
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from octavo.bench.serve.exchange import Answer
from octavo.bench.serve.figures import figures, meets
from octavo.bench.serve.load import Run
from octavo.bench.serve.plot import draw
from octavo.bench.serve.workload import LengthRange, Workload
from octavo.bench.traces import azure_lengths, azure_trace
from octavo.core.errors import ConfigurationError


def answer(due: float, *token_times: float, tokens: int | None = None, error: str | None = None) -> Answer:
    """It ends with its last token."""
    end = token_times[-1] if token_times else due
    return Answer(due, due, list(token_times), end, 10, tokens or len(token_times), error)


def test_every_figure_of_a_known_run() -> None:
    answers = [
        answer(0.0, 0.25, 0.5, 1.0),
        answer(1.0, 1.5, 2.0, tokens=5),  # five tokens in two events
        answer(1.5, 3.5),
        answer(1.5, error="429"),
        answer(2.0, 2.5, error="cut off"),
    ]
    row = figures(2.0, Run(answers, 0.0, 0.07), {"ttft": 500, "itl": 500})
    assert row["seconds"] == 3.5
    assert (row["num_requests"], row["num_completed"], row["num_rejected"], row["num_errors"]) == (5, 3, 1, 1)
    assert (row["prompt_tokens"], row["output_tokens"]) == (30, 9)
    assert row["requests_per_second"] == pytest.approx(3 / 3.5)
    assert row["output_tokens_per_second"] == pytest.approx(9 / 3.5)
    assert row["total_tokens_per_second"] == pytest.approx(39 / 3.5)
    assert (row["goodput"], row["goodput_share"]) == (pytest.approx(2 / 3.5), 0.4)
    assert row["client_cpu_percent"] == pytest.approx(2.0)
    expected = {
        "ttft": [250, 500, 2000],
        "itl": [250, 500, 500],
        "tpot": [125, 375],  # an answer of one token has none
        "e2el": [1000, 1000, 2000],
    }
    for name, milliseconds in expected.items():
        assert row[f"{name}_mean"] == pytest.approx(fmean(milliseconds))
        for percent in (50, 90, 99):
            assert row[f"{name}_p{percent}"] == pytest.approx(float(np.percentile(milliseconds, percent)))


@pytest.mark.parametrize(("name", "milliseconds"), [("ttft", 250.0), ("itl", 500.0), ("tpot", 375.0), ("e2el", 1000.0)])
def test_an_objective_is_met_up_to_its_value(name: str, milliseconds: float) -> None:
    whole = answer(0.0, 0.25, 0.5, 1.0)
    assert meets(whole, {name: milliseconds})
    assert not meets(whole, {name: milliseconds - 0.001})
    whole.error = "429"
    assert not meets(whole, {name: milliseconds})


def test_poisson_arrivals() -> None:
    plan = Workload(num_prompts=4000, input_len=LengthRange(1, 1)).plan(5.0, "completions")
    gaps = [later.seconds - sooner.seconds for sooner, later in pairwise(plan)]
    assert plan[0].seconds == 0.0
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert np.std(gaps) == pytest.approx(0.2, rel=0.1)
    even = Workload(num_prompts=4000, input_len=LengthRange(1, 1), burstiness=100.0).plan(5.0, "completions")
    assert even[-1].seconds == pytest.approx(4000 / 5, rel=0.01)
    assert {planned.seconds for planned in Workload(num_prompts=3).plan(float("inf"), "completions")} == {0.0}


def test_arrivals_of_a_trace_keep_their_pattern_at_another_speed() -> None:
    workload = Workload(num_prompts=50, arrivals="azure-code", lengths="azure-code", divisor=4, seed=3)
    slow, fast = workload.plan(1.0, "completions"), workload.plan(2.0, "completions")
    assert slow[-1].seconds == pytest.approx(49.0)
    assert [planned.seconds for planned in fast] == pytest.approx([planned.seconds / 2 for planned in slow])
    trace = azure_trace("azure-code")
    starts = [i for i in range(len(trace) - 49) if trace[i].lengths.divided(4).prompt == len(slow[0].prompt)]
    lengths = [(len(planned.prompt), planned.max_tokens) for planned in slow]
    assert lengths in [[tuple(request.lengths.divided(4)) for request in trace[i : i + 50]] for i in starts]


def test_prompts() -> None:
    workload = Workload(num_prompts=60, input_len=LengthRange(4, 9), shared_prefix_len=5, vocab_size=300)
    plan, again, next_rate = (workload.plan(1.0, "completions", index) for index in (0, 0, 1))
    assert plan == again
    assert [(len(each.prompt), each.max_tokens) for each in plan] == [
        (len(each.prompt), each.max_tokens) for each in next_rate
    ]
    assert {len(each.prompt) - 5 for each in plan} == {4, 5, 6, 7, 8, 9}
    assert len({tuple(each.prompt[:5]) for each in plan}) == 1
    assert plan[0].prompt[:5] != next_rate[0].prompt[:5], "no rate finds what another has left in the cache"
    assert all(isinstance(i, int) and 0 <= i < 300 for each in plan for i in each.prompt)
    chat = workload.plan(1.0, "chat")
    assert [len(each.prompt.split()) for each in chat if isinstance(each.prompt, str)] == [
        len(each.prompt) for each in plan
    ]


def test_lengths_of_traces() -> None:
    lengths = set(azure_lengths("azure"))
    plan = Workload(num_prompts=5, lengths="azure").plan(1.0, "completions")
    assert all((len(each.prompt), each.max_tokens) in lengths for each in plan)
    with pytest.raises(ConfigurationError, match="8819 requests"):
        Workload(num_prompts=9000, lengths="azure-code", arrivals="azure-code").plan(1.0, "completions")


def test_lengths_of_sharegpt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.bench.sharegpt.sharegpt_lengths", lambda: azure_lengths()[:2])
    plan = Workload(num_prompts=2, lengths="sharegpt", divisor=2).plan(1.0, "completions")
    assert {(len(each.prompt), each.max_tokens) for each in plan} == {(374 // 2, 44 // 2), (396 // 2, 109 // 2)}


def curves_of(root: ET.Element) -> list[str]:
    """Their names, each with the title of its diagram before it."""
    names = (each.get("id", "") for each in root.iter("{http://www.w3.org/2000/svg}g"))
    return [name for name in names if re.fullmatch(r"[A-Z].* \d+", name)]


@pytest.mark.parametrize("rates", [[1.0], [1.0, 2.0, float("inf")]])
def test_the_picture_shows_every_rate(rates: list[float]) -> None:
    runs = {rate: Run([answer(0.0, 0.5 / rate + 0.001, 1.0), answer(0.5, 1.5)], 0.0, 0.0) for rate in rates}
    rows = [figures(rate, run, {"ttft": 700}) for rate, run in runs.items()]
    root = ET.fromstring(draw(runs, rows))
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    for title in ("Time to first token", "Inter-token latency", "Time per output token", "End-to-end latency"):
        assert title in texts
    assert ("Served" in texts) == (len(rates) > 1)
    assert texts.count("1 requests/s") == 4
    assert len(curves_of(root)) == 4 * len(rates) + (2 if len(rates) > 1 else 0)
    assert draw(runs, rows) == draw(runs, rows)


def test_axes_are_labelled_with_plain_numbers() -> None:
    """From a hundredth of a millisecond to a thousand seconds, and a thousand requests a second."""
    runs = {rate: Run([answer(0.0, 0.5, 0.50000001, 900.0 / rate)], 0.0, 0.0) for rate in (1.0, 1500.0)}
    picture = draw(runs, [figures(rate, run, {}) for rate, run in runs.items()])
    texts = {"".join(each.itertext()) for each in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")}
    assert {"1", "100", "10,000"} <= texts
    assert {"0", "200", "400", "1,200", "1,400"} <= texts  # requests a second
    assert not [text for text in texts if "e+" in text or "e-" in text]


def test_a_picture_of_nothing() -> None:
    run = Run([answer(0.0, error="429")], 0.0, 0.0)
    picture = draw({1.0: run}, [figures(1.0, Run([answer(0.0, 1.0)], 0.0, 0.0), {})])
    assert curves_of(ET.fromstring(picture)) == []
