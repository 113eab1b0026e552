"""What the text of an answer must be: a constraint, as clients ask for it and as the engine keeps it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from octavo.core.errors import InvalidRequestError, shown

ConstraintKind = Literal["json_schema", "regex", "grammar", "choice", "form_or_calls"]

CONSTRAINT_KINDS: tuple[ConstraintKind, ...] = ("json_schema", "regex", "grammar", "choice")
"""Those that a client may ask for by name."""

ANY_OBJECT = '{"type":"object"}'
"""The schema of all JSON objects."""


@dataclass(frozen=True, slots=True)
class StructuredLimits:
    """Upper limits of a constraint (spec D14). ``schema_bytes``: of a schema, a grammar, or all choices together."""

    schema_bytes: int
    regex_bytes: int
    nesting: int


@dataclass(frozen=True, slots=True)
class Constraint:
    """``text``: a JSON schema or a list of choices, as JSON; a regular expression; a grammar, in EBNF or Lark's form;
    or see ``form_or_calls``. Plain data: it can be a key, and crosses between processes as it is.

    ``nesting``: levels of the schema; None: the text was not looked at yet."""

    kind: ConstraintKind
    text: str
    nesting: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Thinking:
    """What may stand before a constrained text, and is not constrained: thinking between two marks. ``is_open``: the
    text begins inside it; otherwise it has some if it begins with the opening mark."""

    open: str
    close: str
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """A constraint as vLLM has it: exactly one of these. ``json``: a schema, as text or as what it stands for;
    ``choice``: a list of texts; ``json_object`` true: any JSON object."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None


_FIELDS = tuple(field.name for field in fields(StructuredOutputsParams))


def as_constraint(asked: Any, limits: StructuredLimits, param: str = "structured_outputs") -> Constraint | None:
    """What ``asked`` stands for: a Constraint, StructuredOutputsParams, or a mapping of the fields of either.

    Raises:
        InvalidRequestError: it stands for nothing, or is larger than the limits; ``param`` names the field.
    """
    if asked is None:
        return None
    if isinstance(asked, Constraint):
        constraint = asked if asked.nesting is not None else _of_kind({"kind": asked.kind, "text": asked.text}, param)
        _check_size(constraint, limits, param)
        return constraint
    if isinstance(asked, StructuredOutputsParams):
        asked = {each.name: getattr(asked, each.name) for each in fields(asked)}
    if not isinstance(asked, Mapping):
        raise InvalidRequestError(f"{param} must be an object with one of {', '.join(_FIELDS)}", param)
    constraint = _of_kind(asked, param) if "kind" in asked else _of_fields(asked, param)
    _check_size(constraint, limits, param)
    return constraint


def json_schema(schema: Any, param: str) -> Constraint:
    """``schema``: JSON, as text or as the value that it stands for.

    Raises:
        InvalidRequestError: it is no schema, which is an object or true.
    """
    value = schema
    if isinstance(schema, str):
        try:
            value = json.loads(schema, parse_constant=_refuse_constant)
        except RecursionError:
            raise InvalidRequestError(f"{param} nests too deeply", param) from None
        except ValueError as error:
            raise InvalidRequestError(f"{param} is not valid JSON: {error}"[:300], param) from None
    if value is False:
        raise InvalidRequestError(f"{param} is the schema false, which no text fits", param)
    if value is not True and not isinstance(value, dict):
        raise InvalidRequestError(f"{param} must be a JSON schema, which is an object, got {shown(value)}", param)
    return _looked_at("json_schema", _dumped({} if value is True else value, param), value)


def choices(texts: Any, param: str) -> Constraint:
    """One of these texts.

    Raises:
        InvalidRequestError: they are no texts, or none.
    """
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(f"{param} must be a list of one or more texts, got {shown(texts)}", param)
    return _looked_at("choice", _dumped(list(texts), param))


def form_or_calls(form: Constraint, rules: str, marks: Sequence[str], param: str) -> Constraint:
    """A text of this form, or else calls. ``rules``: in Lark's form, of which ``calls`` is a text of calls, and
    ``mark_0`` and so on are ``marks``, each as a control token where the vocabulary has it as one."""
    parts = {"form": {"kind": form.kind, "text": form.text}, "calls": rules, "marks": list(marks)}
    return Constraint("form_or_calls", _dumped(parts, param), form.nesting or 0)


def _looked_at(kind: ConstraintKind, text: str, schema: Any = None) -> Constraint:
    return Constraint(kind, text, _depth(schema))


def _of_kind(asked: Mapping[str, Any], param: str) -> Constraint:
    kind, text = asked["kind"], asked.get("text")
    if kind not in CONSTRAINT_KINDS or not isinstance(text, str) or len(asked) != 2:
        raise InvalidRequestError(f"{param} must have a kind of {', '.join(CONSTRAINT_KINDS)} and a text", param)
    return json_schema(text, param) if kind == "json_schema" else _looked_at(kind, text)


def _of_fields(asked: Mapping[str, Any], param: str) -> Constraint:
    given = {name: asked.get(name) for name in _FIELDS if asked.get(name) is not None}
    if given.get("json_object") is False:
        del given["json_object"]
    if len(given) != 1:
        listed = ", ".join(_FIELDS)
        raise InvalidRequestError(f"{param} must have exactly one of {listed}, got {', '.join(given) or 'none'}", param)
    ((name, value),) = given.items()
    return constraint_of(name, value, f"{param}.{name}")


def constraint_of(name: str, value: Any, where: str) -> Constraint:
    """What ``name``, a field of StructuredOutputsParams, asks for with this value. ``where``: the field that holds it.

    Raises:
        InvalidRequestError: it stands for nothing.
    """
    if name == "json":
        return json_schema(value, where)
    if name == "choice":
        return choices(value, where)
    if name == "json_object":
        if value is not True:
            raise InvalidRequestError(f"{where} must be true or false, got {shown(value)}", where)
        return json_schema(ANY_OBJECT, where)
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where} must be a text, got {shown(value)}", where)
    return _looked_at("regex" if name == "regex" else "grammar", value)


def _dumped(value: Any, param: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise InvalidRequestError(f"{param} nests too deeply", param) from None
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{param} cannot be written as JSON: {error}"[:300], param) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_size(constraint: Constraint, limits: StructuredLimits, param: str) -> None:
    try:
        num_bytes = len(constraint.text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{param} holds a lone surrogate, which is no Unicode text", param) from None
    limit = limits.regex_bytes if constraint.kind == "regex" else limits.schema_bytes
    if num_bytes > limit:
        raise InvalidRequestError(f"{param} has {num_bytes} bytes; the limit is {limit}", param)
    if constraint.kind == "json_schema" and (constraint.nesting or 0) > limits.nesting:
        raise InvalidRequestError(f"{param} nests deeper than the limit of {limits.nesting} levels", param)


def _depth(value: Any) -> int:
    """Levels of objects and lists; a plain value has none."""
    depth, level = 0, [value]
    while True:
        level = [held for held in level if isinstance(held, dict | list)]
        if not level:
            return depth
        depth += 1
        level = [inner for held in level for inner in (held.values() if isinstance(held, dict) else held)]
