"""``octavo plan``: its lines, and that the command it ends with is accepted."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import octavo.cli.serve
from octavo import LLM, SamplingParams
from octavo.cli.main import octavo as command
from octavo.engine_args import EngineArgs
from octavo.loading.planned_model import planned_model
from octavo.loading.summary import model_summary
from tests.support.models import rand_model

LENGTHS = ("--prompt-lengths", "20,60,120", "--output-lengths", "10,30,60", "--num-requests", "60")

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["plan", *map(str, arguments)])


def test_a_config_alone_will_do(config: Path) -> None:
    for name in (config, config.parent):
        result = run(name, "--memory", "24GiB", *LENGTHS)
        assert result.exit_code == 0, result.output
        assert "15.0 GiB (16 bits a weight)" in result.output  # 8.03 billion weights
        assert "131,072" in result.output  # bytes a token
        assert f"octavo serve {config.parent} --num-blocks" in result.output


def test_weights_from_shapes_are_those_of_the_file(model: Path) -> None:
    summary = model_summary(model)
    assert planned_model(str(model), 32).weight_bytes == 4 * summary.num_parameters
    assert planned_model(str(model)).weight_bytes == summary.loaded_bytes


def test_the_last_line_is_accepted_and_serves(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_KV_SANITIZER", raising=False)
    result = run(model, "--memory", "64MiB", *LENGTHS, "--max-num-seqs", "8")
    assert result.exit_code == 0, result.output
    line = result.stdout.strip().splitlines()[-1]
    served: list[Any] = []
    monkeypatch.setattr(octavo.cli.serve, "run_server", lambda args, _settings, _spawned: served.append(args))
    accepted = CliRunner().invoke(command, shlex.split(line)[1:])
    assert accepted.exit_code == 0, accepted.output
    (engine_args,) = served
    assert isinstance(engine_args, EngineArgs)
    llm = LLM(**{name: value for name, value in vars(engine_args).items() if value != getattr(EngineArgs, name, None)})
    (output,) = llm.generate("abc", SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 3


def test_what_if_stands_side_by_side(config: Path, tmp_path: Path) -> None:
    result = run(
        config,
        *("--memory", "24GiB", "--memory", "40GiB", *LENGTHS, "--rate", "3"),
        *("--what-if", "block_size=64,kv_cache_dtype=int8", "--json", tmp_path / "plan.json"),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "plan.json").read_text())["figures"]["plan"]
    assert [row["title"] for row in rows] == [
        "24.0 GiB",
        "24.0 GiB, block_size=64, kv_cache_dtype=int8",
        "40.0 GiB",
        "40.0 GiB, block_size=64, kv_cache_dtype=int8",
    ]
    assert rows[1]["tokens in a block"] == 64
    assert rows[1]["KV a token, bytes"] < rows[0]["KV a token, bytes"]
    assert rows[0]["  TTFT p50, ms"] > 0
    assert result.stdout.count("octavo serve") == 4


def test_more_devices_than_this_version_serves_on(config: Path) -> None:
    result = run(config, "--memory", "12GiB", *LENGTHS)
    assert result.exit_code == 0, result.output
    assert "needs 2 devices; this version of Octavo runs a model on one" in result.output


def test_what_cannot_hold_one_sequence(config: Path) -> None:
    result = run(config, "--memory", "512MiB", *LENGTHS)
    assert result.exit_code == 1
    assert "not even one sequence fits" in result.output
    assert "are missing" in result.output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--prompt-lengths", "3,2,1", "--output-lengths", "1,2,3"), "not three lengths in ascending order"),
        (("--prompt-lengths", "1,2,3"), "go together"),
        (("--what-if", "colour=red"), "'colour' is none of memory"),
        (("--what-if", "kv_cache_dtype=int3"), "int3"),
        (("--what-if", "max_num_seqs=auto"), "max_num_seqs takes a number, not 'auto'"),
        (("--what-if", "block_size=8,block_size=16"), "block_size is there twice"),
        (("--rate", "nan"), "'nan' is no finite number"),
        (("--memory-utilization", "nan"), "'nan' is no finite number"),
        (("--weight-bits", "nan"), "'nan' is no finite number"),
    ],
)
def test_wrong_usage(config: Path, flags: tuple[str, ...], said: str) -> None:
    result = run(config, "--memory", "24GiB", *flags)
    assert result.exit_code == 2
    assert said in result.output


def _log(path: Path, max_tokens: int | None) -> Path:
    """A server's log of sixty requests, all of which end long before ``max_tokens``."""
    asked = {} if max_tokens is None else {"max_tokens": max_tokens}
    requests = [{"n": n, "t": 0.5 * n, "prompt": 40 + n, "output": 8 + n % 20} | asked for n in range(60)]
    head = {"octavo_request_log": 1, "octavo": "0.1.0", "start": 1764530000.0, "block_size": 16}
    path.write_text("".join(json.dumps(line) + "\n" for line in [head, *requests]))
    return path


