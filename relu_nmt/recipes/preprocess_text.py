"""The text steps of relu-nmt-preprocess, from raw text to tokens, computed by all cores.

If a subword model is learnt, the training text goes through two steps: raw text to words, and words
to pieces. Learning takes place between them. All other text goes through one step, and tokenised
text is not copied.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from relu_nmt.cli.preprocess import PreprocessSettings
from relu_nmt.data.binarize import Advance
from relu_nmt.data.data_folder import Journal, split_path
from relu_nmt.data.documents import (
    DOCUMENT_TAG,
    SEPARATOR_TESTS,
    Boundaries,
    check_parallel,
    document_sizes,
    write_documents,
)
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.io.text_lines import Chunk, TextFile, encode_lines, read_chunk, scan_text
from relu_nmt.io.work import ordered_map, progress_bar
from relu_nmt.recipes.preprocess_inputs import SideKey
from relu_nmt.tokenization.base import (
    LearningText,
    load_subword,
    subword_file_name,
    subword_models,
)
from relu_nmt.tokenization.pipeline import TextPipeline, describe_round_trip


@dataclass(frozen=True)
class Conversion:
    """A text file to be converted, without its separator lines.

    Args:
        step: ``words`` (tokenise and lower-case), ``pieces`` (split words into subwords),
            ``tokens`` (both) or ``keep``.
        output: file of the result, one sentence per line; None for no file.
        raw_output: file of the unchanged sentences; None for no file.
        sampling: strength and seed of random subword splits; None for the usual split.
    """

    side: SideKey
    text: TextFile
    step: str
    separator: str
    output: Path | None
    raw_output: Path | None = None
    sampling: tuple[float, int] | None = None

    @property
    def name(self) -> str:
        """The name in the journal: "train.de.words"."""
        return ".".join((*self.side, self.step))


# _prepare_pipelines fills it in every worker.
_pipelines: dict[str, TextPipeline] = {}


def _prepare_pipelines(states: dict[str, Any]) -> None:
    _pipelines.clear()
    _pipelines.update((name, TextPipeline.from_state(state)) for name, state in states.items())


def _convert_chunk(
    task: tuple[int, Conversion, Chunk],
) -> tuple[int, Boundaries, dict[Path, bytes]]:
    """Return a chunk's number of sentences, its boundaries, and the bytes of each output file."""
    _, conversion, chunk = task
    separates = SEPARATOR_TESTS[conversion.separator]
    sentences: list[str] = []
    boundaries: Boundaries = []
    # Take separators out; note the sentences before each, and its line number.
    for number, line in enumerate(read_chunk(chunk), chunk.first_line):
        if separates(line):
            boundaries.append((len(sentences), number))
        else:
            sentences.append(line)
    # Convert the sentences for each output file.
    pipeline = _pipelines[conversion.side[1]]
    split = pipeline.subword.split
    if conversion.sampling is not None:
        strength, seed = conversion.sampling
        # One seed for each chunk, so that the result does not depend on the number of workers.
        draws = random.Random(f"{seed} {conversion.side} {chunk.first_line}")
        split = partial(pipeline.subword.sample, strength=strength, draws=draws)
    steps: dict[str, Callable[[str], str]] = {
        "words": lambda line: " ".join(pipeline.words(line)),
        "pieces": lambda line: " ".join(split(line.split())),
        "tokens": lambda line: " ".join(pipeline.between_symbols(split(pipeline.words(line)))),
        "keep": lambda line: line,
    }
    # Encode each requested file: the converted text, and the raw text if kept.
    parts = {}
    for path, step in ((conversion.output, conversion.step), (conversion.raw_output, "keep")):
        if path is not None:
            parts[path] = encode_lines([*map(steps[step], sentences)], chunk.first_line)
    return len(sentences), boundaries, parts


