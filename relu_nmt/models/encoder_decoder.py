"""The encoder-decoder transformer with a registered attention in each of its three slots."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Attention, Need, build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import AttentionRecord, record_attention
from relu_nmt.attention.sentences import SentenceRows
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.data.batches import least_limit
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.dropout import Dropout
from relu_nmt.errors import ConfigError
from relu_nmt.models.config import TransformerConfig
from relu_nmt.models.decoder_state import DecoderState
from relu_nmt.modules import position_schemes
from relu_nmt.modules.layer_cache import ComputedBeams, LayerStep
from relu_nmt.modules.multihead import CrossAttention, MultiheadAttention, SelfAttention
from relu_nmt.modules.positions import (
    PositionConfig,
    PositionScheme,
    build_positions,
    kinds_of,
)
from relu_nmt.modules.transformer_layer import LayerConfig, TransformerLayer, run_layer


@dataclass
class EncoderOutput:
    """What the decoder sees of the source.

    Args:
        states: [B, S, D].
        key_mask: [B, S] bool, True = real token.
        sentences: where its sentences are, if attention stays inside them.
    """

    states: Tensor
    key_mask: Tensor
    sentences: SentenceRows | None = None


class InputEmbedding(nn.Module):
    """Token vectors times sqrt(D), plus what the positions add, optional norm, dropout.

    Args:
        config: the model's settings.
        side: ``encoder`` or ``decoder``.
        tokens: the table [V, D], possibly shared with other parts of the model.

    Raises:
        ConfigError: the positions need scores, which the side's self-attention does not have.
    """

    def __init__(self, config: TransformerConfig, side: str, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = _position_scheme(config, side)
        self.scale = 1.0 if config.no_scale_embedding else math.sqrt(tokens.embedding_dim)
        normed = config.layernorm_embedding
        self.norm = _layer_config(config, side).make_norm() if normed else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, start: int = 0, places: Tensor | None = None) -> Tensor:
        """Return [B, N, D] of token ids [B, N].

        Args:
            tokens: the token ids.
            start: position of the first.
            places: [B, N] int64, the position of each, if they do not simply follow each other.
        """
        x = self.tokens(tokens) * self.scale
        if places is None:
            added = self.positions.embed(tokens.size(1), start)
        else:
            table = self.positions.embed(int(places.max()) + 1)
            added = None if table is None else F.embedding(places, table)
        return self.dropout(self.norm(x if added is None else x + added))


class TransformerStack(nn.Module):
    """What encoder and decoder share: embedding, layers and, if pre-norm, a final norm.

    Args:
        config: the model's settings.
        tokens: table of the symbols [V, D].
        pad_index: id of the padding symbol.
        separator: id of the symbol that ends sentences, if attention stays inside them; else -1.
    """

    side: ClassVar[str]

    def __init__(
        self,
        config: TransformerConfig,
        tokens: nn.Embedding,
        pad_index: int,
        separator: int = -1,
    ) -> None:
        super().__init__()
        self.pad_index = pad_index
        self.separator = separator
        self.recompute = config.checkpoint_activations
        self.layerdrop = getattr(config, f"{self.side}_layerdrop")
        self.embedding = InputEmbedding(config, self.side, tokens)
        parts = _layer_config(config, self.side)
        dim, layers = parts.embed_dim, []
        for i in range(getattr(config, f"{self.side}_layers")):
            gated = config.is_gated(self.side, i)
            own, cross = SelfAttention(dim, _attention(config, self.side, i), gated), None
            if self.side == "decoder":
                cross = CrossAttention(dim, _attention(config, "cross", i), gated)
            layers.append(TransformerLayer(parts, own, cross))
        self.layers = cast(Sequence[TransformerLayer], nn.ModuleList(layers))
        self.final_norm = parts.make_norm() if parts.normalize_before else nn.Identity()

    def run_layers(
        self,
        x: Tensor,
        visibility: Visibility,
        memory: Tensor | None = None,
        memory_visibility: Visibility | None = None,
    ) -> Tensor:
        """Return the states [B, N, D] of all positions.

        In training each layer may be left out of the batch (LayerDrop, Fan et al. 2020, section
        3.1). It is computed all the same, and its output has gradients of 0: processes that share
        a training wait for those of all layers. What a loss reads of its attention, as the
        regulariser and guided alignment do, still counts and has gradients.

        Args:
            x: [B, N, D], the embedded tokens.
            visibility: which positions each may see.
            memory: [B, S, D], in a decoder the encoder's states.
            memory_visibility: which of them each position may see.
        """
        relative = self.embedding.positions.relative(visibility)
        for layer in self.layers:
            before, inputs = x, (x, visibility, relative, memory, memory_visibility)
            x = run_layer(layer, inputs, self.recompute)
            if self.training and self.layerdrop:
                stays = torch.rand((), device=x.device) >= self.layerdrop
                x = torch.where(stays, x, before)
        return self.final_norm(x)


class Encoder(TransformerStack):
    """The encoder's layers, each with self-attention to all positions."""

    side = "encoder"

    def forward(self, src_tokens: Tensor) -> EncoderOutput:
        """Encode src_tokens [B, S], right-padded."""
        key_mask = src_tokens != self.pad_index
        length = src_tokens.size(1)
        visibility = Visibility(length, length, key_mask=key_mask, query_mask=key_mask)
        if self.separator < 0:
            return EncoderOutput(self.run_layers(self.embedding(src_tokens), visibility), key_mask)
        ends = src_tokens.eq(self.separator)  # which belong to the sentences that they end
        sentences = SentenceRows.of_tokens(ends.cumsum(1) - ends.long(), key_mask)
        visibility.sentences = sentences.own(causal=False, divided=self.training)
        x = self.embedding(src_tokens, places=sentences.positions)
        return EncoderOutput(self.run_layers(x, visibility), key_mask, sentences)


