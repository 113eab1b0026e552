"""The orders in which the prefix cache may give up blocks, by name (docs/eviction.md)."""

from octavo.core.eviction_trial import TrialEvictor
from octavo.core.evictor import LRUEvictor, MakeEvictor

EVICTION_POLICIES: dict[str, MakeEvictor] = {"lru": LRUEvictor, "reuse": TrialEvictor}
