"""How the tokens of a vocabulary spell bytes."""

import re
from functools import cache

from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class PlainSpelling:
    """Tokens are the text itself."""

    def to_bytes(self, token: str, is_added: bool) -> bytes:
        """Bytes of a token; added tokens are written as text in every kind of vocabulary."""
        return token.encode()


class ByteLevelSpelling(PlainSpelling):
    """One printable character a byte (GPT-2's map): Ġ is a blank."""

    def to_bytes(self, token: str, is_added: bool) -> bytes:
        alphabet = _byte_of_character()
        if is_added or any(character not in alphabet for character in token):
            return token.encode()  # as the library's decoder does
        return bytes(alphabet[character] for character in token)


class SentencePieceSpelling(PlainSpelling):
    """▁ is a blank, <0x41> is a byte."""

    def to_bytes(self, token: str, is_added: bool) -> bytes:
        if not is_added and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return token.replace("▁", " ").encode()


def spelling_of(backend: Backend) -> PlainSpelling:
    """The spelling that the backend's decoder undoes: tried out, as decoders do not tell what they are."""
    if backend.decoder is None:
        return PlainSpelling()
    if backend.decoder.decode(["a", "Ġa"]) == "a a":
        return ByteLevelSpelling()
    if backend.decoder.decode(["a", "▁a"]) == "a a":
        return SentencePieceSpelling()
    return PlainSpelling()


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes of Latin-1 stand for themselves, the others, in order, for U+0100 and on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
