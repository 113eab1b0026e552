"""What is counted as it happens: latencies, sizes, the parts of a step; as vLLM has them, where it does."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Histogram

from octavo.engine.messages import RequestTimes, StepSeconds

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_BUCKETS = (*(digit / 10**power for power in range(5, 0, -1) for digit in (1, 2, 5)), 1.0, 2.0, 5.0, 10.0)
LENGTH_BUCKETS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
ITERATION_BUCKETS = tuple(float(2**power) for power in range(15))

CACHED_SHARES = ("none", "under_half", "over_half", "nearly_all")
"""Of a prompt; nearly all is nine tenths or more."""

STEP_PARTS = ("plan", "compute", "sample", "reply")


class EventHistograms:
    """``model_name`` is the label of all of them."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name
        self.first_token = self._one("vllm:time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS)
        self.interval = self._one("vllm:inter_token_latency_seconds", "Between tokens of a choice.", ITL_BUCKETS)
        self.iteration = self._one("vllm:iteration_tokens_total", "Tokens computed a step.", ITERATION_BUCKETS)
        self._latency = self._one("vllm:e2e_request_latency_seconds", "Arrival to end of a choice.", LATENCY_BUCKETS)
        self._queue = self._one("vllm:request_queue_time_seconds", "Arrival to first step.", LATENCY_BUCKETS)
        self._prefill = self._one("vllm:request_prefill_time_seconds", "First step to first token.", LATENCY_BUCKETS)
        self._decode = self._one("vllm:request_decode_time_seconds", "First token to end.", LATENCY_BUCKETS)
        self._inference = self._one("vllm:request_inference_time_seconds", "First step to end.", LATENCY_BUCKETS)
        self._per_token = self._one(
            "vllm:request_time_per_output_token_seconds", "Mean time between tokens of a choice (TPOT).", ITL_BUCKETS
        )
        self._prompt = self._one("vllm:request_prompt_tokens", "Prompt tokens a choice.", LENGTH_BUCKETS)
        self._generation = self._one("vllm:request_generation_tokens", "Tokens generated a choice.", LENGTH_BUCKETS)
        self._by_share = self._labelled(
            "octavo:time_to_first_token_seconds",
            "Arrival to first token, by how much of the prompt was cached.",
            "cached",
            CACHED_SHARES,
            TTFT_BUCKETS,
        )
        self._parts = self._labelled(
            "octavo:step_time_seconds", "Where the time of a step went.", "part", STEP_PARTS, STEP_BUCKETS
        )

    def observe_first_token(self, seconds: float, cached_share: float) -> None:
        """``cached_share``: of the prompt, 0 to 1."""
        self.first_token.observe(seconds)
        place = (cached_share > 0) + (cached_share >= 0.5) + (cached_share >= 0.9)
        self._by_share[CACHED_SHARES[place]].observe(seconds)

    def observe_step(self, step: StepSeconds) -> None:
        parts = self._parts
        for part, seconds in zip(STEP_PARTS, (step.plan, step.compute, step.sample, step.reply), strict=True):
            parts[part].observe(seconds)

    def observe_finished(self, times: RequestTimes) -> None:
        self._latency.observe(times.finished - times.arrival)
        self._prompt.observe(times.num_prompt_tokens)
        self._generation.observe(times.num_generation_tokens)
        if times.scheduled is None:
            return
        self._queue.observe(times.scheduled - times.arrival)
        self._inference.observe(times.finished - times.scheduled)
        if times.first_token is None:
            return
        self._prefill.observe(times.first_token - times.scheduled)
        self._decode.observe(times.finished - times.first_token)
        if times.num_generation_tokens > 1:
            self._per_token.observe((times.finished - times.first_token) / (times.num_generation_tokens - 1))

    def _one(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(name, documentation, ["model_name"], registry=self._registry, buckets=buckets)
        return histogram.labels(self._model_name)

    def _labelled(
        self, name: str, documentation: str, label: str, values: Sequence[str], buckets: Sequence[float]
    ) -> dict[str, Histogram]:
        """One for each value of a label."""
        family = Histogram(name, documentation, ["model_name", label], registry=self._registry, buckets=buckets)
        return {value: family.labels(self._model_name, value) for value in values}
