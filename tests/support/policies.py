"""Scheduling policies, and how far admission looks ahead, for random schedules."""

import random
from collections.abc import Mapping
from typing import Any

from octavo.core.scheduler_types import ADMISSION_QUANTILE, POLICY_NAMES, PolicySettings

POLICIES = [
    PolicySettings(name, aging_seconds=aging, fair_slack=slack)
    for name in POLICY_NAMES
    for aging, slack in ((0.0, 0.0), (2.0, 20.0), (1000.0, 4096.0))
]
"""Each name several times; what does not concern one is of no matter."""

QUANTILES = [0.0, 0.5, ADMISSION_QUANTILE]
"""How far admission looks ahead: not at all, not far, as by default."""


def standing_under(policy: PolicySettings, number: int) -> Mapping[str, Any]:
    """Fields of EngineRequest: the same for the same number, else as if drawn."""
    if policy.name == "priority":
        return {"priority": random.Random(number).randint(-2, 3)}
    return {"tenant": random.Random(number).choice(["a", "b", "b", "c"])}


def with_policy(policy: PolicySettings) -> dict[str, Any]:
    """Settings of a harness."""
    return {"policy": policy, "standing": lambda number: standing_under(policy, number)}
