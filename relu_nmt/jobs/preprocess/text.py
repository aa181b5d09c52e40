"""The text of relu-nmt-preprocess: the inputs of a job, and their steps from raw text to tokens.

If a subword model is learned, the training text goes through two steps: raw text to words, and
words to pieces. Learning takes place between them. All other text goes through one step, and
tokenized text is not copied.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

from relu_nmt.data.data_folder import NEW_FILES, WORK_FOLDER, Journal, split_path
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import DOCUMENT_TAG, document_sizes, write_documents
from relu_nmt.data.pair_files import pair_format, scan_pairs
from relu_nmt.errors import DataError
from relu_nmt.io.process import available_cores
from relu_nmt.io.progress import progress_bar
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.io.text_lines import TextFile, find_text, scan_text
from relu_nmt.io.workers import call_aside, ordered_map
from relu_nmt.jobs.preprocess.conversions import Conversion, convert_texts
from relu_nmt.jobs.preprocess.settings import PreprocessSettings as Settings
from relu_nmt.tokenization import base
from relu_nmt.tokenization.pipeline import TextPipeline

SideKey = tuple[str, str]  # split and language: ("train", "de")


@dataclass
class Job:
    """A data folder to make, and the steps that turn its texts into tokens between spaces."""

    config: Settings  # with the languages of the model of --like
    say: Callable[[str], None]  # prints a line
    endings: dict[str, str]  # the ending of the files of each language
    # Text steps and dictionary of the model by language, empty without a model.
    texts: dict[str, TextPipeline] = field(default_factory=dict)
    dictionaries: dict[str, Dictionary] = field(default_factory=dict)
    # The number of documents of each split with boundaries. The separator lines of each source
    # text.
    num_documents: dict[str, int] = field(default_factory=dict, init=False)
    separators: dict[str, list[int]] = field(default_factory=dict, init=False)
    model_paths: dict[str, Path] = field(default_factory=dict, init=False)  # by language
    open_files: ExitStack = field(default_factory=ExitStack, init=False)  # made by ``new_file``
    journal: Journal = field(init=False)  # the finished steps, once the folder is locked

    @property
    def folder(self) -> Path:
        """The data folder."""
        return Path(self.config.destdir).absolute()

    @property
    def work(self) -> Path:
        """The folder of the journal and of text that the data folder will not have."""
        return self.folder / WORK_FOLDER

    @property
    def new_files(self) -> Path:
        """The folder of the data folder's files until all are complete."""
        return self.work / NEW_FILES

    @property
    def workers(self) -> int:
        """Number of processes."""
        return self.config.workers or available_cores()

    @cached_property
    def inputs(self) -> dict[SideKey, TextFile]:
        """The text of each side of each split, as it is given, read through and compared."""
        config = self.config
        endings = self.endings
        pair_files, paths = _find_texts(config, endings)
        # Read a file once, even if several splits or sides name it.
        distinct = list(dict.fromkeys(paths.values()))
        scanned: dict[str, TextFile] = {}
        inputs: dict[SideKey, TextFile] = {}
        report = []
        # Read through text files in parallel, and files of pairs one by one.
        total = sum(os.path.getsize(path) for path in (*distinct, *pair_files.values()))
        with progress_bar("scan", total) as advance:
            for path, text in ordered_map(scan_text, distinct, self.workers):
                scanned[path] = text
                advance(os.path.getsize(path))
            for split, path in pair_files.items():
                languages = [*endings.values()]
                sides, line = scan_pairs(path, languages, config.document_separator, self.new_file)
                for language, side in zip(endings, sides, strict=True):
                    inputs[split, language] = side
                report.append(line)
                advance(os.path.getsize(path))
        for line in report:
            self.say(line)
        # Put the sides in the order of splits and languages.
        for split in config.splits():
            for language in config.languages:
                key = (split, language)
                inputs[key] = scanned[paths[key]] if key in paths else inputs.pop(key)
        self._check_lines(inputs)
        return inputs

    def _check_lines(self, inputs: Mapping[SideKey, TextFile]) -> None:
        """Refuse empty files, and without separators also sides with different numbers of lines."""
        for text in inputs.values():
            if text.num_lines == 0:
                raise DataError(
                    f"{text.path}: the file is empty; give text, or leave the split out"
                )
        if self.config.document_separator != "none":
            return
        for split in self.config.splits():
            texts = [inputs[split, language] for language in self.config.languages]
            check_parallel({text.path: text.num_lines for text in texts}, "lines")
            # Warn of blank lines, which may be boundaries of documents.
            num_blank = min(text.num_blank for text in texts)
            if num_blank:
                self.say(
                    f"NOTE: {texts[0].path}: {num_blank:,} blank lines become sentences without "
                    "words; if they stand between documents, give --document-separator blank"
                )

    @cached_property
    def alignments(self) -> dict[str, TextFile]:
        """The word alignments of each split that has some, as the training text must."""
        config = self.config
        if config.align_suffix is None:
            return {}
        existing: dict[str, str] = {}
        missing: dict[str, str] = {}
        for split, prefix in config.splits().items():
            path = find_text(str(Path(f"{prefix}.{config.align_suffix}")))
            if os.path.isfile(path):
                existing[split] = path
            else:
                missing[split] = path
        # Only the training text, or else the first split, must have alignments.
        if "train" in missing or not existing:
            raise DataError(
                f"{next(iter(missing.values()))}: no such file; it is to hold the word alignments "
                f"(--align-suffix {config.align_suffix}), a line for each line of the text"
            )
        for split, path in missing.items():
            self.say(f"[alignments] {path}: no such file, so that {split} has none")
        scanned = ordered_map(scan_text, list(existing.values()), self.workers)
        alignments: dict[str, TextFile] = {}
        for split, (_, text) in zip(existing, scanned, strict=True):
            alignments[split] = text
            source = self.inputs[split, config.languages[0]]
            check_parallel({file.path: file.num_lines for file in (source, text)}, "lines")
        return alignments

    def new_file(self) -> BinaryIO:
        """Open a file without a name, on the disk of the data folder, which need not exist yet."""
        disk = next(path for path in (self.folder, *self.folder.parents) if path.is_dir())
        try:
            return self.open_files.enter_context(tempfile.TemporaryFile(dir=disk))
        except OSError:  # the disk of a finished folder may be read-only
            return self.open_files.enter_context(tempfile.TemporaryFile())

    def path(self, split: str, ending: str) -> Path:
        """Return the path of a new file of a split, see :func:`split_path`."""
        return split_path(self.new_files, split, self.config.pair, ending)

    def tokens(self) -> dict[SideKey, TextFile]:
        """Return the text of each side of each split, tokens between spaces."""
        config = self.config
        # Learn the subword model on the words of the training text, or copy given models.
        train = {key: text for key, text in self.inputs.items() if key[0] == "train"}
        done: dict[SideKey, TextFile] = {}
        if config.learns_subwords:
            words = self._through(train, "words")
            self._learn(words)
            done = self._through(words, "pieces")
        else:
            self._copy_models()
        # Take the rest of the text through all steps at once.
        texts = train if config.dict_only else self.inputs
        remaining = {key: text for key, text in texts.items() if key not in done}
        return done | self._through(remaining, "tokens")

    def pipelines(self) -> dict[str, TextPipeline]:
        """Return the text steps of each language, without subwords before a model is learned."""
        if self.texts:
            return dict(self.texts)
        config = self.config
        pipelines: dict[str, TextPipeline] = {}
        for language in config.languages:
            subword = base.load_subword(config.subword, self.model_paths.get(language))
            pipelines[language] = TextPipeline(
                language, config.tokenizer, config.lowercase, subword
            )
        return pipelines

    def _through(self, texts: Mapping[SideKey, TextFile], step: str) -> dict[SideKey, TextFile]:
        """Take texts through a step. Return the input itself for texts that it does not change."""
        pipelines = self.pipelines()
        planned: dict[SideKey, Conversion] = {}
        for side, text in texts.items():
            conversion = self._plan(side, text, pipelines, step)
            if conversion is not None:
                planned[side] = conversion

        def convert(sides: list[SideKey]) -> Iterator[dict[str, Any]]:
            todo = [planned[side] for side in sides]
            label = {"words": "tokenize", "pieces": "split", "keep": "copy"}
            total = sum(c.text.num_bytes for c in todo)
            with progress_bar(label.get(todo[0].step, "convert"), total) as advance:
                yield from convert_texts(todo, pipelines, self.workers, advance)

        files = {side: [*conversion.outputs] for side, conversion in planned.items()}
        form = {"sentences": int, "boundaries": list[tuple[int, int]]}
        done = self.journal.finish_all(files, convert, form)
        written = [str(paths[0]) for paths in files.values()]
        scanned = dict(texts)
        results = ordered_map(scan_text, written, self.workers)
        for side, (_, text) in zip(planned, results, strict=True):
            scanned[side] = text
        # Compare the sides once, in the step that removes separators.
        if step != "pieces":
            for split in dict.fromkeys(split for split, _ in planned):
                self._check_sides(split, done)
        return scanned

    def _plan(
        self, key: SideKey, text: TextFile, pipelines: Mapping[str, TextPipeline], step: str
    ) -> Conversion | None:
        """Return the conversion that a text needs, or None."""
        split, language = key
        separator = "none" if step == "pieces" else self.config.document_separator
        is_train = split == "train"
        # Copy text that the pipelines keep, or use the file where it is.
        keeps_text = all(text.keeps_text and not text.first_symbol for text in pipelines.values())
        if step != "pieces" and keeps_text:
            step = "keep"
            if is_train and separator == "none":
                return None
        # Keep the raw text of other splits for references. It may equal the tokens.
        outputs = {}
        if is_train or step != "keep":
            outputs[self.work / f"{split}.{language}.{step}"] = step
        if not is_train:
            outputs[self.path(split, f"{language}.raw")] = "keep"
        # Draw random subwords for training text only.
        strength = self.config.subword_sampling if is_train else 0.0
        sampling = (strength, self.config.seed) if strength else None
        return Conversion(key, text, step, separator, outputs, sampling)

    def _check_sides(self, split: str, scans: Mapping[SideKey, Mapping[str, Any]]) -> None:
        """Compare sentences and document boundaries of a split's sides. Write the boundaries."""
        config = self.config
        sides = {self.inputs[split, la].path: scans[split, la] for la in config.languages}
        for path, side in sides.items():
            if side["sentences"] == 0:
                raise DataError(f"{path}: no sentences in it, only document separators; give text")
            if config.document_separator == "tag" and not side["boundaries"]:
                raise DataError(
                    f"{path}: no line {DOCUMENT_TAG} in it, but --document-separator tag expects "
                    "one before each document; add them, or take another separator"
                )
        if config.document_separator != "none":
            sizes = document_sizes(
                [(path, side["sentences"], side["boundaries"]) for path, side in sides.items()]
            )
            side_file = self.path(split, "documents")
            write = partial(write_documents, side_file, sizes)
            self.journal.finish(write, [side_file])
            self.num_documents[split] = len(sizes)
            # Keep the lines of the separators, since word alignments count all lines.
            boundaries = scans[split, config.languages[0]]["boundaries"]
            self.separators[split] = [line for _, line in boundaries]
        # Compare the totals last, since differing documents give a more exact error.
        check_parallel({path: side["sentences"] for path, side in sides.items()}, "sentences")

    def _copy_models(self) -> None:
        """Write the subword models into the folder: one file if all languages have the same."""
        config = self.config
        paths = (config.subword_model, config.target_subword_model or config.subword_model)
        models = {}
        for language, path in zip(config.languages, paths, strict=False):
            models[language] = base.load_subword(config.subword, path).content
        for language, pipeline in self.texts.items():
            models[language] = pipeline.subword.content
        is_joint = len(set(models.values())) == 1
        for language, content in models.items():
            if content is not None:
                file = self._model_path(None if is_joint else language)
                self.model_paths[language] = file
                self.journal.finish(partial(_write, file, content), [file])

    def _learn(self, words: Mapping[SideKey, TextFile]) -> None:
        """Learn a joint subword model, or one a language, on the tokenized training text."""
        for group in self.config.sharing:
            path = self._model_path(None if self.config.joined_dictionary else group[0])
            learn = partial(self._learn_one, path, [words["train", language] for language in group])
            self.journal.finish(learn, [path])
            self.model_paths |= dict.fromkeys(group, path)

    def _learn_one(self, path: Path, texts: Sequence[TextFile]) -> None:
        config = self.config
        self.say(f"learning {config.subword_size} subwords for {path.name}")
        text = base.LearningText(texts, self.workers)
        kind = base.subword_models.get(config.subword)
        learn = partial(kind.learn, text, config.subword_size, config.seed)
        content = call_aside(learn, f"learning {path.name}")
        num_learned = kind.load(content).num_learned
        if num_learned is not None and num_learned < config.subword_size:
            self.say(
                f"NOTE: {path.name} has {num_learned} subwords instead of {config.subword_size} "
                "(--subword-size): the training text gives no more"
            )
        _write(path, content)

    def _model_path(self, language: str | None) -> Path:
        return self.new_files / base.subword_file_name(self.config.subword, language)


