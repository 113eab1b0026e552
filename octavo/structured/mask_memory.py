"""Masks of a regular expression that were found before: the library looks for each anew, at every token."""

from collections import OrderedDict
from collections.abc import Iterable

from octavo.core.structured import Constraint
from octavo.structured.byte_expressions import Expressions, Node
from octavo.structured.regex_reader import UnknownSyntaxError, read_regex
from octavo.structured.vocabulary import Bits, Vocabulary

MAX_MASKS = 128
"""Of one expression: less than a MiB, or 4 for the largest vocabularies."""

MAX_CHARACTERS = 250
"""Of an expression: what is left of longer ones nests deeper than Python likes."""

MAX_NODES = 20_000
"""What is left of a counted expression is another one at each count; beyond so many they are forgotten."""

MAX_NEW_NODES = 2_000
"""At one token: an expression that needs more costs more than it saves, and is given up."""


class _TooManyError(Exception):
    """A token has led to too many expressions."""


class MaskMemory:
    """Two texts of an expression have the same mask where the same may follow them, as far as the longest token goes.

    A ``Node`` is what may still follow a text. Used by one thread.

    Raises:
        UnknownSyntaxError: what the pattern means is not surely known here.
    """

    def __init__(self, pattern: str, num_token_bytes: int) -> None:
        self._pattern = pattern
        self._num_token_bytes = num_token_bytes
        self._is_given_up = False
        self._forget()

    def _forget(self) -> None:
        self._made = Expressions()
        self._beginning = read_regex(self._pattern, self._made)
        self._masks: OrderedDict[Node, Bits] = OrderedDict()

    def after(self, texts: Iterable[bytes], node: Node | None = None) -> Node | None:
        """What may follow the texts of these tokens, after those that led to ``node``. None: it is not known."""
        if self._is_given_up:
            return None
        if self._made.num_nodes > MAX_NODES:
            self._forget()
        try:
            left = self._after(texts, self._beginning if node is None else node)
        except (RecursionError, _TooManyError):
            self._is_given_up = True
            return None
        return left

    def _after(self, texts: Iterable[bytes], left: Node) -> Node:
        made = self._made
        for text in texts:
            most = made.num_nodes + MAX_NEW_NODES
            for byte in text:
                left = made.after(left, byte)
                if made.num_nodes > most:
                    raise _TooManyError
        made.short(left, self._num_token_bytes)
        return left

    def mask(self, node: Node) -> Bits | None:
        """Of the tokens that may come next, if it was found before."""
        key = self._made.short(node, self._num_token_bytes)
        found = self._masks.get(key)
        if found is not None:
            self._masks.move_to_end(key)
        return found

    def keep(self, node: Node, mask: Bits) -> None:
        self._masks[self._made.short(node, self._num_token_bytes)] = mask.copy()
        if len(self._masks) > MAX_MASKS:
            self._masks.popitem(last=False)


def mask_memory(constraint: Constraint, vocabulary: Vocabulary) -> MaskMemory | None:
    """None: other constraints, and expressions that are not understood, have none."""
    if constraint.kind != "regex" or len(constraint.text) > MAX_CHARACTERS:
        return None
    try:
        return MaskMemory(constraint.text, vocabulary.num_token_bytes)
    except UnknownSyntaxError:
        return None