def convert_texts(
    conversions: Sequence[Conversion],
    pipelines: Mapping[str, TextPipeline],
    workers: int,
    advance: Advance,
) -> Iterator[tuple[Conversion, dict[str, Any], dict[Path, str]]]:
    """Convert text files; yield each conversion when its files are complete.

    With it come its number of ``sentences`` and its ``boundaries``, as JSON values, and the SHA-256
    of the written files, by path.
    """
    states = {language: pipeline.to_state() for language, pipeline in pipelines.items()}
    # Send the conversions without their lists of chunks, which are large.
    light = [replace(c, text=TextFile(c.text.path)) for c in conversions]
    # Make the tasks lazily, since chunks of compressed files carry their text.
    tasks = (
        (i, light[i], chunk)
        for i, conversion in enumerate(conversions)
        for chunk in conversion.text.readable_chunks()
    )
    results = ordered_map(_convert_chunk, tasks, workers, _prepare_pipelines, states)
    for i, pieces in groupby(results, key=lambda result: result[0][0]):
        # Write the parts of all chunks in order, and hash them on the way.
        outputs = (conversions[i].output, conversions[i].raw_output)
        hashes = {path: hashlib.sha256() for path in outputs if path is not None}
        sentences, boundaries = 0, []
        with ExitStack() as stack:
            files = {path: stack.enter_context(safe_writer(path)) for path in hashes}
            for (_, _, chunk), (count, inner, parts) in pieces:
                for path, data in parts.items():
                    files[path].write(data)
                    hashes[path].update(data)
                # Count sentences from the beginning of the file, not of the chunk.
                boundaries += [(sentences + before, line) for before, line in inner]
                sentences += count
                advance(chunk.end - chunk.start)
        # Yield only now, when the files are complete under their names.
        found = {"sentences": sentences, "boundaries": boundaries}
        yield conversions[i], found, {path: hashes[path].hexdigest() for path in hashes}


