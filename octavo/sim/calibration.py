"""What a file of costs says of the server that they were measured on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from octavo.core.errors import ConfigurationError
from octavo.sim.cost_text import KINDS, read_costs
from octavo.sim.published import SPLITWISE

SETTINGS = ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")


class Calibration(NamedTuple):
    """``model``: as it was named to ``octavo calibrate``. ``settings``: those of ``SETTINGS`` that are known."""

    model: str | None
    settings: Mapping[str, int]


def read_calibration(cost_model: str) -> Calibration:
    """``cost_model``: as ``parse_costs`` takes it; what is no file of ``octavo calibrate`` tells nothing.

    Raises:
        ConfigurationError: it is no cost model, or a setting is no whole number above 0.
    """
    kind, colon, _ = cost_model.partition(":")
    if colon and kind in {*KINDS, SPLITWISE}:
        return Calibration(None, {})
    path = Path(cost_model)
    read_costs(path)
    origin = json.loads(path.read_text(encoding="utf-8")).get("calibration")
    if not isinstance(origin, dict):
        return Calibration(None, {})
    model, settings = origin.get("model"), origin.get("settings")
    known = {name: settings[name] for name in SETTINGS if name in settings} if isinstance(settings, dict) else {}
    for name, value in known.items():
        if type(value) is not int or value < 1:
            raise ConfigurationError(f"{path}: the setting {name} is {value!r:.60}; it takes a number from 1")
    return Calibration(model if isinstance(model, str) else None, known)
