"""``octavo plan``: what a model needs of memory for such requests, and how to serve it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from octavo.cli.cost_option import cost_model_option, warn_of_another_model, with_calibrated_settings
from octavo.cli.simulate import find_source
from octavo.cli.table import json_option, print_table, write_json
from octavo.cli.units import ByteSize, Number, TokenCount, readable_bytes
from octavo.core.errors import ConfigurationError
from octavo.core_configs import DEFAULT_BATCHED_TOKENS
from octavo.engine_args import KV_CACHE_DTYPES
from octavo.sim.cost_text import parse_costs
from octavo.sim.planning.lengths import QUANTILES, draw_requests
from octavo.sim.planning.plan import PREEMPTED_SHARE, Model, Plan, Wishes, make_plan
from octavo.sim.traces.request import TracedRequest
from octavo.sim.traces.source import FORMATS

NUM_REQUESTS = 600

WHAT_IF = (
    "memory",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "max_tokens",
    "kv_cache_dtype",
)

WISHED = ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_tokens")

CALIBRATED = ("max_num_seqs", "max_num_batched_tokens")
"""Settings that are taken from a calibration; the others are what a plan is made to find."""

MAY_BE_AUTO = ("block_size", "max_model_len", "max_tokens")

KV_DTYPES = tuple(KV_CACHE_DTYPES)


class Lengths(click.ParamType[tuple[int, int, int]]):
    """Three lengths: 200,800,2000."""

    name = "p50,p90,p99"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int, int]:
        if isinstance(value, tuple):
            return value
        parts = [TokenCount().convert(part, param, ctx) for part in value.split(",")]
        lengths = [part for part in parts if part is not None]
        if len(lengths) != len(QUANTILES) or lengths != sorted(lengths):
            self.fail(f"{value!r} is not three lengths in ascending order, p50,p90,p99", param, ctx)
        return lengths[0], lengths[1], lengths[2]


class Settings(click.ParamType[dict[str, Any]]):
    """Settings of a plan that differ: block_size=32,kv_cache_dtype=int8."""

    name = "name=value,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        for part in value.split(","):
            name, _, text = part.partition("=")
            if name not in WHAT_IF:
                self.fail(f"{name!r} is none of {', '.join(WHAT_IF)}", param, ctx)
            if name in found:
                self.fail(f"{name} is there twice", param, ctx)
            found[name] = self._value(name, text, param, ctx)
        return found

    def _value(self, name: str, text: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if name == "kv_cache_dtype":
            return click.Choice(KV_DTYPES).convert(text, param, ctx)
        if name == "memory":
            return ByteSize().convert(text, param, ctx)
        count = TokenCount().convert(text, param, ctx)
        if count is None and name not in MAY_BE_AUTO:
            self.fail(f"{name} takes a number, not {text!r}", param, ctx)
        return count


@dataclass(frozen=True)
class Case:
    """One column: settings of a plan, and what distinguishes them."""

    title: str
    wishes: Wishes
    kv_cache_dtype: str


@click.command("plan")
@click.argument("model")
@click.option(
    "--memory",
    "memories",
    type=ByteSize(),
    multiple=True,
    help="Of one device: 24GiB; may be given several times.  [default: what is free here]",
)
@click.option("--memory-utilization", type=Number(0, 1, min_open=True), default=0.9, show_default=True)
@click.option("--trace", default="azure", show_default=True, help="Requests to plan for: what `octavo simulate` takes.")
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Of the trace.  [default: as it looks]")
@click.option("--lenient", is_flag=True, help="Leave out lines of the trace that are no requests.")
@click.option("--prompt-lengths", type=Lengths(), help="Tokens of prompts at p50,p90,p99, instead of a trace.")
@click.option("--output-lengths", type=Lengths(), help="Tokens of answers at p50,p90,p99.")
@click.option("--rate", type=Number(0, min_open=True), help="Requests a second that have to be served.")
@cost_model_option
@click.option("--num-requests", type=click.IntRange(1), default=NUM_REQUESTS, show_default=True, help="Simulated.")
@click.option("--weight-bits", type=Number(1, 64), help="Of a weight in memory.  [default: as loaded]")
@click.option("--kv-cache-dtype", type=click.Choice(KV_DTYPES), default="float16", show_default=True)
@click.option("--block-size", type=click.IntRange(1), help="Tokens in a block.  [default: as advised]")
@click.option("--max-num-seqs", type=click.IntRange(1), default=256, show_default=True, help="Most sequences at once.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="A step.  [default: as octavo serve]")
@click.option("--max-model-len", type=TokenCount(), help="Longest sequence; longer requests are left out.")
@click.option(
    "--max-tokens", type=TokenCount(), help="What each asks for, if the trace does not say.  [default: what it got]"
)
@click.option(
    "--what-if",
    "what_ifs",
    type=Settings(),
    multiple=True,
    help="The same with other settings, side by side: block_size=32,kv_cache_dtype=int8.",
)
@json_option
def plan_command(model: str, **given: Any) -> None:
    """Plan the memory of a server for MODEL, before there is one, and simulate how it would do.

    MODEL is what `octavo serve` takes, or a config.json: no weights are needed. docs/planning.md says what each line
    means and where it comes from.
    """
    from octavo.loading.planned_model import planned_model
    from octavo.models.groups import kv_bytes_per_token, layer_groups

    found = planned_model(model, given["weight_bits"])
    given = with_calibrated_settings(given, CALIBRATED)
    warn_of_another_model(given["cost_model"], model)
    costs, cases = parse_costs(given["cost_model"]), make_cases(given)
    rows: list[dict[str, object]] = []
    plans: list[Plan] = []
    shown: list[list[TracedRequest]] = []
    windows = tuple(group.window for group in layer_groups(found.config))
    for case in cases:
        needs = Model(
            found.weight_bytes,
            kv_bytes_per_token(found.config, KV_CACHE_DTYPES[case.kv_cache_dtype]),
            windows,
            found.config.num_kv_heads,
            found.config.max_position,
        )
        longest = min(found.config.max_position, case.wishes.max_model_len or found.config.max_position)
        requests = requests_of(given, longest)
        shown.append(requests)
        plans.append(make_plan(needs, case.wishes, requests, costs, given["rate"]))
        rows.append(describe(plans[-1], needs, found.source))
    titles = [case.title for case in cases]
    print_table(
        [{"what": name, **{title: row[name] for title, row in zip(titles, rows, strict=True)}} for name in rows[0]],
        {"what": model, **{title: title for title in titles}},
    )
    for title, plan in zip(titles, plans, strict=True):
        for remark in plan.remarks:
            click.echo(f"{title}: {remark}")
    for case, requests, plan in zip(cases, shown, plans, strict=True):
        if case.wishes.max_model_len is None:
            click.echo(f"{case.title}: {refused_beyond(plan.max_model_len, requests)}")
    if given["weight_bits"] is not None:
        click.echo(
            f"--weight-bits {given['weight_bits']:g} is for weights that are stored so. Plain ones take 8.5 bits with "
            "octavo serve --quantization int8; 5 with int4, but 8.5 in the embedding and the head."
        )
    click.echo()
    for case, plan in zip(cases, plans, strict=True):
        click.echo(last_line(model, case, plan))
    figures = [dict(row, title=title, full=plan.full) for title, row, plan in zip(titles, rows, plans, strict=True)]
    write_json(given["json_path"], {"plan": figures})


def make_cases(given: dict[str, Any]) -> list[Case]:
    """One for each memory, and for each of them one for each "what if"."""
    cases: list[Case] = []
    for memory in given["memories"] or (_free_bytes(),):
        base = {name: given[name] for name in WISHED} | {
            "memory_bytes": memory,
            "utilization": given["memory_utilization"],
        }
        title = readable_bytes(memory)
        cases.append(Case(title, _wishes(base), given["kv_cache_dtype"]))
        for change in given["what_ifs"]:
            fields = {("memory_bytes" if name == "memory" else name): value for name, value in change.items()}
            dtype = fields.pop("kv_cache_dtype", given["kv_cache_dtype"])
            changed = ", ".join(f"{name}={value}" for name, value in change.items())
            cases.append(Case(f"{title}, {changed}", _wishes(base | fields), dtype))
    return cases


def _wishes(fields: dict[str, Any]) -> Wishes:
    """With as many tokens in a step as a server takes by default, where nothing says how many."""
    tokens = fields["max_num_batched_tokens"] or max(DEFAULT_BATCHED_TOKENS, fields["max_num_seqs"])
    return Wishes(**fields | {"max_num_batched_tokens": tokens})


def requests_of(given: dict[str, Any], longest: int) -> list[TracedRequest]:
    """Those that are no longer than ``longest``.

    Raises:
        ConfigurationError: there is none.
    """
    count = given["num_requests"]
    if (given["prompt_lengths"] is None) != (given["output_lengths"] is None):
        raise click.UsageError("--prompt-lengths and --output-lengths go together")
    if given["prompt_lengths"] is not None:
        drawn = iter(draw_requests(given["prompt_lengths"], given["output_lengths"], count))
    else:
        drawn = find_source(given["trace"], given["format_"], lenient=given["lenient"]).requests()
    requests = list(islice((each for each in drawn if each.prompt + each.output <= longest), count))
    if not requests:
        raise ConfigurationError(f"no request has {longest:,} tokens or less, the longest that a sequence may have")
    return requests


def refused_beyond(longest: int, requests: Sequence[TracedRequest]) -> str:
    """What a server refuses whose sequences are no longer than the longest of ``requests`` turned out to be."""
    asked = [each.prompt + each.max_tokens for each in requests if each.max_tokens is not None]
    more = [total for total in asked if total > longest]
    told = f", as {len(more)} of these {len(requests)} did (up to {max(more):,})" if more else ""
    return (
        f"a request that asks for more than {longest:,} tokens, prompt and max_tokens, would be refused{told}; "
        "--max-model-len plans for longer ones"
    )


def _free_bytes() -> int:
    from octavo.runner.memory import free_memory_bytes

    return free_memory_bytes()


def describe(plan: Plan, model: Model, source: str) -> dict[str, object]:
    """The lines of a plan."""
    full = plan.full
    lines: dict[str, object] = {
        "weights": f"{readable_bytes(model.weight_bytes)} ({source})",
        "devices needed (tensor parallel)": plan.degree,
        "one device lacks": readable_bytes(plan.missing_bytes) if plan.missing_bytes else "nothing",
        "KV memory": readable_bytes(plan.kv_bytes),
        "KV a token, bytes": model.kv_bytes_per_token,
        "tokens in a block": plan.block.block_size,
        "  empty ends of blocks": _percent(plan.block.tail_waste),
        "  time for tables": _percent(plan.block.overhead),
        "blocks": plan.num_blocks,
        "tokens they hold": plan.num_slots,
        "longest sequence": plan.max_model_len,
    }
    for share, length, held in zip(QUANTILES, plan.lengths, plan.held, strict=True):
        lines[f"sequences of {share:.0%} length"] = f"{held} (of {length:,} tokens)"
    lines |= {
        "sequences, reserved to the longest": plan.held_reserved,
        "simulated, all at once: running, mean": full["running_mean"],
        "  running, most": full["running_max"],
        "  slots filled": _percent(full["filled_share"]),
        "  blocks held": _percent(full["held_share"]),
        "  prompt tokens from the cache": _percent(full["prefix_hit_share"]),
        "  requests preempted": _percent(full["preempted_share"]),
        "  preemptions": full["num_preemptions"],
        "most requests/s": full["requests_per_second"],
        f"requests/s at which {PREEMPTED_SHARE:.0%} are preempted": plan.preemption_rate or "none",
        "watermark, blocks": plan.watermark_blocks,
        "pin quota": plan.pin_quota,
        "swap space": readable_bytes(plan.swap_bytes) if plan.swap_bytes else "none",
    }
    if plan.paced is not None:
        paced = plan.paced
        lines |= {
            "at the rate asked for: running, mean": paced["running_mean"],
            "  waiting, mean": paced["waiting_mean"],
            "  TTFT p50, ms": paced["ttft_p50"],
            "  TTFT p99, ms": paced["ttft_p99"],
            "  ITL p50, ms": paced["itl_p50"],
            "  ITL p99, ms": paced["itl_p99"],
            "  share of the time busy": _percent(paced["busy_share"]),
            "  from the cache": _percent(paced["prefix_hit_share"]),
        }
    return lines


def _percent(share: object) -> str | None:
    return f"{share:.1%}" if isinstance(share, float) else None


def last_line(model: str, case: Case, plan: Plan) -> str:
    """The command that serves it; or why there is none."""
    if plan.degree > 1:
        return (
            f"# {case.title}: needs {plan.degree} devices; this version of Octavo runs a model on one, so no command "
            "serves it"
        )
    return shlex.join(serve_arguments(model, case, plan))


def serve_arguments(model: str, case: Case, plan: Plan) -> Sequence[str]:
    name = Path(model).parent if model.endswith(".json") else model
    swap = f"{plan.swap_bytes / 2**30:.3f}".rstrip("0").rstrip(".")
    return [
        "octavo",
        "serve",
        str(name),
        "--num-blocks",
        str(plan.num_blocks),
        "--block-size",
        str(plan.block.block_size),
        "--max-num-seqs",
        str(case.wishes.max_num_seqs),
        "--max-num-batched-tokens",
        str(case.wishes.max_num_batched_tokens),
        "--max-model-len",
        str(plan.max_model_len),
        "--kv-cache-dtype",
        case.kv_cache_dtype,
        "--pin-quota",
        str(plan.pin_quota),
        "--swap-space",
        swap,
    ]
