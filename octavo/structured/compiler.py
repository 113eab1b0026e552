"""Grammars compiled in threads of their own, and kept for requests that ask for the same."""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint, ConstraintKind
from octavo.structured.grammar import form_of, grammar_text, marks_of
from octavo.structured.mask_memory import mask_memory
from octavo.structured.vocabulary import Bits, Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

NUM_THREADS = 2
"""So that one that takes long does not hold up all others."""

MAX_KEPT = 64
"""Grammars; each comes to hold up to 8 MiB of what is found out about it."""

MAX_KEPT_BYTES = 4 * 2**20
"""Of the texts of the grammars that are kept; what is compiled from them takes some ten times as much."""

MAX_RENEWALS = 32
QUICK_SECONDS = 0.05
"""Of a thread's time: a grammar is compiled anew within a step so often, and only where it is compiled so fast."""


class CompiledGrammar:
    """Gives out matchers, each at the beginning of a text. They share what they find out about the grammar, and its
    bound: where one has met that, the others have, too. ``is_spent``: so it is, and no other was made of it.
    ``text_bits``: of the tokens that may be part of a text, with the control tokens that the grammar names.
    ``memory``: masks that were found before, where they can be told apart.

    Raises:
        InvalidRequestError: there is no such grammar, or no text that fits it.
    """

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.is_spent = False
        self._constraint = constraint
        start = time.thread_time()
        self._matcher = compile_grammar(constraint, vocabulary)
        self.text_bits = text_bits(constraint, vocabulary)
        self.memory = mask_memory(constraint, vocabulary)
        self._num_renewals_left = MAX_RENEWALS if time.thread_time() - start <= QUICK_SECONDS else 0

    def new_matcher(self) -> "LLMatcher":
        return self._matcher.deep_copy()

    def renew(self) -> bool:
        """The matchers that are given out from now on share nothing with those before. False: that would hold up the
        step, and its other requests, for too long."""
        if not self._num_renewals_left:
            self.is_spent = True
            return False
        self._num_renewals_left -= 1
        self._matcher = compile_grammar(self._constraint, self.vocabulary)
        return True


class GrammarCompiler:
    """``make_vocabulary`` is called once, when the first grammar is asked for. Methods may be called by any thread."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary]) -> None:
        self._make_vocabulary = make_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._making = threading.Lock()
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._known: WeakValueDictionary[Constraint, Future[CompiledGrammar]] = WeakValueDictionary()
        """Those that somebody holds: the ones that are kept, and those of requests."""
        self._kept: OrderedDict[Constraint, Future[CompiledGrammar]] = OrderedDict()

    def begin(self, constraint: Constraint) -> "Future[CompiledGrammar]":
        """The grammar, once it is compiled, anew where it was spent; an InvalidRequestError, where it cannot be."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(NUM_THREADS, "octavo-grammar")
            future = self._known.get(constraint)
            if future is None or _is_spent(future) or _may_do_better(future):
                future = self._known[constraint] = self._threads.submit(self._compile, constraint)
            self._kept[constraint] = future
            self._kept.move_to_end(constraint)
            self._shrink()
        return future

    def get(self, constraint: Constraint) -> CompiledGrammar:
        """The grammar, at once where it is kept, spent or not: this is asked for within a step.

        Raises:
            InvalidRequestError: it cannot be compiled.
        """
        with self._lock:
            future = self._known.get(constraint)
        return (future or self.begin(constraint)).result()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _shrink(self) -> None:
        size = sum(len(constraint.text) for constraint in self._kept)
        while len(self._kept) > MAX_KEPT or (size > MAX_KEPT_BYTES and len(self._kept) > 1):
            dropped, _ = self._kept.popitem(last=False)
            size -= len(dropped.text)

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        with self._making:
            vocabulary = self._vocabulary = self._vocabulary or self._make_vocabulary()
        return CompiledGrammar(constraint, vocabulary)


def _is_spent(future: "Future[CompiledGrammar]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None and future.result().is_spent


def _may_do_better(future: "Future[CompiledGrammar]") -> bool:
    """Did it fail for want of something, memory mostly, and not for what the constraint is?"""
    if not future.done() or future.cancelled():
        return future.cancelled()
    error = future.exception()
    return error is not None and not isinstance(error, InvalidRequestError)


def compile_grammar(constraint: Constraint, vocabulary: Vocabulary) -> "LLMatcher":
    """A matcher at the beginning of a text.

    Raises:
        InvalidRequestError: there is no such grammar, or no text that fits it.
    """
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_lark(grammar_text(constraint, vocabulary.control_ids))
    matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=matcher_limits(form_of(constraint).kind))
    _check(matcher)
    beginning = matcher.deep_copy()
    bits = np.frombuffer(beginning.compute_bitmask(), dtype=np.uint32)
    _check(beginning)
    if not (bits & text_bits(constraint, vocabulary)).any() and not matcher.is_accepting():
        raise InvalidRequestError(_NO_TEXT)
    return matcher


def text_bits(constraint: Constraint, vocabulary: Vocabulary) -> Bits:
    """Of the tokens that may be part of a text of the grammar."""
    marks = [token_id for mark in marks_of(constraint) for token_id in vocabulary.control_ids(mark)]
    return vocabulary.text_bits | vocabulary.bits_of(marks) if marks else vocabulary.text_bits


_NO_TEXT = "no text fits it"


def _check(matcher: "LLMatcher") -> None:
    """
    Raises:
        InvalidRequestError: it has failed.
    """
    if matcher.is_error():
        error = matcher.get_error()
        raise InvalidRequestError(_NO_TEXT if error.startswith("NoExtension") else _sentence(error))


MAX_READINGS = 300
"""Ways at a time in which a text may be read by a client's own grammar. A token takes as much time as their square
where that is ambiguous; what is made of a schema or an expression mostly is not (and is tried, see trial)."""

MAX_ALTERNATIVES = 8_000
"""Of those: an object of 2,000 properties that may all be left out has 8,000 ways to go on."""


def matcher_limits(kind: ConstraintKind) -> "LLParserLimits":
    """What one grammar may take: of memory, and of time for one mask, a few milliseconds at most, where the library
    allows itself some fifteen."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=MAX_READINGS if kind == "grammar" else MAX_ALTERNATIVES,
        max_lexer_states=50_000,
        step_lexer_fuel=50_000,
        step_max_items=20_000,
        verbose_errors=False,
    )


def is_of_text(error: str) -> bool:
    """Is it a matcher's own text that has met a bound, so that it is met again however often one begins anew?"""
    return error.startswith("Parser Error: Current row has")


_QUOTED_LINE = re.compile(r"\d+ \| |\^|<")
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[([^\]]*)\]")
_PLACE = re.compile(r"at \d+\(\d+\): (failed to compile JSON schema: )?")


def _sentence(error: str) -> str:
    """What the library says, on one line, without what it quotes of the grammar, which is not quite the client's."""
    if error.startswith("panic"):
        return "it cannot be compiled"
    lines = (line.strip() for line in error.splitlines())
    sentence = " ".join(line for line in lines if line and not _QUOTED_LINE.match(line))
    sentence = _UNKNOWN_KEYS.sub(lambda found: f"the schema uses {found[1]}, which is not supported", sentence)
    return _PLACE.sub("", sentence).split(" Enable '")[0][:300]  # nobody can switch on options of the library
