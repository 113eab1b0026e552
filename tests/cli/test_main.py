"""The command itself: quick, lazy, and without tracebacks."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from octavo import __version__
from octavo.cli.main import COMMANDS, LazyCommand, LazyGroup, octavo
from octavo.core.errors import ConfigurationError, EngineDeadError, InvalidRequestError


def test_version_and_help_import_no_tensor_library() -> None:
    for flag, answer in (("--version", f"octavo {__version__}"), ("--help", "Usage: octavo")):
        code = (
            "import sys; from octavo.cli.main import octavo; "
            f"octavo([{flag!r}], prog_name='octavo', standalone_mode=False); "
            "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert answer in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_without_the_engine(name: str) -> None:
    code = (
        "import sys; from octavo.cli.main import octavo; "
        f"octavo([{name!r}, '--help'], prog_name='octavo', standalone_mode=False); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"Usage: octavo {name}" in done.stdout


@pytest.mark.parametrize("name", ["OCTAVO_MAX_MODEL_LENGTH", "OCTAVO_MAXMODEL", "OCTAVO_SHOE_SIZE"])
def test_a_variable_that_is_no_setting_is_told_once(name: str) -> None:
    result = CliRunner().invoke(octavo, ["pull", "--help"], env={name: "4k"})
    assert result.exit_code == 0
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"Warning: the variable {name} is no setting of Octavo and is ignored")
    assert ("; did you mean OCTAVO_MAX_MODEL_LEN?" in result.stderr) == ("MODEL" in name)


@pytest.mark.parametrize(
    "name", ["MAX_MODEL_LEN", "MODEL", "CACHE", "ISA", "THREADS", "KV_SANITIZER", "BACKEND", "LIMIT_N", "PORT"]
)
def test_a_variable_that_is_a_setting_of_another_command_is_no_mistake(name: str) -> None:
    assert CliRunner().invoke(octavo, ["pull", "--help"], env={f"OCTAVO_{name}": "1"}).stderr == ""


def test_the_list_of_commands_shows_each_with_its_line() -> None:
    shown = CliRunner().invoke(octavo, ["--help"]).output
    for name, command in COMMANDS.items():
        assert f"  {name} " in shown
        assert command.help.split()[0] in shown


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(octavo, ["sevre"])
    assert result.exit_code == 2
    assert "No such command 'sevre'" in result.output


@pytest.mark.parametrize("kind", [ConfigurationError, InvalidRequestError, EngineDeadError])
def test_an_error_made_on_purpose_is_one_line_and_code_1(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def fail() -> None:
        raise kind("the block size is 0: use 16")

    group = LazyGroup(lazy={"fail": LazyCommand("nowhere:fail", "Fail.")})
    monkeypatch.setattr(group, "get_command", lambda _ctx, _name: fail)
    result = CliRunner().invoke(group, ["fail"])
    assert result.exit_code == 1
    assert (result.stdout, result.stderr) == ("", "Error: the block size is 0: use 16\n")


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fail() -> None:
        raise RuntimeError("a bug")

    group = LazyGroup(lazy={"fail": LazyCommand("nowhere:fail", "Fail.")})
    monkeypatch.setattr(group, "get_command", lambda _ctx, _name: fail)
    result = CliRunner().invoke(group, ["fail"])
    assert isinstance(result.exception, RuntimeError)
