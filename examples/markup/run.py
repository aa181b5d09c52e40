#!/usr/bin/env python3
"""Measure how well the tags of translated texts are placed by attention.

Help pages of LibreOffice have inline tags in both languages. Small models learn from the pages
without tags, and one model learns from tags as words. Each model translates held-out sentences with
tags, and places tags on the references. A command that is done does not run again.

    python examples/markup/run.py
    python examples/markup/run.py --corpus mine --source-lang de --target-lang en

``--corpus`` has ``train.de``, ``train.en``, ``valid.de`` and so on with a sentence and its tags a
line, and blank lines between documents.
"""

import argparse
import importlib
import json
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import corpus
import measure
import tagged_text
from aligner import symmetric_links
from corpus import SPLITS, Pair
from small_model import MODEL, TRAINING
from tagged_text import TaggedText

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.errors import DataError, TrainingError
from relu_nmt.io.safe_write import json_text, write_text
from relu_nmt.io.text_lines import write_lines
from relu_nmt.training.config import RESULTS_FILE
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from relu_nmt.translator.models import load_models

REPORTING = """
    --log-format simple --log-interval 100 --disable-validation
    --save-interval-updates 200 --keep-interval-updates 1 --no-epoch-checkpoints
"""
GUIDED = """
    --criterion label_smoothed_cross_entropy_with_alignment --load-alignments
    --alignment-layer 1 --alignment-heads 1
"""
MODELS = {
    "softmax": ("plain", "--cross-attention softmax"),
    "relu": ("plain", "--cross-attention reluformer:gamma=8"),
    "thresholded": ("plain", "--cross-attention thresholded_relu"),
    "sparsemax": ("plain", "--cross-attention sparsemax"),
    "guided": ("guided", f"--cross-attention softmax {GUIDED}"),
    "words": ("words", "--cross-attention softmax"),
}
"""Text that each model learns from, and its flags."""
POSITION = "position"
WORDS = "words"
ALIGNER = "aligner"
NUM_EXAMPLES = 5
Record = dict[str, Any]


