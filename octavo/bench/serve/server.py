"""What the server says of itself: the name of its model, and its counters before and after a run."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from octavo.bench.serve.exchange import Target
from octavo.core.errors import ConfigurationError

TIMEOUT = 30.0
QUERIES, HITS, PREEMPTIONS = "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:num_preemptions"

Counters = Mapping[str, float]
"""Name of a counter -> its sum over all labels."""


def get(target: Target, path: str) -> tuple[int, bytes]:
    """Status and body.

    Raises:
        OSError: nothing answers there.
    """
    if target.tls is None:
        connection = HTTPConnection(target.host, target.port, timeout=TIMEOUT)
    else:
        connection = HTTPSConnection(target.host, target.port, timeout=TIMEOUT, context=target.tls)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {target.api_key}"} if target.api_key else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except HTTPException as error:
        raise OSError(f"no HTTP answer ({error!r})") from error
    finally:
        connection.close()


def first_model(target: Target) -> str:
    """The id of the first model that the server lists.

    Raises:
        ConfigurationError: it does not answer, or lists none.
    """
    try:
        status, body = get(target, f"{target.path}/models")
        document: dict[str, Any] = json.loads(body)
    except OSError as error:
        raise ConfigurationError(
            f"no server answers at {target.host}:{target.port} ({error.strerror or error}); start one, or name "
            "another with --base-url"
        ) from error
    except ValueError:
        status, document = 0, {}
    models = document.get("data")
    if status != 200 or not models:
        raise ConfigurationError(
            f"the server lists no model (status {status}): wait until it is ready, or name one with --model"
        )
    return str(models[0]["id"])


def read_counters(target: Target) -> Counters | None:
    """Its /metrics; None where it has none that can be read."""
    try:
        status, body = get(target, f"{target.path.removesuffix('/v1')}/metrics")
        families = list(text_string_to_metric_families(body.decode())) if status == 200 else []
    except (OSError, ValueError):
        return None
    samples = (sample for family in families for sample in family.samples)
    sums: dict[str, float] = {}
    for sample in samples:
        name = sample.name.removesuffix("_total")
        sums[name] = sums.get(name, 0.0) + sample.value
    return sums or None


def counted(before: Counters | None, after: Counters | None) -> dict[str, object]:
    """Share of prompt tokens found in the prefix cache, and preemptions, in between; None of what is not counted."""
    if before is None or after is None:
        return {"prefix_hit_percent": None, "num_preemptions": None}

    def more(name: str) -> float | None:
        return after[name] - before.get(name, 0.0) if name in after else None

    queries, hits, preemptions = more(QUERIES), more(HITS), more(PREEMPTIONS)
    return {
        "prefix_hit_percent": 100 * hits / queries if queries and hits is not None else None,
        "num_preemptions": None if preemptions is None else int(preemptions),
    }
