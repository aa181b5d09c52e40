import json

import numpy as np
import pytest

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.indexed_dataset import indexed_writer
from relu_nmt.errors import CheckpointError, ConfigError, DataError
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.agreement import at_folder
from relu_nmt.translation.search.translations import SourceSentence
from relu_nmt.translation.task import TranslationTask
from tests.tiny import preprocessed, write_lines

GERMAN = ["Das Haus ist groß.", "Ein Boot, ein Hausboot!", "", "Das ist ein Haus."] * 4
ENGLISH = ["The house is big.", "A boat, a house boat!", "", "It's a house."] * 4


def preprocess(folder, **settings):
    for split in ("train", "valid"):
        write_lines(folder, split, GERMAN, ENGLISH)
    return preprocessed(folder, "data", **settings)


def fairseq_folder(folder):
    """Write a folder like fairseq-preprocess: without manifest and raw text."""
    words = Dictionary.from_counts({"ein": 2, "Haus@@": 2, "boot": 2, ".": 2, "&apos;s": 1})
    for language in ("de", "en"):
        words.save(folder / f"dict.{language}.txt")
        with indexed_writer(folder / f"valid.de-en.{language}", np.uint16) as add:
            ids = words.encode(["ein", "Haus@@", "boot", "&apos;s", "."])
            add(ids, np.array([len(ids)]))
    return folder


@pytest.fixture
def raw_folder(tmp_path):
    return preprocess(
        tmp_path, tokenizer="moses", subword="subword-nmt", subword_size=20, joined_dictionary=True
    )


def test_a_raw_sentence_is_encoded_and_decoded(raw_folder):
    task = TranslationTask.from_data_folder(raw_folder)
    assert (task.source_lang, task.target_lang) == ("de", "en")
    assert task.joined_dictionary
    valid = task.load_split("valid")
    for i, (german, english) in enumerate(zip(GERMAN, ENGLISH, strict=True)):
        source, target = valid.pair(i)
        assert task.encode_source(german).tolist() == source.tolist()
        assert task.encode_target(english).tolist() == target.tolist()
        assert task.decode_target(target) == english
    assert valid.raw_source == GERMAN
    assert valid.raw_target == task.references(valid) == ENGLISH
    assert task.load_split("train").raw_source is None


def test_tokens_are_shown_with_the_given_unknown_symbol(tmp_path):
    task = TranslationTask.from_data_folder(preprocess(tmp_path, tokenizer="moses"))
    ids = task.encode_target("It's a cat.")
    assert task.target_dictionary.symbols_of(ids) == ["It", "&apos;s", "a", "<unk>", "."]
    assert task.decode_target(ids, unk="?") == "It's a?."


def test_a_folder_serves_the_other_direction(raw_folder):
    task = TranslationTask.from_data_folder(raw_folder, "en", "de")
    assert task.load_split("valid").pair(0)[0].tolist() == task.encode_source(ENGLISH[0]).tolist()
    assert task.references(task.load_split("valid")) == GERMAN
    assert TranslationTask.from_data_folder(raw_folder, source_lang="en").target_lang == "de"


def test_a_state_restores_the_task_without_its_folder(raw_folder):
    task = TranslationTask.from_data_folder(raw_folder)
    again = TranslationTask.from_state(json.loads(json.dumps(task.to_state())))
    assert again.source_dictionary == task.source_dictionary
    assert again.encode_source("Ein Boot.").tolist() == task.encode_source("Ein Boot.").tolist()
    assert again.decode_target(task.encode_target("A boat.")) == "A boat."
    with pytest.raises(DataError, match="comes from a checkpoint and has no data folder"):
        again.load_split("valid")


def test_state_with_two_dictionaries(tmp_path):
    task = TranslationTask.from_data_folder(preprocess(tmp_path))
    assert not task.joined_dictionary
    again = TranslationTask.from_state(task.to_state())
    assert again.source_dictionary == task.source_dictionary
    assert again.target_dictionary == task.target_dictionary


@pytest.mark.parametrize(
    "change",
    [
        {"source_text": None},
        {"source_text": {"language": "de"}},
        {"source_dictionary": "word"},
        {"target_dictionary": 5},
        {"target_text": {"language": "de", "tokenizer": "?", "lowercase": 0, "subword": {}}},
    ],
)
def test_a_damaged_state_is_an_error(tmp_path, change):
    state = TranslationTask.from_data_folder(preprocess(tmp_path)).to_state() | change
    with pytest.raises(CheckpointError, match="description of its task is damaged"):
        TranslationTask.from_state(state)


