"""Run generated cases one by one, and keep what went wrong in any of them.

A case is a function of a random generator and an empty folder. It returns a word on how it ended
("read", "refused", …), which is counted, and fails by any exception. ``InputError`` counts as
"refused" if its message is one line that fits on a screen.
"""

from __future__ import annotations

import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairmp import InputError

Case = Callable[[np.random.Generator, Path], str]
LIMIT_S = 20  # of a processor
WAITING = 10  # times as long by the clock
LIMITS_S = {"tests.fuzz.kills": 600}  # two runs of a command
WARM_UP: dict[str, Callable[[], object]] = {}  # what a kind does once, without the time limit
MAX_MESSAGE, MAX_DETAILS = 1200, 3000


class CaseFailed(Exception):
    """A case failed: the reason, which is counted, and the details."""

    def __init__(self, reason: str, details: str) -> None:
        self.reason, self.details = reason, details[-MAX_DETAILS:]
        super().__init__(reason, details)


@dataclass
class Outcome:
    """How often cases ended in which way, and those that failed: their number and the reason."""

    kind: str
    seed: int
    ends: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        ends = dict(self.ends.most_common())
        return {"tried": sum(self.ends.values()), "ends": ends, "failures": self.failures}


def generator(kind: str, seed: int, number: int) -> np.random.Generator:
    """The generator of one case, the same on every machine."""
    return np.random.default_rng([seed, number, *kind.encode()])


def run(kind: str, case: Case, seed: int, numbers: Iterable[int]) -> Outcome:
    """Run the cases of some numbers."""
    outcome = Outcome(kind, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        WARM_UP.get(kind, lambda: None)()
    for number in numbers:
        try:
            with tempfile.TemporaryDirectory() as place:
                end = attempt(case, generator(kind, seed, number), Path(place))
        except CaseFailed as failure:
            end = f"FAILED: {failure.reason}"
            outcome.failures[number] = f"{end}\n{failure.details}"
        outcome.ends[end] += 1
    return outcome


@dataclass(frozen=True)
class Portion:
    """Some cases of a kind, for a process of their own."""

    kind: str
    seed: int
    numbers: range

    def run(self) -> Outcome:
        from tests.fuzz import KINDS

        return run(self.kind, KINDS[self.kind], self.seed, self.numbers)


def attempt(case: Case, rng: np.random.Generator, place: Path) -> str:
    """Run a case within its time; return how it ended."""
    try:
        with time_limit(LIMITS_S.get(case.__module__, LIMIT_S)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return case(rng, place)
    except InputError as error:
        message = str(error)
        if "\n" in message or len(message) > MAX_MESSAGE:
            raise CaseFailed(f"a message of {len(message)} characters", message) from None
        return "refused"
    except Exception as error:
        raise CaseFailed(type(error).__name__, traceback.format_exc()) from None


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise ``TimeoutError`` after so many seconds of a processor, or ten times by the clock."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = {number: signal.signal(number, late) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.alarm(seconds * WAITING)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
