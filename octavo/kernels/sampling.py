"""What a back end is asked when tokens are drawn for a batch, and what it answers: one record a row, laid out as the
native library reads them (csrc/octavo_kernels.h). The specification is octavo/runner/drawing.py and row_sampling.py."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

REQUEST = np.dtype(
    [
        *((name, np.uintp) for name in ("bits", "allowed", "masked", "bias_ids", "biases", "seen_ids", "seen_counts")),
        *((name, np.int64) for name in ("num_allowed", "num_masked", "num_biases", "num_seen")),
        *((name, np.float64) for name in ("repetition", "frequency", "presence", "uniform", "top_p")),
        ("top_k", np.int64),
        ("scale", np.float32),
        ("min_p", np.float32),
        ("wants_logprobs", np.int64),
    ]
)
"""OctavoSampleRequest. The first seven are addresses: whoever fills them in keeps the arrays."""

SAMPLE = np.dtype(
    [
        ("token_id", np.int64),
        ("best", np.float32),
        ("raw_best", np.float32),
        ("units", np.int64),
        ("rank", np.int64),
        ("raw_logit", np.float64),
    ]
)
"""OctavoSample."""

Records = NDArray[np.void]
"""Of one of the two types, one a row."""


class Answers:
    """``samples``: SAMPLE [R]; ``top_ids`` int64 and ``top_logits`` fp32 [R, k]: filled in for rows that want
    logprobs. Valid until the next call of what gave them."""

    __slots__ = ("samples", "top_ids", "top_logits")

    def __init__(self, num_rows: int, num_top: int) -> None:
        self.samples: Records = np.empty(num_rows, dtype=SAMPLE)
        self.top_ids = np.empty((num_rows, num_top), dtype=np.int64)
        self.top_logits = np.empty((num_rows, num_top), dtype=np.float32)


class Sampling(Protocol):
    """``logits``: fp32 [R, width], of which the first ``count`` of a row are of tokens that may be drawn or listed;
    ``num_top``: as many of the best are listed, at most ``count``."""

    def sample(self, logits: Tensor, best_ids: Tensor, requests: Records, count: int, num_top: int) -> Answers:
        """One token for each row. ``requests``: REQUEST [R]. ``best_ids``: ``Ops.argmax`` of each row."""
        ...

    def logprobs(self, logits: Tensor, token_ids: NDArray[np.int64], count: int, num_top: int) -> Answers:
        """The logprobs of known tokens, one a row."""
        ...
