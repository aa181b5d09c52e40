"""Settings of translation models and presets of their shapes, under fairseq's names."""

from functools import partial
from typing import Any

from relu_nmt.attention import attentions
from relu_nmt.config import CHECKPOINTS, Files, checked_by, option, settings, split_paths
from relu_nmt.config.registry import Spec
from relu_nmt.data.dictionary import BOS, EOS
from relu_nmt.errors import ConfigError
from relu_nmt.modules import position_schemes
from relu_nmt.modules.config import (
    ATTENTION_PRESETS,
    SLOTS,
    TransformerOptions,
    attention_option,
    depth_option,
    probability_option,
    size_option,
)
from relu_nmt.translation import translation_models


def _known(names: str) -> None:
    for name in names.split("+"):
        position_schemes.check(name)


_positions = partial(option, metavar="NAME", parse=checked_by(_known))
LEARNED_POSITIONS = 1024


@settings
class TransformerConfig(TransformerOptions):
    """Shape of a translation model. The defaults are the Transformer base model."""

    translation_model: str = option(
        "encoder_decoder",
        "the model: encoder_decoder, or a class from --user-module",
        choices=translation_models,
        with_options=True,
        metavar="NAME",
    )
    encoder_attention: str | None = attention_option(
        None, "encoder self-attention (default: --attention)"
    )
    decoder_attention: str | None = attention_option(
        None, "decoder self-attention (default: --attention)"
    )
    cross_attention: str | None = attention_option(
        None, "attention from decoder to encoder (default: --attention)"
    )
    encoder_embed_dim: int = size_option(512, "width of the encoder")
    encoder_ffn_embed_dim: int = size_option(2048, "inner width of the encoder's FFN")
    encoder_layers: int = depth_option(6, "number of encoder layers")
    encoder_attention_heads: int = size_option(8, "heads of the encoder")
    encoder_normalize_before: bool = option(False, "pre-norm in the encoder")
    encoder_layerdrop: float = probability_option(
        0.0, "probability of leaving a layer out of a batch (LayerDrop)"
    )
    decoder_embed_dim: int = size_option(512, "width of the decoder")
    decoder_ffn_embed_dim: int = size_option(2048, "inner width of the decoder's FFN")
    decoder_layers: int = depth_option(6, "number of decoder layers")
    decoder_attention_heads: int = size_option(8, "heads of the decoder")
    decoder_normalize_before: bool = option(False, "pre-norm in the decoder")
    decoder_layerdrop: float = probability_option(
        0.0, "probability of leaving a layer out of a batch (LayerDrop)"
    )
    share_decoder_input_output_embed: bool = option(
        False, "tie the decoder's input and output embeddings"
    )
    share_all_embeddings: bool = option(
        False, "tie encoder input, decoder input and output embeddings"
    )
    positions: str = _positions(
        "sinusoidal",
        f"position scheme, or several (a+b): {', '.join(position_schemes.names())}",
        constants={"--no-token-positional-embeddings": "none"},
    )
    encoder_positions: str | None = _positions(
        None,
        "position scheme of the encoder (default: --positions)",
        constants={"--encoder-learned-pos": "learned"},
    )
    decoder_positions: str | None = _positions(
        None,
        "position scheme of the decoder (default: --positions)",
        constants={"--decoder-learned-pos": "learned"},
    )
    document_attention: str = option(
        "full",
        "full: the whole document; aligned: lower layers see one sentence",
        choices=("full", "aligned"),
    )
    global_layers: int = option(
        2,
        "number of upper layers that see the whole document",
        least=0,
        needs=("document_attention", "aligned"),
    )
    alignment_layer: int | None = option(
        None, "decoder layer that aligns tokens, from 0 (default: the last)", least=0
    )
    alignment_heads: int | None = size_option(
        None, "use only the first N heads of that layer (default: all)"
    )
    no_scale_embedding: bool = option(False, "do not multiply embeddings by sqrt(width)")
    layernorm_embedding: bool = option(False, "LayerNorm on the embeddings")
    output_bias: bool = option(False, "a bias for each symbol of the output layer")
    decoder_start_symbol: str = option(EOS, "first input of the decoder", choices=(EOS, BOS))
    max_source_positions: int | None = size_option(
        None, f"longest source, in tokens (default: {LEARNED_POSITIONS} with learned positions)"
    )
    max_target_positions: int | None = size_option(
        None, f"longest target, in tokens (default: {LEARNED_POSITIONS} with learned positions)"
    )

    def check(self) -> None:
        """Raise a ConfigError if settings contradict each other."""
        # Require one width for both sides, which embeddings and cross-attention share.
        if self.encoder_embed_dim != self.decoder_embed_dim:
            raise ConfigError(
                f"--encoder-embed-dim {self.encoder_embed_dim} and --decoder-embed-dim "
                f"{self.decoder_embed_dim} must be equal"
            )
        for side in ("encoder", "decoder"):
            shape = "embed_dim", "attention_heads", "layers"
            width, heads, layers = (getattr(self, f"{side}_{name}") for name in shape)
            if width % heads:
                raise ConfigError(
                    f"--{side}-embed-dim {width} must be a multiple of "
                    f"--{side}-attention-heads {heads}"
                )
            if self.document_attention == "aligned" and self.global_layers > layers:
                raise ConfigError(
                    f"--global-layers {self.global_layers} is more than --{side}-layers {layers}"
                )
        if self.alignment_layer is not None and self.alignment_layer >= self.decoder_layers:
            raise ConfigError(
                f"--alignment-layer {self.alignment_layer}: the decoder's layers are 0 to "
                f"{self.decoder_layers - 1}"
            )
        if (self.alignment_heads or 0) > self.decoder_attention_heads:
            raise ConfigError(
                f"--alignment-heads {self.alignment_heads} is more than --decoder-attention-heads "
                f"{self.decoder_attention_heads}"
            )

    def sees_document(self, slot: str, layer: int) -> bool:
        """Return whether a layer of a slot, from 0, attends to the whole document."""
        num_layers = self.encoder_layers if slot == "encoder" else self.decoder_layers
        return self.document_attention == "full" or layer >= num_layers - self.global_layers

    def attention_of(self, slot: str) -> str:
        """Return the attention of the slot ``encoder``, ``decoder`` or ``cross``."""
        return getattr(self, f"{slot}_attention") or self.attention

    @property
    def attention_names(self) -> str:
        """The attention of all slots, or of each slot if they differ."""
        names = {slot: self.attention_of(slot) for slot in SLOTS}
        if len(set(names.values())) == 1:
            return names["encoder"]
        return ", ".join(f"{slot} {name}" for slot, name in names.items())

    def attention_flag_of(self, slot: str) -> str:
        """Return the flag that set the attention of a slot."""
        return f"--{slot}-attention" if getattr(self, f"{slot}_attention") else "--attention"

    def mechanism_of(self, slot: str) -> str:
        """Return the name of a slot's attention, without its options."""
        return Spec.parse(self.attention_of(slot)).name

    def has_scores(self, slot: str) -> bool:
        """Return True if the attention of a slot computes scores, on which positions may act."""
        return attentions.get(self.mechanism_of(slot)).capabilities.scores

    def max_positions_of(self, side: str) -> int:
        """Return the number of learned positions of the side ``encoder`` or ``decoder``."""
        which = {"encoder": "source", "decoder": "target"}[side]
        return getattr(self, f"max_{which}_positions") or LEARNED_POSITIONS

    def positions_of(self, side: str) -> str:
        """Return the position scheme of the side ``encoder`` or ``decoder``."""
        return getattr(self, f"{side}_positions") or self.positions


