"""The encoder-decoder transformer. It has a registered attention in each of its three slots."""

from collections.abc import Sequence

from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.attention.sentences import in_documents
from relu_nmt.data.batch_plan import least_limit
from relu_nmt.errors import ConfigError
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.translation import translation_models
from relu_nmt.translation.aligned import AlignedDecoder, AlignedEncoder
from relu_nmt.translation.base import TranslationModel
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.decoder import Decoder
from relu_nmt.translation.decoder_state import DecoderState
from relu_nmt.translation.encoder import Encoder, TransformerStack, token_embedding


@translation_models.register("encoder_decoder")
class EncoderDecoder(TranslationModel):
    """An encoder-decoder for token sequences.

    Args:
        target_vocab_size: number of target symbols V.
        pad_index: id of the padding symbol on both sides.
        separators: ids of the symbols that end source and target sentences. None: no separators.
    """

    def __init__(
        self,
        config: TransformerConfig,
        source_vocab_size: int,
        target_vocab_size: int,
        pad_index: int,
        separators: Sequence[int] | None = None,
    ) -> None:
        super().__init__(config, pad_index)
        if config.share_all_embeddings and source_vocab_size != target_vocab_size:
            raise ConfigError(
                f"--share-all-embeddings: the dictionaries have {source_vocab_size} and "
                f"{target_vocab_size} symbols; preprocess with --joined-dictionary"
            )
        # Make the embedding tables [V, D], one for both sides if shared.
        dim = config.decoder_embed_dim
        source_table = target_table = token_embedding(source_vocab_size, dim, pad_index)
        if not config.share_all_embeddings:
            target_table = token_embedding(target_vocab_size, dim, pad_index)
        if config.document_attention == "aligned":
            if separators is None:
                raise ConfigError(
                    "--document-attention aligned needs --sentence-separator; add it, with "
                    "--max-doc-tokens or --doc-mixture"
                )
            self.encoder: TransformerStack = AlignedEncoder(
                config, source_table, pad_index, separators[0]
            )
            self.decoder: Decoder = AlignedDecoder(config, target_table, pad_index, separators[1])
        else:
            self.encoder = Encoder(config, source_table, pad_index)
            self.decoder = Decoder(config, target_table, pad_index)
        # Make the output projection, with the target table as weight if shared.
        self.output_projection = nn.Linear(dim, target_vocab_size, bias=config.output_bias)
        if config.output_bias:
            nn.init.zeros_(self.output_projection.bias)
        if config.share_all_embeddings or config.share_decoder_input_output_embed:
            self.output_projection.weight = target_table.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=dim**-0.5)

    def most_tokens(self, side: str, of_sentence: bool = False) -> int | None:
        # Collect the limits of the attentions that see the whole text, and of the positions.
        limits = []
        for attention in self._attentions_to(side):
            if of_sentence or self.config.sees_document(attention.slot, attention.layer):
                limits.append(attention.most_keys(attention.slot == "decoder"))
        if of_sentence or self.config.document_attention == "full":
            stack = self.encoder if side == "source" else self.decoder
            limits.append(stack.embedding.positions.max_positions)
        return least_limit(limits)

    def _attentions_to(self, side: str) -> list[Attention]:
        """Return the attentions whose keys are the tokens of a side."""
        slots = ("encoder", "cross") if side == "source" else ("decoder",)
        modules = [module for module in self.modules() if isinstance(module, MultiheadAttention)]
        return [module.attention for module in modules if module.attention.slot in slots]

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        return self.decoder(prev_output_tokens, self.encoder(src_tokens))

    def start(self, src_tokens: Tensor, num_groups: int = 1) -> DecoderState:
        return self.decoder.start(self.encoder(src_tokens), num_groups)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        return self.decoder.step(tokens, state)

    @property
    def aligning_attention(self) -> Attention:
        """The cross-attention whose weights align tokens, by default in the last layer."""
        layer = self.config.alignment_layer
        return self.decoder.cross_attentions[-1 if layer is None else layer].attention

    def alignment_weights(self, record: AttentionRecord) -> Tensor:
        assert record.weights is not None, "the record needs weights"
        weights = in_documents(record.weights, record.visibility)  # [B, H, T, S]
        return weights[:, : self.config.alignment_heads].mean(1)


def encoder_decoder_of(model: TranslationModel, purpose: str) -> EncoderDecoder:
    """Return the model. Raise a ConfigError with ``purpose`` if it is no encoder-decoder."""
    if not isinstance(model, EncoderDecoder):
        raise ConfigError(
            f"{purpose} works for encoder-decoders, not for --translation-model "
            f"{model.config.translation_model}"
        )
    return model
