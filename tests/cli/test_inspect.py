"""What ``octavo inspect`` tells of a model, against numbers worked out by hand."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import octavo.runner.memory
from octavo.build import build_engine
from octavo.cli.main import octavo as command
from octavo.core.errors import ConfigurationError
from octavo.engine_args import EngineArgs


def inspect(*arguments: str | Path) -> dict[str, str]:
    result = CliRunner().invoke(command, ["inspect", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    lines = (line.split("  ", 1) for line in result.output.splitlines())
    return {name: value.strip() for name, value in lines}


def test_smollm2(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 61 norms of 576 in fp32; the head in 8 bits with fp16 scales, all else in 4 with minima too.
    weights = 61 * 576 * 4 + 49_152 * 576 * 34 // 32 + (134_515_008 - 61 * 576 - 49_152 * 576) * 20 // 32
    monkeypatch.setattr(octavo.runner.memory, "free_memory_bytes", lambda: weights + 2**30)
    told = inspect(smollm2_path, "--gpu-memory-utilization", "0.5")
    assert told["architecture"] == "llama"
    assert told["parameters"] == "134,515,008"
    assert told["weights in memory"] == "92.1 MiB"
    assert told["context"] == "8,192 tokens"
    assert told["layer groups"] == "30 layers global"
    # 30 layers x (key + value) x 3 KV heads x 64 x 2 bytes.
    assert told["KV a token"].startswith("23,040 bytes")
    assert told["block"] == "16 tokens of one layer group, 360.0 KiB"
    # 512 MiB / 360 KiB
    assert told["blocks that fit"].startswith("1,456 (23,296 tokens) in 512.0 MiB (50% of the memory free")


def test_gemma3_has_a_global_group_and_five_with_a_window(gemma3_path: Path) -> None:
    told = inspect(gemma3_path, "--kv-cache-memory-bytes", "9MiB")
    assert told["architecture"] == "gemma3"
    groups = told["layer groups"].split(", ")
    assert groups == ["3 layers global", "5 x 3 layers with a window of 512 tokens"]
    # 18 layers x (key + value) x 1 KV head x 256 x 2 bytes; a block holds 3 layers of 16 tokens: 48 KiB.
    assert told["KV a token"].startswith("18,432 bytes")
    assert told["block"] == "16 tokens of one layer group, 48.0 KiB"
    assert told["blocks that fit"] == "192 (512 tokens) in 9.0 MiB (kv_cache_memory_bytes)"


def test_a_kv_cache_in_8_bits_costs_a_quarter_and_the_scales(smollm2_path: Path) -> None:
    told = inspect(smollm2_path, "--kv-cache-memory-bytes", "720KiB", "--kv-cache-dtype", "int8")
    # 30 layers x (key + value) x 3 KV heads x (64 + 4 for the scale).
    assert told["KV a token"] == "12,240 bytes (int8, all layers)"
    assert told["blocks that fit"] == "3 (48 tokens) in 720.0 KiB (kv_cache_memory_bytes)"


def test_a_model_larger_than_the_memory_has_no_room(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(octavo.runner.memory, "free_memory_bytes", lambda: 2**20)
    assert inspect(smollm2_path)["blocks that fit"].startswith("none: a KV pool of 0 bytes")


SETTINGS = {
    "num-blocks": ({"num_blocks": 100}, "100 (1,600 tokens) in 35.2 MiB (num_blocks)"),
    "capped": ({"max_model_len": 64, "max_num_seqs": 1}, "4 (64 tokens) in at most "),
    "bytes": ({"kv_cache_memory_bytes": 2**20 * 9}, "25 (400 tokens) in 9.0 MiB (kv_cache_memory_bytes)"),
    "too few bytes": ({"kv_cache_memory_bytes": 1024}, "none: a KV pool of 1,024 bytes (kv_cache_memory_bytes) cannot"),
    "too many bytes": ({"kv_cache_memory_bytes": 2**50}, "none: kv_cache_memory_bytes is 1,048,576.00 GiB, but "),
    "too many blocks": ({"num_blocks": 10**9}, "none: the pool of 1,000,000,000 blocks (num_blocks) is "),
    "too short": (
        {"num_blocks": 3, "max_model_len": 64},
        "none: the KV pool of 3 blocks holds 48 tokens of one sequence, but max_model_len is 64; ",
    ),
    "too long": ({"max_model_len": 10**6}, "none: max_model_len (1000000) is above the model's context of 8192"),
}


@pytest.mark.parametrize(("settings", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_what_inspect_tells_is_what_the_engine_does(
    smollm2_path: Path, settings: dict[str, Any], expected: str
) -> None:
    """The same blocks, or the same refusal."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    told = inspect(smollm2_path, *flags)["blocks that fit"]
    assert told.startswith(expected)
    args = EngineArgs(model=str(smollm2_path), swap_space=0, threads=1, **settings)
    if told.startswith("none: "):
        with pytest.raises(ConfigurationError) as refusal:
            build_engine(args)
        words = told.removeprefix("none: ").split(" GiB")[0]  # the memory that is free is another a second later
        assert str(refusal.value).startswith(words)
    else:
        assert build_engine(args).stats().num_blocks == int(told.split(" ")[0])


@pytest.mark.parametrize("name", ["./missing.gguf", "no-such-model"])
def test_a_missing_model_is_one_sentence(name: str) -> None:
    result = CliRunner().invoke(command, ["inspect", name])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert name.removeprefix("./") in result.output
    assert len(result.output.splitlines()) == 1
