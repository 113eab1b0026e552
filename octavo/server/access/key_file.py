"""The file of ``--api-key-file``: tenants, their keys, and what each may send (docs/keys.md, "Keys")."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.engine.intake import check_tenant
from octavo.plain_yaml import parse_yaml
from octavo.server.access.rates import TenantLimits

_LIMITS = {each.name.replace("_", "-"): each.name for each in fields(TenantLimits)}
_SETTINGS = ("keys", "may-pin", *_LIMITS)
MAX_BYTES = 16 * 2**20
"""Of the file: some hundred thousand keys."""
_HASH = "sha256:"
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})\Z")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class TenantEntry:
    """``digests``: of its keys, see ``digest_of``."""

    name: str
    digests: tuple[bytes, ...]
    may_pin: bool = False
    limits: TenantLimits = field(default_factory=TenantLimits)


def digest_of(key: bytes) -> bytes:
    """What is kept and compared of a key: it has one length, and does not tell the key."""
    return hashlib.sha256(key).digest()


def read_key_file(path: Path) -> list[TenantEntry]:
    """
    Raises:
        ConfigurationError: it cannot be read or understood. No text of the file but names is in the message.
    """
    text = ""
    try:
        text = _text(path)
        found = parse_yaml(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read the key file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        # What misses its end is noticed behind the last line.
        where = "" if mark is None else f": see line {min(mark.line + 1, len(text.splitlines()))}"
        raise ConfigurationError(f"the key file {path} is not valid YAML{where}") from None
    if not isinstance(found, dict) or not found:
        raise ConfigurationError(f"the key file {path} must hold lines `tenant: key`")
    try:
        entries = [_entry(name, value) for name, value in found.items()]
        check_owners((entry.name, digest) for entry in entries for digest in entry.digests)
    except (ConfigurationError, InvalidRequestError) as error:
        raise ConfigurationError(f"the key file {path}: {error}") from None
    return entries


def _text(path: Path) -> str:
    """
    Raises:
        ConfigurationError: it is larger than any such file is.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"the key file {path} is larger than {MAX_BYTES >> 20} MiB")
    return data.decode("utf-8")


def check_owners(keys: Iterable[tuple[str, bytes]]) -> None:
    """``keys``: a tenant's name and the digest of a key, each.

    Raises:
        ConfigurationError: two tenants have the same.
    """
    owners: dict[bytes, str] = {}
    for name, digest in keys:
        owner = owners.setdefault(digest, name)
        if owner != name:
            raise ConfigurationError(f"tenants {owner!r:.80} and {name!r:.80} have the same key; give each its own")


def _entry(name: str, value: Any) -> TenantEntry:
    check_tenant(name)
    settings: Mapping[str, Any] = value if isinstance(value, dict) else {"keys": value}
    unknown = next((setting for setting in settings if setting not in _SETTINGS), None)
    if unknown is not None:
        raise ConfigurationError(f"tenant {name} has no setting {unknown!r:.60}; there are {', '.join(_SETTINGS)}")
    may_pin = settings.get("may-pin") or "false"
    if not isinstance(may_pin, str) or may_pin not in _FLAGS:
        raise ConfigurationError(f"may-pin of tenant {name} must be true or false")
    bounds = {_LIMITS[key]: _bound(name, key, settings[key]) for key in _LIMITS if settings.get(key) is not None}
    return TenantEntry(name, _digests(name, settings.get("keys")), _FLAGS[may_pin], TenantLimits(**bounds))


def _digests(name: str, given: Any) -> tuple[bytes, ...]:
    keys = given if isinstance(given, list) else [given]
    if not keys or not all(isinstance(key, str) and key.strip() for key in keys):
        raise ConfigurationError(f"tenant {name} needs a key, or a list of keys, each a text that is not empty")
    return tuple(_digest(name, key) for key in keys)


def _digest(name: str, key: str) -> bytes:
    hashed = _HASHED.match(key)
    if hashed is None and key.startswith(_HASH):
        raise ConfigurationError(
            f"a key of tenant {name} begins with {_HASH} and has not 64 hexadecimal digits after it"
        )
    return bytes.fromhex(hashed.group(1)) if hashed else digest_of(key.encode())


def _bound(name: str, key: str, value: Any) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"[1-9][0-9]{0,14}", value):
        raise ConfigurationError(f"{key} of tenant {name} must be a whole number above 0")
    return int(value)
