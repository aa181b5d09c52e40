"""Distillation: a model learns from the probabilities and the attention of trained models.

For each target token the teacher gives its k most probable symbols, and the student has logits z:

    q = softmax(log probabilities / T)         the other V - k symbols have equal probabilities
    p = softmax(z / T)
    KL(q || p) = sum_v q_v log(q_v / p_v)

With the teacher's share w the loss is (1 - w) cross-entropy + w T^2 KL(q || p). A second term
compares the attention outputs y of the student and t of the teacher: it is a weight times the mean
of |y - t|^2 / |t|^2 over all slots and layers.

Reference: Hinton et al. 2015, "Distilling the knowledge in a neural network", section 2 (T^2). Kim
and Rush 2016, "Sequence-level knowledge distillation", Eq. 3 (each token). Tan et al. 2019,
"Multilingual neural machine translation with knowledge distillation", section 3.3 (k symbols).
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from relu_nmt.config import split_paths
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import TranslationBatch
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.objective import LossOutput
from relu_nmt.translation.base import TranslationModel
from relu_nmt.translation.blockwise_loss import block_rows
from relu_nmt.translation.config import TeacherConfig
from relu_nmt.translation.encoder_decoder import encoder_decoder_of
from relu_nmt.translation.loss import TranslationObjective, real_targets, smoothed_loss
from relu_nmt.translation.next_token_scores import average_log_probs

CACHE_FILE = "teacher.sqlite"
PATIENCE = 60.0  # seconds to wait for another process that writes to the cache
ID = torch.int32  # type of symbols in the cache
LOG = torch.float16  # type of log-probabilities in the cache
LEAST_REST = 1e-6  # lower bound of the probability of all other symbols, before its logarithm


class TaughtObjective(TranslationObjective):
    """The translation loss, to which training adds the distance from the mean of the teachers."""

    def __init__(
        self,
        teachers: Sequence[TranslationModel],
        config: TeacherConfig,
        model: TranslationModel,
        label_smoothing: float,
        regularizer: AttentionRegularizerConfig,
        report_accuracy: bool = False,
        alignment_lambda: float = 0.0,
    ) -> None:
        super().__init__(model, label_smoothing, regularizer, report_accuracy, alignment_lambda)
        self.config = config
        # Keep the teachers in a plain list, so that their weights do not learn.
        self._teachers = [model.eval().requires_grad_(False) for model in teachers]
        if config.teacher_attention_weight:
            student_shape = _shape_in_words(self.model)
            teacher_shape = _shape_in_words(teachers[0])
            if student_shape != teacher_shape:
                raise ConfigError(
                    f"--teacher-attention-weight: the teacher has {teacher_shape}, but the model "
                    f"{student_shape}; leave it out, or train a model of the teacher's shape"
                )
        self._cache = None if config.teacher_cache is None else open_cache(config)
        self._most_tokens = 0  # in the largest batch that the teacher ran for

    def loss(self, batch: TranslationBatch) -> LossOutput:
        """Return the cross-entropy of a batch. In training, mix in the losses of the teacher."""
        if not self.training:
            return super().loss(batch)
        config = self.config
        pad = self.model.pad_index
        with attention_outputs(self.model, config.teacher_attention_weight > 0) as student:
            features, targets, weights = self.states(batch)
        # Compare the N real target positions with the teacher's.
        ids, log_probs, teacher = self.taught(batch, block_rows(features))
        *values, kl = self._compared(features, targets, ids, log_probs)
        output = self.output(batch, values, weights)
        # Mix: (1 - w) cross-entropy + w T^2 KL. ``output.loss`` is the cross-entropy so far.
        count = float(batch.num_tokens)
        scale = config.teacher_temperature**2
        metrics = {**output.metrics, "teacher_loss": (kl.detach(), count)}
        loss = output.loss + config.teacher_weight * (scale * kl - values[0])
        if student:
            distance = count * attention_distance(student, teacher, batch, pad)
            metrics["teacher_attention"] = (distance.detach(), count)
            loss = loss + config.teacher_attention_weight * distance
        return replace(output, loss=loss, metrics=metrics)

    @torch.no_grad()
    def taught(
        self, batch: TranslationBatch, rows: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the teacher's best symbols [N, k], their log-probabilities, and its attention."""
        real = real_targets(batch, self.model.pad_index)
        if self._cache is not None:
            ids, log_probs = self._cached(self._cache, batch, real, rows)
            return ids.to(real.device), log_probs.to(real.device), {}
        is_taught = self.config.teacher_attention_weight > 0
        with attention_outputs(self._teachers[0], is_taught) as attention:
            ids, log_probs = self._best(batch, real, rows)
        return ids, log_probs, attention

    def forget_largest(self) -> None:
        """Let the teacher run for the next batch even if its results are in the cache."""
        self._most_tokens = 0

    def _cached(
        self, database: sqlite3.Connection, batch: TranslationBatch, real: Tensor, rows: int
    ) -> tuple[Tensor, Tensor]:
        """Return the result of :meth:`_best` as the cache stores it: logarithms have 16 bits."""
        names: list[bytes] = []
        lengths: list[int] = []
        sources = batch.src_tokens.cpu().numpy()
        targets = batch.tgt_tokens.cpu().numpy()
        for source, target in zip(sources, targets, strict=True):
            source = source[source != Dictionary.pad_index]
            target = target[target != Dictionary.pad_index]
            names.append(hashlib.sha256(source.tobytes() + b"|" + target.tobytes()).digest())
            lengths.append(len(target))

        def find() -> list[tuple[bytes, bytes] | None]:
            query = "SELECT ids, logs FROM top WHERE pair = ?"
            with _reporting(self.config):
                return [database.execute(query, [name]).fetchone() for name in names]

        # Run the teacher for a batch larger than all before: the preflight counts this memory.
        size = batch.src_tokens.numel() + len(real)
        stored = find()  # None for each new pair
        if size > self._most_tokens or None in stored:
            self._most_tokens = max(size, self._most_tokens)
            # Divide the tokens of the batch among its pairs, and store all pairs at once.
            best_ids, best_logs = self._best(batch, real, rows)
            columns = zip(names, best_ids.split(lengths), best_logs.split(lengths), strict=True)
            entries = []
            for name, pair_ids, pair_logs in columns:
                entries.append((name, _bytes_of(pair_ids, ID), _bytes_of(pair_logs, LOG)))
            with _reporting(self.config), database:
                database.executemany("INSERT OR IGNORE INTO top VALUES (?, ?, ?)", entries)
            stored = find()
        ids = bytearray()
        logs = bytearray()
        for id_bytes, log_bytes in filter(None, stored):
            ids += id_bytes
            logs += log_bytes
        symbols = torch.frombuffer(ids, dtype=ID)
        log_probs = torch.frombuffer(logs, dtype=LOG)
        return symbols.view(len(real), -1).long(), log_probs.view(len(real), -1).float()

    def _best(self, batch: TranslationBatch, real: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Compute the k best symbols of each target token and their log-probabilities, [N, k]."""
        states = []
        for model in self._teachers:
            features = model(batch.src_tokens, batch.prev_output_tokens)
            states.append(features.flatten(0, 1).index_select(0, real).split(rows))
        # Average the probabilities of the models, block by block of tokens.
        tops = []
        for blocks in zip(*states, strict=True):
            by_model = []
            for model, block in zip(self._teachers, blocks, strict=True):
                by_model.append(model.logits(block).log_softmax(-1))
            log_probs = average_log_probs(by_model)
            tops.append(log_probs.topk(min(self.config.teacher_top_k, log_probs.size(1))))
        return torch.cat([top.indices for top in tops]), torch.cat([top.values for top in tops])

    def _compared(
        self, features: Tensor, targets: Tensor, ids: Tensor, logs: Tensor
    ) -> list[Tensor]:
        """Return the sums of :meth:`cross_entropy`, then the divergence from the teacher.

        They compare decoder states [N, D] with targets [N] and with the teacher's symbols and
        log-probabilities, [N, k] each. The backward pass computes the logits of a block of tokens
        again, so that memory never holds all of them.
        """
        temperature = self.config.teacher_temperature

        def of_block(x: Tensor, targets: Tensor, ids: Tensor, logs: Tensor) -> list[Tensor]:
            logits = self.model.logits(x)
            log_probs = logits.log_softmax(-1)
            values = smoothed_loss(log_probs, targets, self.label_smoothing)
            if temperature != 1:
                log_probs = (logits / temperature).log_softmax(-1)
            return [*values, divergence(log_probs, ids, logs, temperature)]

        size = block_rows(features)
        columns = features.split(size), targets.split(size), ids.split(size), logs.split(size)
        sums: list[list[Tensor]] = [[], [], [], []]
        for x, y, top, top_logs in zip(*columns, strict=True):
            values = checkpoint(
                of_block, x, y, top, top_logs, use_reentrant=False, preserve_rng_state=False
            )
            for column, value in zip(sums, values, strict=True):
                column.append(value)
        return [torch.stack(column).sum(0) for column in sums]


def divergence(log_p: Tensor, ids: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """Return KL(q || p) at a temperature, summed over tokens, in nats.

    The teacher's k symbols ``ids`` [N, k] have ``log_probs`` [N, k] at temperature 1. The other
    V - k symbols have equal probabilities, since the teacher was trained on smoothed targets.
    ``log_p`` [N, V] are the logarithms of the student's probabilities p at this temperature.
    """
    num_others = log_p.size(1) - ids.size(1)
    share = (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=LEAST_REST)  # of all others
    # Divide logarithms by T and normalize: k symbols, then one value for each other symbol.
    log_share = (share / max(num_others, 1)).log()
    scores = torch.cat([log_probs, log_share], -1) / temperature  # [N, k + 1]
    counts = torch.ones_like(scores[0])
    counts[-1] = num_others
    log_q = scores - (scores.exp() * counts).sum(-1, keepdim=True).log()
    at_ids = log_p.gather(1, ids)  # [N, k]
    sums = torch.cat([at_ids, (log_p.sum(-1) - at_ids.sum(-1))[:, None]], -1)  # [N, k + 1]
    return (log_q.exp() * (counts * log_q - sums)).sum()


def attention_distance(
    student: Mapping[str, Tensor], teacher: Mapping[str, Tensor], batch: TranslationBatch, pad: int
) -> Tensor:
    """Return the mean of |y - t|^2 / |t|^2 over modules, student y and teacher t [B, N, D]."""
    sides = {"encoder": batch.src_tokens != pad, "decoder": batch.prev_output_tokens != pad}
    distances = []
    for name, y in student.items():
        is_real = sides[name.partition(".")[0]][..., None]  # [B, N, 1]
        t = teacher[name].to(y.device, torch.promote_types(y.dtype, torch.float32))
        error = ((y - t).square() * is_real).sum()
        distances.append(error / (t.square() * is_real).sum())
    return torch.stack(distances).mean()


@contextmanager
def attention_outputs(model: nn.Module, is_taught: bool) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs [B, N, D] of all attention modules inside the block, by name."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        outputs[name] = output

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if is_taught and isinstance(module, MultiheadAttention):
                hooks.enter_context(module.register_forward_hook(partial(keep, name)))
        yield outputs


def open_cache(config: TeacherConfig) -> sqlite3.Connection:
    """Return the database of symbols and log-probabilities, which several processes may share."""
    assert config.teacher is not None and config.teacher_cache is not None, "both are given"
    folder = Path(config.teacher_cache)
    # Identify the teacher by the bytes of its files.
    files = map(Path, split_paths(config.teacher, ":"))
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    owner = json.dumps({"teacher": digests, "top_k": config.teacher_top_k})
    with _reporting(config):
        folder.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(folder / CACHE_FILE, timeout=PATIENCE)
        database.execute("PRAGMA journal_mode = WAL")
        with database:
            database.execute("CREATE TABLE IF NOT EXISTS owner (id PRIMARY KEY, text)")
            database.execute("CREATE TABLE IF NOT EXISTS top (pair PRIMARY KEY, ids, logs)")
            database.execute("INSERT OR IGNORE INTO owner VALUES (0, ?)", [owner])
        [stored] = database.execute("SELECT text FROM owner").fetchone()
    if stored != owner:
        raise ConfigError(
            f"--teacher-cache {folder}: belongs to another --teacher or --teacher-top-k; give "
            "another folder"
        )
    return database


def _bytes_of(table: Tensor, dtype: torch.dtype) -> bytes:
    return table.to("cpu", dtype).numpy().tobytes()


def _shape_in_words(model: TranslationModel) -> str:
    config = encoder_decoder_of(model, "--teacher-attention-weight").config
    layers = f"{config.encoder_layers} + {config.decoder_layers} layers"
    return f"{layers} of width {config.decoder_embed_dim}"


@contextmanager
def _reporting(config: TeacherConfig) -> Iterator[None]:
    """Turn an error of the cache into a DataError that names its file."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise DataError(
            f"--teacher-cache: {Path(config.teacher_cache or '', CACHE_FILE)} cannot be used "
            f"({error}); remove it, or give another folder"
        ) from error
