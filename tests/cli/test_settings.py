"""Where a setting comes from, and what becomes of it."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from octavo.cli.main import LazyCommand, LazyGroup
from octavo.cli.options import ENGINE_FIELDS, engine_options, model_argument, sampling_options, setting
from octavo.core.sampling_params import SamplingParams
from octavo.engine_args import EngineArgs

Run = Callable[..., Result]


@click.command("probe")
@model_argument
@setting("--name", multiple=True)
@sampling_options
@engine_options
def probe(engine_args: EngineArgs, params: SamplingParams, name: tuple[str, ...]) -> None:
    """Prints what it was given."""
    chosen = {"max_tokens": params.max_tokens, "stop": list(params.stops), "seed": params.seed}
    click.echo(json.dumps(dataclasses.asdict(engine_args) | {"name": name, "params": chosen}))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs ``probe`` with flags, variables and the text of a YAML file."""
    for name in [name for name in os.environ if name.startswith("OCTAVO_")]:
        monkeypatch.delenv(name)  # settings of the test run itself
    group = LazyGroup(lazy={"probe": LazyCommand("tests.cli.test_settings:probe", "")})
    monkeypatch.setattr(group, "get_command", lambda _ctx, _name: probe)

    def invoke(*flags: str, env: dict[str, str] | None = None, config: str | None = None) -> Result:
        if config is not None:
            (tmp_path / "config.yaml").write_text(config)
            flags = (*flags, "--config", str(tmp_path / "config.yaml"))
        return CliRunner().invoke(group, ["probe", *flags], env=env, prog_name="octavo")

    return invoke


def values(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    given: dict[str, Any] = json.loads(result.output)
    return given


def test_without_flags_the_defaults_are_those_of_engine_args(run: Run) -> None:
    given = values(run())
    for field in dataclasses.fields(EngineArgs):
        assert given[field.name] == field.default, field.name
    assert given["params"] == {"max_tokens": None, "stop": [], "seed": None}


def test_every_field_of_engine_args_has_a_flag() -> None:
    assert {field.name for field in dataclasses.fields(EngineArgs)} == set(ENGINE_FIELDS)


def test_flag_beats_variable_beats_file_beats_default(run: Run) -> None:
    config, env, flags = "max-num-seqs: 3", {"OCTAVO_MAX_NUM_SEQS": "4"}, ["--max-num-seqs", "5"]
    assert values(run(*flags, env=env, config=config))["max_num_seqs"] == 5
    assert values(run(env=env, config=config))["max_num_seqs"] == 4
    assert values(run(config=config))["max_num_seqs"] == 3
    assert values(run())["max_num_seqs"] == EngineArgs().max_num_seqs


def test_units_are_read_from_all_three(run: Run) -> None:
    given = values(
        run("--max-model-len", "4k", env={"OCTAVO_KV_CACHE_MEMORY_BYTES": "2GiB"}, config="max_num_batched_tokens: 1K")
    )
    assert given["max_model_len"] == 4000
    assert given["kv_cache_memory_bytes"] == 2**31
    assert given["max_num_batched_tokens"] == 1024


def test_auto_on_the_command_line_undoes_a_variable(run: Run) -> None:
    assert values(run("--max-model-len", "auto", env={"OCTAVO_MAX_MODEL_LEN": "64"}))["max_model_len"] is None


def test_switches(run: Run) -> None:
    assert values(run("--no-enable-prefix-caching"))["enable_prefix_caching"] is False
    assert values(run(env={"OCTAVO_ENABLE_PREFIX_CACHING": "0"}))["enable_prefix_caching"] is False
    assert values(run(config="enable-prefix-caching: false"))["enable_prefix_caching"] is False
    assert values(run("--enable-prefix-caching", config="enable-prefix-caching: no"))["enable_prefix_caching"] is True


def test_swapping(run: Run) -> None:
    given = values(run("--swap-space", "0.5", "--prefix-cache-on-host", config="preemption-mode: swap"))
    assert (given["swap_space"], given["preemption_mode"], given["prefix_cache_on_host"]) == (0.5, "swap", True)
    given = values(run("--no-prefix-cache-on-host", env={"OCTAVO_PREFIX_CACHE_ON_HOST": "1", "OCTAVO_SWAP_SPACE": "0"}))
    assert (given["swap_space"], given["preemption_mode"], given["prefix_cache_on_host"]) == (0, "auto", False)


def test_either_name_of_the_memory_share(run: Run) -> None:
    assert values(run("--gpu-memory-utilization", "0.25"))["memory_utilization"] == 0.25
    assert values(run(env={"OCTAVO_GPU_MEMORY_UTILIZATION": "0.25"}))["memory_utilization"] == 0.25
    assert values(run(config="memory-utilization: 0.25"))["memory_utilization"] == 0.25
    assert values(run(config="gpu_memory_utilization: 0.25"))["memory_utilization"] == 0.25


def test_the_model_comes_from_anywhere(run: Run) -> None:
    assert values(run("a.gguf", env={"OCTAVO_MODEL": "b.gguf"}, config="model: c.gguf"))["model"] == "a.gguf"
    assert values(run(env={"OCTAVO_MODEL": "b.gguf"}, config="model: c.gguf"))["model"] == "b.gguf"
    assert values(run(config="model: c.gguf"))["model"] == "c.gguf"


def test_lists_and_nulls_in_the_file(run: Run) -> None:
    assert values(run(config="name: [a, b]"))["name"] == ["a", "b"]
    assert values(run(config="name: a"))["name"] == ["a"]
    assert values(run(config="max-num-seqs: null"))["max_num_seqs"] == EngineArgs().max_num_seqs
    assert values(run(config="# nothing but a comment"))["name"] == []


def test_sampling_flags_and_the_seed_of_both(run: Run) -> None:
    given = values(run("--seed", "5", "--max-tokens", "9", "--stop", "a", "--stop", "b"))
    assert given["seed"] == 5
    assert given["params"] == {"max_tokens": 9, "stop": ["a", "b"], "seed": 5}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("max-num-seq: 3", "unknown setting 'max-num-seq' in"),
        ("max-num-seq: 3", "did you mean max-num-seqs?"),
        ("maxmodel: 3", "did you mean max-model-len?"),
        ("zzz: 3", "`octavo probe --help` lists the settings"),
        ("config: other.yaml", "unknown setting 'config'"),
        ("1: 3", "unknown setting '1' in"),
        ("- a", "must hold `name: value` lines, not a list"),
        ("block-size: 4\nblock-size: 8", "is not valid YAML: block-size is given twice"),
        ("block-size: 4\nblock_size: 8", "block_size in"),
        ("gpu-memory-utilization: 0.1\nmemory-utilization: 0.2", "is given under another name too; leave one out"),
        ("a: b: c", "is not valid YAML: mapping values are not allowed here"),
        ("model: [a, b]", "model in"),
        ("max-num-seqs: {a: 1}", "must be a single value, not a dict"),
    ],
)
def test_a_bad_file_is_one_sentence(run: Run, config: str, message: str) -> None:
    result = run(config=config)
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("text", ["0123", "on", "1:30", "1_000", "0x10", "2026-01-01", "1e3", ".inf"])
def test_a_text_in_the_file_stays_as_it_is_written(run: Run, text: str) -> None:
    """YAML's own reading makes 83 of 0123, true of on, 90 of 1:30."""
    given = values(run(config=f"model: {text}\nprefix-cache-dir: {text}\nname: [{text}]"))
    assert (given["model"], given["prefix_cache_dir"], given["name"]) == (text, text, [text])
    assert values(run(config="model: 'null'"))["model"] == "null"


