"""Findings about a server's KV memory, in what its series say."""

import math

from octavo.doctor.block_sizes import VERY_WASTEFUL, WASTEFUL, advised_size, expected_waste
from octavo.doctor.finding import Finding, Severity, graded
from octavo.doctor.series import MIN_ENDED, ServerSummary
from octavo.doctor.words import number, share, times

FULL_SHARE = 0.02
"""Of all blocks: with fewer allocatable ones, memory is what requests wait for (as the alert has it)."""

PIN_WARNING, PIN_SEVERE = 0.3, 0.4
PREEMPTED_WARNING, PREEMPTED_SEVERE = 0.01, 0.05
MIN_PREEMPTIONS = 5
MORE_MEMORY = 1.25
"""Times as many blocks, where a step up is advised and nothing says how large it has to be."""

USED_SHARE = 0.25
"""Of all blocks: while fewer are in use, empty slots in them keep nobody out."""

GOOD_HIT_SHARE = 0.5
SHORT_LIFE_SECONDS = 60.0


def is_full(server: ServerSummary) -> bool:
    return server.waiting > 0 and server.allocatable < FULL_SHARE * server.num_blocks


def pinned_share(server: ServerSummary) -> Finding | None:
    """Pins hold much of the cache."""
    if not server.num_blocks:
        return None
    held = server.pinned / server.num_blocks
    severity = graded(held, PIN_WARNING, PIN_SEVERE)
    if severity is None:
        return None
    quota = min(0.25, max(0.05, math.ceil(20 * (server.pinned - server.idle_pinned) / server.num_blocks) / 20))
    left = server.num_blocks - server.pinned
    spared = server.pinned - quota * server.num_blocks
    return Finding(
        "pinned-share",
        Severity.SEVERE if is_full(server) else severity,
        f"Pins hold {number(server.pinned)} of {number(server.num_blocks)} blocks ({share(held)}), "
        f"{number(server.idle_pinned)} of them in no request's use; all other requests and the rest of the prefix "
        f"cache share {number(left)} blocks ({number(left * server.block_tokens)} tokens).",
        "Release pins that nobody asks for any more (GET and DELETE /admin/pins), give the others a ttl, and serve "
        f"with --pin-quota {quota:.2g}.",
        f"{number(spared)} blocks, {number(spared * server.block_tokens)} tokens, could be used by all"
        f"{_room(server, spared)}.",
        {"pinned_share": held, "idle_pinned_blocks": server.idle_pinned, "pin_quota": quota},
    )


def _room(server: ServerSummary, blocks: float) -> str:
    """How many requests that would be room for."""
    if server.prompts is None or server.outputs is None or not server.block_tokens:
        return ""
    each = math.ceil((server.prompts.p90 + server.outputs.p90) / server.block_tokens)
    return f": room for {int(blocks // each)} more requests of {number(each * server.block_tokens)} tokens"


def block_size(server: ServerSummary) -> Finding | None:
    """Blocks are large for such lengths."""
    if server.prompts is None or server.outputs is None or not server.block_tokens:
        return None
    if server.counts.num_ended < MIN_ENDED:
        return None
    prompt, output = server.prompts.p50, server.outputs.p50
    expected = expected_waste(server.block_tokens, prompt, output)
    seen = expected if server.filled_share is None else 1 - server.filled_share
    severity = graded(seen, WASTEFUL, VERY_WASTEFUL)
    better = advised_size(prompt, output)
    if severity is None or better.block_size >= server.block_tokens:
        return None
    where = (
        f"by the median lengths ({number(prompt)} and {number(output)} tokens)"
        if server.filled_share is None
        else f"now, {number(seen * server.active * server.block_tokens)} slots"
    )
    return Finding(
        "block-size",
        severity if server.active >= USED_SHARE * server.num_blocks else Severity.WARNING,
        f"Blocks of {number(server.block_tokens)} tokens leave {share(seen)} of the slots that requests hold empty "
        f"({where}).",
        f"Serve with --block-size {better.block_size}.",
        f"About {share(better.tail_waste)} would be empty: room for {share((1 - better.tail_waste) / (1 - seen) - 1)} "
        "more tokens in the same memory.",
        {"empty_share": seen, "block_size": better.block_size, "empty_share_then": better.tail_waste},
    )


