"""The flags that commands share, and where their values may come from.

A value is taken from the first of: the flag, its ``OCTAVO_*`` variable, the YAML file of ``--config``, the default.
Defaults live in one place, ``EngineArgs`` and ``SamplingParams``: a flag that nobody gave is not passed on.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from octavo.cli.units import ByteSize, TokenCount
from octavo.core.errors import ConfigurationError
from octavo.core.eviction_policies import EVICTION_POLICIES
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler_types import POLICY_NAMES, PREEMPTION_MODES
from octavo.core.speculation import SPECULATION_METHODS
from octavo.nearest import nearest
from octavo.plain_yaml import parse_yaml

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def setting(*declarations: str, **attributes: Any) -> Decorator:
    """A ``click.option`` whose value may also come from a variable: ``--max-model-len`` from OCTAVO_MAX_MODEL_LEN."""
    flags = [text.split("/")[0] for text in declarations if text.startswith("--")]
    variables = [f"OCTAVO_{flag.removeprefix('--').replace('-', '_').upper()}" for flag in flags]
    return click.option(*declarations, envvar=variables, **attributes)


def all_of(*decorators: Decorator) -> Decorator:
    """The decorators as one, so that help lists their options in this order."""
    return lambda function: functools.reduce(lambda inner, decorator: decorator(inner), reversed(decorators), function)


# --- the YAML file ---------------------------------------------------------------------------------------------------


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"the config file {path} is not valid YAML: {reason}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"the config file {path} must hold `name: value` lines, not a {type(values).__name__}")
    return values


def _as_given(path: Path, key: str, value: Any, multiple: bool) -> str | list[str]:
    """The value as the command line would give it, so that one conversion checks both."""
    items = value if multiple and isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str):
            raise ConfigurationError(f"{key} in {path} must be a single value, not a {type(item).__name__}")
    return items if multiple else items[0]


def _settings_by_key(command: click.Command) -> dict[str, click.Parameter]:
    """Every long flag of a command without its dashes, and the names of its arguments."""
    settings: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            settings[parameter.name or ""] = parameter
        else:
            settings |= {flag.removeprefix("--"): parameter for flag in parameter.opts if flag.startswith("--")}
    del settings["config"]
    return settings


def _apply_config(ctx: click.Context, _param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    settings = _settings_by_key(ctx.command)
    defaults: dict[str, Any] = {}
    for key, value in _read_yaml(path).items():
        flag = str(key).replace("_", "-")
        if flag not in settings:
            near = nearest(flag, settings)
            hint = f" (did you mean {near}?)" if near else f"; `{ctx.command_path} --help` lists the settings"
            raise ConfigurationError(f"unknown setting {key!r} in {path}{hint}")
        parameter = settings[flag]
        if parameter.name in defaults:
            raise ConfigurationError(f"{key} in {path} is given under another name too; leave one out")
        if value is not None:
            multiple = isinstance(parameter, click.Option) and parameter.multiple
            defaults[parameter.name or ""] = _as_given(path, str(key), value, multiple)
    ctx.default_map = defaults


config_option = setting(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=_apply_config,
    help="YAML file with `flag-name: value` lines.",
)


# --- the engine ------------------------------------------------------------------------------------------------------


model_argument = click.argument("model", required=False, envvar="OCTAVO_MODEL")
"""A folder (safetensors), a .gguf file, a hub name (org/name) or a built-in name; left out: the built-in model."""

model_option = setting(
    "--model", "-m", help="Folder, .gguf file, hub name or built-in name.  [default: smollm2-135m]", metavar="MODEL"
)

_engine_settings = all_of(
    config_option,
    setting("--dtype", help="Weights: auto (as stored) or float32 (all unpacked to that).  [default: auto]"),
    setting("--quantization", help="Round plain weights at load: int8 or int4.  [default: leave them]"),
    setting(
        "--weights-cache/--no-weights-cache",
        default=None,
        help="Keep packed weights in the cache folder, so that the next start is quick.  [default: on]",
    ),
    setting(
        "--kv-cache-dtype",
        help="Type of the KV cache: auto (float16; with --dtype float32 fp32), float16, fp32, int8.  [default: auto]",
    ),
    setting("--max-model-len", type=TokenCount(), help="Longest prompt plus output: 4096, 4k, 4K (4096) or auto."),
    setting("--kv-cache-memory-bytes", type=ByteSize(), help="Memory for the KV cache: 2GiB, 500M, bytes."),
    setting("--num-blocks", type=click.IntRange(1), help="Blocks in the KV cache, instead of a size in bytes."),
    setting(
        "--gpu-memory-utilization",
        "--memory-utilization",
        "memory_utilization",
        type=click.FloatRange(0, 1, min_open=True),
        help="Share of the free memory that Octavo may use, where no size is given.",
    ),
    setting("--block-size", type=click.IntRange(1), help="Tokens in a block.  [default: 16]"),
    setting("--max-num-seqs", type=click.IntRange(1), help="Most sequences in one step.  [default: 256]"),
    setting("--max-num-batched-tokens", type=TokenCount(), help="Most tokens in one step."),
    setting(
        "--max-long-partial-prefills",
        type=click.IntRange(1),
        help="Long prompts that are computed at a time; short ones go on beside them.  [default: 1]",
    ),
    setting(
        "--long-prefill-token-threshold",
        type=TokenCount(),
        help="Tokens to compute above which a prompt is long.  [default: 4 times --max-num-batched-tokens]",
    ),
    setting(
        "--target-itl-ms",
        type=click.FloatRange(0, min_open=True),
        help="Milliseconds between tokens that steps with prompts keep, however many wait.  [default: about twice "
        "those without one, three times with two, with more no bound but the token budget]",
    ),
    setting(
        "--max-steps-in-flight",
        type=click.IntRange(1, 2),
        help="2: plan the next step while one is computed, in a thread of its own.  [default: 1]",
    ),
    setting(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=None,
        help="Keep computed prefixes for later requests.  [default: on]",
    ),
    setting(
        "--eviction-policy",
        type=click.Choice(tuple(EVICTION_POLICIES)),
        help="Which prefixes the full cache gives up first (docs/eviction.md).  [default: lru]",
    ),
    setting(
        "--swap-space",
        type=click.FloatRange(0),
        help="GiB of host memory for preempted sequences.  [default: 4, or a quarter of the free memory]",
    ),
    setting(
        "--preemption-mode",
        type=click.Choice(PREEMPTION_MODES),
        help="What becomes of a preempted sequence: compute it again, swap it out, or the quicker.  [default: auto]",
    ),
    setting(
        "--prefix-cache-on-host/--no-prefix-cache-on-host",
        default=None,
        help="Keep what the prefix cache evicts in the swap space.  [default: off]",
    ),
    setting(
        "--prefix-cache-dir",
        type=click.Path(file_okay=False),
        help="Folder of a file that keeps the prefix cache over a restart.  [default: none]",
    ),
    setting("--prefix-cache-disk-space", type=click.FloatRange(0, min_open=True), help="GiB of it.  [default: 4]"),
    setting(
        "--pin-quota",
        type=click.FloatRange(0, 1, max_open=True),
        help="Share of the KV cache that pinned prefixes may hold.  [default: 0.25]",
    ),
    setting(
        "--max-head-skips",
        type=click.IntRange(0),
        help="How many later requests may pass one that does not fit in memory.  [default: 32]",
    ),
    setting("--max-head-skip-steps", type=click.IntRange(0), help="Steps until those give way to it.  [default: 256]"),
    setting("--max-head-skip-seconds", type=click.FloatRange(0), help="The same in seconds.  [default: 30]"),
    setting(
        "--scheduling-policy",
        type=click.Choice(POLICY_NAMES),
        help="Who goes next: who came first, the lowest priority, or the tenant that got least.  [default: fcfs]",
    ),
    setting(
        "--priority-aging-seconds",
        type=click.FloatRange(0),
        help="After this long a waiting request counts as one level better.  [default: 30]",
    ),
    setting(
        "--fair-input-weight",
        type=click.FloatRange(0, min_open=True),
        help="What a computed token of a prompt counts in a tenant's share.  [default: 1]",
    ),
    setting(
        "--fair-output-weight",
        type=click.FloatRange(0, min_open=True),
        help="What a token of an answer counts in it.  [default: 2]",
    ),
    setting(
        "--admission-quantile",
        type=click.FloatRange(0, 1, max_open=True),
        help="How likely the memory has to suffice for what is admitted; 0: not at all.  [default: 0.997]",
    ),
    setting(
        "--speculation",
        type=click.Choice(SPECULATION_METHODS),
        help="Draft tokens where a text repeats itself: ngram or off.  [default: ngram]",
    ),
    setting(
        "--num-speculative-tokens", type=click.IntRange(1), help="Most drafts of a sequence a step.  [default: 15]"
    ),
    setting("--seed", type=click.IntRange(0), help="Makes every draw repeatable."),
    setting("--chat-template", help="Jinja chat template, or a file of one, for the model's own."),
    setting("--backend", help="Kernels to run on: cpu or reference.  [default: the fastest that works]"),
    setting("--threads", type=click.IntRange(1), help="Threads of the CPU kernels.  [default: the cores allowed]"),
    setting(
        "--kv-sanitizer/--no-kv-sanitizer",
        default=None,
        help="Check every step against a shadow of the KV memory; costs time.  [default: off]",
    ),
    setting(
        "--tensor-parallel-size",
        "-tp",
        type=click.IntRange(1),
        help="Only 1 in this version.",
    ),
    setting(
        "--pipeline-parallel-size",
        "-pp",
        type=click.IntRange(1),
        help="Only 1 in this version.",
    ),
)

ENGINE_FIELDS = (
    "model",
    "dtype",
    "quantization",
    "weights_cache",
    "kv_cache_dtype",
    "max_model_len",
    "kv_cache_memory_bytes",
    "num_blocks",
    "memory_utilization",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_long_partial_prefills",
    "long_prefill_token_threshold",
    "target_itl_ms",
    "max_steps_in_flight",
    "enable_prefix_caching",
    "eviction_policy",
    "swap_space",
    "preemption_mode",
    "prefix_cache_on_host",
    "prefix_cache_dir",
    "prefix_cache_disk_space",
    "pin_quota",
    "max_head_skips",
    "max_head_skip_steps",
    "max_head_skip_seconds",
    "scheduling_policy",
    "priority_aging_seconds",
    "fair_input_weight",
    "fair_output_weight",
    "admission_quantile",
    "speculation",
    "num_speculative_tokens",
    "seed",
    "chat_template",
    "backend",
    "threads",
    "kv_sanitizer",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)
"""Fields of ``EngineArgs`` that a flag sets, under the same names."""


def engine_options_with(**defaults: Any) -> Decorator:
    """Adds the engine's flags to a command, which receives them as one ``engine_args: EngineArgs``. ``defaults``: of
    some of its fields, other than ``EngineArgs`` itself has.

    The command adds ``model_argument`` or ``model_option`` itself, above this decorator.
    """

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_engine_args(**values: Any) -> Any:
            from octavo.settings import read_settings

            given = {name: values.pop(name) for name in ENGINE_FIELDS}
            chosen = {name: value for name, value in given.items() if value is not None}
            return function(engine_args=read_settings(defaults | chosen), **values)

        return _engine_settings(with_engine_args)

    return decorator


engine_options = engine_options_with()
"""The same, with the engine's own defaults."""


