"""Whose request it is: the keys, and what each allows."""

import enum
import hmac
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from starlette.requests import Request

from octavo.core.errors import ConfigurationError
from octavo.core.tenants import DEFAULT_TENANT
from octavo.server.access.key_file import TenantEntry, check_owners, digest_of, read_key_file
from octavo.server.access.rates import Allowance, Clock
from octavo.server.settings import ServerSettings


class Role(enum.IntEnum):
    """What a key allows; each role may do all that those before it may."""

    NOBODY = 0
    CLIENT = 1
    PINNER = 2
    ADMIN = 3


class Sender(NamedTuple):
    """Who sends a request: what it may do, the name of its tenant, which is not its key, and how much the tenant
    whose key it is may send; None: as much as it likes."""

    role: Role
    tenant: str = DEFAULT_TENANT
    allowance: Allowance | None = None


class Keyring:
    """Whose key it is. Without an API key everybody is a client; with ``allow_pins`` every client may pin.

    ``clock``: seconds that only grow, for rates.

    Raises:
        ConfigurationError: see ``read_key_file``; or a tenant's key is another's.
    """

    def __init__(self, settings: ServerSettings, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._client = Role.PINNER if settings.allow_pins else Role.CLIENT
        self._stranger = Sender(Role.NOBODY if settings.needs_key else self._client)
        self._allowances: dict[str, Allowance] = {}
        self.has_admin = settings.admin_key is not None
        self._read()

    def reload(self) -> int:
        """Read the key file again; how many tenants it names. A tenant whose limits are as they were keeps its count.

        Raises:
            ConfigurationError: see ``read_key_file``; or the file is a pipe, say, for which the server would wait.
                Nothing has changed then.
        """
        path = self._settings.api_key_file
        if path is not None and path.exists() and not path.is_file():
            raise ConfigurationError(f"the key file {path} is no plain file, and can be read at the start only")
        return self._read()

    def _read(self) -> int:
        path = self._settings.api_key_file
        entries = [] if path is None else read_key_file(path)
        named = [(name, digest_of(key.encode())) for name, key in self._settings.tenant_keys]
        named += [(entry.name, digest) for entry in entries for digest in entry.digests]
        check_owners(named)
        self._check_admin(named)
        self._allowances = {entry.name: self._allowance(entry) for entry in entries}
        self._keys = [*self._from_flags(), *self._from_file(entries)]
        return len(entries)

    def _check_admin(self, named: Iterable[tuple[str, bytes]]) -> None:
        """
        Raises:
            ConfigurationError: the admin key is a tenant's too, who would be the admin so.
        """
        if self._settings.admin_key is None:
            return
        admin = digest_of(self._settings.admin_key.encode())
        owner = next((name for name, digest in named if digest == admin), None)
        if owner is not None:
            raise ConfigurationError(f"tenant {owner!r:.80} has the admin key, and would be the admin; give it its own")

    def _allowance(self, entry: TenantEntry) -> Allowance:
        known = self._allowances.get(entry.name)
        return known if known and known.limits == entry.limits else Allowance(entry.name, entry.limits, self._clock)

    def _from_flags(self) -> Iterator[tuple[bytes, Sender]]:
        settings = self._settings
        if settings.admin_key:
            yield digest_of(settings.admin_key.encode()), Sender(Role.ADMIN)
        for key in settings.pin_keys:
            yield digest_of(key.encode()), Sender(Role.PINNER)
        for name, key in settings.tenant_keys:
            yield digest_of(key.encode()), Sender(self._client, name)
        for key in settings.api_keys:
            yield digest_of(key.encode()), Sender(self._client)

    def _from_file(self, entries: list[TenantEntry]) -> Iterator[tuple[bytes, Sender]]:
        for entry in entries:
            role = Role.PINNER if entry.may_pin else self._client
            for digest in entry.digests:
                yield digest, Sender(role, entry.name, self._allowances[entry.name])

    def sender(self, authorization: bytes) -> Sender:
        """Whose the key in an Authorization header is, and the highest role of it, or that of who has none."""
        scheme, _, sent = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return self._stranger
        # All keys are looked at, and compare_digest takes the same time wherever two differ.
        digest = digest_of(sent.strip())
        found = [sender for known, sender in self._keys if hmac.compare_digest(digest, known)]
        role = max([sender.role for sender in found], default=self._stranger.role)
        tenants = (sender.tenant for sender in found if sender.tenant != DEFAULT_TENANT)
        # The admin's own requests are nobody's allowance.
        allowances = (each.allowance for each in found if each.allowance is not None and role < Role.ADMIN)
        return Sender(max(role, self._stranger.role), next(tenants, DEFAULT_TENANT), next(allowances, None))


def role_of(request: Request) -> Role:
    """What the sender of a request may do."""
    sender: Sender = request.state.sender
    return sender.role


def tenant_of(request: Request) -> str:
    """The name of its tenant."""
    sender: Sender = request.state.sender
    return sender.tenant


def allowance_of(request: Request) -> Allowance | None:
    """What the tenant whose key it has may send."""
    sender: Sender = request.state.sender
    return sender.allowance
