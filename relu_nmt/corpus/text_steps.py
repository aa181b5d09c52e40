"""The part of relu-nmt-preprocess between the raw text and the tokens.

Training text whose subword model is to be learnt goes through two steps, raw text to words and
words to pieces, with the learning between them; all other text goes through one. Text that comes
prepared is not copied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from relu_nmt.corpus.preprocess_config import PreprocessConfig
from relu_nmt.corpus.segmentation import Conversion, convert_texts, document_sizes
from relu_nmt.data.binarize import count_words
from relu_nmt.data.data_folder import documents_path, raw_path
from relu_nmt.data.groups import DOCUMENT_TAG, write_documents
from relu_nmt.data.journal import Journal
from relu_nmt.data.split import check_parallel
from relu_nmt.errors import DataError
from relu_nmt.io.progress_bar import ProgressBar
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.io.text_lines import TextFile, read_chunk, scan_text
from relu_nmt.io.worker_pool import ordered_map
from relu_nmt.tokenization.base import load_subword, subword_file_name, subword_models
from relu_nmt.tokenization.pipeline import TextPipeline

SideKey = tuple[str, str]
"""Split and language: ("train", "de")."""


class TextSteps:
    """Turns all input texts into tokens between spaces.

    Args:
        config: the settings of the whole job.
        folder: the data folder.
        workers: processes.
        journal: the finished steps; its folder takes the texts between the steps.
        say: told in one line what was made.

    Attributes:
        num_documents: documents of each split whose boundaries are known.
    """

    def __init__(
        self,
        config: PreprocessConfig,
        folder: Path,
        workers: int,
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._folder = folder
        self._workers = workers
        self._journal = journal
        self._say = say
        self._inputs: dict[SideKey, TextFile] = {}
        self.num_documents: dict[str, int] = {}
        self._model_paths: dict[str, Path | None] = {}

    def run(self, inputs: Mapping[SideKey, TextFile]) -> dict[SideKey, TextFile]:
        """Return the text of each side of each split, tokens between spaces.

        Raises:
            DataError: the sides differ in sentences or document boundaries.
            ConfigError: the subword model cannot be learnt as asked for.
        """
        config = self._config
        self._inputs = dict(inputs)
        todo = {key: text for key, text in inputs.items() if key[0] == "train"}
        done: dict[SideKey, TextFile] = {}
        if config.learns_subwords:
            words = self._through(todo, "words")
            self._model_paths = self._learn(words)
            done = self._through(words, "pieces")
            todo = {}
        elif config.subword_model is not None:
            self._model_paths = self._copy_model(config.subword_model)
        if not config.dict_only:
            todo = {key: text for key, text in inputs.items() if key not in done}
        done |= self._through(todo, "tokens")
        return done

    def kept_files(self) -> list[Path]:
        """Return the files, other than dictionaries and binarised data, that stay."""
        kept = [path for path in self._model_paths.values() if path is not None]
        kept += [self._documents_path(split) for split in self.num_documents]
        kept += [self._raw_path(key) for key in self._inputs if key[0] != "train"]
        return list(dict.fromkeys(kept))

    def descriptions(self) -> dict[str, dict[str, Any]]:
        """Return each language's pipeline as the manifest describes it."""
        return {
            language: {
                "tokenizer": self._config.tokenizer,
                "lowercase": self._config.lowercase,
                "subword": self._config.subword,
                "subword_file": path.name if (path := self._model_paths.get(language)) else None,
            }
            for language in self._config.languages
        }

    def _documents_path(self, split: str) -> Path:
        return documents_path(self._folder, split, self._config.pair)

    def _raw_path(self, key: SideKey) -> Path:
        return raw_path(self._folder, key[0], self._config.pair, key[1])

    def _pipelines(self) -> dict[str, TextPipeline]:
        """Return the pipelines by language; without subwords before the models are there."""
        config = self._config
        return {
            language: TextPipeline(
                language,
                config.tokenizer,
                config.lowercase,
                load_subword(config.subword, self._model_paths.get(language)),
            )
            for language in config.languages
        }

    def _through(
        self,
        texts: Mapping[SideKey, TextFile],
        step: str,
    ) -> dict[SideKey, TextFile]:
        """Take texts through a step; those that it would not change stay where they are."""
        pipelines = self._pipelines()
        result: dict[SideKey, TextFile] = {}
        planned: dict[SideKey, Conversion] = {}
        for key, text in texts.items():
            conversion = self._plan(key, text, pipelines[key[1]], step)
            if conversion is None:
                result[key] = text
            else:
                planned[key] = conversion
        counts = self._convert(list(planned.values()), pipelines)
        written = {
            key: str(conversion.output or conversion.raw_output)
            for key, conversion in planned.items()
        }
        scanned = dict(ordered_map(scan_text, list(written.values()), self._workers))
        result |= {key: scanned[path] for key, path in written.items()}
        if step != "pieces":
            for split in dict.fromkeys(split for split, _ in planned):
                self._check_sides(split, counts)
        return result

    def _plan(
        self, key: SideKey, text: TextFile, pipeline: TextPipeline, step: str
    ) -> Conversion | None:
        """Return what is to be done with a text; None if nothing."""
        split, language = key
        separator = "none" if step == "pieces" else self._config.document_separator
        is_train = split == "train"
        if step != "pieces" and pipeline.keeps_text:
            step = "keep"
            if is_train and separator == "none":
                return None
        output: Path | None = self._journal.folder / f"{split}.{language}.{step}"
        if step == "keep" and not is_train:
            output = None  # The raw sentences that are kept anyway are the tokens.
        raw_output = None if is_train else self._raw_path(key)
        name = f"{split}.{language}"
        return Conversion(name, text, language, step, separator, output, raw_output)

    def _convert(
        self, conversions: Sequence[Conversion], pipelines: Mapping[str, TextPipeline]
    ) -> dict[str, dict[str, Any]]:
        """Do the conversions that are not done yet; return sentences and boundaries by name."""
        known = {c.name: self._journal.result(f"{c.name}.{c.step}") for c in conversions}
        todo = [c for c in conversions if known[c.name] is None]
        if todo:
            label = {"words": "tokenise", "pieces": "split", "keep": "copy"}
            total = sum(c.text.num_bytes for c in todo)
            with ProgressBar(label.get(todo[0].step, "convert"), total) as progress:
                for conversion, done in convert_texts(
                    todo, pipelines, self._workers, progress.advance
                ):
                    result = {"sentences": done.sentences, "boundaries": done.boundaries}
                    step = f"{conversion.name}.{conversion.step}"
                    self._journal.note(step, result, done.checksums)
                    known[conversion.name] = result
        return known

    def _check_sides(self, split: str, counts: Mapping[str, Mapping[str, Any]]) -> None:
        """Compare sentences and document boundaries of a split; write the latter down."""
        paths = {
            language: self._inputs[split, language].path for language in self._config.languages
        }
        found = {paths[language]: counts[f"{split}.{language}"] for language in paths}
        for path, side in found.items():
            if side["sentences"] == 0:
                raise DataError(f"{path}: no sentences in it, only document separators")
            if self._config.document_separator == "tag" and not side["boundaries"]:
                raise DataError(
                    f"{path}: no line {DOCUMENT_TAG} in it, but --document-separator tag expects "
                    "one before each document"
                )
        if self._config.document_separator != "none":
            sizes = document_sizes(
                [(path, side["sentences"], side["boundaries"]) for path, side in found.items()]
            )
            write_documents(self._documents_path(split), sizes)
            self.num_documents[split] = len(sizes)
        check_parallel({path: side["sentences"] for path, side in found.items()}, "sentences")

    def _model_path(self, language: str | None) -> Path:
        return self._folder / subword_file_name(self._config.subword, language)

    def _copy_model(self, given: str) -> dict[str, Path | None]:
        """Copy the given model into the folder, after checking that it is one."""
        load_subword(self._config.subword, given)
        path = self._model_path(None)
        content = Path(given).read_bytes()
        with safe_writer(path) as file:
            file.write(content)
        return dict.fromkeys(self._config.languages, path)

    def _learn(self, words: Mapping[SideKey, TextFile]) -> dict[str, Path | None]:
        """Learn the subword models on the tokenised training text: joint, or one a language."""
        paths: dict[str, Path | None] = {}
        for group in self._config.sharing:
            path = self._model_path(None if self._config.joined_dictionary else group[0])
            texts = [words["train", language] for language in group]
            self._journal.finish(
                f"subword model {path.name}",
                partial(self._learn_one, path, texts),
                (path,),
            )
            paths |= dict.fromkeys(group, path)
        return paths

    def _learn_one(self, path: Path, texts: Sequence[TextFile]) -> bool:
        config = self._config
        self._say(f"learning {config.subword_size} subwords for {path.name}")
        text = _TrainingText(texts, self._workers)
        content = subword_models.get(config.subword).learn(text, config.subword_size, config.seed)
        with safe_writer(path) as file:
            file.write(content)
        return True


class _TrainingText:
    """The tokenised training text of one language or of all, for learning.

    Args:
        texts: its files.
        workers: processes that count words.
    """

    def __init__(self, texts: Sequence[TextFile], workers: int) -> None:
        self._texts = texts
        self._workers = workers

    def sentences(self) -> Iterator[str]:
        """Yield the sentences that are not empty."""
        for text in self._texts:
            for chunk in text.readable_chunks():
                yield from filter(str.strip, read_chunk(chunk))

    def word_counts(self) -> Mapping[str, int]:
        """Return how often each word occurs."""
        total = sum(text.num_bytes for text in self._texts)
        with ProgressBar("count words", total) as progress:
            return count_words(self._texts, self._workers, progress.advance)
