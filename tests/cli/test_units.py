"""Numbers as people write them."""

import click
import pytest

from octavo.cli.units import ByteSize, TokenCount, readable_bytes


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("4096", 4096), ("4k", 4000), ("4K", 4096), ("1.5k", 1500), ("0.5K", 512), ("1M", 2**20), ("auto", None)],
)
def test_token_counts(text: str, tokens: int | None) -> None:
    assert TokenCount().convert(text, None, None) == tokens


@pytest.mark.parametrize("text", ["", "k", "4q", "-4", "0", "four", "4GiB", "1e3", "nan"])
def test_token_counts_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a number of tokens"):
        TokenCount().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1073741824", 2**30),
        ("2GiB", 2**31),
        ("2 GiB", 2**31),
        ("500M", 500 * 2**20),
        ("500MB", 500 * 10**6),
        ("1.5g", 1_500_000_000),
        ("64KiB", 2**16),
        ("12B", 12),
    ],
)
def test_byte_sizes(text: str, size: int) -> None:
    assert ByteSize().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "GiB", "2XB", "-1G", "0", "2Gib"])
def test_byte_sizes_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        ByteSize().convert(text, None, None)


def test_whole_numbers_keep_every_digit() -> None:
    assert ByteSize().convert("9007199254740993", None, None) == 9007199254740993


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (3 * 2**41, "6.0 TiB")]
)
def test_readable_bytes(size: int, text: str) -> None:
    assert readable_bytes(size) == text
