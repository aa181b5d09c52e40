"""A feed-forward network of one's own: a mixture of experts with a balance in the loss."""

import torch
from torch import Tensor, nn

from relu_nmt.config import option, settings
from relu_nmt.modules import feed_forwards
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.objective import LossTerm, add_to_loss


@feed_forwards.register("experts")
class MixtureOfExperts(nn.Module):
    """p_e(x) f_e(x), where e is the expert of the highest probability p(x) = softmax(W x).

    The balance is E sum_e share_e mean(p_e), which is 1 if all experts get as many tokens. Tokens
    of padding count as well.

    Reference: Fedus et al. 2022, "Switch transformers", Eqs. 2 and 4 to 6, without a capacity.
    """

    @settings(flags=False)
    class Config:
        """Options of the mixture."""

        experts: int = option(4, "number of experts", least=2)
        balance: float = option(0.01, "weight of the balance in the loss", least=0)

    def __init__(self, embed_dim: int, ffn_dim: int, dropout: float, config: Config) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(embed_dim, config.experts, bias=False)
        self.experts = nn.ModuleList(
            FeedForward(embed_dim, ffn_dim, dropout, torch.relu) for _ in range(config.experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] to [..., D]."""
        tokens = x.flatten(0, -2)  # [N, D]
        probabilities = self.router(tokens).softmax(-1)  # [N, E]
        largest, chosen = probabilities.max(-1)
        shares = chosen.bincount(minlength=self.config.experts) / len(tokens)
        balance = self.config.experts * (shares * probabilities.mean(0)).sum()
        add_to_loss(self, LossTerm("expert_balance", balance, self.config.balance))
        output = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            values = largest[rows, None] * expert(tokens[rows])
            output = output.index_add(0, rows, values.to(output.dtype))
        return output.view_as(x)