@dataclass
class TextSteps:
    """The steps that turn all input texts into tokens between spaces.

    The folder of the journal holds the texts between the steps. ``texts`` are a model's steps of
    each language; if empty, the settings decide.

    Attributes:
        num_documents: number of documents of each split with known boundaries.
        separators: line numbers of the separators in each split's source text.
        model_paths: file of the subword model of each language, if any.
    """

    config: PreprocessSettings
    folder: Path
    workers: int
    journal: Journal
    say: Callable[[str], None]
    inputs: Mapping[SideKey, TextFile]
    texts: Mapping[str, TextPipeline]
    num_documents: dict[str, int] = field(default_factory=dict, init=False)
    separators: dict[str, list[int]] = field(default_factory=dict, init=False)
    model_paths: dict[str, Path] = field(default_factory=dict, init=False)

    def run(self) -> dict[SideKey, TextFile]:
        """Return the text of each side of each split, tokens between spaces."""
        config = self.config
        # Learn the subword model on the words of the training text, or copy given ones.
        todo = {key: text for key, text in self.inputs.items() if key[0] == "train"}
        done: dict[SideKey, TextFile] = {}
        if config.learns_subwords:
            words = self._through(todo, "words")
            self._learn(words)
            done = self._through(words, "pieces")
            todo = {}
        else:
            self._copy_models()
        # Take the rest of the text through all steps at once.
        if not config.dict_only:
            todo = {key: text for key, text in self.inputs.items() if key not in done}
        done |= self._through(todo, "tokens")
        # Test on a sample that tokens decode to the original text.
        for language, pipeline in self.pipelines().items():
            if not pipeline.keeps_text:
                text = next(text for (_, own), text in self.inputs.items() if own == language)
                report = describe_round_trip(pipeline, text, config.document_separator)
                self.say(f"[{language}] {report}")
        return done

    def kept_files(self) -> list[Path]:
        """Return the files of the data folder other than dictionaries and binarised data."""
        kept = [*self.model_paths.values()]
        kept += [self._path(split, "documents") for split in self.num_documents]
        kept += [self._path(key[0], f"{key[1]}.raw") for key in self.inputs if key[0] != "train"]
        return list(dict.fromkeys(kept))

    def _path(self, split: str, ending: str) -> Path:
        return split_path(self.folder, split, self.config.pair, ending)

    def pipelines(self) -> dict[str, TextPipeline]:
        """Return the text steps of each language, without subwords before a model is learnt."""
        config = self.config
        return dict(self.texts) or {
            language: TextPipeline(
                language,
                config.tokenizer,
                config.lowercase,
                load_subword(config.subword, self.model_paths.get(language)),
            )
            for language in config.languages
        }

    def _through(self, texts: Mapping[SideKey, TextFile], step: str) -> dict[SideKey, TextFile]:
        """Take texts through a step; return the input itself for texts that it does not change."""
        pipelines = self.pipelines()
        result = dict(texts)
        # Plan the conversions; texts without one stay the same.
        planned = []
        for key, text in texts.items():
            conversion = self._plan(key, text, pipelines, step)
            if conversion is not None:
                planned.append(conversion)
        # Convert, and read through the results.
        found = self._convert(planned, pipelines)
        written = [str(conversion.output or conversion.raw_output) for conversion in planned]
        scanned = ordered_map(scan_text, written, self.workers)
        for conversion, (_, text) in zip(planned, scanned, strict=True):
            result[conversion.side] = text
        # Compare the sides once, in the step that removes separators.
        if step != "pieces":
            for split in dict.fromkeys(conversion.side[0] for conversion in planned):
                self._check_sides(split, found)
        return result

    def _plan(
        self, key: SideKey, text: TextFile, pipelines: Mapping[str, TextPipeline], step: str
    ) -> Conversion | None:
        """Return the conversion that a text needs; None if it needs none."""
        split, language = key
        separator = "none" if step == "pieces" else self.config.document_separator
        is_train = split == "train"
        # Copy text that the pipelines keep, or use the file where it is.
        keeps_text = all(own.keeps_text and not own.first_symbol for own in pipelines.values())
        if step != "pieces" and keeps_text:
            step = "keep"
            if is_train and separator == "none":
                return None
        # Keep the raw text of other splits, from which references come; it may be the tokens.
        is_output = is_train or step != "keep"
        output = self.journal.folder / f"{split}.{language}.{step}" if is_output else None
        raw_output = None if is_train else self._path(split, f"{language}.raw")
        # Draw random subwords for training text only.
        strength = self.config.subword_sampling if is_train else 0.0
        sampling = (strength, self.config.seed) if strength else None
        return Conversion(key, text, step, separator, output, raw_output, sampling)

    def _convert(
        self, conversions: Sequence[Conversion], pipelines: Mapping[str, TextPipeline]
    ) -> dict[SideKey, dict[str, Any]]:
        """Do the conversions that are not in the journal; return sentences and boundaries."""
        known = {c.side: self.journal.result(c.name) for c in conversions}
        todo = [c for c in conversions if known[c.side] is None]
        if todo:
            label = {"words": "tokenise", "pieces": "split", "keep": "copy"}
            total = sum(c.text.num_bytes for c in todo)
            with progress_bar(label.get(todo[0].step, "convert"), total) as advance:
                done = convert_texts(todo, pipelines, self.workers, advance)
                for conversion, found, checksums in done:
                    # Note each conversion at once, so that an interrupted run keeps it.
                    self.journal.note(conversion.name, found, checksums)
                    known[conversion.side] = found
        return known

    def _check_sides(self, split: str, found: Mapping[SideKey, Mapping[str, Any]]) -> None:
        """Compare sentences and document boundaries of a split's sides; write the boundaries."""
        sides = {
            self.inputs[split, language].path: found[split, language]
            for language in self.config.languages
        }
        for path, side in sides.items():
            if side["sentences"] == 0:
                raise DataError(f"{path}: no sentences in it, only document separators")
            if self.config.document_separator == "tag" and not side["boundaries"]:
                raise DataError(
                    f"{path}: no line {DOCUMENT_TAG} in it, but --document-separator tag expects "
                    "one before each document"
                )
        # Write the document boundaries.
        if self.config.document_separator != "none":
            sizes = document_sizes(
                [(path, side["sentences"], side["boundaries"]) for path, side in sides.items()]
            )
            write_documents(self._path(split, "documents"), sizes)
            self.num_documents[split] = len(sizes)
            # Keep the lines of the separators, since word alignments count all lines.
            of_source = found[split, self.config.languages[0]]
            self.separators[split] = [line for _, line in of_source["boundaries"]]
        # Compare the totals last, since differing documents give a more exact error.
        check_parallel({path: side["sentences"] for path, side in sides.items()}, "sentences")

    def _copy_models(self) -> None:
        """Write the subword model of each language, if any, into the folder, equal ones once."""
        config = self.config
        given = load_subword(config.subword, config.subword_model).content
        models = dict.fromkeys(config.languages, given)
        models |= {language: text.subword.content for language, text in self.texts.items()}
        is_joint = len(set(models.values())) == 1
        for language, content in models.items():
            if content is not None:
                name = subword_file_name(config.subword, None if is_joint else language)
                self.model_paths[language] = self.folder / name
                with safe_writer(self.folder / name) as file:
                    file.write(content)

    def _learn(self, words: Mapping[SideKey, TextFile]) -> None:
        """Learn a joint subword model, or one a language, on the tokenised training text."""
        config = self.config
        for group in config.sharing:
            language = None if config.joined_dictionary else group[0]
            path = self.folder / subword_file_name(config.subword, language)
            learn = partial(self._learn_one, path, [words["train", one] for one in group])
            self.journal.finish(f"subword model {path.name}", learn, (path,))
            self.model_paths |= dict.fromkeys(group, path)

    def _learn_one(self, path: Path, texts: Sequence[TextFile]) -> bool:
        config = self.config
        self.say(f"learning {config.subword_size} subwords for {path.name}")
        text = LearningText(texts, self.workers)
        content = subword_models.get(config.subword).learn(text, config.subword_size, config.seed)
        with safe_writer(path) as file:
            file.write(content)
        return True
