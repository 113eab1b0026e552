"""Drafts that nobody should rely on: right ones for a while, then wrong ones, stop ids and tokens past the end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tests.support.fake_runner import VOCAB_SIZE, next_token


@dataclass
class HostileDrafter:
    """Implements ``Drafter``, and is sure of all it says. What is right is what ``next_token`` says for choice 0."""

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
