"""SAME of the cases: greedy answers against ``transformers`` in fp32, with every use of the allowance counted."""

from collections.abc import Sequence
from pathlib import Path

import torch

from tests.support.driving import Answer
from tests.support.parity import reference_logprobs

GAP = 1e-3
"""A token may differ from the reference's best only where the reference itself puts the two less than this apart."""
LOGPROB_TOLERANCE = 1e-3


def check_same_as_reference(model: Path, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> int:
    """Check greedy ``answers`` (with logprobs) token by token; the number of answers that needed the allowance.

    The reference reads prompt and answer in one forward pass; by induction over the tokens, greedy generation gives
    the same answer if and only if each token is the reference's best after those before it. At most one answer in 200
    (one, where there are fewer) may need the allowance; each use is printed.
    """
    num_allowed = 0
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        expected = reference_logprobs(model, [*prompt, *answer.token_ids[:-1]], num_logits=len(answer.token_ids))
        chosen = expected[torch.arange(len(expected)), torch.tensor(answer.token_ids)]
        shortfall = expected.max(-1).values - chosen
        uses = [(step, float(gap)) for step, gap in enumerate(shortfall) if gap > 0]
        for step, gap in uses:
            assert gap < GAP, f"prompt {number}: token {step} is {gap:g} below the reference's best"
            print(f"allowance used: prompt {number}, token {step}, gap {gap:g}")  # noqa: T201 (for -rP)
        num_allowed += bool(uses)
        actual = torch.tensor([entry.logprob for entry in answer.logprobs])
        difference = float((actual - chosen).abs().max())
        assert difference < LOGPROB_TOLERANCE, f"prompt {number}: a logprob is {difference:g} off"
    assert num_allowed <= max(1, len(prompts) // 200), f"{num_allowed} of {len(prompts)} answers used the allowance"
    return num_allowed
