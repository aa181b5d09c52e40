"""The steps of relu-nmt-preprocess from raw text to tokens between spaces.

If a subword model is learned, the training text goes through two steps: raw text to words, and
words to pieces. Learning takes place between them. All other text goes through one step, and
tokenized text is not copied.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from relu_nmt.data.binarize import Advance
from relu_nmt.data.data_folder import Journal
from relu_nmt.data.documents import (
    DOCUMENT_TAG,
    SEPARATOR_TESTS,
    Boundaries,
    document_sizes,
    write_documents,
)
from relu_nmt.errors import DataError, reporting
from relu_nmt.io.progress import progress_bar
from relu_nmt.io.safe_write import safe_writer
from relu_nmt.io.text_lines import Chunk, TextFile, encode_lines, read_chunk, scan_text
from relu_nmt.io.workers import call_aside, map_chunks, ordered_map
from relu_nmt.jobs.preprocess.inputs import Inputs, NewFolder, SideKey, check_parallel
from relu_nmt.tokenization import base
from relu_nmt.tokenization.pipeline import TextPipeline

SAMPLED_LINES = 1000
SAMPLED_CHUNKS = 20
SAMPLED_CHARACTERS = 1_000_000
SMALL_SHARE = 0.01  # share of changed lines that is too small for advice
Scans = dict[SideKey, dict[str, Any]]  # the ``sentences`` and ``boundaries`` of converted texts


class Step(Enum):
    """A step from raw text to tokens. The values are labels of progress bars."""

    WORDS = "tokenize"  # raw text to words
    PIECES = "split"  # words to tokens
    TOKENS = "convert"  # raw text to tokens
    KEEP = "copy"


@dataclass(frozen=True)
class Conversion:
    """The conversion of a text file without its separator lines."""

    side: SideKey
    separator: str
    outputs: Mapping[Path, Step]  # the files to write. The first one goes on to later steps
    # Strength and seed of random subword splits. None for the usual split.
    sampling: tuple[float, int] | None = None


class Documents(NamedTuple):
    """The documents of a split: their number, and the separator lines of the source text."""

    number: int
    separator_lines: list[int]


@dataclass(frozen=True)
class TokenizedText:
    """The text before and after all steps, and what the steps used and found."""

    inputs: Inputs
    texts: dict[SideKey, TextFile]  # tokens between spaces
    pipelines: dict[str, TextPipeline]  # by language
    model_paths: dict[str, Path]  # new files of subword models, by language
    documents: dict[str, Documents]  # of each split, if boundaries are given


def tokenize(folder: NewFolder, inputs: Inputs, journal: Journal) -> TokenizedText:
    """Turn all text into tokens. With ``dict_only``, the training text."""
    texts = inputs.texts
    train = {side: text for side, text in texts.items() if side[0] == "train"}
    if folder.config.dict_only:
        texts = train
    pieces: dict[SideKey, TextFile] = {}
    documents: dict[str, Documents] = {}
    # Learn the subword model on the words of the training text, or copy given models.
    if folder.config.learns_subwords:
        pipelines = _pipelines(folder, {})
        words, scans = _convert(folder, journal, pipelines, train, _needed(Step.WORDS, pipelines))
        documents = _find_documents(folder, journal, inputs, scans)
        model_paths = _learn_models(folder, journal, words)
        pipelines = _pipelines(folder, model_paths)
        pieces, _ = _convert(folder, journal, pipelines, words, Step.PIECES)
    else:
        model_paths = _copy_models(folder, journal)
        pipelines = _pipelines(folder, model_paths)
    # Take the rest of the text through all steps at once.
    remaining = {side: text for side, text in texts.items() if side not in pieces}
    tokens, scans = _convert(folder, journal, pipelines, remaining, _needed(Step.TOKENS, pipelines))
    documents |= _find_documents(folder, journal, inputs, scans)
    return TokenizedText(inputs, pieces | tokens, pipelines, model_paths, documents)


def _needed(step: Step, pipelines: Mapping[str, TextPipeline]) -> Step:
    """Return a step from raw text, or KEEP if the pipelines do not change the text."""
    for pipeline in pipelines.values():
        if not pipeline.keeps_text or pipeline.first_symbol:
            return step
    return Step.KEEP


def _pipelines(folder: NewFolder, model_paths: Mapping[str, Path]) -> dict[str, TextPipeline]:
    """Return the text steps of each language, without subwords where no model has a path."""
    if folder.model_pipelines:
        return dict(folder.model_pipelines)
    config = folder.config
    pipelines: dict[str, TextPipeline] = {}
    for language in config.languages:
        subword = base.load_subword(config.subword, model_paths.get(language))
        pipelines[language] = TextPipeline(language, config.tokenizer, config.lowercase, subword)
    return pipelines


def _convert(
    folder: NewFolder,
    journal: Journal,
    pipelines: Mapping[str, TextPipeline],
    texts: Mapping[SideKey, TextFile],
    step: Step,
) -> tuple[dict[SideKey, TextFile], Scans]:
    """Take texts through a step. Texts that it does not change are returned as they are."""
    planned = {side: _plan(folder, side, step) for side in texts}
    conversions = {side: plan for side, plan in planned.items() if plan is not None}

    # The journal calls this for the texts that are not finished.
    def convert_missing(sides: list[SideKey]) -> Iterator[dict[str, Any]]:
        todo = [(conversions[side], texts[side]) for side in sides]
        total = sum(text.num_bytes for _, text in todo)
        with progress_bar(step.value, total) as advance:
            yield from convert_texts(todo, pipelines, folder.workers, advance)

    files = {side: [*conversion.outputs] for side, conversion in conversions.items()}
    form = {"sentences": int, "boundaries": list[tuple[int, int]]}
    scans = journal.finish_all(files, convert_missing, form)
    converted = dict(texts)
    results = ordered_map(scan_text, [str(paths[0]) for paths in files.values()], folder.workers)
    for side, (_, text) in zip(conversions, results, strict=True):
        converted[side] = text
    return converted, scans


def _plan(folder: NewFolder, side: SideKey, step: Step) -> Conversion | None:
    """Return the conversion that a text needs for a step. None: the file is used where it is."""
    split, language = side
    is_train = split == "train"
    separator = "none" if step is Step.PIECES else folder.config.document_separator
    if step is Step.KEEP and is_train and separator == "none":
        return None
    outputs: dict[Path, Step] = {}
    if is_train or step is not Step.KEEP:
        outputs[folder.work / f"{split}.{language}.{step.name.lower()}"] = step
    # Keep the raw text of other splits for references. It may equal the tokens.
    if not is_train:
        outputs[folder.file(split, f"{language}.raw")] = Step.KEEP
    # Draw random subwords for training text only.
    strength = folder.config.subword_sampling if is_train else 0.0
    sampling = (strength, folder.config.seed) if strength else None
    return Conversion(side, separator, outputs, sampling)


def convert_texts(
    texts: Sequence[tuple[Conversion, TextFile]],
    pipelines: Mapping[str, TextPipeline],
    workers: int,
    advance: Advance,
) -> Iterator[dict[str, Any]]:
    """Convert files. Yield ``sentences`` and ``boundaries`` of each when it is complete."""
    for conversion, results in map_chunks(partial(_convert_chunk, pipelines), texts, workers):
        sentences = 0
        boundaries = []
        with ExitStack() as stack:
            files = {p: stack.enter_context(safe_writer(p)) for p in conversion.outputs}
            for (_, chunk), (count, inner, parts) in results:
                for path, data in parts.items():
                    files[path].write(data)
                # Count sentences from the beginning of the file, not of the chunk.
                boundaries += [(sentences + before, line) for before, line in inner]
                sentences += count
                advance(chunk.end - chunk.start)
        # Yield only now, when the files are complete under their names.
        yield {"sentences": sentences, "boundaries": boundaries}


def _convert_chunk(
    pipelines: Mapping[str, TextPipeline], task: tuple[Conversion, Chunk]
) -> tuple[int, Boundaries, dict[Path, bytes]]:
    """Return a chunk's number of sentences, its boundaries, and the bytes of each output file."""
    conversion, chunk = task
    separates = SEPARATOR_TESTS[conversion.separator]
    sentences: list[str] = []
    boundaries: Boundaries = []
    # Take separators out. Note the sentences before each, and its line number.
    for number, line in enumerate(read_chunk(chunk), chunk.first_line):
        if separates(line):
            boundaries.append((len(sentences), number))
        else:
            sentences.append(line)
    pipeline = pipelines[conversion.side[1]]
    split = pipeline.subword.split
    if conversion.sampling is not None:
        strength, seed = conversion.sampling
        # One seed for each chunk, so that the result does not depend on the number of workers.
        draws = random.Random(f"{seed} {conversion.side} {chunk.first_line}")
        split = partial(pipeline.subword.sample, strength=strength, draws=draws)
    parts = {}
    with reporting(chunk.path, caught=DataError):
        for path, step in conversion.outputs.items():
            lines = [_convert_line(step, pipeline, split, line) for line in sentences]
            parts[path] = encode_lines(lines, chunk.first_line)
    return len(sentences), boundaries, parts


