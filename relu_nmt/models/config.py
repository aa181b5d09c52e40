"""Settings of the encoder-decoder transformer, under fairseq's names."""

from relu_nmt.attention.spec import known_attention
from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError
from relu_nmt.modules import feed_forwards, norms, position_schemes


@settings
class TransformerConfig:
    """Shape of an encoder-decoder; the defaults are the Transformer base model.

    Raises:
        ConfigError: settings that contradict each other.
    """

    attention: str = option(
        "softmax",
        "attention of all three slots: NAME or NAME:option=value,...",
        metavar="NAME",
        parse=known_attention,
    )
    encoder_attention: str | None = option(
        None,
        "encoder self-attention, if another than --attention",
        metavar="NAME",
        parse=known_attention,
    )
    decoder_attention: str | None = option(
        None,
        "decoder self-attention, if another than --attention",
        metavar="NAME",
        parse=known_attention,
    )
    cross_attention: str | None = option(
        None,
        "attention from decoder to encoder, if another than --attention",
        metavar="NAME",
        parse=known_attention,
    )
    encoder_embed_dim: int = option(512, "width of the encoder", least=1, metavar="N")
    encoder_ffn_embed_dim: int = option(
        2048, "inner width of the encoder's FFN", least=1, metavar="N"
    )
    encoder_layers: int = option(6, "number of encoder layers", least=1, metavar="N")
    encoder_attention_heads: int = option(8, "heads of the encoder", least=1, metavar="N")
    encoder_normalize_before: bool = option(False, "pre-norm in the encoder")
    decoder_embed_dim: int = option(512, "width of the decoder", least=1, metavar="N")
    decoder_ffn_embed_dim: int = option(
        2048, "inner width of the decoder's FFN", least=1, metavar="N"
    )
    decoder_layers: int = option(6, "number of decoder layers", least=1, metavar="N")
    decoder_attention_heads: int = option(8, "heads of the decoder", least=1, metavar="N")
    decoder_normalize_before: bool = option(False, "pre-norm in the decoder")
    share_decoder_input_output_embed: bool = option(
        False, "tie the decoder's input and output embeddings"
    )
    share_all_embeddings: bool = option(
        False, "tie encoder input, decoder input and output embeddings (one joined dictionary)"
    )
    dropout: float = option(
        0.1, "dropout on embeddings and sublayer outputs", least=0, below=1, metavar="P"
    )
    attention_dropout: float = option(
        0.0, "dropout on attention weights", least=0, below=1, metavar="P"
    )
    activation_dropout: float = option(
        0.0,
        "dropout inside the FFN",
        least=0,
        below=1,
        metavar="P",
        flags=("--relu-dropout",),
    )
    feed_forward: str = option(
        "relu",
        f"feed-forward network: {', '.join(feed_forwards.names())}",
        choices=feed_forwards,
        metavar="NAME",
        flags=("--activation-fn",),
    )
    norm: str = option(
        "layer",
        f"normalisation: {', '.join(norms.names())}",
        choices=norms,
        metavar="NAME",
    )
    positions: str = option(
        "sinusoidal",
        f"how positions enter: {', '.join(position_schemes.names())}",
        choices=position_schemes,
        metavar="NAME",
        constants={"--no-token-positional-embeddings": "none"},
    )
    encoder_positions: str | None = option(
        None,
        "positions of the encoder, if others than --positions",
        otherwise="positions",
        choices=position_schemes,
        metavar="NAME",
        constants={"--encoder-learned-pos": "learned"},
    )
    decoder_positions: str | None = option(
        None,
        "positions of the decoder, if others than --positions",
        otherwise="positions",
        choices=position_schemes,
        metavar="NAME",
        constants={"--decoder-learned-pos": "learned"},
    )
    checkpoint_activations: bool = option(
        False, "compute each layer's activations again in the backward pass: less memory, more time"
    )
    no_scale_embedding: bool = option(False, "do not multiply embeddings by sqrt(width)")
    layernorm_embedding: bool = option(False, "LayerNorm on the embeddings")
    max_source_positions: int = option(
        1024,
        "longest source with learned positions; others have no limit",
        least=1,
        metavar="N",
        needs=("encoder_positions", "learned"),
    )
    max_target_positions: int = option(
        1024,
        "longest target with learned positions; others have no limit",
        least=1,
        metavar="N",
        needs=("decoder_positions", "learned"),
    )

    def check(self) -> None:
        """Compare the sizes with each other."""
        if self.encoder_embed_dim != self.decoder_embed_dim:
            raise ConfigError(
                f"--encoder-embed-dim {self.encoder_embed_dim} and --decoder-embed-dim "
                f"{self.decoder_embed_dim} must be equal"
            )
        for side in ("encoder", "decoder"):
            width = getattr(self, f"{side}_embed_dim")
            heads = getattr(self, f"{side}_attention_heads")
            if width % heads:
                raise ConfigError(
                    f"--{side}-embed-dim {width} must be a multiple of "
                    f"--{side}-attention-heads {heads}"
                )

    def attention_of(self, slot: str) -> str:
        """Return the attention of the slot ``encoder``, ``decoder`` or ``cross``."""
        return getattr(self, f"{slot}_attention") or self.attention

    def positions_of(self, side: str) -> str:
        """Return the position scheme of the side ``encoder`` or ``decoder``."""
        return getattr(self, f"{side}_positions") or self.positions
