"""Settings of an engine: plain values, so that naming them costs no import of torch."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import msgspec

from octavo.core.errors import ConfigurationError
from octavo.core.eviction_policies import EVICTION_POLICIES
from octavo.core.scheduler_types import (
    ADMISSION_QUANTILE,
    POLICY_NAMES,
    PREEMPTION_MODES,
    PolicyName,
    PolicySettings,
    PreemptionMode,
    PromptBounds,
    SchedulerConfig,
    SkipBounds,
)
from octavo.core.speculation import SPECULATION_METHODS

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", "float32", "fp32")
"""auto: quantised weights are multiplied as they are stored, all else is fp32. The others unpack them to fp32."""

QUANTIZATIONS = ("int8", "int4")
"""What plain weights may be rounded to at load (octavo/loading/quantization.py)."""

KV_CACHE_DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "float16": "float16",
    "fp16": "float16",
    "int8": "int8",
}
"""Each name, and torch's name of the type that holds keys and values; "auto" beside them. int8: with one fp32 scale a
token and KV head (docs/kernel-contract.md)."""

BACKENDS = ("cpu", "reference")

MAX_THREADS = 1024
"""More than any machine has cores for; far more would take the memory for their stacks."""

MAX_STEPS_IN_FLIGHT = 2
"""One that is computed, and one that is planned meanwhile."""

MAX_SWAP_SPACE = 2**20
"""GiB, on disk too; more is a number of bytes."""

_COUNTS = (
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_long_partial_prefills",
    "long_prefill_token_threshold",
    "max_steps_in_flight",
    "max_model_len",
    "num_blocks",
    "threads",
    "kv_cache_memory_bytes",
    "num_speculative_tokens",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)
"""Settings that are whole numbers of at least 1."""

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
"""Types of settings, in words."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "quantization": QUANTIZATIONS,
    "kv_cache_dtype": ("auto", *KV_CACHE_DTYPES),
    "eviction_policy": tuple(EVICTION_POLICIES),
    "preemption_mode": PREEMPTION_MODES,
    "scheduling_policy": POLICY_NAMES,
    "speculation": SPECULATION_METHODS,
}
"""Settings that are one of a few names."""


