"""The files of deploy/ as tests read them, and their commands as a test may run them."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.support.fake_server import ROOT

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
"""Where this environment's own commands are."""


def call(*command: str | Path) -> str:
    """What it printed; it has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def seconds_of(text: str) -> float:
    """A time as compose and systemd write it: 90, 30s, 2m, 2min."""
    found = re.fullmatch(r"(\d+)(s|m|min)?", text)
    assert found, text
    return int(found[1]) * (60 if found[2] in ("m", "min") else 1)


def with_paths(text: str, places: Mapping[str, str | Path]) -> str:
    """``text``, with the folders of an installed machine, or other fixed words, replaced by the test's own."""
    for there, here in places.items():
        text = text.replace(there, str(here))
    return text


# --- Dockerfile -----------------------------------------------------------------------------------------------------


class Instruction(NamedTuple):
    """``stage``: the name of the image that it is part of."""

    stage: str
    name: str
    value: str


def read_dockerfile(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    found: list[Instruction] = []
    stage = ""
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, _, value = line.strip().partition(" ")
        if not name:
            continue
        if name == "FROM":
            stage = value.rpartition(" ")[2]
        found.append(Instruction(stage, name, " ".join(value.split())))
    return found


def values_of(instructions: Iterable[Instruction], name: str, stage: str) -> list[str]:
    return [each.value for each in instructions if each.name == name and each.stage == stage]


def settings_in(text: str) -> dict[str, str]:
    """Of ENV, or of systemd's Environment: NAME=VALUE NAME=VALUE."""
    return dict(word.split("=", 1) for word in shlex.split(text))


# --- systemd --------------------------------------------------------------------------------------------------------


def read_unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """Section -> key -> its values."""
    unit: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        heading = re.fullmatch(r"\[(\w+)\]", line)
        if heading:
            section = unit.setdefault(heading[1], {})
            continue
        found = re.fullmatch(r"([A-Z]\w+)=(.*)", line)
        assert found, line
        section.setdefault(found[1], []).append(found[2])
    return unit
