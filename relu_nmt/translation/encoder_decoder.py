"""The encoder-decoder transformer, made for a task or loaded from a checkpoint.

It has a registered attention in each of its three slots.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.config import from_dict
from relu_nmt.config.fields import known_fields
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import SINGLE_SENTENCES, DocumentConfig
from relu_nmt.data.translation_batches import least_limit
from relu_nmt.errors import CheckpointError, ConfigError, OutOfMemoryError
from relu_nmt.modules.building import build_in_memory
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.positions import LearnedPositions
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, load_weights, read_metadata
from relu_nmt.translation.aligned import AlignedDecoder, AlignedEncoder
from relu_nmt.translation.aligned_attention import SENTENCE_BIAS, DocumentGate
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.decoder import Decoder
from relu_nmt.translation.encoder import Encoder, TransformerStack
from relu_nmt.translation.task import TranslationTask

EMBEDDINGS = ("encoder.embedding.tokens", "decoder.embedding.tokens", "output_projection")


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
        separators: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        # Check that the dictionaries fit the settings.
        if config.document_attention == "aligned" and separators is None:
            raise ConfigError(
                "--document-attention aligned needs --sentence-separator; add it, with "
                "--max-doc-tokens or --doc-mixture"
            )
        if config.share_all_embeddings and source_vocab_size != target_vocab_size:
            raise ConfigError(
                f"--share-all-embeddings: the dictionaries have {source_vocab_size} and "
                f"{target_vocab_size} symbols; preprocess with --joined-dictionary"
            )
        # Make the embedding tables [V, D], one for both sides if shared.
        self.config = config
        dim = config.decoder_embed_dim
        source_table = target_table = _token_embedding(source_vocab_size, dim, pad_index)
        if not config.share_all_embeddings:
            target_table = _token_embedding(target_vocab_size, dim, pad_index)
        # Make encoder and decoder.
        if config.document_attention == "aligned":
            assert separators is not None, "checked above"
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
        """Return the limit of tokens of the side ``source`` or ``target``, end symbol included.

        The limit is for a document, or for each sentence in it. None: unlimited. Aligned attention
        sees whole documents in upper layers only, and counts positions in each sentence.
        """
        is_source = side == "source"
        stack = self.encoder if is_source else self.decoder
        slots = ("encoder", "cross") if is_source else ("decoder",)
        # Ask the attentions that see all of it.
        limits = []
        for module in self.modules():
            if isinstance(module, MultiheadAttention) and module.attention.slot in slots:
                attention = module.attention
                if of_sentence or self.config.sees_document(attention.slot, attention.layer):
                    limits.append(attention.most_keys(attention.slot == "decoder"))
        if of_sentence or self.config.document_attention == "full":
            limits.append(stack.embedding.positions.max_positions)
        return least_limit(limits)

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Return the decoder states [B, T, D] of all target positions (teacher forcing).

        Sources [B, S] int64 are right-padded, each ending in the end symbol, as are targets [B, T],
        shifted right, end symbol first. :meth:`logits` maps the states to scores of the vocabulary.
        """
        return self.decoder(prev_output_tokens, self.encoder(src_tokens))

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores [..., V] in float32 of features [..., D]."""
        return self.output_projection(features).float()


def _token_embedding(vocab_size: int, embed_dim: int, pad_index: int) -> nn.Embedding:
    """Return a table [V, D] drawn from N(0, 1/D), zero at the padding symbol."""
    table = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_index)
    nn.init.normal_(table.weight, std=embed_dim**-0.5)
    nn.init.zeros_(table.weight[pad_index])
    return table


def build_model(config: TransformerConfig, task: TranslationTask) -> EncoderDecoder:
    """Return a new model for the task's dictionaries.

    Raises:
        ConfigError: settings contradict each other or the dictionaries.
        OutOfMemoryError: the weights need more memory than is free.
    """
    return build_in_memory(
        lambda: EncoderDecoder(
            config,
            len(task.source_dictionary),
            len(task.target_dictionary),
            # Pass the target's padding symbol for both sides: special symbols have equal ids.
            task.target_dictionary.pad_index,
            task.separators,
        )
    )


def start_weights(model: EncoderDecoder, checkpoint: Checkpoint) -> Mapping[str, Tensor]:
    """Return the weights of another model as initial weights of this one.

    A model of documents can start from one of sentences, and translates single sentences as that
    one does:

    - The gates of aligned attention take almost all from the sentence; they matter to documents
      only.
    - The separator, if it is a new last symbol, becomes a copy of ``</s>``, so that the model ends
      each sentence of a document as it ended single ones.
    - Longer tables of learned positions repeat the given ones.

    Reference: Beltagy et al. 2020, "Longformer", section 5, for the positions.
    """
    start = dict(checkpoint.model_tensors)
    kinds = {name: type(part) for name, part in model.named_modules(remove_duplicate=False)}
    for name, tensor in model.state_dict().items():
        part = name.rpartition(".")[0]
        if kinds[part] is DocumentGate and name not in start:
            is_bias = name.endswith(".bias")
            start[name] = torch.full_like(tensor, SENTENCE_BIAS) if is_bias else tensor
        # Add the missing rows of tables.
        if name not in start or start[name].shape[:1] >= tensor.shape[:1]:
            continue
        if kinds[part] is LearnedPositions:
            times = -(-len(tensor) // len(start[name]))
            start[name] = start[name].repeat(times, 1)[: len(tensor)]
        elif part in EMBEDDINGS and len(tensor) == len(start[name]) + 1:
            start[name] = torch.cat([start[name], start[name][[Dictionary.eos_index]]])
    return start


def load_model(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> tuple[EncoderDecoder, TranslationTask, int]:
    """Return the model of a checkpoint, on the CPU in evaluation mode, its task and its length.

    The length is the number of tokens of the longest groups of sentences in training; 1 stands for
    single sentences. ``overrides`` are settings of the model that replace those of the checkpoint.

    Raises:
        ConfigError: a setting does not exist.
        CheckpointError: the file is missing or damaged, or its weights do not fit its settings.
    """
    # Check that it is the checkpoint of a translation model.
    checkpoint = load_checkpoint(path)
    refuse_images(path, checkpoint.metadata)
    missing = {"model_config", "task"} - checkpoint.metadata.keys()
    if missing:
        raise CheckpointError(
            f"{path}: no {' and no '.join(sorted(missing))} in it; "
            "it is not the checkpoint of a translation model"
        )
    # Combine the stored settings with the given ones.
    task = TranslationTask.from_state(checkpoint.metadata["task"])
    try:
        changed = known_fields(TransformerConfig, overrides or {})
    except ConfigError as error:
        raise ConfigError(f"--model-overrides: {error}") from error
    stored = checkpoint.metadata["model_config"]
    # Build the model and load its weights.
    try:
        model = build_model(from_dict(TransformerConfig, {**stored, **changed}), task)
    except (ConfigError, OutOfMemoryError) as error:  # such as an attention from a user's file
        raise CheckpointError(f"{path}: {error}") from error
    advice = f"leave out what changes its shapes: --model-overrides {overrides}" if changed else ""
    load_weights(model, checkpoint.model_tensors, path, advice=advice)
    return model.eval(), task, _max_doc_tokens(checkpoint.metadata, path)


def stored_task(path: str | os.PathLike[str]) -> TranslationTask | None:
    """Return the task of a checkpoint; None if it has none."""
    metadata = read_metadata(path)
    refuse_images(path, metadata)
    return TranslationTask.from_state(metadata["task"]) if "task" in metadata else None


def refuse_images(path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> None:
    """Raise a CheckpointError if a checkpoint is that of an image classifier."""
    if metadata.get("task", {}).get("name") == "image_classification":
        raise CheckpointError(
            f"{path}: the checkpoint of an image classifier; expected that of a translation model"
        )


def _max_doc_tokens(metadata: Mapping[str, Any], path: str | os.PathLike[str]) -> int:
    """Return the number of tokens of the longest groups in the settings of the training."""
    settings = metadata.get("args") or {}
    try:
        documents = from_dict(DocumentConfig, settings.get("documents") or {})
    except (ConfigError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path}: its settings of documents are damaged: {error}") from error
    return max(documents.training_lengths, default=SINGLE_SENTENCES)
