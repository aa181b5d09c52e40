"""Checks of validation scores: whether they can be compared, and whether they tell anything."""

import re
from collections.abc import Callable, Sequence

from relu_nmt.training.results import Stats
from relu_nmt.training.state import TrainingState

NOTHING = 0.005
"""Scores below it are printed as 0.00."""
ADVICE = {
    "bleu": "--eval-bleu-print-samples shows translations; if the target language has no spaces "
    "between words, --sacrebleu-tokenizer char counts characters"
}
PATIENCE_ADVICE = "; --patience counts such scores: consider --best-checkpoint-metric loss"


def forget_other_measure(
    state: TrainingState, metric: str, signature: str | None, say: Callable[[str], None]
) -> bool:
    """Forget the best score if it was measured otherwise than scores are now.

    Args:
        state: of the training; changed.
        metric: the one that ``state.best_score`` is of.
        signature: of this metric now; None of a loss.
        say: prints a message.

    Returns:
        Whether it is forgotten.
    """
    if signature is None:
        return False
    was, state.best_signature = state.best_signature, signature
    if state.best_score is None or _is_comparable(was, signature):
        return False
    say(
        f"note: the best {metric} so far, {state.best_score:g}, was measured otherwise "
        f"({was or 'by an earlier version'}) than scores are now ({signature}); it is forgotten, "
        "and --patience counts anew"
    )
    state.best_score, state.bad_validations = None, 0
    return True


def _is_comparable(was: str | None, now: str) -> bool:
    """Say whether scores with these signatures are, whatever version of sacreBLEU computed them.

    Args:
        was: None in checkpoints before there were signatures, when 13a was for all languages.
        now: the present one.
    """
    if was is None:
        return re.search(r"\btok:(13a|none)\b", now) is not None
    return was.partition("|version:")[0] == now.partition("|version:")[0]


def loss_without_score(validations: Sequence[Stats], metric: str) -> tuple[float, float] | None:
    """Return the first and last loss if it falls while a score stays 0, from the second time on.

    Args:
        validations: of one set, in their order.
        metric: the score's name; more of it is better.
    """
    both = [
        (one[metric], one["loss"])
        for one in validations
        if one.get(metric) is not None and one.get("loss") is not None
    ]
    if len(both) < 2 or any(score >= NOTHING for score, _ in both):
        return None
    first, last = both[0][1], both[-1][1]
    return (first, last) if last < first else None


def zero_warning(validations: Sequence[Stats], metric: str, patience: bool) -> str:
    """Return a warning that a score stays 0 while the loss falls; empty if it does not.

    Args:
        validations: of one set, in their order.
        metric: the score's name; more of it is better.
        patience: ``--patience`` counts this score.
    """
    if (losses := loss_without_score(validations, metric)) is None:
        return ""
    advice = ADVICE.get(metric, "is it the right metric?") + PATIENCE_ADVICE * patience
    fall = f"from {losses[0]:.3f} to {losses[1]:.3f}"
    return f"WARNING: {metric} stays 0 while the loss falls {fall}; {advice}"
