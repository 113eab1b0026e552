"""Scheduling policies for random schedules."""

import random
from collections.abc import Mapping
from typing import Any

from octavo.core.scheduler_types import POLICY_NAMES, PolicySettings

POLICIES = [PolicySettings(name, aging_seconds=aging) for name in POLICY_NAMES for aging in (0.0, 2.0, 1000.0)]
"""Each name several times; what does not concern one is of no matter."""


def standing_under(policy: PolicySettings, number: int) -> Mapping[str, Any]:
    """Fields of EngineRequest: the same for the same number, else as if drawn."""
    if policy.name == "priority":
        return {"priority": random.Random(number).randint(-2, 3)}
    return {}


def with_policy(policy: PolicySettings) -> dict[str, Any]:
    """Settings of a harness."""
    return {"policy": policy, "standing": lambda number: standing_under(policy, number)}