class Decoder(TransformerStack):
    """The decoder's layers, each with causal self-attention and attention to the encoder."""

    side = "decoder"
    quick_step: "QuickStep | None" = None
    """Computes the layers' steps in another way where it can."""

    def __init__(
        self, config: TransformerConfig, tokens: nn.Embedding, pad_index: int, separator: int = -1
    ) -> None:
        super().__init__(config, tokens, pad_index, separator)
        self._alignment_layer = config.alignment_layer
        self._alignment_heads = config.alignment_heads
        self.start_index = Dictionary().index(config.decoder_start_symbol)

    def forward(self, prev_output_tokens: Tensor, encoder_out: EncoderOutput) -> Tensor:
        """Return the states [B, T, D] of prev_output_tokens [B, T], right-padded."""
        length, memory = prev_output_tokens.size(1), encoder_out.states
        real, key_mask = prev_output_tokens != self.pad_index, encoder_out.key_mask
        # Padding stands on the right, where causality already hides it from real queries.
        own = Visibility(length, length, query_mask=real, causal=True, device=real.device)
        cross = Visibility(length, memory.size(1), key_mask=key_mask, query_mask=real)
        places = None
        if encoder_out.sentences is not None:
            # What is read belongs to the sentence of what is predicted from it.
            numbers = prev_output_tokens.eq(self.separator).cumsum(1)
            sentences = SentenceRows.of_tokens(numbers, real)
            own.sentences = sentences.own(causal=True, divided=self.training)
            cross.sentences = sentences.across(encoder_out.sentences, divided=self.training)
            places = sentences.positions
        return self.run_layers(self._embedded(prev_output_tokens, 0, places), own, memory, cross)

    def _embedded(self, tokens: Tensor, start: int, places: Tensor | None) -> Tensor:
        """Embed what is read; every sentence begins as the first one does, with ``</s>``.

        That is what it is called in what comes in; the model may read another symbol instead.
        """
        if places is not None:
            tokens = tokens.masked_fill(tokens == self.separator, Dictionary.eos_index)
        if self.start_index != Dictionary.eos_index:
            tokens = tokens.masked_fill(tokens == Dictionary.eos_index, self.start_index)
        return self.embedding(tokens, start, places)

    @property
    def cross_attentions(self) -> list[CrossAttention]:
        """The attention to the encoder of every layer."""
        return [layer.cross_attention for layer in self.layers if layer.cross_attention is not None]

    @property
    def aligning_attention(self) -> Attention:
        """The attention to the encoder whose weights align tokens; by default the last one."""
        layer = self._alignment_layer
        return self.cross_attentions[-1 if layer is None else layer].attention

    def alignment_weights(self, record: AttentionRecord) -> Tensor:
        """Return the weights that align tokens, [B, Nq, Nk]: the mean over the heads that do.

        Args:
            record: of :attr:`aligning_attention`, with weights.
        """
        weights = record.weights  # [B, H, Nq, Nk]
        assert weights is not None, "weights were asked for"
        if record.visibility.rows is not None:
            weights = record.visibility.rows.in_documents(weights)
        return weights[:, : self._alignment_heads].mean(1)

    def step(self, tokens: Sequence[Tensor], states: Sequence[DecoderState]) -> Tensor:
        """Return the states [1, N, D] of the newest tokens of each search, one after the other.

        The beams of a sentence are the queries of one cross-attention and, in their groups, of
        one self-attention, so keys and values exist once, not once a beam. All else is computed
        for the tokens of all searches at once.

        Args:
            tokens: the newest token of each beam, [B, K] for each search.
            states: of the searches, advanced in place; N of their beams are computed in all.
        """
        embedded, seen = [], []
        for own_tokens, state in zip(tokens, states, strict=True):
            own, places, computed = state.grow(own_tokens), None, state.computed
            if own.sentences is not None:
                places = own.sentences.visibility.query_positions().reshape(-1, 1)
            x = self._embedded(own_tokens.reshape(-1, 1), state.length - 1, places).transpose(0, 1)
            embedded.append(x if computed is None else computed.take(x))
            relative = self.embedding.positions.relative(own)
            seen.append((computed, own, relative, state.cross_visibility))
        x = embedded[0] if len(embedded) == 1 else torch.cat(embedded, dim=1)
        sizes = [part.size(1) for part in embedded]
        steps = [
            [
                LayerStep(size, *views, state.caches[i])
                for size, views, state in zip(sizes, seen, states, strict=True)
            ]
            for i in range(len(self.layers))
        ]
        if self.quick_step is not None and self.quick_step.takes(x, steps):
            return self.final_norm(self.quick_step(x, steps))
        for layer, of_layer in zip(self.layers, steps, strict=True):
            x = layer.step(x, of_layer)
        return self.final_norm(x)


