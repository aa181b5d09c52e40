"""What a sweep prints while it runs: a line per event, with the time left."""

import time
from collections import defaultdict
from collections.abc import Iterable

from relu_nmt.sweep.steps import Step


class SweepProgress:
    """Prints events and estimates the time left from the steps that are done.

    Args:
        steps: all steps.
        jobs: how many run at once.
        training_seconds: the budget of a training, if it is one of time.
        quiet: print nothing.

    Example:
        >>> SweepProgress([], jobs=1).time_left([])
        'nothing left'
    """

    def __init__(
        self,
        steps: Iterable[Step],
        jobs: int,
        training_seconds: float | None = None,
        quiet: bool = False,
    ) -> None:
        self._jobs = jobs
        self._quiet = quiet
        self._unfinished = set(steps)
        self._total = len(self._unfinished)
        # Seconds of the trainings (True) and the evaluations (False) that are done.
        self._seconds: dict[bool, list[float]] = defaultdict(list)
        # What is expected until a step of the kind is done.
        self._expected = {} if training_seconds is None else {True: [training_seconds]}

    def finished(self, step: Step, seconds: float | None = None) -> None:
        """Note that a step needs nothing more.

        Args:
            step: the step.
            seconds: how long it took, if that says how long others take.
        """
        self._unfinished.discard(step)
        if seconds is not None:
            self._seconds[step.is_training].append(seconds)

    def say(self, text: str, running: Iterable[tuple[Step, float]] = ()) -> None:
        """Print an event.

        Args:
            text: what happened.
            running: the steps under way with the seconds that they have run.
        """
        if self._quiet:
            return
        done = self._total - len(self._unfinished)
        clock = time.strftime("%H:%M:%S")
        print(f"{clock} | {done}/{self._total} | {self.time_left(running)} | {text}", flush=True)

    def time_left(self, running: Iterable[tuple[Step, float]]) -> str:
        """Return the estimate in words.

        Args:
            running: the steps under way with the seconds that they have run.
        """
        if not self._unfinished:
            return "nothing left"
        spent = dict(running)
        total, unknown = 0.0, False
        for step in self._unfinished:
            known = self._seconds[step.is_training] or self._expected.get(step.is_training)
            if known:
                total += max(0.0, sum(known) / len(known) - spent.get(step, 0.0))
            else:
                unknown = True
        if not total:
            return "time left unknown"
        seconds = total / min(self._jobs, len(self._unfinished))
        return f"{'over' if unknown else 'about'} {in_words(seconds)} left"


def in_words(seconds: float) -> str:
    """Return a duration for people.

    Example:
        >>> in_words(42), in_words(600), in_words(9000)
        ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
