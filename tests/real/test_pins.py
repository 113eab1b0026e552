"""SmolLM2 in a small pool, with a pin and priorities: answers are bit for bit those of a large pool without them."""

from pathlib import Path

import pytest

import octavo.build
from octavo.core.pin_types import PinWish
from octavo.core.retention import Retention
from tests.real.text import ALICE
from tests.support.driving import Driver, Job, all_bits, greedy_params, run_apart

pytestmark = pytest.mark.slow


def test_bit_for_bit(smollm2_path: Path) -> None:
    ids = octavo.build.load_tokenizer(smollm2_path, None).encode(ALICE, False)
    head = ids[:37]
    prompts = [head + ids[50 * number + 40 :][:9] for number in range(4)]
    prompts += [ids[7 * number :][:40] for number in (3, 9)]
    jobs = [Job(prompt, greedy_params(14, logprobs=2)) for prompt in prompts]
    settings = {"max_model_len": 64, "max_num_seqs": 8}
    large = Driver(smollm2_path, checks=False, num_blocks=60, enable_prefix_caching=False, swap_space=0, **settings)
    expected = all_bits(run_apart(large, jobs))

    small = Driver(smollm2_path, num_blocks=9, swap_space=0.01, **settings)
    small.add(head, greedy_params(1), pins=(PinWish(len(head)),))
    small.add(ids[200:240], greedy_params(4), retention=Retention(90))
    for job in jobs:  # the prompts that are in the way of each other, all at once
        small.add(job.prompt, job.params, retention=Retention(len(job.prompt) % 3))
    while small.engine.has_work():
        small.step()
    answers = list(small.answers.values())[2:]
    assert all_bits(answers) == expected
    stats = small.stats
    assert (stats.num_pinned_blocks, stats.num_idle_pinned_blocks, stats.num_active_blocks) == (2, 2, 0)
    assert stats.num_preemptions > 0
    assert stats.prefix_hits >= 4 * 32
    (pin,) = small.engine.pins()
    assert small.engine.unpin(pin.pin_id)
    small.check_quiet()