def _convert_line(
    step: Step, pipeline: TextPipeline, split: Callable[[list[str]], list[str]], line: str
) -> str:
    """Return the line after a step. ``split`` makes subwords of words."""
    if step is Step.WORDS:
        return " ".join(pipeline.words(line))
    if step is Step.PIECES:
        return " ".join(split(line.split()))
    if step is Step.TOKENS:
        return " ".join(pipeline.between_symbols(split(pipeline.words(line))))
    return line


def _find_documents(
    folder: NewFolder, journal: Journal, inputs: Inputs, scans: Scans
) -> dict[str, Documents]:
    """Compare the sides of each scanned split. Return and write its documents, if it has some."""
    config = folder.config
    documents: dict[str, Documents] = {}
    for split in dict.fromkeys(split for split, _ in scans):
        sides = {inputs.texts[split, lang].path: scans[split, lang] for lang in config.languages}
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
            side_file = folder.file(split, "documents")
            journal.finish(partial(write_documents, side_file, sizes), [side_file])
            boundaries = scans[split, config.languages[0]]["boundaries"]
            documents[split] = Documents(len(sizes), [line for _, line in boundaries])
        # Compare the totals last, since differing documents give a more exact error.
        check_parallel({path: side["sentences"] for path, side in sides.items()}, "sentences")
    return documents