@dataclass(frozen=True)
class EngineArgs:
    """Settings of an engine, named as on the command line.

    ``model``: a folder, a .gguf file, a built-in name or a hub name. ``quantization``: round plain weights to 8 or 4
    bits at load (None: leave them). ``weights_cache``: keep packed weights in the cache folder, for later starts.
    ``max_model_len`` None: the model's context, or what the pool holds if that is
    less. The pool has ``num_blocks`` blocks, or as many as ``kv_cache_memory_bytes``
    hold, or as many as ``memory_utilization`` (a share) of the free memory holds. ``swap_space``: GiB of the host pool,
    for preempted sequences; None: 4, or a quarter of the free memory if that is less. ``prefix_cache_on_host``: let it
    keep evicted blocks of the prefix cache too. ``prefix_cache_dir``: folder of a file in which the prefix cache
    outlives a restart, ``prefix_cache_disk_space`` GiB large (None: 4). ``pin_quota``: share of the pool that pins may
    hold. ``max_head_skips`` later requests may pass one that does not fit, for ``max_head_skip_steps`` steps or
    ``max_head_skip_seconds`` at most. ``admission_quantile``: how likely the memory has to suffice for what is admitted
    (0: admission does not look ahead). ``scheduling_policy``: who of those that wait goes next; under "priority" a
    request counts as one level better after each ``priority_aging_seconds``, under "fair" a tenant's tokens count at
    the ``fair_*_weight``s of prompts and answers. ``max_long_partial_prefills``
    prompts with more than ``long_prefill_token_threshold`` tokens to compute (None: four times
    ``max_num_batched_tokens``) are computed at a time. ``target_itl_ms``: milliseconds between two tokens of an answer
    that prompts beside it are to leave it (None: less than twice as many as without them). ``max_steps_in_flight`` 2:
    plan the next step while one is computed. ``speculation`` "ngram": draft tokens where a text repeats itself, at most
    ``num_speculative_tokens`` of a sequence in a step. ``kv_sanitizer``: check every step against a shadow of the KV
    memory (None: what OCTAVO_KV_SANITIZER says, else not). Every value is of its field's type, or refused: nothing is
    guessed (``settings.read_settings`` knows the other names and forms that users may give).

    Raises:
        ConfigurationError: a value of another type, out of its range, or one that cannot go with another.
    """

    model: str = "smollm2-135m"
    dtype: str = "auto"
    quantization: Literal["int8", "int4"] | None = None
    weights_cache: bool = True
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    kv_cache_memory_bytes: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_long_partial_prefills: int = 1
    long_prefill_token_threshold: int | None = None
    target_itl_ms: float | None = None
    max_steps_in_flight: int = 1
    enable_prefix_caching: bool = True
    eviction_policy: str = "lru"
    swap_space: float | None = None
    preemption_mode: PreemptionMode = "auto"
    scheduling_policy: PolicyName = "fcfs"
    priority_aging_seconds: float = 30.0
    fair_input_weight: float = 1.0
    fair_output_weight: float = 2.0
    max_head_skips: int = 32
    max_head_skip_steps: int = 256
    max_head_skip_seconds: float = 30.0
    admission_quantile: float = ADMISSION_QUANTILE
    speculation: str = "ngram"
    num_speculative_tokens: int = 15
    prefix_cache_on_host: bool = False
    prefix_cache_dir: str | None = None
    prefix_cache_disk_space: float | None = None
    pin_quota: float = 0.25
    seed: int | None = None
    backend: str | None = None
    threads: int | None = None
    kv_sanitizer: bool | None = None
    memory_utilization: float = 0.4
    chat_template: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    def __post_init__(self) -> None:
        _check(self)

    @property
    def kv_dtype_name(self) -> str:
        """Its name, for those who do without torch. auto: 16 bits, as nearly all weights have at most, which halves the
        memory of a conversation and changes logits by far less than the weights' own rounding (docs/benchmarks.md);
        fp32 where the weights are to be unpacked to that."""
        if self.kv_cache_dtype == "auto":
            return "float16" if self.dtype == "auto" else "float32"
        return KV_CACHE_DTYPES[self.kv_cache_dtype]

    @property
    def kv_dtype(self) -> "torch.dtype":
        """The type that holds keys and values: float32, float16 or int8."""
        import torch

        dtype: torch.dtype = getattr(torch, self.kv_dtype_name)
        return dtype


def _check(args: EngineArgs) -> None:
    for name, choices in _CHOICES.items():
        if getattr(args, name) not in choices and not (name == "quantization" and args.quantization is None):
            chosen = f"{getattr(args, name)!r:.60}"
            raise ConfigurationError(f"{name} {chosen} is not supported; use one of: {', '.join(choices)}")
    _check_types(args)
    for name in _COUNTS:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"{name} must be at least 1, got {value}")
    if args.seed is not None and args.seed < 0:
        raise ConfigurationError(f"seed must be a whole number of at least 0, got {args.seed}")
    if not 0 < args.memory_utilization <= 1:
        raise ConfigurationError(f"memory_utilization must be in (0, 1], got {args.memory_utilization:g}")
    if args.swap_space is not None and not 0 <= args.swap_space < MAX_SWAP_SPACE:
        raise ConfigurationError(f"swap_space must be a number of GiB, 0 or more, got {args.swap_space!r:.60}")
    _check_kernels(args)
    _check_parallel(args)
    _check_sizes(args)
    _check_pin_quota(args)
    _check_host_tier(args)
    _check_disk_tier(args)
    if args.quantization is not None and args.dtype != "auto":
        raise ConfigurationError(
            f"quantization {args.quantization!r:.60} and dtype {args.dtype!r:.60} exclude each other; leave one out"
        )


def _check_types(args: EngineArgs) -> None:
    """A text is no switch, true is no number, and 5 is no folder's name."""
    for name, hint in _hints().items():
        value = getattr(args, name)
        try:
            msgspec.convert(value, hint, strict=True)
        except msgspec.ValidationError as error:
            kind = _KINDS[next(each for each in (hint, *get_args(hint)) if each in _KINDS)]
            raise ConfigurationError(f"{name} must be {kind}, got {value!r:.60}") from error


