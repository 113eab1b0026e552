"""What ``octavo run-batch`` hands on."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import octavo.cli.run_batch
from octavo.cli.main import octavo as command
from octavo.core.sampling_params import SamplingLimits
from octavo.engine_args import EngineArgs
from octavo.server.limits import ServerLimits
from octavo.server.settings import ServerSettings


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    for name in ("OCTAVO_KV_SANITIZER", "OCTAVO_THREADS"):
        monkeypatch.delenv(name, raising=False)  # settings of the test run itself
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(octavo.cli.run_batch, "run", lambda *args, overwrite: found.append((*args, overwrite)))
    return found


@pytest.mark.parametrize("words", ["a b", "-i a -o b", "--input-file a --output-file b", "a -o b"])
def test_files_come_as_arguments_or_flags(calls: list[tuple[Any, ...]], words: str) -> None:
    result = CliRunner().invoke(command, ["run-batch", *words.split()])
    assert result.exit_code == 0, result.output
    settings = ServerSettings("smollm2-135m", log_stats=False)
    assert calls == [(EngineArgs(), settings, Path("a"), Path("b"), False)]


def test_flags_are_those_of_serve(calls: list[tuple[Any, ...]]) -> None:
    flags = (
        "a b --model m.gguf --served-model-name name --shutdown-timeout 5 --block-size 32 --limit-n 128 --overwrite "
        "--no-enable-auto-tool-choice --tool-call-parser json --reasoning-parser none --pooling last"
    )
    result = CliRunner().invoke(command, ["run-batch", *flags.split()])
    assert result.exit_code == 0, result.output
    ((engine_args, settings, *_, overwrite),) = calls
    assert engine_args == EngineArgs(model="m.gguf", block_size=32)
    assert overwrite
    assert settings == ServerSettings(
        "name",
        shutdown_timeout=5.0,
        log_stats=False,
        limits=ServerLimits(SamplingLimits(n=128)),
        enable_auto_tool_choice=False,
        tool_call_parser="json",
        reasoning_parser="none",
        pooling="last",
    )


@pytest.mark.parametrize("words", ["", "a", "-o b", "a b -i c", "a b -o c"])
def test_each_file_is_given_once(calls: list[tuple[Any, ...]], words: str) -> None:
    result = CliRunner().invoke(command, ["run-batch", *words.split()])
    assert result.exit_code == 2
    assert " once, as an argument or a flag" in result.output
    assert calls == []
