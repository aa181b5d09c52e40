"""The encoder-decoder transformer with a registered attention in each of its three slots."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Need
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.errors import ConfigError
from relu_nmt.models.config import TransformerConfig
from relu_nmt.models.decoder import Decoder
from relu_nmt.models.decoder_state import DecoderState
from relu_nmt.models.encoder import Encoder, EncoderOutput
from relu_nmt.modules.embedding import InputEmbedding, token_embedding
from relu_nmt.modules.positions import LearnedPositions, SinusoidalPositions


@dataclass
class ModelOutput:
    """Decoder states of a whole batch.

    Args:
        features: [B, T, D]; ``EncoderDecoder.logits`` turns them into scores of the vocabulary.
        records: what was asked for of every attention: encoder, then decoder and cross by layer.
    """

    features: Tensor
    records: list[AttentionRecord]


@dataclass
class StepOutput:
    """One decoding step.

    Args:
        logits: [B, K, V] float32.
        cross_weights: [B, K, S], the last layer's weights on the source, mean over the heads, if
            asked for.
    """

    logits: Tensor
    cross_weights: Tensor | None


class EncoderDecoder(nn.Module):
    """An encoder-decoder for token sequences.

    Args:
        config: shape and attentions.
        source_vocab_size: number of source symbols.
        target_vocab_size: number of target symbols V.
        pad_index: id of the padding symbol on both sides.

    Raises:
        ConfigError: ``share_all_embeddings`` with vocabularies of different sizes.

    Example:
        >>> import torch
        >>> config = TransformerConfig(encoder_layers=1, decoder_layers=1)
        >>> model = EncoderDecoder(config, 10, 12, pad_index=1)
        >>> output = model(torch.tensor([[4, 5, 2]]), torch.tensor([[2, 6]]))
        >>> tuple(model.logits(output.features).shape)
        (1, 2, 12)
    """

    def __init__(
        self,
        config: TransformerConfig,
        source_vocab_size: int,
        target_vocab_size: int,
        pad_index: int,
    ) -> None:
        super().__init__()
        if config.share_all_embeddings and source_vocab_size != target_vocab_size:
            raise ConfigError(
                f"--share-all-embeddings: the dictionaries have {source_vocab_size} and "
                f"{target_vocab_size} symbols; preprocess with --joined-dictionary"
            )
        self.config = config
        dim = config.decoder_embed_dim
        source_table = token_embedding(source_vocab_size, dim, pad_index)
        target_table = (
            source_table
            if config.share_all_embeddings
            else token_embedding(target_vocab_size, dim, pad_index)
        )
        self.encoder = Encoder(config, _input_embedding(config, "encoder", source_table), pad_index)
        self.decoder = Decoder(config, _input_embedding(config, "decoder", target_table), pad_index)
        self.output_projection = nn.Linear(dim, target_vocab_size, bias=False)
        if config.share_all_embeddings or config.share_decoder_input_output_embed:
            self.output_projection.weight = target_table.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=dim**-0.5)

    @property
    def most_source_tokens(self) -> int | None:
        """The longest source, end symbol included, that the model can read; None for any."""
        reading = [layer.self_attention for layer in self.encoder.layers]
        reading += [layer.cross_attention for layer in self.decoder.layers]
        limits = [module.attention.most_keys(causal=False) for module in reading]
        if self.config.encoder_learned_pos:
            limits.append(self.config.max_source_positions)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def most_target_tokens(self) -> int | None:
        """The longest target, end symbol included, that the model can write; None for any."""
        writing = [layer.self_attention for layer in self.decoder.layers]
        limits = [module.attention.most_keys(causal=True) for module in writing]
        if self.config.decoder_learned_pos:
            limits.append(self.config.max_target_positions)
        return min((limit for limit in limits if limit is not None), default=None)

    def encode(self, src_tokens: Tensor, need: Need = NOTHING) -> EncoderOutput:
        """Encode src_tokens [B, S] int64, right-padded, each ending in the end symbol."""
        return self.encoder(src_tokens, need)

    def forward(
        self, src_tokens: Tensor, prev_output_tokens: Tensor, need: Need = NOTHING
    ) -> ModelOutput:
        """Return the decoder states of all target positions (teacher forcing).

        Args:
            src_tokens: [B, S] int64, right-padded.
            prev_output_tokens: [B, T] int64, the target shifted right, end symbol first.
            need: what to record of every attention.
        """
        encoder_out = self.encode(src_tokens, need)
        records = encoder_out.records
        features = self.decoder(prev_output_tokens, encoder_out, need, records)
        return ModelOutput(features, records)

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores [..., V] in float32 of features [..., D]."""
        return F.linear(features, self.output_projection.weight).float()

    def start(self, encoder_out: EncoderOutput) -> DecoderState:
        """Return the state of step-by-step decoding, with one beam a sentence."""
        return self.decoder.start(encoder_out)

    def step(self, tokens: Tensor, state: DecoderState, want_weights: bool = False) -> StepOutput:
        """Advance every beam by its newest token.

        Args:
            tokens: [B, K] int64.
            state: from :meth:`start`; advanced in place.
            want_weights: also return the cross-attention weights.
        """
        features, weights = self.decoder.step(tokens, state, Need(weights=want_weights))
        return StepOutput(self.logits(features), weights.mean(1) if weights is not None else None)


def _input_embedding(config: TransformerConfig, side: str, table: nn.Embedding) -> InputEmbedding:
    dim = table.embedding_dim
    if getattr(config, f"{side}_learned_pos"):
        which = {"encoder": "source", "decoder": "target"}[side]
        limit = getattr(config, f"max_{which}_positions")
        positions: nn.Module = LearnedPositions(dim, limit, f"--max-{which}-positions")
    else:
        positions = SinusoidalPositions(dim)
    return InputEmbedding(
        table,
        positions,
        scale=not config.no_scale_embedding,
        norm=config.layernorm_embedding,
        dropout=config.dropout,
    )
