"""Findings about how a server treats its requests, in what its series say."""

from collections.abc import Mapping

from octavo.doctor import lengths
from octavo.doctor.finding import Finding, Severity, graded
from octavo.doctor.memory import is_full
from octavo.doctor.series import ServerSummary
from octavo.doctor.words import number, share

OLD_SECONDS, VERY_OLD_SECONDS = 10.0, 30.0
FEW, MANY = 0.01, 0.05
"""Shares of requests that were refused or ended by their time."""

MIN_REFUSED = 5
MIN_DRAFTED, BAD_ACCEPTANCE, VAIN_SHARE = 1000, 0.25, 0.05
MIN_WAITS, NO_BENEFIT = 20, 0.8

OF_THE_LOAD: Mapping[str, str] = {
    "queue_full": "raise --max-num-queued-reqs and --max-num-queued-tokens, or add a server",
    "queue_slow": "raise --max-queue-seconds or the clients' X-SLO-TTFT-Ms, or add a server",
    "rate_limit": "raise the tenant's rate in --api-key-file, or let its clients heed Retry-After",
}
"""What to do about refusals that have to do with load; all others are the clients' own."""

OF_THE_CLIENT: Mapping[str, str] = {
    "prompt": "raise --max-model-len, or let clients send less or truncate_prompt_tokens",
    "max_tokens": "raise --max-model-len, or let clients ask for a smaller max_tokens",
    "pin_prefix": "raise --pin-quota, or let clients pin less",
}


def queue_age(server: ServerSummary) -> Finding | None:
    """The first in line has waited for long."""
    severity = graded(server.head_seconds, OLD_SECONDS, VERY_OLD_SECONDS)
    if severity is None:
        return None
    cause, change = _why_it_waits(server)
    return Finding(
        "queue-age",
        severity,
        f"The first of {number(server.waiting)} waiting requests has been in line for {number(server.head_seconds)} "
        f"seconds: {cause}.",
        change,
        "Requests start sooner, or are told at once that they will not.",
        {"head_seconds": server.head_seconds, "waiting": server.waiting},
    )


def _why_it_waits(server: ServerSummary) -> tuple[str, str]:
    """The cause, and what to do."""
    if not server.gap_steps:
        return (
            f"the engine took no step in {number(server.gap_seconds)} seconds",
            "Look at the log and at /health?probe=live; serve with --restart-engine 3.",
        )
    if server.max_num_seqs is not None and server.running >= server.max_num_seqs:
        return (
            f"{number(server.running)} run, as many as --max-num-seqs lets",
            f"Serve with --max-num-seqs {2 * server.max_num_seqs}.",
        )
    if is_full(server):
        return "there are no blocks for it", "See memory-full."
    return (
        f"{number(server.running)} run, and prompts of up to {number(server.admissible_tokens)} tokens would be let in",
        "See which request it is (GET /debug/requests), and bound the wait (--max-queue-seconds 30).",
    )


def refusals(server: ServerSummary) -> Finding | None:
    """Requests are refused for want of room or of rate."""
    counts = {reason: count for reason, count in server.counts.rejected.items() if reason in OF_THE_LOAD and count}
    refused = sum(counts.values())
    part = refused / max(1.0, server.counts.num_told)
    severity = graded(part, FEW, MANY)
    if severity is None or refused < MIN_REFUSED:
        return None
    return Finding(
        "refusals",
        severity,
        f"{number(refused)} requests ({share(part)}) were refused {server.counts.over}: {_listed(counts)}.",
        _advice(counts, OF_THE_LOAD),
        f"Up to {number(refused)} more answers in that time, as far as the machine can compute them.",
        {"refused": refused, "refused_share": part, **counts},
    )


def bad_requests(server: ServerSummary) -> Finding | None:
    """Clients send what cannot be served."""
    counts = {reason: count for reason, count in server.counts.rejected.items() if reason not in OF_THE_LOAD and count}
    refused = sum(counts.values())
    part = refused / max(1.0, server.counts.num_told)
    if part < MANY or refused < MIN_REFUSED:
        return None
    return Finding(
        "bad-requests",
        Severity.WARNING,
        f"{number(refused)} requests ({share(part)}) could not be served as they were {server.counts.over}, by the "
        f"field at fault: {_listed(counts)}.",
        _advice(counts, OF_THE_CLIENT),
        f"{number(refused)} requests that are answered, or not sent.",
        {"refused": refused, "refused_share": part, **counts},
    )


def _listed(counts: Mapping[str, float]) -> str:
    """The most frequent first."""
    by_count = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason} {number(count)}" for reason, count in by_count)


