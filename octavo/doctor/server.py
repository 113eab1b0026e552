"""A running server, examined by its series."""

from octavo.doctor import memory, service
from octavo.doctor.finding import Finding, Report, sorted_findings
from octavo.doctor.series import ServerSummary
from octavo.doctor.words import number, share

CHECKS = (
    memory.pinned_share,
    memory.memory_full,
    memory.preemptions,
    memory.block_size,
    memory.cache_turnover,
    service.queue_age,
    service.refusals,
    service.time_outs,
    service.failures,
    service.bad_requests,
    service.hits_without_benefit,
    service.drafts,
    service.long_tail,
)

UNSEEN = (
    "Series have no texts: whether prompts differ early (a time, an id, a first line) is seen in a trace of prompts.",
    "Whether evicted prefixes are asked for again is seen in a log only (octavo serve --record FILE).",
)


def examine_server(url: str, server: ServerSummary) -> Report:
    findings: list[Finding | None] = [check(server) for check in CHECKS]
    return Report(url, sorted_findings(*findings), tuple(_looked_at(server)), (*UNSEEN, *_not_told(server)))


def _looked_at(server: ServerSummary) -> list[str]:
    counts = server.counts
    pool = (
        f"Model {server.model}: {number(server.num_blocks)} blocks of {number(server.block_tokens)} tokens, "
        f"{number(server.active)} in use, {number(server.cached)} cached, {number(server.pinned)} pinned; "
        f"{number(server.running)} requests run, {number(server.waiting)} wait."
    )
    work = (
        f"Counted {counts.over}: {number(counts.num_ended)} answers, {number(counts.num_rejected)} refusals, "
        f"{number(counts.prompt_tokens)} prompt tokens, {number(counts.generation_tokens)} generated, "
        f"{number(counts.preemptions)} preemptions."
    )
    lines = [pool, work]
    if counts.query_tokens:
        lines.append(f"The prefix cache held {share(counts.hit_tokens / counts.query_tokens)} of the prompt tokens.")
    return lines


def _not_told(server: ServerSummary) -> list[str]:
    """What this server, or this key, does not say."""
    lines = []
    if not server.counts.num_ended:
        lines.append("No answer has ended yet: nothing is known of lengths, hits and refusals under load.")
    elif server.prompts is None:
        lines.append("No answer has ended in the last half hour: the lengths of requests are not known.")
    if server.max_num_seqs is None:
        lines.append("--max-num-seqs is told to the admin's key only, while an engine runs.")
    return lines