class Run:
    """One run in a folder: its texts, data folders, models and results."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out: Path = arguments.out
        self.arguments = arguments
        self.languages = (arguments.source_lang, arguments.target_lang)
        self.pairs: dict[str, list[Pair | None]] = {}
        self.symbols: dict[str, tuple[str, str]] = {}

    def text_pairs(self, split: str) -> list[Pair]:
        """Return the pairs of a split without the blank lines."""
        return [pair for pair in self.pairs[split] if pair is not None]

    def with_same_tags(self, split: str) -> list[Pair]:
        """Return the pairs of a split whose sides have the same tags."""
        return list(filter(corpus.is_measured, self.text_pairs(split)))

    def measured(self, split: str) -> list[Pair]:
        """Return the pairs of a split whose tags are measured."""
        return self.with_same_tags(split)[: self.arguments.most_segments]

    def command(self, name: str, *words: object) -> None:
        """Run a command of the package.

        Raises:
            TrainingError: it failed.
        """
        texts = list(map(str, words))
        print(f"$ relu-nmt-{name} {shlex.join(texts)}", flush=True)
        if importlib.import_module(f"relu_nmt.cli.{name}").main(texts):
            raise TrainingError(f"relu-nmt-{name} failed. See its message")

    # --------------------------------------------------------------------- texts

    def read_texts(self) -> None:
        """Fetch the corpus if none is given, and read it."""
        folder = self.arguments.corpus
        if folder is None:
            folder = self.out / "corpus"
            if not (folder / f"test.{self.languages[1]}").exists():
                held_out = self.arguments.held_out
                corpus.make_corpus(folder, self.out / "packages", self.languages, held_out)
        for split in SPLITS:
            self.pairs[split] = corpus.read_pairs(folder, split, self.languages)
        self.symbols = tagged_text.tag_symbols(measure.sources_of(self.text_pairs("train")))
        if not self.measured("test"):
            raise DataError(f"{folder}: no pair of the test set has the same tags on both sides")

    def write_text(self, name: str, split: str) -> Path:
        """Write the text of a split without tags, or with tags as words. Return its prefix."""
        prefix = self.out / name / split
        for side, language in enumerate(self.languages):
            lines = []
            for pair in self.pairs[split]:
                if pair is None:
                    lines.append("")
                elif name == WORDS:
                    lines.append(pair[side].words(self.symbols))
                else:
                    lines.append(pair[side].text)
            write_lines(prefix.with_name(f"{split}.{language}"), lines)
        return prefix

    # --------------------------------------------------------------------- data folders

    def data(self, name: str) -> Path:
        """Return a data folder, which is made unless it exists."""
        folder = self.out / name / "data"
        if (folder / "manifest.json").exists():
            return folder
        (self.out / name).mkdir(parents=True, exist_ok=True)
        source, target = self.languages
        flags: list[object] = ["--source-lang", source, "--target-lang", target]
        flags += ["--joined-dictionary", "--document-separator", "blank", "--destdir", folder]
        if name == "guided":
            prefix = self.write_aligned_pieces()
            dictionary = self.data("plain") / f"dict.{source}.txt"
            flags += ["--align-suffix", "align", "--srcdict", dictionary]
        else:
            prefix = self.write_text(name, "train")
            flags += ["--subword", "sentencepiece", "--subword-size", self.arguments.subword_size]
        self.command("preprocess", *flags, "--trainpref", prefix)
        return folder

    def write_aligned_pieces(self) -> Path:
        """Write the training text in subwords with their alignment. Return the prefix."""
        task = TranslationTask.from_data_folder(self.data("plain"))
        prefix = self.out / "guided" / "train"
        pieces: list[list[str]] = [[], []]
        ids: list[list[Any]] = [[], []]
        for pair in self.pairs["train"]:
            if pair is None:
                pieces[0].append("")
                pieces[1].append("")
                continue
            for side, text in enumerate((task.source_text, task.target_text)):
                tokens = text.encode(pair[side].text)
                dictionary = (task.source_dictionary, task.target_dictionary)[side]
                pieces[side].append(" ".join(tokens))
                ids[side].append(dictionary.encode(tokens)[:-1])
        links = iter(symmetric_links(ids[0], ids[1]))
        lines = []
        for line in pieces[0]:
            pairs_of_line = next(links) if line else []
            lines.append(" ".join(f"{source}-{target}" for source, target in pairs_of_line))
        for side, language in enumerate(self.languages):
            write_lines(prefix.with_name(f"train.{language}"), pieces[side])
        write_lines(prefix.with_name("train.align"), lines)
        return prefix

    # --------------------------------------------------------------------- models and results

    def translator(self, name: str) -> Translator:
        """Train a model, or go on with its training, and return it with its text steps."""
        text, flags = MODELS[name]
        folder = self.out / name / "model"
        data = self.data(text)
        limits = ["--max-update", self.arguments.updates, "--seed", self.arguments.seed]
        words = f"{MODEL} {TRAINING} {REPORTING} {flags}".split()
        words += shlex.split(self.arguments.train_flags)
        self.command("train", data, *words, *limits, "--save-dir", folder)
        models, task, limit = load_models(folder / "checkpoint_last.safetensors", "auto", None)
        if text == "guided":
            # The model has learned from the subwords of the plain text.
            task = TranslationTask.from_data_folder(self.data("plain"))
        return Translator(models, task, "cpu", max_doc_tokens=limit, packed=True)

    def result(self, name: str) -> Record:
        """Return the scores of a model, which are measured unless they are in their file."""
        path = self.out / "results" / f"{name}.json"
        if not path.exists():
            if name == ALIGNER:
                record = self.measure_aligner()
            elif name == WORDS:
                record = self.measure_words(self.translator(name))
            else:
                record = self.measure_attention(self.translator(name))
            write_json(path, {"model": name, **self.settings(name), **record})
        record: Record = json.loads(path.read_text("utf-8"))
        return record

    def settings(self, name: str) -> Record:
        """Return the seed and the number of updates of a model."""
        results = self.out / name / "model" / RESULTS_FILE
        if not results.exists():
            return {}
        updates = json.loads(results.read_text("utf-8"))["num_updates"]
        return {"updates": updates, "seed": self.arguments.seed}

    def measure_attention(self, translator: Translator) -> Record:
        """Return the scores of tags placed by attention, and by position for the same texts."""
        pairs = self.measured("test")
        placed = measure.translate(translator, pairs, self.arguments.beam)
        position = measure.place_known(pairs, measure.by_position(pairs, measure.texts_of(placed)))
        layers = measure.Layers.of(translator, pairs)
        layer, heads = measure.aligning_heads(translator)
        forced = measure.place_known(pairs, layers.translations(layer, heads))
        references = measure.texts_of(measure.targets_of(pairs))
        forced_position = measure.place_known(pairs, measure.by_position(pairs, references))
        return {
            "translations": measure.translation_scores(placed, pairs),
            "references": measure.forced_scores(forced, pairs),
            "protected": measure.protected_scores(translator, pairs, self.arguments.beam),
            "null rows": layers.null_rows(),
            "layers": self.layer_scores(translator),
            POSITION: {
                "translations": measure.translation_scores(position, pairs),
                "references": measure.forced_scores(forced_position, pairs),
            },
            "placed": list(map(TaggedText.markup, placed)),
            "placed by position": list(map(TaggedText.markup, position)),
        }

    def layer_scores(self, translator: Translator) -> list[Record]:
        """Return F1 of the validation set by the mean of all heads of a layer, and by each head."""
        pairs = self.measured("valid")
        layers = measure.Layers.of(translator, pairs)
        records = []
        for layer in range(measure.num_layers(translator)):
            mean = measure.place_known(pairs, layers.translations(layer))
            heads = []
            for head in range(layers.weights[0].shape[1] if pairs else 0):
                chosen = layers.translations(layer, slice(head, head + 1))
                scores = measure.forced_scores(measure.place_known(pairs, chosen), pairs)
                heads.append(scores["f1"])
            scores = measure.forced_scores(mean, pairs)
            records.append({"mean": scores["f1"], "heads": heads, "tags": scores["tags"]})
        return records

    def measure_words(self, translator: Translator) -> Record:
        """Return the scores of the model that has tags as words."""
        pairs = self.measured("test")
        lines = []
        for source, _ in pairs:
            lines.append(source.words(self.symbols))
        beam = self.arguments.beam
        with warnings.catch_warnings():
            # An untrained model may write up to the longest output, which gives a warning.
            warnings.simplefilter("ignore")
            written = translator.translate(lines, beam=beam, max_len_a=1.2, max_len_b=10)
        placed = []
        for line in written:
            placed.append(tagged_text.of_words(line, self.symbols))
        scores = measure.translation_scores(placed, pairs)
        return {"translations": scores, "placed": list(map(TaggedText.markup, placed))}

    def measure_aligner(self) -> Record:
        """Return the scores of a statistical alignment and of positions, without any model."""
        pairs = self.measured("test")
        text = self.text_pairs("train")
        placed = measure.place_known(pairs, measure.by_aligner(pairs, text))
        references = measure.texts_of(measure.targets_of(pairs))
        position = measure.place_known(pairs, measure.by_position(pairs, references))
        return {
            "references": measure.forced_scores(placed, pairs),
            POSITION: {"references": measure.forced_scores(position, pairs)},
            "placed": list(map(TaggedText.markup, placed)),
            "placed by position": list(map(TaggedText.markup, position)),
        }

    def examples(self, records: Sequence[Record]) -> list[dict[str, str]]:
        """Return examples from the first model that has enough segments of :meth:`_agreeing`.

        The aligner comes last, since it places tags on the references.
        """
        for record in sorted(records, key=lambda record: record["model"] == ALIGNER):
            numbers = self._agreeing(record)
            if len(numbers) >= NUM_EXAMPLES:
                numbers = numbers[:: len(numbers) // NUM_EXAMPLES][:NUM_EXAMPLES]
                return [self._example(number, record, records) for number in numbers]
        return []

    def _agreeing(self, record: Record) -> list[int]:
        """Return segments that agree with the reference, but position places the tags otherwise."""
        numbers: list[int] = []
        if "placed by position" not in record:
            return numbers
        for number, (_, target) in enumerate(self.measured("test")):
            placed = record["placed"][number]
            text = TaggedText.of_markup(placed).text
            agrees = measure.agreement(text, target.text) >= measure.AGREEMENT
            if agrees and placed != record["placed by position"][number]:
                numbers.append(number)
        return numbers

    def _example(self, number: int, chosen: Record, records: Sequence[Record]) -> dict[str, str]:
        """Return a segment with the tags of each model, and of the chosen model by position."""
        source, target = self.measured("test")[number]
        example = {"source": source.markup(), "reference": target.markup()}
        for record in records:
            if "placed" in record:
                example[record["model"]] = record["placed"][number]
        return {**example, POSITION: chosen["placed by position"][number]}


def write_json(path: Path, content: object) -> None:
    """Write a file of results. After an error nothing is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json_text(content))


