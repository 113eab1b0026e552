"""Settings as users give them, in Python, on the command line, in a variable or a file: one reading for all."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from octavo.core.errors import ConfigurationError
from octavo.engine_args import EngineArgs
from octavo.nearest import nearest

_OTHER_NAMES = {"gpu_memory_utilization": "memory_utilization"}
"""Names of the field that Octavo takes too -> its own."""

_NAMES = tuple(field.name for field in fields(EngineArgs))


def read_settings(given: Mapping[str, Any]) -> EngineArgs:
    """``given``: by name; paths may be objects, ``chat_template`` may be a file of one.

    Raises:
        ConfigurationError: an unknown name, or a value that cannot work, in one sentence.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        own_name = _OTHER_NAMES.get(name, name)
        if own_name not in _NAMES:
            raise ConfigurationError(f"unknown setting {name!r:.60}{_hint(name)}")
        if own_name in values:
            raise ConfigurationError(f"{name} is given twice, as {own_name} too; leave one out")
        values[own_name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    template = values.get("chat_template")
    if isinstance(template, str):
        values["chat_template"] = _read_template(template)
    return EngineArgs(**values)


def _hint(name: str) -> str:
    near = nearest(name, (*_NAMES, *_OTHER_NAMES))
    return f" (did you mean {near}?)" if near else "; octavo.EngineArgs lists the settings"


def _read_template(given: str) -> str:
    """A template given as itself is taken as it is; anything else is a file's name."""
    if "{" in given:
        return given
    try:
        template = Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the chat template {given:.200}: {error}") from error
    if "{" not in template:
        raise ConfigurationError(f"{given} holds no chat template: there is no {{ in it")
    return template
