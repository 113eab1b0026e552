"""A tokenizer that takes its time."""

import time

import pytest

from octavo.loading.interface import Tokenizer


def encode_slowly(tokenizer: Tokenizer, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each text takes ``seconds`` longer."""
    encode = tokenizer.encode

    def slowly(text: str) -> list[int]:
        time.sleep(seconds)
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode", slowly)
