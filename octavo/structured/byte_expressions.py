"""Regular expressions over bytes, and what is left of one after some bytes (Brzozowski's derivatives, 1964).

Equal expressions of one ``Expressions`` are one object, so that what is left of a text can be a key. What is found out
about an expression is kept with it.
"""

from collections.abc import Iterable
from typing import Literal

NodeKind = Literal["nothing", "empty", "bytes", "then", "either", "repeat"]


class Node:
    """``nothing``: no text; ``empty``: the empty text; ``bytes``: one of those in ``mask``, a bit each; ``then``: the
    two ``parts`` in turn; ``either``: one of ``parts``; ``repeat``: ``parts[0]``, ``least`` to ``most`` times, None
    without end."""

    __slots__ = ("kind", "least", "left", "mask", "most", "parts", "short", "takes_empty")

    def __init__(
        self,
        kind: NodeKind,
        parts: "tuple[Node, ...]" = (),
        mask: int = 0,
        least: int = 0,
        most: int | None = 0,
        *,
        takes_empty: bool,
    ) -> None:
        self.kind = kind
        self.parts = parts
        self.mask = mask
        self.least = least
        self.most = most
        self.takes_empty = takes_empty
        self.left: dict[int, Node] = {}
        self.short: Node | None = None


NOTHING = Node("nothing", takes_empty=False)
EMPTY = Node("empty", takes_empty=True)


class Expressions:
    """Makes expressions, each once. ``num_nodes``: how many there are. Parts may be those of others."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Node] = {}

    @property
    def num_nodes(self) -> int:
        return len(self._known)

    def one_of(self, mask: int) -> Node:
        if not mask:
            return NOTHING
        key = ("bytes", mask)
        return self._known.get(key) or self._keep(key, Node("bytes", mask=mask, takes_empty=False))

    def then(self, first: Node, rest: Node) -> Node:
        if first is NOTHING or rest is NOTHING:
            return NOTHING
        if first is EMPTY:
            return rest
        if rest is EMPTY:
            return first
        if first.kind == "then":
            return self.then(first.parts[0], self.then(first.parts[1], rest))
        key = ("then", first, rest)
        takes_empty = first.takes_empty and rest.takes_empty
        return self._known.get(key) or self._keep(key, Node("then", (first, rest), takes_empty=takes_empty))

    def either(self, nodes: Iterable[Node]) -> Node:
        parts: dict[Node, None] = {}
        for node in nodes:
            parts.update(dict.fromkeys(node.parts if node.kind == "either" else (node,)))
        parts.pop(NOTHING, None)
        if not parts:
            return NOTHING
        if len(parts) == 1:
            return next(iter(parts))
        key = ("either", frozenset(parts))
        takes_empty = any(part.takes_empty for part in parts)
        return self._known.get(key) or self._keep(key, Node("either", tuple(parts), takes_empty=takes_empty))

    def repeat(self, node: Node, least: int, most: int | None) -> Node:
        if most == 0 or node is EMPTY:
            return EMPTY
        if node is NOTHING:
            return NOTHING if least else EMPTY
        if node.takes_empty:
            least = 0
        if least == most == 1:
            return node
        key = ("repeat", node, least, most)
        made = self._known.get(key)
        return made or self._keep(key, Node("repeat", (node,), 0, least, most, takes_empty=least == 0))

    def after(self, node: Node, byte: int) -> Node:
        """What may follow ``byte`` in a text of ``node``."""
        left = node.left.get(byte)
        if left is None:
            left = node.left[byte] = self._after(node, byte)
        return left

    def _after(self, node: Node, byte: int) -> Node:
        match node.kind:
            case "bytes":
                return EMPTY if node.mask >> byte & 1 else NOTHING
            case "then":
                first, rest = node.parts
                left = self.then(self.after(first, byte), rest)
                other = self.after(rest, byte) if first.takes_empty else NOTHING
                return left if other is NOTHING else self.either((left, other))
            case "either":
                return self.either(self.after(part, byte) for part in node.parts)
            case "repeat":
                most = None if node.most is None else node.most - 1
                more = self.repeat(node.parts[0], max(0, node.least - 1), most)
                return self.then(self.after(node.parts[0], byte), more)
        return NOTHING

    def short(self, node: Node, num_bytes: int) -> Node:
        """An expression whose texts have the same beginnings of up to ``num_bytes`` bytes, and that is the same for
        nodes that differ in what they ask for beyond these alone. ``num_bytes`` is always the same."""
        if node.short is None:
            node.short = self._short(node, num_bytes)
        return node.short

    def _short(self, node: Node, num_bytes: int) -> Node:
        parts = [self.short(part, num_bytes) for part in node.parts]
        match node.kind:
            case "then":
                return self.then(*parts)
            case "either":
                return self.either(parts)
            case "repeat":  # so many bytes are at most as many parts that are not empty
                beyond = num_bytes + 1
                most = None if node.most is None or node.most > beyond else node.most
                return self.repeat(parts[0], min(node.least, beyond), most)
        return node

    def _keep(self, key: tuple[object, ...], node: Node) -> Node:
        self._known[key] = node
        return node
