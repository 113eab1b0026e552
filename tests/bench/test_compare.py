"""``octavo bench compare`` with engines that only count: the protocol, runs in turns, medians, ratios, refusals."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from octavo.bench import ceilings
from octavo.bench.ceilings import Ceilings, measure_ceilings
from octavo.bench.compare import command, peers
from octavo.bench.compare.cells import CELLS, SYSTEMS, Cell, System, taking_part
from octavo.bench.compare.drivers import driver_main
from octavo.bench.compare.figures import FLOAT, ModelCost, Weights, floor_of, row
from octavo.bench.compare.models import model_as
from octavo.bench.compare.peers import PEERS, Peer
from octavo.bench.compare.process import EngineProcess
from octavo.bench.compare.run import model_cost
from octavo.cli.main import octavo
from octavo.core.errors import ConfigurationError
from octavo.kernels.quantized import FORMATS, INT4_MINIMA, INT8
from octavo.loading.summary import model_summary
from tests.support.gguf_files import to_gguf
from tests.support.models import rand_model
from tests.support.waiting import wait_until

FAKES = Path(__file__).parents[1] / "support" / "drivers"


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    return to_gguf(rand_model(folder / "model"), folder / "rand.gguf", "Q4_1")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without any peer."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def mark_installed(*names: str) -> None:
    """As if ``names`` were installed, with this interpreter."""
    for name in names:
        python = peers.python_of(name)
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        (peers.peer_folder(name) / ".octavo-installed").write_text(repr(PEERS[name]))


def engine(name: str) -> EngineProcess:
    return EngineProcess(name, Path(sys.executable), f"fake_driver:{name}", FAKES)


def loaded(name: str) -> EngineProcess:
    process = engine(name)
    process.ask("load", model="/models/m.gguf", threads=2, max_sequences=2, max_tokens=8)
    return process


class Echo:
    def load(self, **arguments: Any) -> str:
        return str(sorted(arguments))

    def run(self, prompts: list[list[int]], output_len: int) -> list[int]:
        if output_len == 0:
            raise RuntimeError("two\nlines")
        return [output_len for _ in prompts]


def test_requests_and_answers_are_lines() -> None:
    requests = [
        {"load": {"model": "m", "threads": 1}},
        {"run": {"prompts": [[1, 2]], "output_len": 2}},
        {"run": {"prompts": [], "output_len": 0}},
        {"fly": {}},
    ]
    answers = io.StringIO()
    driver_main.serve(Echo(), io.StringIO("\n".join(map(json.dumps, requests))), answers)
    said, ran, failed, unknown = map(json.loads, answers.getvalue().splitlines())
    assert said == {"version": "['model', 'threads']"}
    assert ran["lengths"] == [2]
    assert ran["seconds"] >= 0
    assert failed == {"error": "RuntimeError: two lines"}
    assert unknown == {"error": "ValueError: no such command: fly"}


def test_an_engine_answers_through_its_own_noise() -> None:
    with engine("Engine") as process:
        said = process.ask("load", model="/models/m.gguf", threads=2, max_sequences=2, max_tokens=8)
        assert said == {"version": "fake 1, 2 threads, m.gguf"}
        assert process.run([[1, 2], [3]], 4) >= 0.01
    with loaded("OwnClock") as process:
        assert process.run([[1, 2], [3]], 4) == 1234.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Short", "Short answered 2 prompts with [3] tokens, not 4 each"),
        ("Dies", "Dies ended with code 7 when asked to run: Segmentation fault"),
    ],
)
def test_an_engine_that_fails_is_one_sentence(name: str, message: str) -> None:
    with loaded(name) as process, pytest.raises(ConfigurationError) as caught:
        process.run([[1], [2]], 4)
    assert str(caught.value) == message


def test_what_an_engine_started_ends_with_it() -> None:
    with engine("StartsAnother") as process:
        child = int(process.ask("load", model="", threads=1, max_sequences=1, max_tokens=1)["version"])
        os.kill(child, 0)
    wait_until(lambda: not _runs(child))


def _runs(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_ratios_are_of_the_same_repeat() -> None:
    cell = Cell("c", num_requests=2, prompt_len=3, output_len=10)
    figures = row(cell, "peer", [2.0, 4.0, 30.0], [1.0, 4.0, 10.0], None)
    assert (figures["seconds"], figures["tokens_per_second"]) == (4.0, 5.0)
    assert (figures["slowest"], figures["fastest"]) == (20 / 30, 10.0)
    assert (figures["octavo_ratio"], figures["lowest_ratio"], figures["highest_ratio"]) == (2.0, 1.0, 3.0)
    assert figures["seconds_of_repeats"] == [2.0, 4.0, 30.0]


def test_a_prefill_counts_prompt_tokens() -> None:
    assert Cell("c", 3, prompt_len=100, output_len=1).num_counted == 300
    assert Cell("c", 3, prompt_len=100, output_len=2).num_counted == 6


MACHINE = Ceilings(
    1e3, float_operations_per_second=1e3, byte_operations_per_second=0, products_per_second={"int4": 1e6}
)
"""So quick with int4 that bytes decide, and slow with floats."""


def test_the_floor_is_the_slower_of_bytes_and_operations() -> None:
    # a prompt of 4 tokens, then one step that reads 5 tokens of keys and values
    cell = Cell("c", num_requests=1, prompt_len=4, output_len=2)
    body, head = Weights(40, {"int4": 10}), Weights(20, {"int4": 5})
    bytes_first = floor_of(cell, ModelCost(body, head, kv_bytes=2, attention_operations=0), MACHINE)
    assert bytes_first.seconds == pytest.approx(60 / 1e3 + (60 + 5 * 2) / 1e3)
    assert bytes_first.limit == "bytes"
    body, head = Weights(40, {FLOAT: 1000}), Weights(20, {FLOAT: 500})
    floats = floor_of(cell, ModelCost(body, head, kv_bytes=2, attention_operations=0), MACHINE)
    assert floats.seconds == pytest.approx(2 * (4 * 1000 + 500) / 1e3 + 2 * 1500 / 1e3 + 5 * 2 / 1e3)
    assert floats.limit == "operations"


def test_layers_head_and_attention_wait_for_one_another() -> None:
    """Here the head takes bytes and the layers operations, and attention what its rows see: 1 + 2 + 3, then 4."""
    cell, cost = Cell("c", 2, 3, 2), ModelCost(Weights(0, {"int4": 10**6}), Weights(70, {}), 1, 100)
    head, layers, prompt, last = 0.07, 2.0, 2 * 6 * 0.1, 2 * 4 * 0.1
    assert floor_of(cell, cost, MACHINE).seconds == pytest.approx(2 * head + 3 * layers + layers + prompt + last)


def test_what_is_shared_is_computed_once() -> None:
    cost = ModelCost(Weights(0, {"int4": 10**6}), Weights(0, {}), 0, 0)
    assert floor_of(Cell("c", 10, 5, 1, shared_len=1000), cost, MACHINE).seconds == pytest.approx(1050)
    seen = ModelCost(Weights(0, {}), Weights(0, {}), 0, 1000)
    assert floor_of(Cell("c", 10, 2, 1, shared_len=3), seen, MACHINE).seconds == pytest.approx(1 + 2 + 3 + 10 * (4 + 5))


def test_a_run_has_its_share_of_the_floor() -> None:
    cell, cost = Cell("c", 1, 4, 2), ModelCost(Weights(40, {"int4": 10}), Weights(20, {"int4": 5}), 2, 0)
    figures = row(cell, "Octavo", [0.26], None, floor_of(cell, cost, MACHINE))
    assert figures["ceiling_percent"] == pytest.approx(50)
    assert "octavo_ratio" not in figures


@pytest.mark.parametrize(
    ("weights", "group", "kind"),
    [("stored", "stored", INT4_MINIMA.name), ("Q8_0", "Q8_0", INT8.name), ("stored", "float32", FLOAT)],
)
def test_weights_cost_what_multiplies_them(gguf_path: Path, weights: str, group: str, kind: str) -> None:
    model, summary = model_as(gguf_path, weights), model_summary(gguf_path)
    cost = model_cost(gguf_path, model, System("Octavo", weights, group, "octavo_driver:Engine"))
    assert cost.head.numbers == {kind: summary.config.vocab_size * summary.config.hidden_size}
    assert cost.body.numbers[kind] > 0.9 * sum(cost.body.numbers.values()), "all but the norms"
    tied = 1 if summary.config.tie_embeddings else 2
    assert sum(cost.body.numbers.values()) + tied * cost.head.numbers[kind] == summary.num_parameters


def test_ceilings_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "READ_BYTES", 1 << 22)
    monkeypatch.setattr(ceilings, "SECONDS", 0.001)
    found = measure_ceilings(2)
    # a core reads more than 100 MB and does more than 10 million operations a second, and less than 10^13
    assert 1e8 < found.read_bytes_per_second < 1e13
    assert 1e7 < found.float_operations_per_second < 1e13
    assert 1e7 < found.byte_operations_per_second < 1e13
    assert [1e7 < products < 1e13 for products in found.products_per_second.values()] == [True] * len(FORMATS)
    assert "GFLOPS" in found.describe()


@pytest.mark.parametrize("cell", CELLS.values(), ids=str)
def test_octavo_runs_where_a_peer_of_its_weights_does(cell: Cell) -> None:
    taking = list(taking_part(cell, SYSTEMS))
    for group in {system.group for system in SYSTEMS}:
        members = [system for system in taking if system.group == group]
        assert sum(system.peer is None for system in members) == (1 if members else 0)
        assert len(members) != 1
    alone = [system for system in SYSTEMS if system.peer is None]
    assert not list(taking_part(cell, alone))


def test_prompts_share_what_they_are_to_share_and_nothing_with_other_runs() -> None:
    import random

    cell, source = Cell("c", 3, 5, 1, shared_len=7), random.Random(0)
    first, second = cell.prompts(1000, source), cell.prompts(1000, source)
    assert [len(prompt) for prompt in first] == [12] * 3
    assert first[0][:7] == first[1][:7] == first[2][:7] != second[0][:7]
    assert len({tuple(prompt) for prompt in first + second}) == 6


def run_command(*flags: str) -> Any:
    return CliRunner().invoke(octavo, ["bench", "compare", *flags])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "no engine is installed to compare with; octavo bench compare --install NAME makes one ready: "),
        (("--peers", "vllm"), "vllm is not installed to compare with: octavo bench compare --install vllm"),
    ],
)
def test_refusals_before_anything_is_loaded(flags: tuple[str, ...], message: str) -> None:
    result = run_command(*flags)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {message}")


def test_names_that_are_none_are_told() -> None:
    assert "fast is none of 1x32, 8x32" in run_command("--cells", "1x32,fast").output


def test_a_peer_without_a_part_is_told() -> None:
    mark_installed("transformers")
    result = run_command("--peers", "transformers", "--cells", "shared", "--weights", "stored")
    assert result.exit_code == 1
    assert "transformers: no part in shared with the weights stored" in result.output


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Octavo, a slower peer, and one that refuses the model; all of them fakes."""
    mark_installed("llama.cpp", "openvino")
    monkeypatch.setattr(
        command,
        "SYSTEMS",
        (
            System("Octavo", "stored", "stored", "fake_driver:Engine", folder=FAKES),
            System("llama.cpp", "stored", "stored", "fake_driver:Slow", "llama.cpp", folder=FAKES),
            System("OpenVINO", "stored", "stored", "fake_driver:Refuses", "openvino", folder=FAKES),
        ),
    )


