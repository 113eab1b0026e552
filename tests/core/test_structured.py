"""What a client may ask the text of an answer to be."""

import json

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingLimits, SamplingParams
from octavo.core.structured import Constraint, StructuredOutputsParams

OBJECT = Constraint("json_schema", '{"type":"object"}')


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"json": {"type": "object"}}, OBJECT),
        ({"json": '{ "type": "object" }'}, OBJECT),
        ({"json_object": True}, OBJECT),
        ({"json": True}, Constraint("json_schema", "{}")),
        ({"json": {"enum": ["東京", "é"]}}, Constraint("json_schema", '{"enum":["東京","é"]}')),
        ({"regex": "[äöü]{3}", "json": None, "json_object": False}, Constraint("regex", "[äöü]{3}")),
        ({"choice": ["a", 'b"']}, Constraint("choice", '["a","b\\""]')),
        ({"grammar": 'root ::= "a"'}, Constraint("grammar", 'root ::= "a"')),
        (StructuredOutputsParams(regex="a+"), Constraint("regex", "a+")),
        (Constraint("regex", "a+"), Constraint("regex", "a+")),
        ({"kind": "choice", "text": '["a"]'}, Constraint("choice", '["a"]')),
    ],
)
def test_every_form_is_kept_as_one(asked, kept):
    params = SamplingParams(structured_outputs=asked)
    assert params.constraint == kept
    assert SamplingParams(structured_outputs=params.structured_outputs) == params


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "exactly one"),
        ({"json": {}, "regex": "a"}, "exactly one"),
        ("a", "must be an object"),
        ({"json": False}, "false"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": '{"minimum": NaN}'}, "not valid JSON"),
        ({"json": {"minimum": float("inf")}}, "cannot be written"),
        ({"json": 5}, "must be a JSON schema"),
        ({"json": [1]}, "must be a JSON schema"),
        ({"json": '"text"'}, "must be a JSON schema"),
        ({"json_object": 1}, "true or false"),
        ({"choice": []}, "list of one or more"),
        ({"choice": "ab"}, "list of one or more"),
        ({"choice": ["a", 5]}, "list of one or more"),
        ({"regex": 5}, "must be a text"),
        ({"grammar": ["a"]}, "must be a text"),
        ({"regex": "\ud800"}, "surrogate"),
        ({"json": {"const": "\ud800"}}, "surrogate"),
        ({"kind": "regexp", "text": "a"}, "must have a kind"),
        ({"kind": "json_schema", "text": "]"}, "not valid JSON"),
        ({"kind": "regex", "text": None}, "must have a kind"),
        ({"json": "[" * 100_000}, "nests too deeply"),
    ],
)
def test_what_stands_for_nothing_is_refused(asked, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        SamplingParams(structured_outputs=asked)
    assert (caught.value.param or "").startswith("structured_outputs")


def nested(depth):
    return json.loads("[" * (depth - 1) + "]" * (depth - 1)) if depth > 1 else 0


@pytest.mark.parametrize(
    ("fits", "exceeds"),
    [
        ({"regex": "é" * 8}, {"regex": "é" * 8 + "a"}),
        ({"json": {"const": nested(7)}}, {"json": {"const": nested(8)}}),
        ({"choice": ["x" * 20]}, {"choice": ["x" * 40]}),
        ({"grammar": "x" * 32}, {"grammar": "x" * 33}),
    ],
)
def test_limits_hold_exactly(fits, exceeds):
    limits = SamplingLimits(schema_bytes=32, regex_bytes=16, schema_nesting=7)
    assert SamplingParams(structured_outputs=fits, limits=limits).constraint is not None
    with pytest.raises(InvalidRequestError, match="the limit"):
        SamplingParams(structured_outputs=exceeds, limits=limits)
