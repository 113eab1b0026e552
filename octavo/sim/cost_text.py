"""Cost models as people write them: on a command line, or in a JSON file."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from math import inf
from pathlib import Path
from typing import Any

from octavo.core.errors import ConfigurationError
from octavo.sim.costs import BlockCosts, CostModel, Front, LinearCosts, RooflineCosts, TableCosts
from octavo.sim.published import SPLITWISE, published_costs

FORMAT = 1
"""Of the JSON layout."""

KINDS: dict[str, Callable[..., CostModel]] = {"linear": LinearCosts, "roofline": RooflineCosts, "table": TableCosts}

PARTS: Mapping[str, Callable[..., Any]] = {"front": Front, "blocks": BlockCosts}
"""Of every kind, in a file: objects."""

DEFAULT = "linear:base=0.024,per_decode=0.0001,per_chunk_token=0.0001"
"""A step takes 24 ms and 0.1 ms for each token: about one accelerator (as in ``octavo bench admission``)."""


def parse_costs(text: str) -> CostModel:
    """``KIND:name=number,name=number``, ``splitwise:NAME`` (``published_costs``), or the path of a JSON file
    (``read_costs``).

    Raises:
        ConfigurationError: it is neither, in words that say why.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind == SPLITWISE:
        return published_costs(rest)
    if not colon or kind not in KINDS:
        return read_costs(Path(text))
    if kind == "table":
        raise ConfigurationError("a table of costs has too many numbers for a command line; give a JSON file")
    parameters: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        name, _, number = part.partition("=")
        try:
            parameters[name.strip()] = float(number)
        except ValueError:
            raise ConfigurationError(f"{part!r} in the cost model {text!r} is not of the form name=number") from None
    return make_costs(kind, parameters)


def read_costs(path: Path) -> CostModel:
    """A JSON object: ``format`` (1), ``kind``, the fields of that kind of cost model, and perhaps ``PARTS``. What
    ``calibration`` says, of where it comes from, is for people.

    Raises:
        ConfigurationError: the file cannot be read, or is no such object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        kinds = ", ".join([*KINDS, f"{SPLITWISE}:NAME"])
        raise ConfigurationError(
            f"cannot read the cost model {path}: {error.strerror or error}; give a file, or one of {kinds} with its "
            f"parameters, such as {DEFAULT}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigurationError(f"{path} is no cost model of format {FORMAT}: it needs format, kind and parameters")
    kind = document.get("kind")
    if kind not in KINDS:
        raise ConfigurationError(f"{path} has the kind {kind!r}; there are {', '.join(KINDS)}")
    return make_costs(kind, {name: document[name] for name in document.keys() - {"format", "kind", "calibration"}})


def make_costs(kind: str, parameters: Mapping[str, Any]) -> CostModel:
    """One of ``KINDS`` with these parameters.

    Raises:
        ConfigurationError: one is unknown, missing, or no number above or at 0.
    """
    given = {name: value for name, value in parameters.items() if name not in PARTS}
    _check(given, KINDS[kind], f"{kind} cost model")
    given |= {name: _make_part(name, parameters[name]) for name in PARTS if name in parameters}
    try:
        return KINDS[kind](**given)
    except TypeError as error:
        raise ConfigurationError(f"the {kind} cost model lacks parameters ({error})") from error


def _make_part(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name} is {value!r:.60}; it takes an object with names and numbers")
    _check(value, PARTS[name], name)
    return PARTS[name](**value)


def _check(parameters: Mapping[str, Any], make: Any, title: str) -> None:
    """Are these fields of it, and numbers of 0 or more?"""
    known = {field.name for field in fields(make)} - PARTS.keys()
    unknown = sorted(parameters.keys() - known)
    if unknown:
        raise ConfigurationError(f"a {title} has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    for name, value in parameters.items():
        for number in _numbers(value):
            if not isinstance(number, int | float) or not 0 <= number < inf:
                raise ConfigurationError(f"{name} of the {title} is {value!r:.60}; it takes 0 or more")


def _numbers(value: Any) -> list[Any]:
    """A number, or those of a table."""
    if not isinstance(value, list):
        return [value]
    return [number for pair in value for number in (pair if isinstance(pair, list) else [None])]


def costs_document(costs: LinearCosts, calibration: Mapping[str, object]) -> dict[str, object]:
    """What ``read_costs`` reads; ``calibration``: where it comes from."""
    return {"format": FORMAT, "kind": "linear", **asdict(costs), "calibration": dict(calibration)}
