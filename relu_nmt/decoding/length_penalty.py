"""How hypotheses of different lengths are compared."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from relu_nmt.decoding.config import GenerationConfig


@dataclass(frozen=True)
class LengthPenalty:
    """What the total log-probability of a hypothesis is divided by.

    Args:
        exponent: 0 leaves the total as it is.
        form: ``power``, T ** exponent, or ``gnmt``, ((5 + T) / 6) ** exponent.

    Reference: Wu et al. 2016, section 7, equation 14 (``gnmt``).

    Example:
        >>> LengthPenalty(1.0)(9)
        9.0
        >>> LengthPenalty(1.0, "gnmt")(7)
        2.0
    """

    exponent: float
    form: str = "power"

    @classmethod
    def of(cls, config: GenerationConfig) -> "LengthPenalty":
        """Return the penalty that the settings describe."""
        return cls(0.0 if config.unnormalized else config.lenpen, config.lenpen_form)

    def __call__(self, length: int | np.ndarray) -> Any:
        """Return the divisor for hypotheses of ``length`` tokens, the end symbol included.

        Args:
            length: an int (gives a float) or an array of them (gives float64 of the same shape).
        """
        base = length if self.form == "power" else (5 + length) / 6
        return (base * 1.0) ** self.exponent

    def kindest(self, shortest: int | np.ndarray, longest: np.ndarray) -> np.ndarray:
        """Return the largest divisor, the best for a negative sum, of any length in between."""
        return np.maximum(self(shortest), self(longest))
