"""How the server runs: all that the command line decides and the engine does not need to know."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.core.step import Pooling
from octavo.engine.intake import check_tenant
from octavo.engine.log_format import LogFormat
from octavo.server.access.key_file import check_owners, digest_of
from octavo.server.dialect import check_parsers
from octavo.server.limits import ServerLimits

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_ORIGIN = re.compile(r"\*|https?://[^/\s]+\Z")
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """``host`` None: loopback without a key, every interface with one (spec D20). ``port`` 0 takes a free one.

    ``admin_key`` opens /dashboard and the routes under /admin and /debug, which with ``dashboard_text`` tell what is in
    a block. Requests with it or one of ``pin_keys`` may pin prefixes,
    with ``allow_pins`` all may; these keys are API keys too. ``enable_tokenizer_info_endpoint``: see tokenize.py.

    ``shutdown_timeout``: seconds that running requests get after SIGTERM (spec D22). ``max_num_queued_*`` bound the
    requests, each choice of one, and their prompt tokens that have not started (spec D24); None is no bound.
    ``max_queue_seconds``, ``max_request_seconds``: how long a request may wait for its start, and take in all. Each of
    ``tenant_keys`` is a tenant's name and its API key; the header ``tenant_header`` of a request names its tenant too,
    and is believed. ``tool_call_parser``, ``reasoning_parser``: see dialect.py; ``enable_auto_tool_choice``: whether
    the model may decide to call. ``log_requests``: see request_line.py; ``log_request_text``:
    with the text of prompts. ``api_key_file``: see
    access/key_file.py. ``allowed_origins``: of pages in browsers that may ask. With ``ssl_certfile`` it speaks
    HTTPS; ``ssl_keyfile`` is the certificate's key, where it is not in the same file. ``restart_engine``: how many
    times within ten minutes an engine that has ended is started again. ``pooling``: what embeddings are made of.
    ``record``: see recording.py; ``record_max_size``, ``record_max_files``: see Rotation.
    ``otlp_traces_endpoint``: where spans of requests are sent (tracing/).
    """

    served_model_name: str
    host: str | None = None
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    open_metrics: bool = False
    shutdown_timeout: float = 30.0
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    max_queue_seconds: float | None = None
    max_request_seconds: float | None = None
    log_stats: bool = True
    log_requests: bool = False
    limits: ServerLimits = field(default_factory=ServerLimits)
    admin_key: str | None = field(default=None, repr=False)
    pin_keys: tuple[str, ...] = field(default=(), repr=False)
    allow_pins: bool = False
    tenant_keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tenant_header: str | None = None
    enable_auto_tool_choice: bool = True
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    pooling: Pooling = "mean"
    api_key_file: Path | None = None
    allowed_origins: tuple[str, ...] = ()
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    restart_engine: int = 0
    dashboard_text: bool = False
    enable_tokenizer_info_endpoint: bool = False
    record: Path | None = None
    record_max_size: int | None = None
    record_max_files: int = 4
    log_request_text: bool = False
    log_format: LogFormat = "text"
    otlp_traces_endpoint: str | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            ConfigurationError: an empty host or key, which would quietly open the server, or a time that is none.
        """
        if self.host == "":
            raise ConfigurationError(f"the host is empty; give an address such as {LOOPBACK}, or {EVERYWHERE} for all")
        if "" in self.api_keys:
            raise ConfigurationError("the API key is empty; give one, or leave it out to serve without a key")
        if self.admin_key == "" or "" in self.pin_keys:
            what = "admin key" if self.admin_key == "" else "key of --pin-key"
            raise ConfigurationError(f"the {what} is empty; give one, or leave it out")
        for name in ("max_queue_seconds", "max_request_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ConfigurationError(f"{name} must be more than 0 seconds, got {seconds:g}")
        self._check_tenants()
        check_parsers(self.tool_call_parser, self.reasoning_parser)
        self._check_web()
        if self.log_request_text and not self.log_requests:
            raise ConfigurationError("log_request_text adds to the lines of log_requests: give that too")
        if self.record is None and self.record_max_size is not None:
            raise ConfigurationError("record_max_size is that of the file of record: give that too")
        if not self.shutdown_timeout >= 0:  # NaN compares false
            raise ConfigurationError(f"shutdown_timeout must be at least 0 seconds, got {self.shutdown_timeout:g}")

    def _check_web(self) -> None:
        for origin in self.allowed_origins:
            if not _ORIGIN.match(origin):
                raise ConfigurationError(f"{origin!r:.80} is no origin, such as https://chat.example.org, or * for all")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigurationError("ssl_keyfile needs the certificate that it is of: give ssl_certfile too")

    def _check_tenants(self) -> None:
        check_owners((name, digest_of(key.encode())) for name, key in self.tenant_keys)
        for name, key in self.tenant_keys:
            if not key:
                raise ConfigurationError(f"the key of tenant {name!r:.80} is empty; give it as NAME=KEY")
            try:
                check_tenant(name)
            except InvalidRequestError as error:
                raise ConfigurationError(f"--tenant-key: {error}") from error
        if self.tenant_header is not None and not HEADER_NAME.match(self.tenant_header):
            name = f"{self.tenant_header!r:.80}"
            raise ConfigurationError(f"tenant_header {name} is no header's name, such as X-Tenant-Id")

    @property
    def needs_key(self) -> bool:
        """Must clients send one?"""
        return bool(self.api_keys or self.tenant_keys or self.api_key_file)

    @property
    def secrets(self) -> tuple[str, ...]:
        """All keys that it holds."""
        tenants = (key for _, key in self.tenant_keys)
        admin = () if self.admin_key is None else (self.admin_key,)
        return (*self.api_keys, *admin, *self.pin_keys, *tenants)

    @property
    def listen_host(self) -> str:
        if self.host is not None:
            return self.host
        return EVERYWHERE if self.needs_key else LOOPBACK
