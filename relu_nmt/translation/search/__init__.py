"""Search for translations: beam search, sampling, constraints, and the score that ranks results.

The scorers of finished hypotheses are listed here by name; listing the names imports nothing. A
file given with ``--user-module`` adds entries of its own with ``@scorers.register("name")``.
"""

from typing import TYPE_CHECKING

from relu_nmt.config.registry import Registry

if TYPE_CHECKING:
    from relu_nmt.translation.search.scoring import Scorer

scorers: "Registry[type[Scorer]]" = Registry(
    "scorer", dict.fromkeys(("length", "coverage"), "relu_nmt.translation.search.scoring")
)