class QuickStep(Protocol):
    """A faster way through the layers of a decoder, step by step."""

    def takes(self, x: Tensor, steps: Sequence[Sequence[LayerStep]]) -> bool:
        """Return whether it can compute this step, and is the faster way."""
        ...

    def __call__(self, x: Tensor, steps: Sequence[Sequence[LayerStep]]) -> Tensor:
        """Do what :meth:`TransformerLayer.step` of each layer does.

        Args:
            x: the newest tokens' states [1, N, D].
            steps: of each layer, of each search; their caches are added to.
        """
        ...


@dataclass
class StepOutput:
    """One decoding step.

    Args:
        logits: [B, K, V] float32; [1, N', V] where not all beams are computed.
        cross_weights: [B, K, S], the weights on the source (on a sentence of it, where it is
            aligned) that align tokens, see :meth:`Decoder.alignment_weights`, if asked for.
        computed: which beams are; None: all.
    """

    logits: Tensor
    cross_weights: Tensor | None
    computed: ComputedBeams | None = None


class EncoderDecoder(nn.Module):
    """An encoder-decoder for token sequences.

    Args:
        config: shape and attentions.
        source_vocab_size: number of source symbols.
        target_vocab_size: number of target symbols V.
        pad_index: id of the padding symbol on both sides.
        separators: ids of the symbol that ends each source and each target sentence; None if there
            is none.

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
        if config.document_attention == "full":
            separators = None
        elif separators is None:
            raise ConfigError(
                "--document-attention aligned needs --sentence-separator, which tells sentences"
            )
        ends = separators or (-1, -1)
        if config.share_all_embeddings and source_vocab_size != target_vocab_size:
            raise ConfigError(
                f"--share-all-embeddings: the dictionaries have {source_vocab_size} and "
                f"{target_vocab_size} symbols; preprocess with --joined-dictionary"
            )
        self.config = config
        dim = config.decoder_embed_dim
        source_table = _token_embedding(source_vocab_size, dim, pad_index)
        target_table = (
            source_table
            if config.share_all_embeddings
            else _token_embedding(target_vocab_size, dim, pad_index)
        )
        self.encoder = Encoder(config, source_table, pad_index, ends[0])
        self.decoder = Decoder(config, target_table, pad_index, ends[1])
        self.output_projection = nn.Linear(dim, target_vocab_size, bias=config.output_bias)
        if config.output_bias:
            nn.init.zeros_(self.output_projection.bias)
        if config.share_all_embeddings or config.share_decoder_input_output_embed:
            self.output_projection.weight = target_table.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=dim**-0.5)

    @property
    def most_source_tokens(self) -> int | None:
        """The longest source, end symbol included, that the model can read; None for any."""
        return self._most_tokens(self.encoder, self._source_readers, False)

    @property
    def most_target_tokens(self) -> int | None:
        """The longest target, end symbol included, that the model can write; None for any."""
        return self._most_tokens(self.decoder, self._target_readers, True)

    @property
    def most_source_sentence(self) -> int | None:
        """The longest sentence of a source, with the symbol that ends it; None for any."""
        return self._most_of_a_sentence(self.encoder, self._source_readers, False)

    @property
    def most_target_sentence(self) -> int | None:
        """The longest sentence of a target, with the symbol that ends it; None for any."""
        return self._most_of_a_sentence(self.decoder, self._target_readers, True)

    @property
    def _source_readers(self) -> list[MultiheadAttention]:
        own = [layer.self_attention for layer in self.encoder.layers]
        return [*own, *self.decoder.cross_attentions]

    @property
    def _target_readers(self) -> list[MultiheadAttention]:
        return [layer.self_attention for layer in self.decoder.layers]

    def _most_tokens(
        self, stack: TransformerStack, modules: Sequence[MultiheadAttention], causal: bool
    ) -> int | None:
        """Return the least limit; what stays inside sentences does not limit documents."""
        if stack.separator < 0:
            return self._most_of_a_sentence(stack, modules, causal)
        return least_limit(
            module.attention.most_keys(causal) for module in modules if module.gate is not None
        )

    def _most_of_a_sentence(
        self, stack: TransformerStack, modules: Sequence[MultiheadAttention], causal: bool
    ) -> int | None:
        """Return the least limit; without a separator everything is one sentence."""
        limits = [module.attention.most_keys(causal) for module in modules]
        return least_limit([stack.embedding.positions.max_positions, *limits])

    def encode(self, src_tokens: Tensor) -> EncoderOutput:
        """Encode src_tokens [B, S] int64, right-padded, each ending in the end symbol."""
        return self.encoder(src_tokens)

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Return the decoder states [B, T, D] of all target positions (teacher forcing).

        ``logits`` turns them into scores of the vocabulary.

        Args:
            src_tokens: [B, S] int64, right-padded.
            prev_output_tokens: [B, T] int64, the target shifted right, end symbol first.
        """
        return self.decoder(prev_output_tokens, self.encode(src_tokens))

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores [..., V] in float32 of features [..., D]."""
        return self.output_projection(features).float()

    def start(self, encoder_out: EncoderOutput, shortlist: Tensor | None = None) -> DecoderState:
        """Return the state of step-by-step decoding, with one beam a sentence.

        Args:
            encoder_out: what the decoder sees.
            shortlist: ids of the only symbols that may be written, int64 [V']; to :meth:`step`
                they are then 0 to V' - 1. ``None`` for all.
        """
        states, sentences = encoder_out.states, encoder_out.sentences
        caches = [
            attention.remember(states, sentences).contiguous()
            for attention in self.decoder.cross_attentions
        ]
        state = DecoderState(caches, encoder_out.key_mask, sentences, self.decoder.separator)
        if shortlist is not None:
            state.shortlist = shortlist
            state.projection = projection_to(self.output_projection, shortlist)
        return state

    def step(self, tokens: Tensor, state: DecoderState, want_weights: bool = False) -> StepOutput:
        """Advance every beam by its newest token.

        Args:
            tokens: [B, K] int64.
            state: from :meth:`start`; advanced in place.
            want_weights: also return the weights that align tokens.
        """
        [output] = self.step_together([tokens], [state], want_weights)
        return output

    def step_together(
        self, tokens: Sequence[Tensor], states: Sequence[DecoderState], want_weights: bool = False
    ) -> list[StepOutput]:
        """Advance the beams of several searches by their newest tokens, as :meth:`step` does.

        That takes little longer than the largest of them alone, where the others are small.

        Args:
            tokens: [B, K] int64 of each.
            states: one for each, from :meth:`start`; advanced in place.
            want_weights: also return the weights that align tokens.
        """
        known = [
            own if state.shortlist is None else state.shortlist[own]
            for own, state in zip(tokens, states, strict=True)
        ]
        weights: list[Tensor | None] = [None] * len(states)
        if want_weights:
            with record_attention(self.decoder.aligning_attention, Need(weights=True)) as records:
                features = self.decoder.step(known, states)
            # A layer that also sees the whole document comes second with that.
            aligning = records[:: len(records) // len(states)]
            weights = [self.decoder.alignment_weights(record) for record in aligning]
        else:
            features = self.decoder.step(known, states)
        shapes = [
            tuple(own.shape) if state.computed is None else (1, len(state.computed.taken))
            for own, state in zip(tokens, states, strict=True)
        ]
        sizes = [math.prod(shape) for shape in shapes]
        if all(state.projection is None for state in states):
            logits = self.logits(features).split(sizes, dim=1)
        else:
            logits = [
                (state.projection or self.output_projection)(own).float()
                for own, state in zip(features.split(sizes, dim=1), states, strict=True)
            ]
        return [
            StepOutput(each.view(*shape, -1), weight, state.computed)
            for shape, each, weight, state in zip(shapes, logits, weights, states, strict=True)
        ]


def projection_to(projection: nn.Module, symbols: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the part of an output projection that gives the logits of these symbols [V'].

    Args:
        projection: a module with a method ``rows`` that returns it, or an ``nn.Linear``.
        symbols: their ids.
    """
    rows = getattr(projection, "rows", None)
    if rows is not None:
        return rows(symbols)
    linear = cast(nn.Linear, projection)
    bias = None if linear.bias is None else linear.bias[symbols]
    return partial(F.linear, weight=linear.weight[symbols], bias=bias)


def _token_embedding(vocab_size: int, embed_dim: int, pad_index: int) -> nn.Embedding:
    """Return a table [V, D] drawn from N(0, 1/D), zero at the padding symbol."""
    table = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_index)
    nn.init.normal_(table.weight, std=embed_dim**-0.5)
    nn.init.zeros_(table.weight[pad_index])
    return table