# --- sampling --------------------------------------------------------------------------------------------------------

DEFAULT_TEMPERATURE = 0.2
"""In a terminal. Low, since the small built-in models wander off at 1.0, which stays the default of the HTTP API."""

_sampling_settings = all_of(
    click.option("--max-tokens", type=TokenCount(), help="Most tokens to generate."),
    click.option("--temperature", type=float, help="0 always takes the likeliest token.  [default: 0.2]"),
    click.option("--top-p", type=float, help="Draw from the likeliest tokens that hold this probability."),
    click.option("--top-k", type=int, help="Draw from this many likeliest tokens."),
    click.option("--min-p", type=float, help="Drop tokens below this share of the likeliest one's probability."),
    click.option("--repetition-penalty", type=float, help="Above 1: tokens seen before become less likely."),
    click.option("--stop", multiple=True, help="Text at which to end; may be given several times."),
)

_SAMPLING_FIELDS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop")


def sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the sampling flags to a command, which receives them as one ``params: SamplingParams``; its ``max_tokens``
    is None where the user gave none.

    Stands above ``engine_options``, whose seed also seeds the request.
    """

    @functools.wraps(function)
    def with_params(**values: Any) -> Any:
        given = {name: values.pop(name) for name in _SAMPLING_FIELDS}
        chosen = {name: value for name, value in given.items() if value is not None}
        defaults = {"max_tokens": None, "seed": values["seed"], "temperature": DEFAULT_TEMPERATURE}
        return function(params=SamplingParams(**defaults | chosen), **values)

    return _sampling_settings(with_params)