# ------------------------------------------------------------------------- the report


def table(records: Sequence[Record]) -> str:
    """Return the scores of all models as a table of Markdown."""
    lines = [
        "| tags | updates | sound, % | F1, own words | exact, % | tags | F1, references | exact, % "
        "| tags | BLEU |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for record in records:
        lines.append(table_row(record["model"], record))
        if POSITION in record:
            lines.append(table_row(f"{record['model']}, by position", record[POSITION]))
    return "\n".join(lines)


def table_row(name: str, record: Record) -> str:
    """Return a row of the table. Not every record has tags of translations and of references."""
    cells = [name, str(record.get("updates", ""))]
    scores = record.get("translations")
    bleu = ""
    if scores is None:
        cells += [""] * 4
    else:
        cells += [f"{scores['sound']:.1f}", f"{scores['f1']:.1f}", f"{scores['exact']:.1f}"]
        cells.append(f"{scores['tags']:,}")
        bleu = f"{scores['bleu']:.1f}"
    forced = record.get("references")
    if forced is None:
        cells += [""] * 3
    else:
        cells += [f"{forced['f1']:.1f}", f"{forced['exact']:.1f}", f"{forced['tags']:,}"]
    return "| " + " | ".join([*cells, bleu]) + " |"


def layer_table(records: Sequence[Record]) -> str:
    """Return F1 of the validation set by layer and head as a table of Markdown."""
    lines = ["| model | layer | mean of heads | heads |", "| --- | --- | --- | --- |"]
    for record in records:
        for number, layer in enumerate(record.get("layers", ())):
            heads = ", ".join(f"{score:.1f}" for score in layer["heads"])
            lines.append(f"| {record['model']} | {number} | {layer['mean']:.1f} | {heads} |")
    return "\n".join(lines)


def protected_table(records: Sequence[Record]) -> str:
    """Return the scores of sentences with protected texts as a table of Markdown."""
    lines = [
        "| model | protected texts | copied | BLEU | BLEU, forced |",
        "| --- | --- | --- | --- | --- |",
    ]
    for record in records:
        if "protected" in record:
            scores = record["protected"]
            counts = f"{scores['texts']} | {scores['copied']}"
            bleu = f"{scores['bleu']:.1f} | {scores['forced bleu']:.1f}"
            lines.append(f"| {record['model']} | {counts} | {bleu} |")
    return "\n".join(lines)


def report(run: Run, records: Sequence[Record]) -> None:
    """Print the tables and the examples, and write them with all numbers."""
    numbers = []
    for record in records:
        numbers.append({name: record[name] for name in record if not name.startswith("placed")})
    counts = {}
    measured = {}
    for split in SPLITS:
        counts[split] = len(run.text_pairs(split))
        measured[split] = len(run.with_same_tags(split))
    examples = run.examples(records)
    content = {"pairs": counts, "with the same tags": measured, "models": numbers}
    write_json(run.out / "results.json", {**content, "examples": examples})
    parts = [json.dumps({"pairs": counts, "with the same tags": measured}), table(records)]
    parts += [protected_table(records), layer_table(records)]
    for example in examples:
        parts.append("\n".join(f"- {name}: `{text}`" for name, text in example.items()))
    text = "\n\n".join(parts)
    write_text(run.out / "report.md", text + "\n")
    print(text)


def parse_arguments() -> argparse.ArgumentParser:
    """Return the parser of the script."""
    parser = make_parser("run.py", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=Path("markup-run"), help="folder of all files")
    parser.add_argument("--corpus", type=Path, help="folder of a tagged text of your own")
    parser.add_argument("--source-lang", default="de", help="language to translate from (de)")
    parser.add_argument("--target-lang", default="en", help="language to translate into (en)")
    names = [ALIGNER, *MODELS]
    parser.add_argument("--models", nargs="+", choices=names, default=names, help="all by default")
    parser.add_argument("--updates", type=int, default=4000, help="of each training (4000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the trainings (1)")
    parser.add_argument("--subword-size", type=int, default=4000, help="subwords (4000)")
    parser.add_argument("--held-out", type=int, default=200, help="documents of valid and test")
    parser.add_argument("--most-segments", type=int, default=1000, help="to be measured (1000)")
    parser.add_argument("--beam", type=int, default=5, help="beam of the search (5)")
    parser.add_argument("--train-flags", default="", help="more flags of all trainings, in quotes")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Do all steps that are not done, and report. Return the exit code."""

    def run(arguments: argparse.Namespace) -> None:
        steps = Run(arguments)
        steps.read_texts()
        report(steps, [steps.result(name) for name in arguments.models])

    return run_command(parse_arguments(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
