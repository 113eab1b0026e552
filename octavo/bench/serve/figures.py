"""What a run says: latencies from the moment at which a request was due, throughput, goodput."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

import numpy as np

from octavo.bench.serve.exchange import Answer
from octavo.bench.serve.load import Run

PERCENTILES = (50, 90, 99)
REJECTED = "429"

SLOs = Mapping[str, float]
"""Name of a latency -> the most milliseconds that it may be."""


def ttft(answer: Answer) -> float:
    """Seconds from when it was due to its first text. Not from when it was sent: a request that its client could not
    send yet waits like any other (coordinated omission)."""
    return answer.token_times[0] - answer.due


def tpot(answer: Answer) -> float:
    """Mean seconds a token after the first; 0 for an answer of one token."""
    return (answer.token_times[-1] - answer.token_times[0]) / max(1, answer.num_output_tokens - 1)


def e2el(answer: Answer) -> float:
    """Seconds from when it was due to its end."""
    return answer.end - answer.due


def gaps(answer: Answer) -> list[float]:
    """Seconds between events with text; 0 between those that came at once. An event may hold several tokens."""
    return [later - sooner for sooner, later in pairwise(answer.token_times)]


OBJECTIVES: dict[str, Callable[[Answer], float]] = {
    "ttft": ttft,
    "itl": lambda answer: max(gaps(answer), default=0.0),
    "tpot": tpot,
    "e2el": e2el,
}
"""What an SLO can be set for; ``itl`` is that of the longest gap."""


def meets(answer: Answer, slos: SLOs) -> bool:
    """Is it whole, and was it in time?"""
    return answer.error is None and all(1e3 * OBJECTIVES[name](answer) <= most for name, most in slos.items())


def figures(rate: float, run: Run, slos: SLOs) -> dict[str, object]:
    """One row. Latencies in milliseconds, of whole answers alone; None where there are none."""
    whole = [answer for answer in run.answers if answer.error is None]
    errors = Counter(answer.error for answer in run.answers if answer.error is not None)
    output_tokens = sum(answer.num_output_tokens for answer in whole)
    prompt_tokens = sum(answer.num_prompt_tokens for answer in whole)
    num_good = sum(meets(answer, slos) for answer in whole)
    lags = [answer.sent - answer.due for answer in run.answers]
    row: dict[str, object] = {
        "request_rate": rate if math.isfinite(rate) else "inf",
        "num_requests": len(run.answers),
        "num_completed": len(whole),
        "num_rejected": errors[REJECTED],
        "num_errors": errors.total() - errors[REJECTED],
        "errors": dict(errors),
        "seconds": run.seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "requests_per_second": len(whole) / run.seconds,
        "output_tokens_per_second": output_tokens / run.seconds,
        "total_tokens_per_second": (prompt_tokens + output_tokens) / run.seconds,
        "goodput": num_good / run.seconds if slos else None,
        "goodput_share": num_good / len(run.answers) if slos else None,
        "send_lag_p99": 1e3 * float(np.percentile(lags, 99)),
        "client_cpu_percent": 100 * run.cpu_seconds / run.seconds,
    }
    return row | latencies(whole)


def latencies(whole: Sequence[Answer]) -> dict[str, object]:
    """Means and percentiles, in milliseconds."""
    samples: dict[str, list[float]] = {
        "ttft": [ttft(answer) for answer in whole],
        "itl": [gap for answer in whole for gap in gaps(answer)],
        "tpot": [tpot(answer) for answer in whole if answer.num_output_tokens > 1],
        "e2el": [e2el(answer) for answer in whole],
    }
    row: dict[str, object] = {}
    for name, seconds in samples.items():
        row[f"{name}_mean"] = 1e3 * fmean(seconds) if seconds else None
        found = (1e3 * np.percentile(seconds, PERCENTILES)).tolist() if seconds else [None] * len(PERCENTILES)
        row |= {f"{name}_p{percent}": value for percent, value in zip(PERCENTILES, found, strict=True)}
    return row
