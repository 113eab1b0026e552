"""What the doctor found, as text and as JSON."""

import textwrap
from dataclasses import asdict

import click

from octavo.doctor.finding import Finding, Report, Severity
from octavo.doctor.words import one_line

WIDTH = 100
COLOURS = {Severity.SEVERE: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def print_report(report: Report) -> None:
    for line in report.looked_at:
        click.echo(_wrapped(line, "looked at: "))
    for number, finding in enumerate(report.findings, 1):
        click.echo()
        _print_finding(number, finding)
    click.echo()
    if not report.findings:
        click.echo(f"Nothing is wrong with {one_line(report.source)}, as far as this shows.")
    for line in report.unseen:
        click.echo(_wrapped(line, "not seen:  "))


def _print_finding(number: int, finding: Finding) -> None:
    severity = click.style(finding.severity.value, fg=COLOURS[finding.severity], bold=True)
    click.echo(f"{number}. {severity} ({finding.name})")
    for heading, text in (("", finding.what), ("do: ", finding.change), ("gain: ", finding.gain)):
        click.echo(_wrapped(text, "   " + heading))


def _wrapped(text: str, heading: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=heading, subsequent_indent=" " * len(heading), break_on_hyphens=False
    )


def as_json(report: Report) -> dict[str, object]:
    return asdict(report) | {"is_severe": report.is_severe}