@cache
def _hints() -> dict[str, Any]:
    """The type of each field."""
    return get_type_hints(EngineArgs)


def _check_kernels(args: EngineArgs) -> None:
    if args.threads is not None and args.threads > MAX_THREADS:
        raise ConfigurationError(f"threads must be at most {MAX_THREADS}, got {args.threads}")
    if args.backend is not None and args.backend not in BACKENDS:
        raise ConfigurationError(f"There is no backend {args.backend!r:.60}; choose one of: {', '.join(BACKENDS)}.")


def _check_parallel(args: EngineArgs) -> None:
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(args, name) > 1:
            raise ConfigurationError(
                f"{name} is {getattr(args, name)}, but this version runs a model in one process only: use 1"
            )


def head_skips(args: EngineArgs) -> SkipBounds:
    """
    Raises:
        ConfigurationError: no bounds.
    """
    return SkipBounds(args.max_head_skips, args.max_head_skip_steps, args.max_head_skip_seconds)


def policy_settings(args: EngineArgs) -> PolicySettings:
    """
    Raises:
        ConfigurationError: out of range.
    """
    return PolicySettings(
        args.scheduling_policy, args.priority_aging_seconds, args.fair_input_weight, args.fair_output_weight
    )


def prompt_bounds(args: EngineArgs) -> PromptBounds:
    """
    Raises:
        ConfigurationError: no bounds.
    """
    target_seconds = None if args.target_itl_ms is None else args.target_itl_ms / 1e3
    return PromptBounds(args.max_long_partial_prefills, args.long_prefill_token_threshold, target_seconds)


def _check_sizes(args: EngineArgs) -> None:
    """Sizes that cannot go together, whatever the model."""
    head_skips(args)
    policy_settings(args)
    prompt_bounds(args)
    if args.max_steps_in_flight > MAX_STEPS_IN_FLIGHT:
        raise ConfigurationError(
            f"max_steps_in_flight must be 1 or {MAX_STEPS_IN_FLIGHT}, got {args.max_steps_in_flight}"
        )
    SchedulerConfig(admission_quantile=args.admission_quantile)
    if args.max_num_batched_tokens is not None:
        SchedulerConfig(max_num_seqs=args.max_num_seqs, max_num_batched_tokens=args.max_num_batched_tokens)


def _check_pin_quota(args: EngineArgs) -> None:
    if not 0 <= args.pin_quota < 1:
        raise ConfigurationError(
            f"pin_quota must be a share of the pool, at least 0 and below 1, got {args.pin_quota!r:.60}"
        )


def _check_host_tier(args: EngineArgs) -> None:
    if not args.prefix_cache_on_host:
        return
    if not args.enable_prefix_caching:
        raise ConfigurationError("prefix_cache_on_host keeps nothing while enable_prefix_caching is off; turn it on")
    if args.swap_space == 0:
        raise ConfigurationError("prefix_cache_on_host keeps nothing in a swap_space of 0 GiB; give it more")


def _check_disk_tier(args: EngineArgs) -> None:
    space = args.prefix_cache_disk_space
    if args.prefix_cache_dir is None:
        if space is not None:
            raise ConfigurationError(f"prefix_cache_disk_space of {space!r:.60} GiB needs a folder, prefix_cache_dir")
        return
    if not args.prefix_cache_dir.strip():
        raise ConfigurationError("prefix_cache_dir is empty; name a folder ('.' for this one) or leave it out")
    if not args.enable_prefix_caching:
        raise ConfigurationError(
            f"prefix_cache_dir {args.prefix_cache_dir!s:.200} keeps nothing while enable_prefix_caching is off; "
            "turn it on"
        )
    if space is not None and not 0 < space < MAX_SWAP_SPACE:
        raise ConfigurationError(f"prefix_cache_disk_space must be a number of GiB above 0, got {space!r:.60}")