def test_a_folder_of_fairseq_is_read_with_its_segmentation(tmp_path):
    task = TranslationTask.from_data_folder(fairseq_folder(tmp_path))
    ids = task.load_split("valid").pair(0)[1]
    assert task.decode_target(ids) == "ein Haus@@ boot &apos;s ."
    assert task.load_split("valid").raw_target is None
    undone = task.with_post_processing("@@ ", "moses")
    assert undone.decode_target(ids) == "ein Hausboot's."
    assert undone.references(undone.load_split("valid")) == ["ein Hausboot's."]
    assert undone.encode_source("ein Haus@@ boot").tolist() == (
        task.encode_source("ein Haus@@ boot").tolist()
    )


def test_references_of_segmented_text_are_joined(tmp_path):
    (tmp_path / "raw").mkdir()
    for language in ("de", "en"):
        for name in ("train", "valid"):
            (tmp_path / f"{name}.{language}").write_text("ein unseen@@ boot .\n" * 2)
    data = preprocessed(tmp_path, "data")
    task = TranslationTask.from_data_folder(data).with_post_processing("@@ ", "moses")
    assert task.references(task.load_split("valid")) == ["ein unseenboot."] * 2


def test_post_processing_of_data_segmented_here(raw_folder):
    with pytest.raises(ConfigError, match="undone anyway"):
        TranslationTask.from_data_folder(raw_folder).with_post_processing("@@ ")


