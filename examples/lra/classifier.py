"""The classifier of the Long Range Arena experiments, with any registered attention."""

import torch
import torch.nn.functional as F
from tasks import PADDING, SequenceBatch, Task
from torch import Tensor, nn

from relu_nmt.attention.base import build_attention
from relu_nmt.attention.dropout import dropout
from relu_nmt.attention.masks import Visibility
from relu_nmt.config import like, option, settings
from relu_nmt.config.registry import Spec
from relu_nmt.modules.config import TransformerOptions
from relu_nmt.modules.multihead import SelfAttention
from relu_nmt.modules.objective import LossOutput, RegularizedObjective
from relu_nmt.modules.recompute import recomputed
from relu_nmt.modules.transformer_layer import LayerConfig, TransformerLayer

WIDTH = 64
HEADS = 2
FFN_DIM = 128
HEAD_DIM = 128
LAYERS = 2
INIT_STD = 0.02


@settings
class ClassifierConfig(TransformerOptions):
    """Settings of the model. The sizes of the paper are constants."""

    feed_forward: str = like(TransformerOptions, "feed_forward", "gelu")
    activation_dropout: float = like(TransformerOptions, "activation_dropout", 0.1)
    mask: str = option(
        "nonzero",
        "keys of each token: nonzero (tokens other than 0, so that black pixels are no keys, as in "
        "the paper's code) or all (padding too)",
        choices=("nonzero", "all"),
    )


class SequenceClassifier(nn.Module):
    """Embeddings with learned positions, two pre-norm layers, the mean, and two linear maps.

    The mean is over the padded length. Masked tokens count as zeros. Two sequences a and b give the
    features [a, b, a b, a - b].

    Args:
        config: attention and regularization.
        task: the task.
        width: length of the padded sequences.

    Raises:
        ConfigError: the attention cannot work with these settings.

    Reference: Xiong et al. 2021, "Nystromformer", section 4.2 and its public code. Saratchandran et
    al. 2024, "Rethinking Attention", use the same settings.

    Example:
        >>> from tasks import TASKS
        >>> model = SequenceClassifier(ClassifierConfig(), TASKS["image"], 1024)
        >>> sum(p.numel() for p in model.parameters())
        174986
    """

    def __init__(self, config: ClassifierConfig, task: Task, width: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(task.vocab_size, WIDTH)
        self.positions = nn.Parameter(torch.empty(width, WIDTH))
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        nn.init.normal_(self.positions, std=INIT_STD)
        self.layers = nn.ModuleList(self._layer(index) for index in range(LAYERS))
        self.norm = LayerConfig(config, WIDTH, FFN_DIM).make_norm()
        features = WIDTH * (4 if task.sequences == 2 else 1)
        self.head = nn.Sequential(
            nn.Linear(features, HEAD_DIM), nn.ReLU(), nn.Linear(HEAD_DIM, task.classes)
        )

    def _layer(self, index: int) -> TransformerLayer:
        spec = Spec.parse(self.config.attention)
        dropout = self.config.attention_dropout
        attention = build_attention(
            spec, "encoder", index, HEADS, WIDTH // HEADS, dropout, "--attention"
        )
        config = LayerConfig(self.config, WIDTH, FFN_DIM, normalize_before=True)
        return TransformerLayer(config, SelfAttention(WIDTH, attention))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, C] of tokens [B, P, N] with P sequences per sample."""
        features = self.encode(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])
        if tokens.size(1) == 1:
            return self.head(features[:, 0])
        a, b = features.unbind(1)
        return self.head(torch.cat([a, b, a * b, a - b], -1))

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the means [B, D] of the states of tokens [B, N]."""
        length = tokens.size(1)
        mask = tokens != PADDING if self.config.mask == "nonzero" else None
        visibility = Visibility(
            length, length, key_mask=mask, query_mask=mask, device=tokens.device
        )
        x = self.embedding(tokens) + self.positions
        if self.training:
            x = dropout(x, self.config.dropout)
        recompute = self.config.checkpoint_activations
        for layer in self.layers:
            x = recomputed(layer, (x, visibility)) if recompute else layer(x, visibility)
        x = self.norm(x)
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)
        return x.mean(1)


class SequenceObjective(RegularizedObjective):
    """Cross-entropy per sample plus the attention regularizer."""

    model: SequenceClassifier

    def loss(self, batch: SequenceBatch) -> LossOutput:
        """Return the cross-entropy of a batch, summed over its samples."""
        logits = self.model(batch.tokens).float()
        loss = F.cross_entropy(logits, batch.labels, reduction="sum")
        count = batch.num_sentences
        with torch.no_grad():
            correct = (logits.argmax(1) == batch.labels).sum()
        metrics = {"accuracy": (100 * correct, count)}  # percent
        return LossOutput(loss, count, metrics)