def _layer_config(config: TransformerConfig, side: str) -> LayerConfig:
    return LayerConfig(
        config,
        embed_dim=getattr(config, f"{side}_embed_dim"),
        ffn_dim=getattr(config, f"{side}_ffn_embed_dim"),
        normalize_before=getattr(config, f"{side}_normalize_before"),
    )


def _attention(config: TransformerConfig, slot: str, layer: int) -> Attention:
    side = "encoder" if slot == "encoder" else "decoder"
    heads = getattr(config, f"{side}_attention_heads")
    head_dim = getattr(config, f"{side}_embed_dim") // heads
    spec, flag = AttentionSpec.parse(config.attention_of(slot)), config.attention_flag_of(slot)
    return build_attention(spec, slot, layer, heads, head_dim, config.attention_dropout, flag)


def _position_scheme(config: TransformerConfig, side: str) -> PositionScheme:
    names, attention = config.positions_of(side), config.attention_of(side)
    able = attentions.get(AttentionSpec.parse(attention).name).capabilities
    if not able.scores and any(kind.needs_scores for kind in kinds_of(names)):
        without = [n for n in position_schemes.names() if not position_schemes.get(n).needs_scores]
        raise ConfigError(
            f"--{side}-positions {names} acts on attention scores, which "
            f"{config.attention_flag_of(side)} {attention} does not compute; choose "
            f"{', '.join(without)} or another attention"
        )
    which = {"encoder": "source", "decoder": "target"}[side]
    place = PositionConfig(
        embed_dim=getattr(config, f"{side}_embed_dim"),
        num_heads=getattr(config, f"{side}_attention_heads"),
        causal=side == "decoder",
        max_positions=config.max_positions_of(side),
        flag=f"--max-{which}-positions",
    )
    return build_positions(names, place)