def test_engines_run_in_turns(fakes: None, gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, figures = tmp_path / "notes", tmp_path / "figures.json"
    monkeypatch.setenv("FAKE_ENGINE_NOTES", str(notes))
    flags = ["--cells", "1x32,prefill", "--repeats", "3", "--threads", "1", "--json", str(figures)]
    result = run_command("--model", str(gguf_path), *flags)
    assert result.exit_code == 0, result.output
    assert "left out: OpenVINO Q4_1 could not load: ValueError: no such kind of weights" in result.output
    assert "ready: llama.cpp Q4_1 (fake 1, 1 threads, rand.gguf)" in result.output
    runs = [line.split() for line in notes.read_text().splitlines()][2:]  # without the two that warm up
    assert [name for name, _ in runs] == 2 * ["Engine", "Slow", "Slow", "Engine", "Engine", "Slow"]
    prompts = [digest for _, digest in runs]
    assert prompts[::2] == prompts[1::2]
    assert len(set(prompts)) == 6
    rows = json.loads(figures.read_text())["figures"]["compare"]
    assert [(line["cell"], line["system"]) for line in rows] == [
        ("1x32", "Octavo Q4_1"),
        ("1x32", "llama.cpp Q4_1"),
        ("prefill", "Octavo Q4_1"),
        ("prefill", "llama.cpp Q4_1"),
    ]
    for own, other in (rows[:2], rows[2:]):
        assert own["ceiling_percent"] > 0
        ratios = [b / a for a, b in zip(own["seconds_of_repeats"], other["seconds_of_repeats"], strict=True)]
        assert other["octavo_ratio"] == sorted(ratios)[1]


def test_octavo_itself_is_never_left_out(gguf_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark_installed("llama.cpp")
    octavo_system = System("Octavo", "stored", "stored", "fake_driver:Refuses", folder=FAKES)
    peer = System("llama.cpp", "stored", "stored", "fake_driver:Engine", "llama.cpp", folder=FAKES)
    monkeypatch.setattr(command, "SYSTEMS", (octavo_system, peer))
    result = run_command("--model", str(gguf_path), "--cells", "1x32")
    assert result.exit_code == 1
    assert "Error: Octavo Q4_1 could not load: ValueError: no such kind of weights" in result.output


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new environment's interpreter is a script: it installs all but what is called broken."""

    def create(folder: Path, with_pip: bool) -> None:
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(
            '#!/bin/sh\ncase "$*" in\n'
            '*broken*) echo "Collecting broken"; echo "ERROR: No matching distribution"; exit 1;;\n'
            "-c*) echo needed==2;;\n"
            '*) shift 6; echo "Collecting $*"; echo "  chatter";;\nesac\n'
        )
        python.chmod(0o755)

    monkeypatch.setattr(peers.venv, "create", create)


def test_install_shows_what_goes_on(fake_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer("MIT", (("--no-deps", "engine==1"),), then_requirements_of="engine")
    monkeypatch.setattr(peers, "PEERS", {"openvino": peer})
    assert not peers.is_installed("openvino")
    result = run_command("--install", "openvino")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].startswith("openvino (MIT) into ")
    assert result.output.splitlines()[1:] == ["Collecting --no-deps engine==1", "Collecting needed==2"]
    assert peers.is_installed("openvino")
    monkeypatch.setattr(peers, "PEERS", {"openvino": Peer("MIT", (("engine==2",),))})
    assert not peers.is_installed("openvino")


def test_an_install_that_fails_is_one_sentence(fake_pip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PEERS", {"openvino": Peer("MIT", (("fine==1",), ("broken==1",)))})
    result = run_command("--install", "openvino")
    assert result.exit_code == 1
    last = result.output.splitlines()[-1]
    assert last == "Error: pip could not install broken==1 for openvino: ERROR: No matching distribution"
    assert not peers.is_installed("openvino")
