"""What is printed while a sweep runs."""

from pathlib import Path

from relu_nmt.sweep.progress import SweepProgress, in_words
from relu_nmt.sweep.steps import Step, SweepModel


def make_steps(models=4):
    models = [SweepModel("softmax", seed, (8,)) for seed in range(models)]
    trains = [Step(t, None, Path("x")) for t in models]
    return trains, [Step(t, 8, Path("x")) for t in models]


def test_the_time_left_comes_from_the_steps_that_are_done(capsys):
    trains, evaluations = make_steps()
    progress = SweepProgress([*trains, *evaluations], jobs=2)
    assert progress.time_left([]) == "time left unknown"
    progress.finished(trains[0], 600.0)
    # Three trainings of 600 s by two processes, and evaluations of which nothing is known.
    assert progress.time_left([]) == "over 15 min left"
    progress.finished(evaluations[0], 60.0)
    assert progress.time_left([(trains[1], 300.0)]) == "about 14 min left"
    progress.say("an event", [(trains[1], 300.0)])
    assert capsys.readouterr().out.split(" | ")[1:] == ["2/8", "about 14 min left", "an event\n"]


def test_a_budget_of_time_tells_before_anything_is_done():
    trains, _ = make_steps(2)
    progress = SweepProgress(trains, jobs=1, training_seconds=900.0)
    assert progress.time_left([]) == "about 30 min left"
    # A process works longer than was thought: nothing is negative.
    assert progress.time_left([(trains[0], 5000.0)]) == "about 15 min left"
    progress.finished(trains[0], 1200.0)
    assert progress.time_left([]) == "about 20 min left"


def test_durations():
    assert [in_words(x) for x in (99.4, 100, 5999, 86_400)] == [
        "99 s",
        "2 min",
        "1 h 40 min",
        "24 h 0 min",
    ]


def test_a_quiet_sweep_prints_nothing(capsys):
    SweepProgress([], jobs=1, quiet=True).say("an event")
    assert capsys.readouterr().out == ""