def cache_turnover(server: ServerSummary) -> Finding | None:
    """The prefix cache is replaced quickly and hits little."""
    counts = server.counts
    if not counts.query_tokens or not counts.evicted_blocks or not server.num_blocks:
        return None
    hits, turns = counts.hit_tokens / counts.query_tokens, counts.evicted_blocks / server.num_blocks
    life = counts.seconds / turns if counts.seconds is not None else math.inf
    if hits >= GOOD_HIT_SHARE or (turns < 1 and life > SHORT_LIFE_SECONDS):
        return None
    lives = "" if math.isinf(life) else f": what nobody asks for is gone after about {number(life)} seconds"
    return Finding(
        "cache-turnover",
        Severity.WARNING,
        f"The prefix cache held {share(hits)} of the prompt tokens {counts.over}, while "
        f"{number(counts.evicted_blocks)} cached blocks made room, {times(turns)} what there is{lives}.",
        "Whether they were wanted again a log tells: serve with --record FILE, then octavo doctor FILE --num-blocks "
        f"{server.num_blocks:.0f}. If so: --num-blocks {2 * server.num_blocks:.0f}, or --prefix-cache-on-host with a "
        "larger --swap-space, or --eviction-policy reuse.",
        f"At most the {number(counts.query_tokens - counts.hit_tokens)} prompt tokens that were computed.",
        {"hit_share": hits, "evicted_blocks": counts.evicted_blocks, "turnovers": turns},
    )


def preemptions(server: ServerSummary) -> Finding | None:
    """Running requests outgrow the memory."""
    counts = server.counts
    rate = counts.preemptions / max(1.0, counts.num_ended)
    severity = graded(rate, PREEMPTED_WARNING, PREEMPTED_SEVERE)
    if severity is None or counts.preemptions < MIN_PREEMPTIONS:
        return None
    lost = counts.lost_tokens / max(1.0, counts.computed_tokens + counts.lost_tokens)
    seqs = (
        f", or take fewer at once (--max-num-seqs {max(1, int(0.8 * server.running))})" if server.running >= 2 else ""
    )
    return Finding(
        "preemptions",
        severity,
        f"{number(counts.preemptions)} preemptions {counts.over}, {number(100 * rate)} for 100 answers; "
        f"{number(counts.lost_tokens)} computed tokens were lost by them.",
        f"Give the KV cache more memory (--num-blocks {math.ceil(MORE_MEMORY * server.num_blocks)}, or "
        f"--kv-cache-dtype int8){seqs}; leave --admission-quantile at 0.997.",
        f"{share(lost)} of the computed tokens are not computed twice, and no answer stops in its middle.",
        {"preemptions_per_answer": rate, "lost_tokens": counts.lost_tokens},
    )


def memory_full(server: ServerSummary) -> Finding | None:
    """Requests wait for blocks."""
    if not is_full(server):
        return None
    return Finding(
        "memory-full",
        Severity.SEVERE,
        f"{number(server.waiting)} requests wait and a new one could get {number(server.allocatable)} of "
        f"{number(server.num_blocks)} blocks: {number(server.active)} are in use, {number(server.idle_pinned)} only "
        f"pinned; sharing spares {number(server.saved)}.",
        f"Give the KV cache more memory (--num-blocks {math.ceil(MORE_MEMORY * server.num_blocks)}, or "
        "--kv-cache-dtype int8), add a server, or bound the queue (--max-num-queued-reqs "
        f"{max(1, int(server.running))}), so that clients are told at once.",
        "Requests start when they come instead of waiting for others to end.",
        {"waiting": server.waiting, "allocatable_blocks": server.allocatable},
    )
