"""Distillation: a model learns from the probabilities and the attention of trained ones.

For a target token the teacher keeps its k most probable symbols, the student has the logits z:

    q = softmax(log probabilities / T)         the other V - k symbols share the rest evenly
    p = softmax(z / T)
    KL(q || p) = sum_v q_v log(q_v / p_v)

With the share w of the teacher the loss is (1 - w) cross-entropy + w T^2 KL(q || p), and for the
outputs y of the student's and t of the teacher's attention a weight times the mean of
|y - t|^2 / |t|^2 over all slots and layers.

Reference: Hinton et al. 2015, "Distilling the knowledge in a neural network", section 2 (T^2); Kim
and Rush 2016, "Sequence-level knowledge distillation", Eq. 3 (each token); Tan et al. 2019,
"Multilingual neural machine translation with knowledge distillation", section 3.3 (k symbols).
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import TranslationBatch
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.objective import LossOutput
from relu_nmt.translation.config import TeacherConfig
from relu_nmt.translation.cross_entropy import block_rows, taught_cross_entropy
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.loss import TranslationObjective, real_targets

CACHE_FILE = "teacher.sqlite"
PATIENCE = 60.0
"""Seconds to wait for another process that writes to the cache."""
ID, LOG = np.int32, np.float16
"""Types of symbols and of log-probabilities in the cache."""


def attention_distance(
    own: Mapping[str, Tensor], taught: Mapping[str, Tensor], batch: TranslationBatch, pad: int
) -> Tensor:
    """Return the mean over attention modules of |y - t|^2 / |t|^2, sums over real tokens.

    Args:
        own: the outputs y [B, N, D] of the student, by the module's name.
        taught: the outputs t of the teacher, likewise.
        batch: the tokens.
        pad: id of the padding symbol.
    """
    assert batch.prev_output_tokens is not None, "training batches have targets"
    sides = {"encoder": batch.src_tokens != pad, "decoder": batch.prev_output_tokens != pad}
    distances = []
    for name, y in own.items():
        is_real = sides[name.partition(".")[0]][..., None]  # [B, N, 1]
        t = taught[name].to(y.device, torch.promote_types(y.dtype, torch.float32))
        error, size = ((x.square() * is_real).sum() for x in (y - t, t))
        distances.append(error / size)
    return torch.stack(distances).mean()


@contextmanager
def attention_outputs(model: nn.Module, wanted: bool) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs [B, N, D] of all attention modules inside the block, by name."""
    outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, y, name=name: outputs.__setitem__(name, y))
        for name, module in model.named_modules()
        if wanted and isinstance(module, MultiheadAttention)
    ]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