def _write(path: Path, content: bytes) -> None:
    with safe_writer(path) as file:
        file.write(content)


def make_job(settings: Settings, say: Callable[[str], None]) -> Job:
    """Return the job of the settings, with languages, steps and dictionaries of ``--like``."""
    if settings.like is None:
        return Job(settings, say, dict(zip(settings.languages, settings.languages, strict=True)))
    # Import late what needs PyTorch.
    from relu_nmt.jobs.preprocess.like import job_like

    return job_like(settings, settings.like, say)


def _find_texts(
    config: Settings, endings: Mapping[str, str]
) -> tuple[dict[str, str], dict[SideKey, str]]:
    """Return the files of pairs by split, and the text files of all other splits."""
    pair_files: dict[str, str] = {}
    paths: dict[SideKey, str] = {}
    for split, prefix in config.splits().items():
        # Text files with the language as ending come before a file of pairs.
        files = {la: find_text(str(Path(f"{prefix}.{endings[la]}"))) for la in endings}
        if not any(map(os.path.isfile, files.values())) and pair_format(prefix):
            if not os.path.isfile(prefix):
                raise DataError(f"{prefix}: no such file")
            pair_files[split] = prefix
            continue
        for language, path in files.items():
            if not os.path.isfile(path):
                flag = f"--{split.rstrip('0123456789')}pref"
                raise DataError(
                    f"{path}: no such file; its name is that of {flag} with the language "
                    f"'{endings[language]}' after a dot (and .gz, .xz, .bz2 or .zst if it is "
                    "compressed)"
                )
            paths[split, language] = path
    return pair_files, paths


def check_parallel(counts: Mapping[str, int], unit: str) -> None:
    """Refuse files with different numbers of lines or sentences (the ``unit``)."""
    (path, count), *other_counts = counts.items()
    for other, other_count in other_counts:
        if other_count != count:
            raise DataError(
                f"{path}: {count:,} {unit}, but {other} has {other_count:,}; both sides must be "
                "parallel, line by line"
            )