def _full(config: Path, folder: Path, log: Path, *more: str) -> list[dict[str, Any]]:
    """The figures of the run with all requests at once, of each column."""
    arguments = (config, "--memory", "15.3GiB", "--memory-utilization", "1", "--trace", log, "--json")
    result = run(*arguments, folder / "plan.json", *more)
    assert result.exit_code == 0, result.output
    return [row["full"] for row in json.loads((folder / "plan.json").read_text())["figures"]["plan"]]


def test_what_requests_ask_for_counts_and_the_log_says_it_first(config: Path, tmp_path: Path) -> None:
    """Asked for more than the longest sequence has, as where a server's clients say nothing, they run as they did."""
    silent, asking = _log(tmp_path / "silent", None), _log(tmp_path / "asking", 30)
    (as_got,) = _full(config, tmp_path, silent)
    (asked, changed) = _full(config, tmp_path, silent, "--max-tokens", "30", "--what-if", "max_tokens=8k")
    assert as_got["num_completed"] == asked["num_completed"] == changed["num_completed"] == 60
    assert as_got != asked != changed
    assert _full(config, tmp_path, asking) == _full(config, tmp_path, asking, "--max-tokens", "8k") == [asked]
    assert _full(config, tmp_path, _log(tmp_path / "more", 100_000)) == [changed]


def test_what_a_server_recorded_is_planned_for(config: Path, tmp_path: Path) -> None:
    """Its log names what requests share, so the plan knows what the cache has of them: 32 of 48 tokens of each but the
    first, where they do not come at once. Half a line at the end is left out if it may be."""
    log = tmp_path / "requests.jsonl"
    lines = ['{"octavo_request_log": 1, "octavo": "0.1.0", "start": 1764530000.0, "block_size": 16}']
    lines += [
        json.dumps(
            {"n": n, "t": 1.0 * n, "prompt": 48, "output": 8, "max_tokens": 8, "blocks": f"0000000100000002{n + 9:08x}"}
        )
        for n in range(40)
    ]
    log.write_text("\n".join([*lines, lines[-1][:30]]))
    refused = run(config, "--memory", "24GiB", "--trace", log)
    assert (refused.exit_code, "line 42" in refused.output) == (1, True)
    result = run(
        config, "--memory", "24GiB", "--trace", log, "--lenient", "--rate", 2, "--json", tmp_path / "plan.json"
    )
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "plan.json").read_text())["figures"]["plan"]
    assert row["longest sequence"] == 56
    assert row["full"]["num_completed"] == 40
    assert row["  from the cache"] == f"{39 * 32 / (40 * 48):.1%}"


def test_a_step_is_as_large_as_the_server_has_it(config: Path, tmp_path: Path) -> None:
    """By default, or where it was calibrated; and costs of another model are told to be such."""
    plain = run(config, "--memory", "24GiB", *LENGTHS, "--what-if", "max_num_seqs=600")
    assert "--max-num-seqs 256 --max-num-batched-tokens 512" in plain.stdout
    assert "--max-num-seqs 600 --max-num-batched-tokens 600" in plain.stdout
    path = tmp_path / "costs.json"
    costs = {"format": 1, "kind": "linear", "base": 0.02, "per_decode": 0.001, "per_chunk_token": 0.001}
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    path.write_text(json.dumps(costs | {"calibration": {"model": "another", "settings": settings}}))
    calibrated = run(config, "--memory", "24GiB", *LENGTHS, "--cost-model", path)
    assert "--max-num-seqs 8 --max-num-batched-tokens 64" in calibrated.stdout
    assert f"warning: {path} was measured with another; times of {config} are others" in calibrated.stderr


def test_what_the_server_would_refuse_is_told(config: Path, tmp_path: Path) -> None:
    """The longest turned out to have 126 tokens; all ask for 50 more than their prompts, 23 so for more than that."""
    log, memory = _log(tmp_path / "log", 50), ("--memory", "24GiB")
    said = "24.0 GiB: a request that asks for more than 126 tokens, prompt and max_tokens, would be refused"
    assert f"{said}; --max-model-len" in run(config, *memory, "--trace", _log(tmp_path / "silent", None)).stdout
    assert f"{said}, as 23 of these 60 did (up to 149); --max-model-len" in run(config, *memory, "--trace", log).stdout
    assert "would be refused" not in run(config, *memory, "--trace", log, "--max-model-len", "200").stdout
