"""The encoder-decoder transformer with a registered attention in each of its three slots."""

from torch import Tensor, nn

from relu_nmt.data.groups import least_limit
from relu_nmt.errors import ConfigError
from relu_nmt.translation.aligned import AlignedDecoder, AlignedEncoder
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.decoder import Decoder
from relu_nmt.translation.encoder import Encoder, EncoderOutput


class EncoderDecoder(nn.Module):
    """An encoder-decoder for token sequences.

    Args:
        target_vocab_size: number of target symbols V.
        pad_index: id of the padding symbol on both sides.
        separators: ids of the symbols that end source and target sentences; None: no separators.

    Raises:
        ConfigError: ``share_all_embeddings`` with vocabularies of different sizes, or aligned
            document attention without separators.

    Example:
        >>> import torch
        >>> config = TransformerConfig(encoder_layers=1, decoder_layers=1)
        >>> model = EncoderDecoder(config, 10, 12, pad_index=1)
        >>> features = model(torch.tensor([[4, 5, 2]]), torch.tensor([[2, 6]]))
        >>> tuple(model.logits(features).shape)
        (1, 2, 12)
    """

    def __init__(
        self,
        config: TransformerConfig,
        source_vocab_size: int,
        target_vocab_size: int,
        pad_index: int,
        separators: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        # Check that the dictionaries fit the settings.
        if config.document_attention == "aligned" and separators is None:
            raise ConfigError("--document-attention aligned needs --sentence-separator; add it")
        if config.share_all_embeddings and source_vocab_size != target_vocab_size:
            raise ConfigError(
                f"--share-all-embeddings: the dictionaries have {source_vocab_size} and "
                f"{target_vocab_size} symbols; preprocess with --joined-dictionary"
            )
        # Make the embedding tables [V, D], one for both sides if shared.
        self.config = config
        dim = config.decoder_embed_dim
        source_table = _token_embedding(source_vocab_size, dim, pad_index)
        target_table = (
            source_table
            if config.share_all_embeddings
            else _token_embedding(target_vocab_size, dim, pad_index)
        )
        # Make encoder and decoder.
        if config.document_attention == "aligned":
            assert separators is not None, "checked above"
            self.encoder: Encoder = AlignedEncoder(config, source_table, pad_index, separators[0])
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

    @property
    def most_source_tokens(self) -> int | None:
        """The limit of source tokens, end symbol included; None: unlimited."""
        return least_limit([self.encoder.most_tokens, self.decoder.most_source_tokens])

    @property
    def most_target_tokens(self) -> int | None:
        """The limit of target tokens, end symbol included; None: unlimited."""
        return self.decoder.most_tokens

    @property
    def most_source_sentence(self) -> int | None:
        """The limit of tokens of a source sentence, end symbol included; None: unlimited."""
        return least_limit([self.encoder.most_of_a_sentence, self.decoder.most_source_sentence])

    @property
    def most_target_sentence(self) -> int | None:
        """The limit of tokens of a target sentence, end symbol included; None: unlimited."""
        return self.decoder.most_of_a_sentence

    def encode(self, src_tokens: Tensor) -> EncoderOutput:
        """Encode src_tokens [B, S] int64, right-padded, each ending in the end symbol."""
        return self.encoder(src_tokens)

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Return the decoder states [B, T, D] of all target positions (teacher forcing).

        :meth:`logits` maps them to scores of the vocabulary.

        Args:
            src_tokens: [B, S] int64, right-padded.
            prev_output_tokens: [B, T] int64, the target shifted right, end symbol first.
        """
        return self.decoder(prev_output_tokens, self.encode(src_tokens))

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores [..., V] in float32 of features [..., D]."""
        return self.output_projection(features).float()


def _token_embedding(vocab_size: int, embed_dim: int, pad_index: int) -> nn.Embedding:
    """Return a table [V, D] drawn from N(0, 1/D), zero at the padding symbol."""
    table = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_index)
    nn.init.normal_(table.weight, std=embed_dim**-0.5)
    nn.init.zeros_(table.weight[pad_index])
    return table
