"""A database with the probabilities of a teacher, which several processes and trainings share."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from relu_nmt.config import split_paths
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import TranslationBatch
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.translation.config import TeacherConfig

CACHE_FILE = "teacher.sqlite"
PATIENCE = 60.0  # seconds to wait for another process that writes to the cache
ID = torch.int32  # type of symbols in the cache
LOG = torch.float16  # type of log-probabilities in the cache


class BestSymbols(NamedTuple):
    """The k most probable symbols of N target tokens."""

    ids: Tensor  # [N, k] int64
    log_probs: Tensor  # [N, k]


class TeacherCache:
    """The most probable symbols of each target token, by sentence pair.

    Raises:
        ConfigError: the folder has the probabilities of another teacher.
        DataError: the file cannot be used.
    """

    def __init__(self, config: TeacherConfig) -> None:
        assert config.teacher is not None and config.teacher_cache is not None, "both are given"
        folder = Path(config.teacher_cache)
        self._path = folder / CACHE_FILE
        self._most_tokens = 0  # in the largest batch that the teacher ran for
        # Identify the teacher by the bytes of its files.
        files = map(Path, split_paths(config.teacher, ":"))
        digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        owner = json.dumps({"teacher": digests, "top_k": config.teacher_top_k})
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

    def forget_largest(self) -> None:
        """Compute the next batch even if its results are stored."""
        self._most_tokens = 0

    def best_symbols(
        self, batch: TranslationBatch, compute: Callable[[], BestSymbols]
    ) -> BestSymbols:
        """Return the symbols of a batch as they are stored, logarithms with 16 bits, on the CPU.

        ``compute`` runs the teacher: for new pairs, and for a batch larger than all before, so that
        the preflight counts the memory.
        """
        names: list[bytes] = []
        lengths: list[int] = []
        sources = batch.src_tokens.cpu().numpy()
        targets = batch.tgt_tokens.cpu().numpy()
        for source, target in zip(sources, targets, strict=True):
            source = source[source != Dictionary.pad_index]
            target = target[target != Dictionary.pad_index]
            names.append(hashlib.sha256(source.tobytes() + b"|" + target.tobytes()).digest())
            lengths.append(len(target))
        size = batch.src_tokens.numel() + sum(lengths)
        stored = self._find(names)
        if size > self._most_tokens or None in stored:
            self._most_tokens = max(size, self._most_tokens)
            # Divide the tokens of the batch among its pairs, and store all pairs at once.
            best = compute()
            entries = []
            for name, pair_ids, pair_logs in zip(
                names, best.ids.split(lengths), best.log_probs.split(lengths), strict=True
            ):
                entries.append((name, _bytes_of(pair_ids, ID), _bytes_of(pair_logs, LOG)))
            with self._reporting(), self._database as database:
                database.executemany("INSERT OR IGNORE INTO top VALUES (?, ?, ?)", entries)
            stored = self._find(names)
        id_bytes = bytearray()
        log_bytes = bytearray()
        for pair_ids, pair_logs in filter(None, stored):
            id_bytes += pair_ids
            log_bytes += pair_logs
        ids = torch.frombuffer(id_bytes, dtype=ID).view(sum(lengths), -1)
        log_probs = torch.frombuffer(log_bytes, dtype=LOG).view_as(ids)
        return BestSymbols(ids.long(), log_probs.float())

    def _find(self, names: Sequence[bytes]) -> list[tuple[bytes, bytes] | None]:
        """Return the symbols and logarithms of pairs. None for a new pair."""
        query = "SELECT ids, logs FROM top WHERE pair = ?"
        with self._reporting():
            return [self._database.execute(query, [name]).fetchone() for name in names]

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn an error of the cache into a DataError that names its file."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise DataError(
                f"--teacher-cache: {self._path} cannot be used ({error}); remove it, or give "
                "another folder"
            ) from error


def _bytes_of(table: Tensor, dtype: torch.dtype) -> bytes:
    return table.to("cpu", dtype).numpy().tobytes()
