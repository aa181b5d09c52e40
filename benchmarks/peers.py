"""Peers of benchmarks/run.py that train and decode with another model than this toolkit."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import yaml
from measuring import FailedCommand, Run
from programs import (
    BEAM,
    MOST_TOKENS,
    PEER_ENVIRONMENT,
    TORCH,
    Command,
    CTranslate2,
    Decoding,
    Fairseq,
    Program,
    Shape,
    Training,
    words_of,
)

from relu_nmt.io.text_lines import read_lines, write_lines

LONGEST = 16384


class OpenNMT(Program):
    """OpenNMT-py, with another model than this toolkit, so translations have a fixed length."""

    packages = (
        TORCH,
        "--no-deps OpenNMT-py==3.5.1",
        "configargparse ctranslate2 tensorboard flask waitress pyonmttok pyyaml sacrebleu "
        "rapidfuzz pyahocorasick fasttext-wheel spacy six",
    )
    distribution = "OpenNMT-py"

    def train(self, task: Training, variant: str, destination: Path) -> Command:
        destination.mkdir(parents=True, exist_ok=True)
        vocabulary = destination / "vocabulary"
        vocabulary.write_text("\n".join(words_of(self.text)) + "\n", "utf-8")
        settings = self._settings(task, vocabulary, destination / "model")
        config = destination / "config.yaml"
        config.write_text(yaml.safe_dump(settings), "utf-8")
        return Command([str(self.bin / "onmt_train"), "-config", str(config)], PEER_ENVIRONMENT)

    def _settings(self, task: Training, vocabulary: Path, model: Path) -> dict[str, Any]:
        shape = task.shape
        texts = {}
        for split in ("train", "valid"):
            source = str(self.text / f"{split}.de")
            texts[split] = {"path_src": source, "path_tgt": str(self.text / f"{split}.en")}
        settings = {
            "data": texts,
            "src_vocab": str(vocabulary),
            "tgt_vocab": str(vocabulary),
            "share_vocab": True,
            "encoder_type": "transformer",
            "decoder_type": "transformer",
            "position_encoding": True,
            "enc_layers": shape.layers,
            "dec_layers": shape.layers,
            "hidden_size": shape.width,
            "word_vec_size": shape.width,
            "heads": shape.heads,
            "transformer_ff": shape.ffn,
            "dropout": [0.1],
            "attention_dropout": [0.0],
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "label_smoothing": 0.1,
            "optim": "adam",
            "adam_beta2": 0.98,
            "learning_rate": 2.0,
            "decay_method": "noam",
            "warmup_steps": 400,
            "max_grad_norm": 0,
            "param_init": 0,
            "param_init_glorot": True,
            "batch_type": "tokens",
            "normalization": "tokens",
            "batch_size": task.max_tokens,
            "bucket_size": 30_000,
            "num_workers": 0,
            "report_every": 1,
            "valid_steps": 1_000_000,
            "save_checkpoint_steps": task.save_every,
            "train_steps": task.updates,
            "seed": 1,
            "save_model": str(model),
        }
        if task.device == "cuda":
            settings |= {"world_size": 1, "gpu_ranks": [0]}
        return settings

    def updates(self, run: Run) -> list[tuple[float, float]]:
        """Read ``bsz``, which has source and target tokens, and sentences."""
        line_of_update = re.compile(r"Step\s+\d+/.*bsz:\s*\d+/\s*(\d+)/")
        updates = []
        for seconds, line in run.lines:
            match = line_of_update.search(line)
            if match:
                updates.append((seconds, float(match[1])))
        return updates

    def decode(self, task: Decoding, variant: str) -> Command:
        length = str(fixed_length(self.text, task))
        models = sorted(self.models.glob("model_step_*.pt"), key=os.path.getmtime)
        if not models:
            raise FailedCommand(f"{self.name} has no model")
        output = self.folder / "translations"
        words = [str(self.bin / "onmt_translate"), "-model", str(models[-1])]
        words += ["-src", str(self.text / f"{task.split}.de"), "-output", str(output)]
        words += ["-beam_size", str(BEAM), "-batch_size", str(task.batch_size)]
        words += ["-min_length", length, "-max_length", length, "-report_time"]
        if task.device == "cuda":
            words += ["-gpu", "0"]
        return Command(words, PEER_ENVIRONMENT)

    def translated(self, task: Decoding, run: Run) -> tuple[float, list[str]]:
        match = re.search(r"Total translation time \(s\): ([\d.]+)", run.text)
        if match is None:
            raise FailedCommand(f"{self.name} printed no 'Total translation time'")
        return float(match[1]), read_lines(self.folder / "translations")


class JoeyNMT(Program):
    """JoeyNMT, with another model than this toolkit, so translations have a fixed length.

    JoeyNMT writes checkpoints only after a validation, so the time of a checkpoint is unknown.
    """

    # JoeyNMT imports importlib_metadata without declaring it.
    packages = (TORCH, "joeynmt==2.3.0 importlib_metadata")
    distribution = "joeynmt"

    def train(self, task: Training, variant: str, destination: Path) -> Command:
        destination.mkdir(parents=True, exist_ok=True)
        (destination / "task.json").write_text(json.dumps(dataclasses.asdict(task)), "utf-8")
        for language in ("de", "en"):
            few = read_lines(self.text / f"valid.{language}")[:8]
            write_lines(destination / f"valid.{language}", few)
        config = self._config(task, destination, None)
        words = [str(self.bin / "python"), "-m", "joeynmt", "train", str(config), "--skip-test"]
        return Command(words, PEER_ENVIRONMENT)

    def updates(self, run: Run) -> list[tuple[float, float]]:
        """Return the updates. Their tokens are the printed rate times the seconds."""
        line_of_update = re.compile(r"Step:\s+\d+, Batch Loss.*Tokens per Sec:\s+([\d.]+)")
        updates = []
        previous = None
        for seconds, line in run.lines:
            match = line_of_update.search(line)
            if match:
                tokens = float(match[1]) * (seconds - previous) if previous is not None else 0.0
                updates.append((seconds, tokens))
                previous = seconds
        return updates

    def decode(self, task: Decoding, variant: str) -> Command:
        trained = json.loads((self.models / "task.json").read_text("utf-8"))
        shape = Shape(**trained.pop("shape"))
        config = self._config(Training(shape, **trained), self.models, task)
        words = [str(self.bin / "python"), "-m", "joeynmt", "translate", str(config)]
        return Command(words, PEER_ENVIRONMENT, self.text / f"{task.split}.de")

    def translated(self, task: Decoding, run: Run) -> tuple[float, list[str]]:
        """Read the last printed lines, because ``-o`` is broken."""
        match = re.search(r"Generation took ([\d.]+)", run.text)
        if match is None:
            raise FailedCommand(f"{self.name} printed no 'Generation took'")
        count = len(read_lines(self.text / f"{task.split}.de"))
        return float(match[1]), [line for _, line in run.lines[-count:]]

    def _config(self, task: Training, folder: Path, decoding: Decoding | None) -> Path:
        """Write the settings of a training, or of a decoding with its model."""
        config = folder / ("decoding.yaml" if decoding else "training.yaml")
        settings = self.settings(task, folder, decoding)
        config.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
        return config

    def settings(self, task: Training, folder: Path, decoding: Decoding | None) -> dict[str, Any]:
        """Return the settings of a training, or of a decoding with its model."""
        vocabulary = folder / "vocabulary"
        if not vocabulary.is_file():
            vocabulary.write_text("\n".join(words_of(self.text)) + "\n", "utf-8")
        side = {"max_length": LONGEST, "level": "word", "voc_file": str(vocabulary)}
        batch_size = 64
        shortest = 1
        longest = MOST_TOKENS
        if decoding:
            batch_size = decoding.batch_size
            shortest = longest = fixed_length(self.text, decoding)
        return {
            "name": "benchmark",
            "joeynmt_version": "2.3.0",
            "model_dir": str(folder / "model"),
            "use_cuda": task.device == "cuda",
            "random_seed": 1,
            "data": {
                "dataset_type": "plain",
                "train": str(self.text / "train"),
                "dev": str(folder / "valid"),
                "src": {"lang": "de", **side},
                "trg": {"lang": "en", **side},
            },
            "testing": {
                "beam_size": BEAM,
                "beam_alpha": 1.0,
                "batch_size": batch_size,
                "batch_type": "sentence",
                "min_output_length": shortest,
                "max_output_length": longest,
                "eval_metrics": [],
            },
            "training": _joeynmt_training(task),
            "model": _joeynmt_model(task.shape),
        }


def _joeynmt_training(task: Training) -> dict[str, Any]:
    return {
        "random_seed": 1,
        "optimizer": "adam",
        "adam_betas": [0.9, 0.98],
        "normalization": "tokens",
        "learning_rate": 0.001,
        "scheduling": "warmupinversesquareroot",
        "learning_rate_warmup": 400,
        "label_smoothing": 0.1,
        "loss": "crossentropy",
        "batch_size": task.max_tokens,
        "batch_type": "token",
        "early_stopping_metric": "loss",
        "epochs": 1_000,
        "updates": task.updates,
        "validation_freq": task.updates,
        "logging_freq": 1,
        "keep_best_ckpts": 1,
        "overwrite": True,
    }


def _joeynmt_model(shape: Shape) -> dict[str, Any]:
    stack = {
        "type": "transformer",
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "embeddings": {"embedding_dim": shape.width, "scale": True, "dropout": 0.0},
        "hidden_size": shape.width,
        "ff_size": shape.ffn,
        "dropout": 0.1,
        "layer_norm": "post",
    }
    return {"tied_embeddings": True, "tied_softmax": True, "encoder": stack, "decoder": stack}


def fixed_length(text: Path, task: Decoding) -> int:
    """Return the length of the translations of a program that has another model.

    Documents have the forced length. Sentences have the mean length of the references.
    """
    if task.tokens:
        return task.tokens
    lines = read_lines(text / f"{task.split}.en")
    return round(len(" ".join(lines).split()) / len(lines))


PEERS: dict[str, type[Program]] = {
    "fairseq": Fairseq,
    "ctranslate2": CTranslate2,
    "opennmt-py": OpenNMT,
    "joeynmt": JoeyNMT,
}