def test_at_folder_compares_dictionaries(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    folder = preprocess(tmp_path / "a")
    other_folder = preprocess(tmp_path / "b", thresholdtgt=5)
    task = TranslationTask.from_state(TranslationTask.from_data_folder(folder).to_state())
    assert len(at_folder(task, folder).load_split("valid")) == len(GERMAN)
    with pytest.raises(
        DataError, match=r"dict.en.txt: not the dictionary of the checkpoint.*--like"
    ):
        at_folder(task, other_folder)


def test_a_folder_with_a_source_alone_goes_with_a_checkpoint(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    task = TranslationTask.from_data_folder(preprocess(tmp_path / "a"))
    source_only = preprocess(
        tmp_path / "b",
        only_source=True,
        trainpref=None,
        srcdict=str(tmp_path / "a" / "data" / "dict.de.txt"),
    )
    valid = at_folder(task, source_only).load_split("valid")
    assert valid.target is None
    assert len(valid) == len(GERMAN)
    with pytest.raises(DataError, match="source-only data has no references"):
        task.references(valid)
    with pytest.raises(DataError, match="holds source text only, in de; run relu-nmt-preprocess"):
        TranslationTask.from_data_folder(source_only)


def test_a_split_has_documents_only_with_their_separators(tmp_path):
    task = TranslationTask.from_data_folder(preprocess(tmp_path))
    assert task.load_split("train").documents is None
    (tmp_path / "b").mkdir()
    data = preprocess(tmp_path / "b", document_separator="blank")
    task = TranslationTask.from_data_folder(data)
    assert task.load_split("train").documents.tolist() == [2, 3, 3, 3, 1]
    assert len(task.load_split("train")) == 12


def test_a_missing_split_is_an_error(raw_folder):
    with pytest.raises(DataError, match=r"no split 'test'; the folder holds: train, valid"):
        TranslationTask.from_data_folder(raw_folder).load_split("test")


def test_a_language_that_the_folder_lacks_is_an_error(raw_folder):
    with pytest.raises(DataError, match="holds de-en, not the language fr"):
        TranslationTask.from_data_folder(raw_folder, source_lang="fr")


def test_a_changed_subword_model_is_an_error(raw_folder):
    path = raw_folder / "subword.codes"
    path.write_text(path.read_text().swapcase())
    with pytest.raises(DataError, match=r"subword.codes: changed since it was made"):
        TranslationTask.from_data_folder(raw_folder)


def test_raw_text_of_another_length_is_an_error(raw_folder):
    manifest = json.loads((raw_folder / "manifest.json").read_text())
    path = raw_folder / "valid.de-en.en.raw"
    path.write_text("one line\n")
    manifest["files"][path.name]["bytes"] = path.stat().st_size
    (raw_folder / "manifest.json").write_text(json.dumps(manifest))
    split = TranslationTask.from_data_folder(raw_folder).load_split("valid")
    with pytest.raises(DataError, match="1 line, but the split has 16 sentences"):
        _ = split.raw_target


def test_a_dictionary_without_words_is_an_error(tmp_path):
    fairseq_folder(tmp_path)
    (tmp_path / "dict.en.txt").write_text("madeupword0000 0\n")
    with pytest.raises(DataError, match=r"dict.en.txt: no words in it"):
        TranslationTask.from_data_folder(tmp_path)


def test_a_task_does_not_import_torch():
    import subprocess
    import sys

    code = (
        "import sys, relu_nmt.translation.task, relu_nmt.jobs.preprocess.job; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_example_of_the_class():
    words = Dictionary(["ein", "Haus"])
    task = TranslationTask(TextPipeline("de"), TextPipeline("en"), words, words)
    assert task.decode_target(task.encode_source("ein Haus")) == "ein Haus"


def test_separators_on_an_existing_folder(raw_folder):
    plain = TranslationTask.from_data_folder(raw_folder)
    task = plain.with_sentence_separator()
    assert task.joined_dictionary
    assert task.separators is not None and plain.separators is None
    number = task.source_dictionary.index("<sep>")
    before = plain.load_split("valid")
    after = task.load_split("valid")
    assert after.source_sizes.tolist() == (before.source_sizes + 1).tolist()
    for i, english in enumerate(ENGLISH):
        source = after.pair(i)[0].tolist()
        assert source == [*before.pair(i)[0][:-1].tolist(), number, 2]
        assert task.decode_target(after.pair(i)[1]) == english
    assert task.encode_source(GERMAN[0]).tolist() == after.pair(0)[0].tolist()
    assert task.references(task.load_split("valid")) == ENGLISH
    # A checkpoint keeps it, and finds the folder's dictionary to be its own.
    again = TranslationTask.from_state(json.loads(json.dumps(task.to_state())))
    assert again.separators is not None
    assert at_folder(again, raw_folder).load_split("valid").pair(1)[1].tolist() == (
        after.pair(1)[1].tolist()
    )


def test_a_separator_in_raw_text_ends_no_sentence():
    words = Dictionary(["ein", "Haus"])
    text = TextPipeline("de")
    task = TranslationTask(text, text, words, words).with_sentence_separator()
    for encode in (task.encode_source, task.encode_target):
        ids = encode("ein <sep> Haus").tolist()
        assert ids == [4, words.unk_index, 5, task.separators.source, words.eos_index]
        assert encode("").tolist() == [words.eos_index]


def test_a_sentence_alone_has_no_separator_if_the_model_reads_none():
    words = Dictionary(["ein", "Haus"])
    text = TextPipeline("de")
    plain = TranslationTask(text, text, words, words)
    task = plain.with_sentence_separator(plain)
    for encode in (task.encode_source, task.encode_target):
        assert encode("ein <sep>").tolist() == [4, words.unk_index, words.eos_index]
        assert encode("").tolist() == [words.eos_index]
    # As one of several sentences it ends in a separator.
    separator = task.separators.source
    sentence = SourceSentence(task.encode_source("ein"), ["ein"], np.array([5, 2]))
    of_group = sentence.in_group(task.separators)
    assert of_group.ids.tolist() == [4, separator, words.eos_index]
    assert of_group.tokens == ["ein", "<sep>"]
    assert of_group.reference.tolist() == [5, separator, words.eos_index]
    assert of_group.in_group(task.separators).tokens == of_group.tokens


def test_a_separator_that_is_a_word_of_the_text_is_an_error(tmp_path):
    for language in ("de", "en"):
        for name in ("train", "valid"):
            (tmp_path / f"{name}.{language}").write_text("a <sep> b\n")
    task = TranslationTask.from_data_folder(preprocessed(tmp_path, "data"))
    with pytest.raises(DataError, match=r"dict.de.txt: '<sep>' is a word of the text.*replace"):
        task.with_sentence_separator()


def test_a_model_of_sentences_gets_the_separator_behind_all_symbols(raw_folder):
    plain = TranslationTask.from_data_folder(raw_folder)
    task = plain.with_sentence_separator(plain)
    assert plain.source_dictionary.fillers  # which stay, as the model knows them
    number = len(plain.source_dictionary)
    assert task.separators == (number, number, False)
    # A sentence alone has no separator, several have one each.
    before = plain.load_split("valid")
    after = task.load_split("valid")
    assert after.joined(range(1))[0].tolist() == before.pair(0)[0].tolist()
    assert after.joined(range(1))[1].tolist() == before.pair(0)[1].tolist()
    assert after.joined(range(2))[0].tolist().count(number) == 2
    # A checkpoint keeps all of it, for its folder and for further training.
    again = TranslationTask.from_state(json.loads(json.dumps(task.to_state())))
    assert again.separators == task.separators
    assert at_folder(again, raw_folder).separators == task.separators
    assert plain.with_sentence_separator(again).separators == task.separators