def _advice(counts: Mapping[str, float], known: Mapping[str, str]) -> str:
    """For each of these reasons."""
    told = [f"{reason}: {known[reason]}" for reason in counts if reason in known]
    if len(told) < len(counts):
        told.append("for the rest see the messages that clients get (--log-requests)")
    return "; ".join(told).capitalize() if told[0].startswith("for") else "; ".join(told)


def time_outs(server: ServerSummary) -> Finding | None:
    """Requests end by their time."""
    counts = {bound: count for bound, count in server.counts.timed_out.items() if count}
    ended = sum(counts.values())
    part = ended / max(1.0, server.counts.num_told)
    severity = graded(part, FEW, MANY)
    if severity is None or ended < MIN_REFUSED:
        return None
    return Finding(
        "time-outs",
        severity,
        f"{number(ended)} requests ({share(part)}) were ended by their time {server.counts.over}: {_listed(counts)}.",
        "queue: bound the queue (--max-num-queued-tokens), so that they are told at once, or add a server; deadline: "
        "let clients ask for a smaller max_tokens, or raise --max-request-seconds.",
        "What is computed for them is not thrown away.",
        {"timed_out": ended, "timed_out_share": part, **counts},
    )


def failures(server: ServerSummary) -> Finding | None:
    """Answers end in errors, or engines do. Those that were ended by their time are counted among the errors, and are
    for ``time_outs`` to tell."""
    restarts = server.counts.restarts
    errors = max(0.0, server.counts.finished.get("error", 0.0) - sum(server.counts.timed_out.values()))
    if not errors and not restarts:
        return None
    part = errors / max(1.0, server.counts.num_ended)
    return Finding(
        "failures",
        Severity.SEVERE if restarts or part >= FEW else Severity.WARNING,
        f"{number(errors)} answers ({share(part)}) ended in an error and {number(restarts)} engines were started anew "
        f"{server.counts.over}.",
        "The log names each; NaN logits need --kv-cache-dtype fp32, an engine that was killed less memory "
        "(--kv-cache-memory-bytes).",
        "Every request gets its answer.",
        {"errors": errors, "restarts": restarts},
    )


def long_tail(server: ServerSummary) -> Finding | None:
    """A few answers are far longer than the others."""
    if server.outputs is None:
        return None
    is_pressed = server.counts.preemptions or is_full(server)
    return lengths.long_tail(server.outputs.p50, server.outputs.p99, Severity.WARNING if is_pressed else Severity.NOTE)


def drafts(server: ServerSummary) -> Finding | None:
    """Speculation computes tokens in vain."""
    counts = server.counts
    if counts.drafted_tokens < MIN_DRAFTED:
        return None
    accepted = counts.accepted_tokens / counts.drafted_tokens
    vain = counts.drafted_tokens - counts.accepted_tokens
    part = vain / max(1.0, vain + counts.computed_tokens)
    if accepted >= BAD_ACCEPTANCE or part < VAIN_SHARE:
        return None
    most = max(1, round(counts.accepted_tokens / max(1.0, counts.drafts)) + 1)
    return Finding(
        "drafts",
        Severity.WARNING,
        f"{share(accepted)} of {number(counts.drafted_tokens)} drafted tokens were right {counts.over}; "
        f"{number(vain)} were computed in vain.",
        f"Serve with --num-speculative-tokens {most}, or --speculation off.",
        f"{share(part)} of the computed tokens are spared; answers stay the same.",
        {"accepted_share": accepted, "vain_tokens": vain},
    )


def hits_without_benefit(server: ServerSummary) -> Finding | None:
    """Cached prompts are answered no sooner than others."""
    cold, warm = (server.counts.waits.get(label) for label in ("none", "nearly_all"))
    if (
        cold is None
        or warm is None
        or min(cold.num_choices, warm.num_choices) < MIN_WAITS
        or warm.mean < NO_BENEFIT * cold.mean
    ):
        return None
    return Finding(
        "hits-without-benefit",
        Severity.WARNING,
        f"Prompts that were cached to nine tenths waited {number(1000 * warm.mean)} ms for their first token "
        f"{server.counts.over}, prompts that were not cached {number(1000 * cold.mean)} ms: the wait is the queue's.",
        "See queue-age and memory-full; where neither is told, add a server or bound the queue "
        "(--max-num-queued-tokens).",
        f"Up to {number(1000 * warm.mean)} ms for {number(warm.num_choices)} requests.",
        {"cached_ms": 1000 * warm.mean, "uncached_ms": 1000 * cold.mean},
    )
