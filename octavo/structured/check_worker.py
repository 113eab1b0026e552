"""The process in which the grammars of requests are tried: whatever one does there, it does to nobody else.

The kernel stops it: an alarm ends the process when a grammar takes too long, and a limit of its address space bounds
its memory. Protocol: one JSON value a line. In: first the settings (seconds, num_bytes), then one constraint (kind,
text) a line. Out, for each: null, or why it cannot be followed. No answer and an ended process mean that a limit
struck.
"""

import json
import resource
import signal
import sys

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint
from octavo.structured.compiler import compile_grammar
from octavo.structured.trial import try_texts
from octavo.structured.vocabulary import Vocabulary


class _Bytes:
    """The smallest vocabulary that spells every text: what can be compiled does not depend on it."""

    vocab_size = 256
    special_token_ids = frozenset[int]()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


def _answer(constraint: Constraint, vocabulary: Vocabulary) -> str | None:
    try:
        try_texts(compile_grammar(constraint, vocabulary))
    except InvalidRequestError as error:
        return error.message
    except MemoryError:
        return "it needs too much memory"
    except Exception as error:  # noqa: BLE001 - whatever a grammar can provoke is an answer
        return f"it cannot be compiled ({type(error).__name__})"
    return None


def main() -> None:
    settings = json.loads(sys.stdin.buffer.readline())
    vocabulary = Vocabulary(_Bytes(), _Bytes.vocab_size, frozenset())
    try_texts(compile_grammar(Constraint("regex", "a"), vocabulary))  # slow the first time
    resource.setrlimit(resource.RLIMIT_AS, (settings["num_bytes"], settings["num_bytes"]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process, even inside a native call
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, settings["seconds"])
        answer = _answer(Constraint(**json.loads(line)), vocabulary)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
