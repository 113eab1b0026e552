"""A KV manager so simple that it can be seen to be right: contents are kept per sequence, blocks only counted."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class NaiveSequence:
    """Tokens written so far, and for each logical block an object that stands for the physical one."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[object] = field(default_factory=list)


@dataclass
class NaiveAllocator:
    """What the real manager must agree with: who shares what, how many blocks are in use, which prefixes are known."""

    num_blocks: int
    block_size: int
    sequences: list[NaiveSequence] = field(default_factory=list)
    published: dict[tuple[int, ...], object] = field(default_factory=dict)

    @property
    def num_used(self) -> int:
        return len({id(block) for sequence in self.sequences for block in sequence.blocks})

    def references(self, block: object) -> int:
        return sum(other is block for sequence in self.sequences for other in sequence.blocks)

    def start(self, tokens: list[int], cached_blocks: list[object]) -> NaiveSequence:
        fresh = -(-len(tokens) // self.block_size) - len(cached_blocks)
        sequence = NaiveSequence(list(tokens), [*cached_blocks, *(object() for _ in range(fresh))])
        self.sequences.append(sequence)
        return sequence

    def append(self, sequence: NaiveSequence, token: int) -> None:
        index = len(sequence.tokens) // self.block_size
        if index == len(sequence.blocks):
            sequence.blocks.append(object())
        elif self.references(sequence.blocks[index]) > 1:
            sequence.blocks[index] = object()
        sequence.tokens.append(token)

    def fork(self, sequence: NaiveSequence) -> NaiveSequence:
        child = NaiveSequence(list(sequence.tokens), list(sequence.blocks))
        self.sequences.append(child)
        return child
