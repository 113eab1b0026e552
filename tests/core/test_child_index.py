"""The index of children alone, against brute force."""

import hypothesis.strategies as st
from hypothesis import given

from octavo.core.child_index import ChildIndex, common_length
from octavo.core.hashing import pack_tokens

PARENTS = [b"parent 0", b"parent 1"]
OPEN_PARENT = b"parent of what is open to all"
BLOCKS = st.tuples(st.sampled_from(PARENTS), st.lists(st.sampled_from([0, 1, 256, 1 << 24]), min_size=1, max_size=4))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(BLOCKS, min_size=1, max_size=5)),
        st.tuples(st.just("open"), st.integers(0, 99), st.integers(1, 3)),
        st.tuples(st.just("evict"), st.integers(0, 99)),
        st.tuples(st.just("look"), BLOCKS),
    ),
    max_size=40,
)


def _name(parent: bytes, block: list[int]) -> bytes:
    return parent + pack_tokens(block)


def _longest(cached: dict[bytes, tuple[bytes, list[int]]], parent: bytes, wanted: list[int]) -> int:
    """The most leading tokens that any cached child of ``parent`` shares with ``wanted``."""
    packed = pack_tokens(wanted)
    children = (pack_tokens(block) for other, block in cached.values() if other == parent)
    return max((common_length(packed, child) for child in children), default=0)


@given(EVENTS)
def test_the_longest_match_is_found(events: list[tuple[object, ...]]) -> None:
    cached: dict[bytes, tuple[bytes, list[int]]] = {}
    heads: dict[bytes, tuple[bytes, list[int]]] = {}
    index = ChildIndex()
    for event in events:
        match event:
            case ("add", list(blocks)):
                names = [_name(*block) for block in blocks]
                cached.update(zip(names, blocks, strict=True))
                index.add([parent for parent, _ in blocks], names, [pack_tokens(block) for _, block in blocks])
            case ("open", int(which), int(count)) if cached:
                name = list(cached)[which % len(cached)]
                if len(cached[name][1]) > count:
                    known = heads.get(name, (OPEN_PARENT, []))[1]
                    heads[name] = OPEN_PARENT, cached[name][1][: max(count, len(known))]
                    index.add_head(OPEN_PARENT, name, pack_tokens(cached[name][1][:count]))
            case ("evict", int(which)) if cached:
                name = list(cached)[which % len(cached)]
                del cached[name]
                heads.pop(name, None)
                index.remove([name, b"unknown"])
            case ("look", (bytes(parent), list(wanted))):
                _check_best(index, cached, parent, wanted)
                _check_best(index, heads, OPEN_PARENT, wanted)
    assert len(index) == len(cached)


def _check_best(
    index: ChildIndex, cached: dict[bytes, tuple[bytes, list[int]]], parent: bytes, wanted: list[int]
) -> None:
    found = index.best(parent, wanted)
    assert (found.num_tokens if found else 0) == _longest(cached, parent, wanted)
    if found:
        other, block = cached[found.block_hash]
        assert other == parent
        assert block[: found.num_tokens] == wanted[: found.num_tokens]


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=6), st.lists(st.integers(0, (1 << 32) - 1), max_size=6))
def test_common_length_counts_whole_tokens(first: list[int], second: list[int]) -> None:
    expected = 0
    while expected < min(len(first), len(second)) and first[expected] == second[expected]:
        expected += 1
    assert common_length(pack_tokens(first), pack_tokens(second)) == expected


def test_a_removed_child_that_comes_back_is_found_again() -> None:
    index = ChildIndex()
    blocks = {b"a": [1, 2], b"b": [1, 3]}
    index.add([b"p", b"p"], list(blocks), list(map(pack_tokens, blocks.values())))
    index.remove(blocks)
    assert len(index) == 0
    assert index.best(b"p", [1, 3]) is None
    for name in (b"b", b"a"):
        index.add([b"p"], [name], [pack_tokens(blocks[name])])
    assert index.best(b"p", [1, 2]) == (b"a", 2)
    assert index.best(b"p", [1, 3]) == (b"b", 2)


def test_memory_is_bounded_by_what_is_cached() -> None:
    """5 000 blocks come and go, children of one parent and of many, some open to all; 10 are cached at a time."""
    index = ChildIndex()
    for number in range(5000):
        name = number.to_bytes(4)
        index.add([b"one" if number % 2 else name + b"parent"], [name], [pack_tokens([number, 1])])
        if number % 3 == 0:
            index.add_head(OPEN_PARENT, name, pack_tokens([number]))
        index.remove([(number - 10).to_bytes(4)] if number >= 10 else [])
    assert len(index) == 10
    index.remove([number.to_bytes(4) for number in range(4990, 5000)])
    assert not any(vars(index).values()), "nothing is kept of what is cached no more"
