"""A feed-forward network of one's own: the square of ReLU."""

from torch import Tensor

from relu_nmt.modules import feed_forwards
from relu_nmt.modules.feed_forward import FeedForward


@feed_forwards.register("relu_squared")
class ReluSquaredFeedForward(FeedForward):
    """activate(h) = max(h, 0)^2.

    Reference: So et al. 2021, "Primer", section 4.
    """

    def activate(self, hidden: Tensor) -> Tensor:
        """Map [..., F] to [..., F]."""
        return hidden.relu().square()
