"""The tasks of Long Range Arena: their data, as sequences of ids, and batches of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from listops import make_expression
from pathfinder import make_image
from torch import Tensor

from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.vision.images import PlannedBatches, SampleBatch, open_images, with_classes_of

SPLITS = ("train", "valid", "test")
PADDING = 0


@dataclass(frozen=True)
class Task:
    """A task.

    Args:
        length: most tokens of a sequence. Sequences are padded to the next power of two.
        vocab_size: number of ids with padding, as in the paper's settings.
        classes: number of classes.
        sequences: sequences of a sample, 2 for a comparison of two documents.
    """

    length: int
    vocab_size: int
    classes: int
    sequences: int = 1


TASKS = {
    "listops": Task(2000, 32, 10),
    "text": Task(4000, 512, 2),
    "retrieval": Task(4000, 512, 2, sequences=2),
    "image": Task(1024, 512, 10),
    "pathfinder": Task(1024, 512, 2),
}
Sample = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Samples:
    """The samples of a split.

    Args:
        sequences: sequences of ids of each sample, uint8.
        labels: int64 [N].
    """

    sequences: Sequence[Sample]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def some(self, count: int) -> "Samples":
        """Return at most ``count`` samples, a fixed random choice, in order."""
        numbers = chosen(len(self), count)
        return Samples([self.sequences[number] for number in numbers], self.labels[numbers])


def chosen(total: int, count: int) -> np.ndarray:
    """Return at most ``count`` of the indices below ``total``, a fixed random choice, in order."""
    return np.sort(np.random.default_rng(0).permutation(total)[:count])


def open_task(
    name: str, folder: Path, length: int, counts: dict[str, int], say: Callable[[str], None]
) -> dict[str, Samples]:
    """Return the samples of a task by split.

    Args:
        name: one of ``TASKS``.
        folder: folder of its files, and of generated samples.
        length: most tokens of a sequence.
        counts: most samples of each split. Generated samples have exactly this number.
        say: function that prints a message.

    Raises:
        DataError: files are missing or damaged.
    """
    if name in ("listops", "pathfinder"):
        return _generated(name, folder, length, counts, say)
    if name == "image":
        samples = _gray_images(folder, counts)
    else:
        samples = (_byte_texts if name == "text" else _text_pairs)(folder)
    shortened = {}
    for split, of_split in samples.items():
        sample_choice = of_split.some(counts[split])
        sequences = [_shortened(sample, length) for sample in sample_choice.sequences]
        shortened[split] = replace(sample_choice, sequences=sequences)
    return shortened


def _shortened(sample: Sample, length: int) -> Sample:
    """Return the first ``length`` ids of each sequence of a sample."""
    return tuple(ids[:length] for ids in sample)


def _generated(
    name: str, folder: Path, length: int, counts: dict[str, int], say: Callable[[str], None]
) -> dict[str, Samples]:
    numbers = "-".join(str(counts[split]) for split in SPLITS)
    path = folder / f"{name}-{length}-{numbers}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for index, split in enumerate(SPLITS):
            say(f"{path}: make {counts[split]:,} samples for {split}")
            sequences = []
            labels = []
            for number in range(counts[split]):
                ids, label = _make(name, length, (index, number))
                sequences.append(ids)
                labels.append(label)
            arrays[f"{split}_ids"] = np.concatenate(sequences)
            arrays[f"{split}_lengths"] = np.array(list(map(len, sequences)))
            arrays[f"{split}_labels"] = np.array(labels, dtype=np.int64)
        with safe_writer(path) as file:
            np.savez(file, **arrays)
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {split: _stored(stored, split) for split in SPLITS}
    except Exception as error:  # a damaged file may raise any exception
        raise DataError(f"{path}: damaged ({error}); remove it, and it is made again") from error


def _make(name: str, length: int, seed: tuple[int, int]) -> tuple[np.ndarray, int]:
    if name == "pathfinder":
        return make_image(Random(f"{seed}"))
    return make_expression(np.random.default_rng(seed), length // 4, length)


def _stored(arrays: dict[str, np.ndarray], split: str) -> Samples:
    ends = np.cumsum(arrays[f"{split}_lengths"])[:-1]
    sequences = np.split(arrays[f"{split}_ids"], ends)
    return Samples([(ids,) for ids in sequences], arrays[f"{split}_labels"])


def _gray_images(folder: Path, counts: dict[str, int]) -> dict[str, Samples]:
    """Return images as gray values row by row. Every tenth training image is for validation."""
    sets = {}
    for split in ("train", "test"):
        path = folder / split
        if not path.exists():
            path = folder / f"{split}.zip"
        if not path.exists():
            raise DataError(f"{folder}: expected train and test, each a folder or .zip of classes")
        [sets[split]] = open_images(path).values()
    sets["test"] = with_classes_of(sets["test"], sets["train"].classes, f"{folder}/train")
    all_training = sets["train"]
    held_out = np.arange(len(all_training)) % 10 == 9
    sets["valid"] = all_training.subset(np.flatnonzero(held_out), "valid")
    sets["train"] = all_training.subset(np.flatnonzero(~held_out), "train")
    samples = {}
    for split in SPLITS:  # decode only the chosen images
        images = sets[split].subset(chosen(len(sets[split]), counts[split]), split)
        pixels = []
        for number in range(len(images)):
            image = images.read(number)
            if image.size != (32, 32):
                raise DataError(f"{images.origin}: {images.paths[number]}: expected 32x32 pixels")
            pixels.append((np.asarray(image.convert("L")).flatten(),))
        samples[split] = Samples(pixels, images.labels)
    return samples


def _bytes(text: str) -> np.ndarray:
    """Return the ids of a text: its UTF-8 bytes plus 1, at most 245."""
    return np.frombuffer(text.encode(), dtype=np.uint8) + np.uint8(1)


def _byte_texts(folder: Path) -> dict[str, Samples]:
    """Return the reviews of train/pos/*.txt and so on. Validation is on the test set."""
    samples = {}
    for split in ("train", "test"):
        sequences: list[Sample] = []
        labels: list[int] = []
        for label, kind in enumerate(("neg", "pos")):
            paths = sorted((folder / split / kind).glob("*.txt"))
            if not paths:
                raise DataError(f"{folder / split / kind}: expected reviews, one .txt file each")
            for path in paths:
                sequences.append((_bytes(path.read_text("utf-8", "replace")),))
                labels.append(label)
        samples[split] = Samples(sequences, np.array(labels, dtype=np.int64))
    return {"train": samples["train"], "valid": samples["test"], "test": samples["test"]}


def _text_pairs(folder: Path) -> dict[str, Samples]:
    """Return the pairs of new_aan_pairs.train.tsv and so on: label, two ids, two texts."""
    samples = {}
    for split, name in zip(SPLITS, ("train", "eval", "test"), strict=True):
        path = folder / f"new_aan_pairs.{name}.tsv"
        if not path.exists():
            raise DataError(f"{path}: no such file; expected pairs of papers of the AAN corpus")
        sequences: list[Sample] = []
        labels = []
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                fields = line.removesuffix("\n").removesuffix("\r").split("\t")
                if len(fields) != 5 or fields[0] not in ("0.0", "1.0", "0", "1"):
                    raise DataError(f"{path}:{number}: expected a label, two ids and two texts")
                sequences.append((_bytes(fields[3]), _bytes(fields[4])))
                labels.append(int(float(fields[0])))
        samples[split] = Samples(sequences, np.array(labels, dtype=np.int64))
    return samples


@dataclass(frozen=True)
class SequenceBatch(SampleBatch):
    """Samples of one width and their classes.

    Args:
        tokens: P sequences of each sample, [B, P, N] int64. Padding is 0.
        labels: classes, [B] int64.
    """

    tokens: Tensor
    labels: Tensor

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding."""
        return int((self.tokens != PADDING).sum())


class SequenceBatches(PlannedBatches):
    """The batches of a split.

    Args:
        samples: the samples.
        width: length of the padded sequences.
        batch_size: samples of a batch.
        seed: seed of a new order in each epoch. None keeps the order (validation).
    """

    def __init__(
        self, samples: Samples, width: int, batch_size: int, seed: int | None = None
    ) -> None:
        super().__init__(len(samples), batch_size, seed)
        self.samples = samples
        self._width = width

    def load(self, index: int) -> SequenceBatch:
        """Return batch ``index`` of the planned epoch."""
        numbers = self._plan[index]
        samples = [self.samples.sequences[number] for number in numbers]
        tokens = np.zeros((len(samples), len(samples[0]), self._width), dtype=np.int64)
        for row, sample in zip(tokens, samples, strict=True):
            for sequence, ids in zip(row, sample, strict=True):
                sequence[: len(ids)] = ids
        return SequenceBatch(
            torch.from_numpy(numbers.copy()),
            torch.from_numpy(tokens),
            torch.from_numpy(self.samples.labels[numbers]),
        )