_taught = partial(option, needs="teacher")


@settings
class TeacherConfig:
    """A trained model that a training learns from."""

    teacher: str | None = option(
        None,
        "also learn from this trained model, or from the mean of several (A:B)",
        files=CHECKPOINTS,
    )
    teacher_weight: float = _taught(
        0.5, "share of the teacher's probabilities in the loss", least=0, most=1, metavar="W"
    )
    teacher_temperature: float = _taught(
        1.0, "divides the logarithms of both models' probabilities", above=0, metavar="T"
    )
    teacher_top_k: int = _taught(
        32, "symbols of the teacher per token", least=1, most=10**6, metavar="K"
    )
    teacher_cache: str | None = _taught(
        None,
        "folder that keeps the teacher's probabilities",
        files=Files(written=True, names=r"teacher\.sqlite.*"),
        metavar="DIR",
    )
    teacher_attention_weight: float = _taught(
        0.0, "weight of the distance between both models' attention outputs", least=0, metavar="W"
    )

    def check(self) -> None:
        """Refuse to teach attention from several models or from a cache."""
        if self.teacher and self.teacher_attention_weight:
            if self.teacher_cache:
                raise ConfigError(
                    "--teacher-cache keeps probabilities only; leave it or "
                    "--teacher-attention-weight out"
                )
            if len(split_paths(self.teacher, ":")) > 1:
                raise ConfigError(
                    f"--teacher-attention-weight: {self.teacher} are several models; give one"
                )


def both_sides(embed_dim: int, ffn_dim: int, layers: int, heads: int) -> dict[str, Any]:
    """Return the settings of a model whose encoder and decoder have the same shape."""
    shape = {}
    for side in ("encoder", "decoder"):
        shape[f"{side}_embed_dim"] = embed_dim
        shape[f"{side}_ffn_embed_dim"] = ffn_dim
        shape[f"{side}_layers"] = layers
        shape[f"{side}_attention_heads"] = heads
    return shape


_BIG = both_sides(1024, 4096, 6, 16)
_ALIGNED = {"alignment_layer": 4, "alignment_heads": 1}
_SHAPES: dict[str, dict[str, Any]] = {
    "": both_sides(512, 2048, 6, 8),
    "_tiny": both_sides(64, 128, 2, 2),
    "_align": both_sides(512, 2048, 6, 8) | _ALIGNED,
    "_iwslt_de_en": both_sides(512, 1024, 6, 4),
    "_wmt_en_de": both_sides(512, 2048, 6, 8),
    "_wmt_en_de_big": _BIG | {"dropout": 0.3, "attention_dropout": 0.1},
    "_wmt_en_de_big_align": _BIG | {"dropout": 0.3, "attention_dropout": 0.1} | _ALIGNED,
    "_vaswani_wmt_en_de_big": _BIG | {"dropout": 0.3},
    "_vaswani_wmt_en_fr_big": _BIG | {"dropout": 0.1},
    "_wmt_en_de_big_t2t": _BIG
    | {"dropout": 0.3, "attention_dropout": 0.1, "activation_dropout": 0.1}
    | {"encoder_normalize_before": True, "decoder_normalize_before": True},
}

architectures: dict[str, dict[str, Any]] = {}
for _suffix, _shape in _SHAPES.items():
    for _name in ATTENTION_PRESETS:
        if _name == "none":
            architectures[f"transformer{_suffix}"] = _shape
        else:
            architectures[f"{_name}{_suffix}"] = _shape | {"attention_preset": _name}
"""The ``--arch`` presets: ``transformer*`` with softmax, and one family per attention preset."""
