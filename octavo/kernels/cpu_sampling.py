"""Tokens from logits on the native back end: a row is a task of its threads."""

from collections.abc import Callable
from ctypes import CDLL

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.core.timing import Timed, untimed
from octavo.kernels.sampling import Answers, Records


class CpuSampling:
    """Implements ``Sampling``. Answers are kept and given out again while as many are asked for."""

    def __init__(self, library: CDLL, timed: Timed = untimed) -> None:
        self._sample: Callable[..., None] = timed("native", library.octavo_sample)
        self._logprobs: Callable[..., None] = timed("native", library.octavo_logprobs)
        self._answers = Answers(0, 0)

    def sample(self, logits: Tensor, best_ids: Tensor, requests: Records, count: int, num_top: int) -> Answers:
        logits = _fp32(logits)
        answers = self._answers_for(len(requests), num_top)
        self._sample(
            logits.data_ptr(),
            best_ids.data_ptr(),
            requests.ctypes.data,
            *_addresses(answers),
            *logits.shape,
            count,
            num_top,
        )
        return answers

    def logprobs(self, logits: Tensor, token_ids: NDArray[np.int64], count: int, num_top: int) -> Answers:
        logits = _fp32(logits)
        answers = self._answers_for(len(token_ids), num_top)
        answers.samples["token_id"] = token_ids
        self._logprobs(logits.data_ptr(), *_addresses(answers), *logits.shape, count, num_top)
        return answers

    def _answers_for(self, num_rows: int, num_top: int) -> Answers:
        if self._answers.top_ids.shape != (num_rows, num_top):
            self._answers = Answers(num_rows, num_top)
        return self._answers


def _fp32(logits: Tensor) -> Tensor:
    assert logits.dtype == torch.float32
    return logits.contiguous()


def _addresses(answers: Answers) -> tuple[int, int, int]:
    return answers.samples.ctypes.data, answers.top_ids.ctypes.data, answers.top_logits.ctypes.data