@pytest.mark.parametrize("text", ["1:30", "0x10", "true", "1.5"])
def test_what_yaml_would_make_a_number_of_is_none(run: Run, text: str) -> None:
    assert "is not a valid integer" in run(config=f"block-size: {text}").output


def test_a_missing_file_is_one_sentence(run: Run) -> None:
    result = run("--config", "/nowhere/octavo.yaml")
    assert result.exit_code == 1
    assert result.output == "Error: cannot read the config file /nowhere/octavo.yaml: No such file or directory\n"


@pytest.mark.parametrize("flag", ["--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"])
def test_decision_d30_parallel_sizes_above_one_are_refused(run: Run, flag: str) -> None:
    assert run(flag, "1").exit_code == 0
    result = run(flag, "2")
    assert result.exit_code == 1
    assert "_parallel_size is 2, but this version runs a model in one process only: use 1" in result.output


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--max-model-len", "4q"], 2, "is not a number of tokens"),
        (["--kv-cache-memory-bytes", "2XB"], 2, "is not a size"),
        (["--gpu-memory-utilization", "1.5"], 2, "is not in the range"),
        (["--no-such-flag"], 2, "No such option"),
        (["--swap-space", "-1"], 2, "is not in the range"),
        (["--swap-space", "1e9"], 1, "swap_space must be a number of GiB, 0 or more, got 1000000000.0"),
        (["--swap-space", "0", "--prefix-cache-on-host"], 1, "prefix_cache_on_host keeps nothing in a swap_space of 0"),
        (["--prefix-cache-on-host", "--no-enable-prefix-caching"], 1, "prefix_cache_on_host keeps nothing while"),
        (["--preemption-mode", "never"], 2, "'never' is not one of 'recompute', 'swap', 'auto'"),
        (["--temperature", "-1"], 1, "temperature must be in [0, 100], got -1"),
        (["--max-tokens", "0"], 2, "is not a number of tokens"),
    ],
)
def test_wrong_values(run: Run, flags: list[str], code: int, message: str) -> None:
    result = run(*flags)
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_wrong_value_in_the_file_or_a_variable_is_refused_as_on_the_command_line(run: Run) -> None:
    for result in (run(config="block-size: many"), run(env={"OCTAVO_BLOCK_SIZE": "many"})):
        assert result.exit_code == 2
        assert "'many' is not a valid integer" in result.output


def test_a_chat_template_is_given_as_itself_or_as_a_file(run: Run, tmp_path: Path) -> None:
    assert values(run("--chat-template", "{{ messages }}"))["chat_template"] == "{{ messages }}"
    (tmp_path / "template.jinja").write_text("{{ bos_token }}")
    assert values(run("--chat-template", str(tmp_path / "template.jinja")))["chat_template"] == "{{ bos_token }}"
    result = run("--chat-template", "missing.jinja")
    assert result.exit_code == 1
    assert result.output.startswith("Error: cannot read the chat template missing.jinja: ")
    (tmp_path / "empty.jinja").write_text("no template")
    assert "holds no chat template" in run("--chat-template", str(tmp_path / "empty.jinja")).output