def _copy_models(folder: NewFolder, journal: Journal) -> dict[str, Path]:
    """Write given subword models into the folder: one file if all languages have the same."""
    config = folder.config
    given_models = (config.subword_model, config.target_subword_model or config.subword_model)
    models = {}
    for language, given_path in config.by_language(given_models).items():
        models[language] = base.load_subword(config.subword, given_path).content
    for language, pipeline in folder.model_pipelines.items():
        models[language] = pipeline.subword.content
    is_joint = len(set(models.values())) == 1
    model_paths = {}
    for language, content in models.items():
        if content is not None:
            path = _model_path(folder, None if is_joint else language)
            model_paths[language] = path
            journal.finish(partial(_write, path, content), [path])
    return model_paths


def _learn_models(
    folder: NewFolder, journal: Journal, words: Mapping[SideKey, TextFile]
) -> dict[str, Path]:
    """Learn a joint subword model, or one a language, on the tokenized training text."""
    model_paths: dict[str, Path] = {}
    for group in folder.config.sharing:
        path = _model_path(folder, None if folder.config.joined_dictionary else group[0])
        texts = [words["train", language] for language in group]
        journal.finish(partial(_learn_model, folder, path, texts), [path])
        model_paths |= dict.fromkeys(group, path)
    return model_paths


def _learn_model(folder: NewFolder, path: Path, texts: Sequence[TextFile]) -> None:
    config = folder.config
    folder.say(f"learning {config.subword_size} subwords for {path.name}")
    learning_text = base.LearningText(texts, folder.workers)
    kind = base.subword_models.get(config.subword)
    learn = partial(kind.learn, learning_text, config.subword_size, config.seed)
    content = call_aside(learn, f"learning {path.name}")
    num_learned = kind.load(content).num_learned
    if num_learned is not None and num_learned < config.subword_size:
        folder.say(
            f"NOTE: {path.name} has {num_learned} subwords instead of {config.subword_size} "
            "(--subword-size): the training text gives no more"
        )
    _write(path, content)


def _model_path(folder: NewFolder, language: str | None) -> Path:
    return folder.new_files / base.subword_file_name(folder.config.subword, language)


def _write(path: Path, content: bytes) -> None:
    with safe_writer(path) as file:
        file.write(content)


def describe_round_trip(pipeline: TextPipeline, text: TextFile, separator: str) -> str:
    """Report how many sampled lines decode to the same text, except white space and lost case."""
    total = num_unchanged = num_characters = 0
    for line in _sample(text, separator):
        # Remove differences that tokens cannot keep: white space, codes of languages and case.
        expected = pipeline.without_code(" ".join(line.split()))
        if pipeline.lowercase:
            expected = expected.lower()
        total += 1
        num_characters += len(line)
        num_unchanged += pipeline.decode(pipeline.encode(line)) == expected
        if num_characters > SAMPLED_CHARACTERS:
            break
    share = f"{num_unchanged:,} of {total:,} sampled lines ({num_unchanged / max(1, total):.1%})"
    report = f"{share} come back from their tokens unchanged"
    # Advise subwords that lose nothing, if many lines change.
    if total - num_unchanged > SMALL_SHARE * total and pipeline.tokenizer != "none":
        report += "; --subword sentencepiece without --tokenizer changes none"
    return report


def _sample(text: TextFile, separator: str) -> Iterator[str]:
    """Yield lines of chunks that are spread evenly over the text."""
    separates = SEPARATOR_TESTS[separator]
    step = max(1, len(text.chunks) // SAMPLED_CHUNKS)
    share = SAMPLED_LINES // min(len(text.chunks), SAMPLED_CHUNKS)
    for number, chunk in enumerate(text.readable_chunks()):
        if number % step == 0 and number < step * SAMPLED_CHUNKS:
            lines = [line for line in read_chunk(chunk) if line.strip() and not separates(line)]
            yield from lines[:: max(1, len(lines) // share)][:share]
