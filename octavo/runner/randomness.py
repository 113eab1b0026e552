"""The randomness of one position: a function of (seed, choice index, position) and of nothing else (spec D1)."""

import struct
from hashlib import blake2b

_COUNTER = struct.Struct("<QQQ")


def uniform(seed: int, choice_index: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2**-53, the same in every process and on every machine.

    ``seed`` is in [0, 2**63); ``position`` is the index in the sequence (prompt included) of the token to draw.
    A keyed hash as a counter-based generator (Salmon et al., 2011): no state that a batch, a preemption or a restart
    could disturb, and choices and neighbouring seeds share nothing.
    """
    digest = blake2b(_COUNTER.pack(seed, choice_index, position), digest_size=8, person=b"octavo-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
