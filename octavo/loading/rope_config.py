"""The rotary settings of a config.json, under the older and the newer key names."""

from collections.abc import Mapping
from typing import Any, Literal

from octavo.core.errors import ConfigurationError
from octavo.models.config import RopeConfig

_KNOWN_KINDS = "default, linear, llama3"
_KEYS = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
}


def uniform_rope(raw: Mapping[str, Any]) -> RopeConfig:
    """Settings of a model whose layers all rotate alike.

    ``rope_scaling`` (older: with ``type`` or ``rope_type``) or ``rope_parameters`` (newer); null means none.

    Raises:
        ConfigurationError: an unknown kind, one that cannot be served, or a number out of range.
    """
    settings = _object(raw.get("rope_scaling") or raw.get("rope_parameters"))
    return _parse(settings, raw, default_theta=raw.get("rope_theta", 10000.0))


def gemma3_rope(raw: Mapping[str, Any]) -> tuple[RopeConfig, RopeConfig]:
    """Settings of (global, sliding) layers: scaling of the older ``rope_scaling`` is for global layers alone."""
    nested = _object(raw.get("rope_parameters"))
    if not set(nested) <= {"full_attention", "sliding_attention"}:
        raise ConfigurationError(
            "config.json: rope_parameters of Gemma 3 must hold full_attention and sliding_attention, "
            f"got {', '.join(sorted(nested))}"
        )
    full = _object(nested.get("full_attention")) | _object(raw.get("rope_scaling"))
    sliding = _object(nested.get("sliding_attention"))
    return (
        _parse(full, raw, default_theta=raw.get("rope_theta", 1_000_000.0)),
        _parse(sliding, raw, default_theta=raw.get("rope_local_base_freq", 10_000.0)),
    )


def _object(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"config.json: rope settings must be an object, got {value!r:.80}")
    return value


def _parse(settings: dict[str, Any], raw: Mapping[str, Any], default_theta: Any) -> RopeConfig:
    """One object of rotary settings; ``raw`` is the config around it."""
    kind = _kind(settings)
    partial = settings.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise ConfigurationError(f"config.json: partial_rotary_factor {partial} is not supported; only 1 is")
    for key, value in settings.items():
        if key not in _KEYS | {"partial_rotary_factor"} and value is not None:
            raise ConfigurationError(f"config.json: {key} in the rope settings is not supported (value {value!r:.60})")
    theta = _number("rope_theta", settings.get("rope_theta", default_theta), above=0.0)
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = _number("factor", settings.get("factor"), at_least=1.0)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=factor)
    original = raw.get("original_max_position_embeddings") or settings.get(
        "original_max_position_embeddings", raw.get("max_position_embeddings")
    )
    low = _number("low_freq_factor", settings.get("low_freq_factor"), above=0.0)
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=_number("high_freq_factor", settings.get("high_freq_factor"), above=low),
        original_max_position=int(_number("original_max_position_embeddings", original, at_least=1.0)),
    )


def _kind(settings: Mapping[str, Any]) -> Literal["default", "linear", "llama3"]:
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind in ("default", "linear", "llama3"):
        return kind  # type: ignore[no-any-return]
    if kind == "dynamic":
        # DECISION D19
        raise ConfigurationError(
            "config.json: rope type dynamic (NTK) is refused, because it turns every key by an angle that depends on "
            "the final length, so cached keys would be wrong; remove rope_scaling to serve the original context"
        )
    raise ConfigurationError(f"config.json: rope type {kind!r:.60} is not supported; known types: {_KNOWN_KINDS}")


def _number(name: str, value: Any, above: float | None = None, at_least: float | None = None) -> float:
    bound = f"above {above:g}" if above is not None else f"at least {at_least:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (value > above if above is not None else value >= at_least) or value == float("inf"):
        got = "nothing" if value is None else f"{value!r:.60}"
        raise ConfigurationError(f"config.json: {name} of the rope settings must be a number {bound}, got {got}")
    return float(value)
