"""Tokenizers that were rebuilt from a GGUF file, kept as the tokenizer.json that they amount to: a large vocabulary
takes seconds to rebuild. One line of JSON says what the rest was made of, which is in the library's own format."""

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import tokenizers
from tokenizers import Tokenizer as Backend

from octavo.loading.pull import cache_dir
from octavo.loading.tokenizer_parts import TokenizerParts
from octavo.loading.whole_file import write_whole

logger = logging.getLogger(__name__)

VERSION = 1
"""Raised with every change of the file, and of what is built from a GGUF file's metadata."""
LEAST_BYTES = 4 << 20
"""Smaller vocabularies are rebuilt about as soon as they are read."""
_HEADER_SAMPLE = 1 << 20


def cached_tokenizer(path: Path, build: Callable[[Path], TokenizerParts]) -> TokenizerParts:
    """``build(path)``, or what an earlier call left of it in the cache folder, if that was made of the same file."""
    file = cache_dir() / "tokenizers" / f"{_digest(str(path.resolve()).encode())}.json"
    key = _key(path)
    parts = _read(file, key)
    if parts is None:
        parts = build(path)
        _keep(file, key, parts)
    return parts


def _key(path: Path) -> str | None:
    """What must be the same; None if the file cannot be read."""
    try:
        status = path.stat()
        with path.open("rb") as opened:
            sample = opened.read(_HEADER_SAMPLE)
    except OSError:
        return None
    identity = f"{VERSION} {tokenizers.__version__} {status.st_size} {status.st_mtime_ns} "
    return _digest(identity.encode() + sample)


def _read(file: Path, key: str | None) -> TokenizerParts | None:
    try:
        with file.open(encoding="utf-8") as opened:
            header: dict[str, Any] = json.loads(opened.readline())
            text = opened.read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("The tokenizer in %s cannot be read (%s); building it again", file, error)
        return None
    if (header.get("key"), header.get("digest")) != (key, _digest(text.encode())):
        logger.info("Building the tokenizer again: %s is damaged, or of another file or version", file)
        return None
    return TokenizerParts(
        Backend.from_str(text),
        header["special_tokens"],
        frozenset(header["eos_token_ids"]),
        header["chat_templates"],
    )


def _keep(file: Path, key: str | None, parts: TokenizerParts) -> None:
    text = parts.backend.to_str()
    if key is None or len(text) < LEAST_BYTES:
        return
    header = {
        "key": key,
        "digest": _digest(text.encode()),
        "special_tokens": dict(parts.special_tokens),
        "eos_token_ids": sorted(parts.eos_token_ids),
        "chat_templates": dict(parts.chat_templates),
    }

    def write(opened: IO[bytes]) -> None:
        opened.write(json.dumps(header).encode() + b"\n" + text.encode())

    try:
        write_whole(file, write)
    except OSError as error:
        logger.warning("The tokenizer is not kept in %s: %s", file, error)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