class Teacher:
    """Trained models whose mean probabilities teach another model.

    Args:
        models: on the device of the training.
        config: the teacher's checkpoints, top k and cache.
        student: the model that learns.

    Raises:
        ConfigError: attention is to be taught to a model of another depth or width.
    """

    def __init__(
        self, models: Sequence[EncoderDecoder], config: TeacherConfig, student: EncoderDecoder
    ) -> None:
        self.config = config
        self._models = [model.eval().requires_grad_(False) for model in models]
        if config.teacher_attention_weight:
            ours, theirs = (_shape(model) for model in (student, models[0]))
            if ours != theirs:
                raise ConfigError(
                    f"--teacher-attention-weight: the teacher has {theirs}, but the model {ours}; "
                    "leave it out, or train a model of the teacher's shape"
                )
        self._cache, self._most_tokens = None, 0
        if config.teacher_cache is not None:
            assert config.teacher is not None, "a cache needs a teacher"
            self._cache = _Cache(Path(config.teacher_cache), config.teacher, config.teacher_top_k)

    @torch.no_grad()
    def outputs(
        self, batch: TranslationBatch, real: Tensor, rows: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the most probable symbols of each target token, and the attention's outputs.

        Args:
            batch: sources and targets.
            real: [N] int64, indices of the real tokens among all B T.
            rows: number of tokens whose logits are in memory at a time.

        Returns:
            symbols [N, k] int64, their log-probabilities [N, k], and the outputs of attention by
            the name of its module, if the attention is taught.
        """
        if self._cache is not None:
            # Run for a batch larger than all before, so that the preflight counts this memory.
            size = batch.src_tokens.numel() + len(real)
            is_largest, self._most_tokens = size > self._most_tokens, max(size, self._most_tokens)
            ids, log_probs = self._cache.read(
                batch, lambda: self._top(batch, real, rows), is_largest
            )
            return ids.to(real.device), log_probs.to(real.device), {}
        wanted = self.config.teacher_attention_weight > 0
        with attention_outputs(self._models[0], wanted) as attention:
            ids, log_probs = self._top(batch, real, rows)
        return ids, log_probs, attention

    def forget_largest(self) -> None:
        """Run for the next batch even if its results are stored, as for the first one."""
        self._most_tokens = 0

    def _top(self, batch: TranslationBatch, real: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return the symbols and their log-probabilities, [N, k] each."""
        states = []
        for model in self._models:
            features = model(batch.src_tokens, batch.prev_output_tokens)
            states.append(features.flatten(0, 1).index_select(0, real).split(rows))
        # Average the probabilities of the models, block by block of tokens.
        found = []
        for blocks in zip(*states, strict=True):
            log_probs, *others = (
                model.logits(block).log_softmax(-1)
                for model, block in zip(self._models, blocks, strict=True)
            )
            for other in others:
                log_probs = torch.logaddexp(log_probs, other)
            log_probs = log_probs - math.log(len(blocks)) if others else log_probs
            found.append(log_probs.topk(min(self.config.teacher_top_k, log_probs.size(1))))
        return torch.cat([top.indices for top in found]), torch.cat([top.values for top in found])


class TaughtObjective(TranslationObjective):
    """The loss of translation that also learns from a teacher; validation is without it.

    Args:
        teacher: the trained models.
        arguments: those of :class:`TranslationObjective`.
    """

    def __init__(self, teacher: Teacher, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.teacher = teacher

    def loss(self, batch: TranslationBatch) -> LossOutput:
        """Return the cross-entropy of a batch mixed with the losses of the teacher, in training."""
        if not self.training:
            return super().loss(batch)
        config, pad = self.teacher.config, self.model.decoder.pad_index
        with attention_outputs(self.model, config.teacher_attention_weight > 0) as own:
            features, targets, weights = self.states(batch)
        # Compare the N real target positions with the teacher's.
        real = real_targets(batch, pad)
        ids, log_probs, taught = self.teacher.outputs(batch, real, block_rows(features))
        rest = self.label_smoothing, ids, log_probs, config.teacher_temperature
        *values, kl = taught_cross_entropy(self.model.logits, features, targets, *rest)
        output = self.output(batch, values, weights)
        # Mix: (1 - w) cross-entropy + w T^2 KL, where the output has the cross-entropy already.
        entropy = values[0]
        count = float(batch.num_tokens)
        metrics = {**output.metrics, "teacher_loss": (kl.detach(), count)}
        scale = config.teacher_temperature**2
        loss = output.loss + config.teacher_weight * (scale * kl - entropy)
        # Add the distance of the outputs of attention.
        if own:
            distance = count * attention_distance(own, taught, batch, pad)
            metrics["teacher_attention"] = (distance.detach(), count)
            loss = loss + config.teacher_attention_weight * distance
        return replace(output, loss=loss, metrics=metrics)


def _shape(model: EncoderDecoder) -> str:
    config = model.config
    layers = f"{config.encoder_layers} + {config.decoder_layers} layers"
    return f"{layers} of width {config.decoder_embed_dim}"


class _Cache:
    """Symbols and log-probabilities of sentence pairs in a database, by the tokens of the pair.

    Several processes of a machine may share it. Each result is read from it, with log-probabilities
    of 16 bits, so that a resumed training gets the same numbers.

    Raises:
        ConfigError: it belongs to another teacher.
        DataError: it cannot be read or written.
    """

    def __init__(self, folder: Path, teacher: str, top_k: int) -> None:
        self._path = folder / CACHE_FILE
        # Identify the teacher by the bytes of its files.
        files = map(Path, teacher.split(":"))
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        owner = json.dumps({"teacher": digests, "top_k": top_k})
        with self._reporting():
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._path, timeout=PATIENCE)
            self._database.execute("PRAGMA journal_mode = WAL")
            with self._database as database:
                database.execute("CREATE TABLE IF NOT EXISTS owner (id PRIMARY KEY, text)")
                database.execute("CREATE TABLE IF NOT EXISTS top (pair PRIMARY KEY, ids, logs)")
                database.execute("INSERT OR IGNORE INTO owner VALUES (0, ?)", [owner])
            [stored] = self._database.execute("SELECT text FROM owner").fetchone()
        if stored != owner:
            raise ConfigError(
                f"--teacher-cache {folder}: belongs to another --teacher or --teacher-top-k; give "
                "another folder"
            )

    def read(
        self,
        batch: TranslationBatch,
        compute: Callable[[], tuple[Tensor, Tensor]],
        must_compute: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return symbols and log-probabilities [N, k]; compute and store them if any is new."""
        assert batch.tgt_tokens is not None, "training batches have targets"
        # Name each pair by its tokens.
        sides = [side.cpu().numpy() for side in (batch.src_tokens, batch.tgt_tokens)]
        pairs = [
            [row[row != Dictionary.pad_index] for row in rows] for rows in zip(*sides, strict=True)
        ]
        names = [
            hashlib.sha256(b"|".join(row.tobytes() for row in pair)).digest() for pair in pairs
        ]
        found = self._find(names)
        if must_compute or None in found:
            # Divide the tokens of the batch among its pairs, and store all pairs at once.
            lengths = [len(target) for _, target in pairs]
            tables = [
                [x.cpu().numpy().astype(kind).tobytes() for x in table.split(lengths)]
                for table, kind in zip(compute(), (ID, LOG), strict=True)
            ]
            with self._reporting(), self._database as database:
                database.executemany(
                    "INSERT OR IGNORE INTO top VALUES (?, ?, ?)", zip(names, *tables, strict=True)
                )
            found = self._find(names)
        # Join the tables of the pairs to [N, k].
        ids, logs = (b"".join(own) for own in zip(*filter(None, found), strict=True))
        shape = sum(len(target) for _, target in pairs), -1
        return (
            torch.from_numpy(np.frombuffer(ids, ID).reshape(shape).astype(np.int64)),
            torch.from_numpy(np.frombuffer(logs, LOG).reshape(shape).astype(np.float32)),
        )

    def _find(self, names: list[bytes]) -> list[tuple[bytes, bytes] | None]:
        """Return the stored tables of pairs, None for each that is new."""
        query = "SELECT ids, logs FROM top WHERE pair = ?"
        with self._reporting():
            return [self._database.execute(query, [name]).fetchone() for name in names]

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn errors of the database into one that names it."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise DataError(
                f"--teacher-cache: {self._path} cannot be used ({error}); remove it, or give "
                "another folder"
            ) from error
