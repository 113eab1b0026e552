"""Requests that wait for the prompt of another: the further choices of a request, the further beams of a search."""

from collections.abc import Iterator

from octavo.core.beam_group import BeamGroup
from octavo.core.request import Request

Parent = Request | BeamGroup


class Families:
    """Children by the parent that computes their prompt. They are not in line: when the prompt is there they fork the
    parent's blocks, or, where there is no room for that, get in line. Beams that hold no beam are the children of
    their search: it alone calls them."""

    def __init__(self) -> None:
        self._children: dict[Parent, dict[Request, None]] = {}
        self._parents: dict[Request, Parent] = {}

    def add(self, parent: Parent, children: list[Request]) -> None:
        if children:
            self._children[parent] = dict.fromkeys(children)
            self._parents.update(dict.fromkeys(children, parent))

    def is_parent(self, request: Request) -> bool:
        return request in self._children

    def take(self, parent: Request) -> list[Request]:
        """The children of ``parent``, who wait no more."""
        children = list(self._children.pop(parent, ()))
        for child in children:
            del self._parents[child]
        return children

    def remove(self, child: Request) -> None:
        parent = self._parents.pop(child)
        siblings = self._children[parent]
        del siblings[child]
        if not siblings:
            del self._children[parent]

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, child: Request) -> bool:
        return child in self._parents

    def __iter__(self) -> Iterator[Request]:
        return iter(self._parents)
