"""What ``octavo top`` shows of two looks at a server."""

from collections.abc import Iterable
from typing import Any

from octavo.cli.top_reader import Reading

COLUMNS = ("REQUEST", "TENANT", "PRIORITY", "AGE", "STATE", "PROMPT", "OUT", "LAST DECISION")
ID_WIDTH = 64
UNSHOWN = ("event", "time", "seconds", "step", "choice", "reason")


def screen(url: str, before: Reading, now: Reading) -> str:
    """``before``: the look that rates are taken from."""
    lines = [f"octavo top: {now.model} at {url}", "", *figures(before, now), ""]
    if now.requests is None:
        lines.append(f"Requests are not shown: {now.refusal}")
    else:
        lines += _table([COLUMNS, *(_row(request) for request in now.requests)])
    return "\n".join(lines)


def figures(before: Reading, now: Reading) -> Iterable[str]:
    """Lines of the server's figures, with rates between two looks. A counter that is less than before began at 0 again
    in between: its engine, or its server, is another one."""
    seconds = max(1e-9, now.time - before.time)

    def rate(name: str) -> float:
        counted, earlier = now.value(name), before.value(name)
        return (counted if counted < earlier else counted - earlier) / seconds

    def count(name: str, label: str | None = None) -> str:
        return f"{now.value(name, label):,.0f}"

    blocks = ", ".join(f"{count('octavo:kv_blocks', state)} {state}" for state in ("active", "cached", "free"))
    queries, hits = rate("vllm:prefix_cache_queries_total"), rate("vllm:prefix_cache_hits_total")
    yield (
        f"running {count('vllm:num_requests_running')}   waiting {count('vllm:num_requests_waiting')}   "
        f"queue {count('octavo:queued_requests')} requests, {count('octavo:queued_tokens')} tokens"
    )
    yield (
        f"prompt {rate('vllm:prompt_tokens_total'):,.1f} tokens/s   "
        f"generation {rate('vllm:generation_tokens_total'):,.1f} tokens/s   steps {rate('octavo:steps_total'):,.1f}/s"
    )
    yield (
        f"KV cache {now.value('vllm:kv_cache_usage_perc'):.1%} in use ({blocks} blocks)   "
        f"prefix hits {hits / queries if queries else 0.0:.1%}"
    )
    yield (
        f"preemptions {count('vllm:num_preemptions_total')} ({rate('vllm:num_preemptions_total'):,.2f}/s)   "
        f"rejected {count('octavo:requests_rejected_total')}   timed out {count('octavo:requests_timed_out_total')}"
    )


def _row(request: dict[str, Any]) -> tuple[str, ...]:
    events = request["events"]
    last = events[-1] if events else None
    states = " ".join(f"{count} {state}" for state, count in request["statuses"].items())
    return (
        request["id"][:ID_WIDTH],
        request["tenant"],
        str(request["priority"]),
        _seconds(last["time"] - request["arrival"]) if last else "-",
        states or request["finish_reason"] or "-",
        str(request["prompt_tokens"]),
        str(request["generated_tokens"]),
        _decision(last) if last else "-",
    )


def _decision(event: dict[str, Any]) -> str:
    """``finished (step 12, generated tokens 5: length)``."""
    details = [f"{name.replace('_', ' ')} {value}" for name, value in event.items() if name not in UNSHOWN]
    text = ", ".join([f"step {event['step']}", *details])
    reason = f": {event['reason']}" if "reason" in event else ""
    return f"{event['event'].replace('_', ' ')} ({text}){reason}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
