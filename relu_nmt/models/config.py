"""Settings of the encoder-decoder transformer, under fairseq's names."""

from functools import partial

from relu_nmt.attention.spec import known_attention
from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError
from relu_nmt.modules import feed_forwards, norms, position_schemes

_attention = partial(option, metavar="NAME", parse=known_attention)
_positions = partial(option, metavar="NAME", choices=position_schemes)
_probability = partial(option, least=0, below=1, metavar="P")
_size = partial(option, least=1, metavar="N")


@settings
class TransformerConfig:
    """Shape of an encoder-decoder; the defaults are the Transformer base model.

    Raises:
        ConfigError: settings that contradict each other.
    """

    attention: str = _attention(
        "softmax", "attention of all three slots: NAME or NAME:option=value,..."
    )
    encoder_attention: str | None = _attention(
        None, "encoder self-attention, if another than --attention"
    )
    decoder_attention: str | None = _attention(
        None, "decoder self-attention, if another than --attention"
    )
    cross_attention: str | None = _attention(
        None, "attention from decoder to encoder, if another than --attention"
    )
    encoder_embed_dim: int = _size(512, "width of the encoder")
    encoder_ffn_embed_dim: int = _size(2048, "inner width of the encoder's FFN")
    encoder_layers: int = _size(6, "number of encoder layers")
    encoder_attention_heads: int = _size(8, "heads of the encoder")
    encoder_normalize_before: bool = option(False, "pre-norm in the encoder")
    decoder_embed_dim: int = _size(512, "width of the decoder")
    decoder_ffn_embed_dim: int = _size(2048, "inner width of the decoder's FFN")
    decoder_layers: int = _size(6, "number of decoder layers")
    decoder_attention_heads: int = _size(8, "heads of the decoder")
    decoder_normalize_before: bool = option(False, "pre-norm in the decoder")
    share_decoder_input_output_embed: bool = option(
        False, "tie the decoder's input and output embeddings"
    )
    share_all_embeddings: bool = option(
        False, "tie encoder input, decoder input and output embeddings (one joined dictionary)"
    )
    dropout: float = _probability(0.1, "dropout on embeddings and sublayer outputs")
    attention_dropout: float = _probability(0.0, "dropout on attention weights")
    activation_dropout: float = _probability(
        0.0, "dropout inside the FFN", flags=("--relu-dropout",)
    )
    feed_forward: str = option(
        "relu",
        f"feed-forward network: {', '.join(feed_forwards.names())}",
        choices=feed_forwards,
        metavar="NAME",
        flags=("--activation-fn",),
    )
    norm: str = option(
        "layer", f"normalisation: {', '.join(norms.names())}", choices=norms, metavar="NAME"
    )
    positions: str = _positions(
        "sinusoidal",
        f"how positions enter: {', '.join(position_schemes.names())}",
        constants={"--no-token-positional-embeddings": "none"},
    )
    encoder_positions: str | None = _positions(
        None,
        "positions of the encoder, if others than --positions",
        otherwise="positions",
        constants={"--encoder-learned-pos": "learned"},
    )
    decoder_positions: str | None = _positions(
        None,
        "positions of the decoder, if others than --positions",
        otherwise="positions",
        constants={"--decoder-learned-pos": "learned"},
    )
    checkpoint_activations: bool = option(
        False, "compute each layer's activations again in the backward pass: less memory, more time"
    )
    no_scale_embedding: bool = option(False, "do not multiply embeddings by sqrt(width)")
    layernorm_embedding: bool = option(False, "LayerNorm on the embeddings")
    max_source_positions: int = _size(
        1024,
        "longest source with learned positions; others have no limit",
        needs=("encoder_positions", "learned"),
    )
    max_target_positions: int = _size(
        1024,
        "longest target with learned positions; others have no limit",
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
