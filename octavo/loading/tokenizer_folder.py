"""The tokenizer of a model folder as the Hugging Face hub lays it out."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.core.errors import ConfigurationError
from octavo.loading.tokenizer_parts import TokenizerParts

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def folder_tokenizer(folder: Path) -> TokenizerParts:
    """The tokenizer of tokenizer.json and the files beside it.

    Whether a raw prompt gets BOS and EOS is what tokenizer.json says; add_bos_token in tokenizer_config.json has no say
    beside it (as in transformers 5).

    Raises:
        ConfigurationError: a file is missing or is not what its name says.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigurationError(f"{folder} has no tokenizer.json; add it (transformers' save_pretrained writes it)")
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:
        raise ConfigurationError(f"{file} is not a tokenizer that can be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(folder / "tokenizer_config.json")
    special_map = _read_json(folder / "special_tokens_map.json")
    try:
        special = _named_tokens(config, special_map)
        _add_tokens(backend, config, special)
        eos_token_ids, templates = _eos_token_ids(folder, backend, special), _chat_templates(folder, config)
    except ConfigurationError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"the tokenizer's files in {folder} hold a value of the wrong kind ({error}); fetch the model again"
        ) from error
    return TokenizerParts(backend, special, eos_token_ids, templates)


def _read_json(file: Path) -> dict[str, Any]:
    """A file that may be missing: then it says nothing."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} holds a {type(content).__name__}, an object was expected")
    return content


def _content(token: Any) -> str | None:
    """A token is written as a string or as an object with "content"."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _named_tokens(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and so on by name, with those that a model adds under names of its own."""
    extra = config.get("extra_special_tokens")
    named = {name: special_map.get(name) for name in _NAMED_TOKENS}
    named |= {name: config[name] for name in _NAMED_TOKENS if name in config}
    named |= extra if isinstance(extra, Mapping) else {}
    return {name: text for name, token in named.items() if (text := _content(token)) is not None}


def _add_tokens(backend: Backend, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Adds what only tokenizer_config.json knows: added tokens, and that a token is special."""
    known = backend.get_added_tokens_decoder()
    declared: Mapping[str, Any] = config.get("added_tokens_decoder") or {}
    for token_id, fields in sorted(declared.items(), key=lambda item: int(item[0])):
        if int(token_id) not in known:
            token = AddedToken(**{key: value for key, value in fields.items() if not key.startswith("__")})
            _add(backend, token, special=token.special)
            if backend.token_to_id(token.content) != int(token_id):
                raise ConfigurationError(
                    f"tokenizer_config.json gives {token.content!r} the id {token_id}, but it comes to "
                    f"{backend.token_to_id(token.content)} after tokenizer.json; the two files do not belong together"
                )
    contents = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for text in dict.fromkeys([*special.values(), *_extra_texts(config)]):
        if text not in contents:
            _add(backend, AddedToken(text, normalized=False, special=True), special=True)


def _add(backend: Backend, token: AddedToken, special: bool) -> None:
    if special:
        backend.add_special_tokens([token])
    else:
        backend.add_tokens([token])


def _extra_texts(config: Mapping[str, Any]) -> Iterator[str]:
    for name in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(name)
        for token in tokens if isinstance(tokens, list) else ():
            if (text := _content(token)) is not None:
                yield text


def _eos_token_ids(folder: Path, backend: Backend, special: Mapping[str, str]) -> frozenset[int]:
    """The union of what config.json, generation_config.json and the tokenizer name (spec D7)."""
    config = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json")
    ids: set[int] = set()
    for section in (config, config.get("text_config") or {}, generation):
        named = section.get("eos_token_id")
        ids.update(named if isinstance(named, list) else [] if named is None else [named])
    if (eos := special.get("eos_token")) is not None and (eos_id := backend.token_to_id(eos)) is not None:
        ids.add(eos_id)
    return frozenset(ids)


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; files win over tokenizer_config.json, as in transformers."""
    declared = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(declared, str):
        templates["default"] = declared
    elif isinstance(declared, list):
        templates = {entry["name"]: entry["template"] for entry in declared}
    if (file := folder / "chat_template.jinja").is_file():
        templates["default"] = file.read_text(encoding="utf-8")
    elif "chat_template" in (older := _read_json(folder / "chat_template.json")):
        templates.setdefault("default", str(older["chat_template"]))
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    return templates
