"""Schemas of real functions: the calls that fit are accepted, those that were spoilt are not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.schema_set import follow_schemas, read_schemas
from octavo.core.errors import ConfigurationError
from tests.support.byte_tokenizer import ByteTokenizer

SCHEMAS = Path(__file__).parent / "bfcl" / "schemas.jsonl"


class Bytes(ByteTokenizer):
    """Text alone: what it is asked to encode is no prompt."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


def spoilt(data: dict[str, Any]) -> Iterator[Any]:
    yield [data]
    yield {}
    yield data | {"not asked for": 1}
    for name, value in data.items():
        yield data | {name: [value, value]}
        yield {key: each for key, each in data.items() if key != name} | {name + "x": value}


def entries() -> Iterator[dict[str, Any]]:
    for entry in read_schemas(SCHEMAS):
        tests = [{"data": data, "valid": True} for data in entry["data"]]
        tests += [{"data": each, "valid": False} for data in entry["data"] for each in spoilt(data)]
        yield {"id": entry["id"], "schema": entry["schema"], "tests": tests}


def test_of_real_schemas_at_least_99_percent_are_followed() -> None:
    following = follow_schemas(entries(), Bytes())
    assert following.num_schemas > 100
    assert following.refused.total() <= following.num_schemas // 50, following.refused
    for valid in (True, False):
        assert following.right[valid] >= 0.99 * following.num_tests[valid], following.wrong_ids
    assert following.num_tests[False] > 400
    assert following.row["valid_percent"] == 100 * following.right[True] / following.num_tests[True]


def test_what_is_not_supported_is_counted_with_its_reason() -> None:
    row = follow_schemas([{"id": "a", "schema": {"not": {}}, "tests": [{"data": 1, "valid": True}]}], Bytes()).row
    assert (row["schemas"], row["refused"], row["valid"], row["valid_percent"]) == (1, 1, 0, None)
    assert list(row["reasons"]) == ['the schema uses "not", which is not supported']  # type: ignore[call-overload]


def test_a_file_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "schemas.jsonl"
    path.write_text(json.dumps({"a": 1}) + "\nnonsense\n")
    with pytest.raises(ConfigurationError, match="JSON lines"):
        list(read_schemas(path))
    with pytest.raises(ConfigurationError, match="JSON lines"):
        list(read_schemas(path.rename(tmp_path / "schemas.gz")))
