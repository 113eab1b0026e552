"""``octavo serve``: the flags of the server; octavo/cli/serve.py runs it."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.answer_options import answer_options
from octavo.cli.hidden_arguments import hide_arguments
from octavo.cli.limit_options import limit_options
from octavo.cli.options import engine_options, model_argument, setting
from octavo.cli.units import ByteSize, TokenCount
from octavo.engine.log_format import LOG_FORMATS, LogFormat, set_up_logging

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs


def _named_keys(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Texts NAME=KEY, of which none is ever shown."""
    for number, text in enumerate(given, 1):
        if not all(text.partition("=")):
            raise click.BadParameter(f"number {number} is not NAME=KEY")
    return tuple((text.partition("=")[0], text.partition("=")[2]) for text in given)


def _origins(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Each an origin, or a JSON list of some, as vLLM takes them."""
    origins: list[str] = []
    for text in given:
        try:
            read = json.loads(text) if text.startswith("[") else text
        except ValueError:
            raise click.BadParameter(f"{text!r:.80} is no JSON list") from None
        origins += read if isinstance(read, list) else [read]
    return tuple(map(str, origins))


def _begin_log(_ctx: click.Context, _param: click.Parameter, log_format: LogFormat) -> LogFormat:
    """What is wrong with the other flags is a line of the log, too, where that is in JSON."""
    if log_format == "json":
        set_up_logging(logging.INFO, log_format)
    return log_format


@click.command("serve")
@model_argument
@setting("--host", help="Address to listen on.  [default: 127.0.0.1; with a key for clients 0.0.0.0]")
@setting("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@setting(
    "--api-key",
    "api_keys",
    multiple=True,
    help="Key that clients must send; may be given several times. All routes but /health then need one.",
)
@setting(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file of tenants, their keys and limits (docs/keys.md); read again at SIGHUP.",
)
@setting("--admin-key", help="Key for /dashboard, /admin and /debug; without one they are off.")
@setting("--enable-tokenizer-info-endpoint", is_flag=True, help="Serve GET /tokenizer_info.")
@setting("--dashboard-text", is_flag=True, help="Let the dashboard show tokens and text of prompts and answers.")
@setting("--pin-key", "pin_keys", multiple=True, help="API key whose requests may pin; may be given several times.")
@setting(
    "--tenant-key",
    "tenant_keys",
    multiple=True,
    callback=_named_keys,
    metavar="NAME=KEY",
    help="API key of a tenant; may be given several times. As with --api-key, all routes but /health then need a key.",
)
@setting("--tenant-header", help="Header that names a request's tenant, and is believed: X-Tenant-Id, say.")
@setting(
    "--allowed-origins",
    multiple=True,
    callback=_origins,
    metavar="ORIGIN",
    help="Pages of this origin, or of * any, may ask from a browser; may be given several times.  [default: none]",
)
@setting("--ssl-certfile", type=click.Path(path_type=Path, dir_okay=False), help="Certificate (PEM); serves HTTPS.")
@setting("--ssl-keyfile", type=click.Path(path_type=Path, dir_okay=False), help="Its key, if not in the same file.")
@setting("--allow-pins", is_flag=True, help="Let all requests pin prefixes in the cache.")
@setting("--open-metrics", is_flag=True, help="Serve /metrics without the key.")
@setting(
    "--max-num-queued-reqs",
    type=click.IntRange(1),
    help="Choices of requests that may wait; more get 429, with Retry-After.  [default: no bound]",
)
@setting(
    "--max-num-queued-tokens",
    type=TokenCount(),
    help="Prompt tokens that may wait (4096, 4k); more get 429, with Retry-After.  [default: no bound]",
)
@setting(
    "--max-queue-seconds",
    type=click.FloatRange(0, min_open=True),
    help="How long a request may wait for its start; one that would wait longer gets 429.  [default: no bound]",
)
@setting(
    "--max-request-seconds",
    type=click.FloatRange(0, min_open=True),
    help="How long a request may take in all; then it ends with an error (504).  [default: no bound]",
)
@setting(
    "--shutdown-timeout",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Seconds that running requests get after SIGTERM.",
)
@answer_options
@setting("--disable-log-stats", is_flag=True, help="No line of figures every ten seconds.")
@setting(
    "--otlp-traces-endpoint",
    metavar="URL",
    help="Send spans of requests to this collector of OpenTelemetry (OTLP over HTTP); needs the extra otel.",
)
@setting(
    "--log-requests",
    "--enable-log-requests",
    "log_requests",
    is_flag=True,
    help="Log a line a request when it is over: id, status, lengths, times, how it ended; no text, no key.",
)
@setting("--log-request-text", is_flag=True, help="With the text of prompts, up to 2,000 characters of each.")
@setting(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append a line a request to this file: times, lengths, hashes of blocks, no text. octavo simulate plays it.",
)
@setting(
    "--record-max-size",
    type=ByteSize(),
    help="Put it aside before it gets longer, as FILE.1, ...  [default: never]",
)
@setting("--record-max-files", type=click.IntRange(1), default=4, show_default=True, help="With it; the oldest goes.")
@engine_options
@setting(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    is_eager=True,  # after --config, which comes first among those that are
    callback=_begin_log,
    help="json: one object a line, with fields of fixed names.",
)
@limit_options
def serve(
    engine_args: "EngineArgs",
    served_model_name: str | None,
    disable_log_stats: bool,
    **server: Any,
) -> None:
    """Serve MODEL over HTTP with the OpenAI API.

    MODEL is a folder (safetensors), a .gguf file, a hub name (org/name) or a built-in name; left out, it is the
    built-in smollm2-135m, which is fetched when it is not in the cache.
    """
    from octavo.engine.spawn import SpawnedProcess
    from octavo.server.settings import ServerSettings

    settings = ServerSettings(
        served_model_name=served_model_name or engine_args.model, log_stats=not disable_log_stats, **server
    )
    hide_arguments(settings.secrets)
    # While the engine's process imports torch, this one imports what speaks HTTP: each takes about a second.
    with SpawnedProcess(["octavo.build"]) as spawned:
        from octavo.cli.serve import run_server

        run_server(engine_args, settings, spawned)
