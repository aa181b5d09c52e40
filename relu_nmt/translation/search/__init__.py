"""Search for translations: beam search, sampling, constraints, and the score that ranks results.

The scorers of finished hypotheses are listed here by name. Listing the names imports nothing. A
file given with ``--user-module`` adds its scorers with ``@scorers.register("name")``, and
bonuses or penalties of single tokens with ``@step_scores.register("name")``.
"""

from typing import TYPE_CHECKING

from relu_nmt.config.registry import Registry

if TYPE_CHECKING:
    from relu_nmt.translation.search.scoring import Scorer
    from relu_nmt.translation.search.step_rules import StepScore

scorers: "Registry[type[Scorer]]" = Registry(
    "scorer", dict.fromkeys(("length", "coverage"), "relu_nmt.translation.search.scoring")
)
step_scores: "Registry[type[StepScore]]" = Registry("step score", {})
