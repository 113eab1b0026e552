"""What the doctor says: findings, what they were found in, and what could not be seen there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """From what harms now to what is worth knowing."""

    SEVERE = "severe"
    WARNING = "warning"
    NOTE = "note"


_ORDER = list(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """``name``: which kind of finding it is, the same in every report. ``what``, ``change``, ``gain``: sentences: what
    is wrong, which setting to turn or what to do, and what that would bring. ``figures``: the numbers in them."""

    name: str
    severity: Severity
    what: str
    change: str
    gain: str
    figures: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """``looked_at``: what was examined, with its size. ``unseen``: what this source cannot tell. All are sentences."""

    source: str
    findings: tuple[Finding, ...]
    looked_at: tuple[str, ...]
    unseen: tuple[str, ...] = ()

    @property
    def is_severe(self) -> bool:
        return any(finding.severity is Severity.SEVERE for finding in self.findings)


def graded(value: float, warning: float, severe: float) -> Severity | None:
    """None below ``warning``."""
    if value >= severe:
        return Severity.SEVERE
    return Severity.WARNING if value >= warning else None


def sorted_findings(*findings: Finding | None) -> tuple[Finding, ...]:
    """Those that there are, the severest first, else as given."""
    found = [finding for finding in findings if finding is not None]
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))
