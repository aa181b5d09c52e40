"""The length of a training, as a user types it."""

import pytest

from relu_nmt.training.budgets import Budget


@pytest.mark.parametrize(
    ("text", "seconds", "updates", "epochs"),
    [
        ("4000", None, 4000, None),
        ("4000u", None, 4000, None),
        (" 90s ", 90, None, None),
        ("15m", 900, None, None),
        ("1.5H", 5400, None, None),
        ("3e", None, None, 3),
        ("0.5e", None, None, 0.5),
    ],
)
def test_a_budget_counts_time_updates_or_epochs(text, seconds, updates, epochs):
    budget = Budget.parse(text)
    assert (budget.seconds, budget.updates, budget.epochs) == (seconds, updates, epochs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0m",
        "0.0e",
        "10.5u",
        "10.5",
        "15d",
        "m",
        "-3m",
        "1 0",
        "1h30m",
        "nan",
        "1e5",
        "9" * 400,
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"expected 4000u|updates are whole"):
        Budget.parse(text)
