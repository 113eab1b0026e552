"""Drafters for the fake model: one that knows what it says, and one that nobody should rely on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tests.support.fake_runner import VOCAB_SIZE, next_token


@dataclass
class Oracle:
    """Implements ``Drafter``: right ``num_right`` times in a row, for choice 0, then wrong."""

    num_right: int = 1 << 30

    def follow(self, token_ids: Sequence[int]) -> None:
        """It knows already."""

    def propose(self, token_ids: Sequence[int]) -> Iterator[tuple[int, float]]:
        context = list(token_ids)
        for step in count():
            context.append((next_token(context) + (step >= self.num_right)) % VOCAB_SIZE)
            yield context[-1], 1.0


@dataclass
class HostileDrafter:
    """Implements ``Drafter``, and is sure of all it says: what is right for choice 0, for a while, then anything."""

    rng: Random = field(default_factory=lambda: Random(0))

    def follow(self, token_ids: Sequence[int]) -> None:
        """It learns nothing."""

    def propose(self, token_ids: Sequence[int]) -> Iterator[tuple[int, float]]:
        context, num_right = list(token_ids), self.rng.choice([0, 0, 1, 2, 5, 100])
        for step in count():
            right = next_token(context)
            if step < num_right:
                context.append(right)
            else:
                context.append(self.rng.choice([0, 7, right, (right + 1) % VOCAB_SIZE]))
            yield context[-1], 1.0
