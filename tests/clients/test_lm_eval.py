"""lm-eval measures the same through the server as with transformers: every choice of 50 questions that it ships."""

import json
from pathlib import Path

import pytest

from tests.support.client_environment import run_script
from tests.support.fake_server import ServerProcess


def test_local_completions(small_server: ServerProcess, small_path: Path) -> None:
    shown = run_script("use_lm_eval.py", [small_server.url, small_path]).splitlines()[-1]
    found = json.loads(shown)
    octavo, reference = found["octavo"], found["hf"]
    assert len(octavo["answers"]) == len(reference["answers"]) == 50
    for ours, theirs in zip(octavo["answers"], reference["answers"], strict=True):
        assert len(ours) == len(theirs) == 4
        assert [logprob for logprob, _ in ours] == pytest.approx([logprob for logprob, _ in theirs], abs=1e-3)
        assert [is_greedy for _, is_greedy in ours] == [is_greedy for _, is_greedy in theirs]
    assert (octavo["acc"], octavo["acc_norm"]) == (reference["acc"], reference["acc_norm"])
