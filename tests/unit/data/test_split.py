import pickle
from dataclasses import replace

import numpy as np
import pytest

from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.batch_plan import BatchRules
from relu_nmt.data.indexed_dataset import AlignmentDataset
from relu_nmt.data.separators import Separators, join_sentences
from relu_nmt.data.split import Split, stored_documents
from relu_nmt.data.translation_batches import TranslationBatches
from relu_nmt.errors import DataError
from tests.tiny import as_lists, write_dataset


@pytest.fixture
def side(tmp_path):
    def make(name, sentences, dtype=np.uint16):
        return write_dataset(tmp_path / name, sentences, dtype)

    return make


def test_pairs_and_sizes_are_read(side):
    data = Split(side("de", [[4, 2], [5, 6, 2]]), side("en", [[7, 8, 2], [2]]), 7, 9)
    assert len(data) == 2
    assert data.source_sizes.tolist() == [2, 3]
    assert data.target_sizes.tolist() == [3, 1]
    assert as_lists(data.pair(0)) == [[4, 2], [7, 8, 2]]


def test_source_only_splits_have_no_target(side):
    data = Split(side("de", [[4, 2]]))
    assert data.target_sizes is None
    assert data.pair(0)[1] is None


def test_sides_must_be_parallel(side):
    with pytest.raises(DataError, match=r"de.idx: 1 sentence, but .*en.idx has 2"):
        Split(side("de", [[4, 2]]), side("en", [[4, 2], [2]]))


def test_a_token_outside_the_dictionary_is_an_error(side):
    data = Split(side("de", [[4, 2]]), side("en", [[9, 2]]), 5, 9)
    with pytest.raises(DataError, match=r"en.bin: sentence 0 holds tokens 2 to 9.* 9 symbols"):
        data.pair(0)


def test_a_negative_token_is_an_error(side):
    data = Split(side("de", [[-4, 2]], np.int16), None, 5)
    with pytest.raises(DataError, match="tokens -4 to 2"):
        data.pair(0)


@pytest.mark.parametrize("sentence", [[4, 5], []])
def test_a_missing_end_of_sentence_is_an_error(side, sentence):
    with pytest.raises(DataError, match="does not end in </s>"):
        Split(side("de", [sentence])).pair(0)


def test_alignments_of_joined_sentences(side):
    sides = side("de", [[4, 5, 2], [2], [6, 2]]), side("en", [[7, 2], [8, 2], [9, 10, 2]])
    side("align", [[1, 0], [], [0, 1, 0, 0]], np.uint32)
    alignments = AlignmentDataset(sides[0].prefix.replace("de", "align"))
    single = Split(*sides, alignments=alignments)
    assert single.aligned(range(0, 3)).tolist() == [[1, 0], [2, 3], [2, 2]]
    apart = Split(*sides, separators=Separators(11, 11), alignments=alignments)
    assert apart.aligned(range(0, 3)).tolist() == [[1, 0], [4, 5], [4, 4]]
    chained = Split.chained([single, Split(*sides, alignments=alignments)], tags=[-1, 3])
    assert chained.aligned(range(2, 3)).tolist() == [[0, 1], [0, 0]]
    assert chained.aligned(range(3, 6)).tolist() == [[2, 0], [3, 3], [3, 2]]
    for split in (single, apart, chained):
        source, target = split.joined(range(0, 3))
        for i, j in split.aligned(range(0, 3)):
            assert (source[i], target[j]) in {(5, 7), (6, 9), (6, 10)}
    swapped = AlignmentDataset(alignments.prefix, swapped=True)
    assert (
        swapped[2].tolist() == pickle.loads(pickle.dumps(swapped))[2].tolist() == [[1, 0], [0, 0]]
    )
    with pytest.raises(DataError, match="has no word alignments"):
        Split.chained([single, Split(*sides)])
    with pytest.raises(DataError, match=r"de.idx: 3 sentences, but .*short.idx has 1"):
        Split(*sides, alignments=side("short", [[0, 0]]))


def test_wrong_alignments_are_errors(side):
    sides = side("de", [[4, 5, 2]]), side("en", [[7, 2]])
    side("align", [[1, 1]])
    prefix = sides[0].prefix.replace("de", "align")
    with pytest.raises(DataError, match=r"align.bin: sentence 0 has 2 source and 1 target tokens"):
        Split(*sides, alignments=AlignmentDataset(prefix)).aligned(range(1))
    side("align", [[1]])
    with pytest.raises(DataError, match=r"align.idx: not the word alignments"):
        AlignmentDataset(prefix)


def test_separators_are_added_before_the_end(side):
    data = Split(side("de", [[4, 2], [2]]), side("en", [[7, 8, 2], [4, 2]]), 9, 9, Separators(5, 6))
    assert data.source_sizes.tolist() == [3, 2]
    assert data.target_sizes.tolist() == [4, 3]
    assert as_lists(data.pair(0)) == [[4, 5, 2], [7, 8, 6, 2]]
    assert as_lists(data.pair(1)) == [[5, 2], [4, 6, 2]]


def test_a_sentence_must_not_hold_the_separator(side):
    data = Split(side("de", [[4, 5, 2]]), None, 9, None, Separators(5, 5))
    with pytest.raises(DataError, match=r"de.bin: sentence 0 already holds .*--sentence-separator"):
        data.pair(0)


def test_an_error_about_missing_boundaries_names_file_and_remedy(side, tmp_path):
    split = Split(side("train.de-en.de", [[4, 2], [5, 2]]))
    assert (split.stem, split.name) == (str(tmp_path / "train.de-en"), "train")
    with pytest.raises(DataError, match=r"train.de-en.documents: .*--max-doc-tokens.*--document-"):
        split.require_documents("--max-doc-tokens", 9)
    (tmp_path / "train.de-en.documents").write_text("2\n")
    assert stored_documents(split.source).tolist() == [2]


def test_boundaries_of_another_number_of_sentences_are_an_error_when_the_split_is_opened(
    side, tmp_path
):
    sentences = side("train.de-en.de", [[4, 2], [5, 2]])
    (tmp_path / "train.de-en.documents").write_text("3\n")
    with pytest.raises(DataError, match=r"train.de-en.documents: .*3.*2"):
        stored_documents(sentences)


def test_single_sentences_are_documents_where_boundaries_are_unknown(side):
    split = Split(side("train.de-en.de", [[4, 2], [5, 2]]))
    assert split.require_documents("--max-doc-tokens", 1).tolist() == [1, 1]
    assert split.groups((1,)).count.tolist() == [1, 1]
    with pytest.raises(DataError, match="joining sentences needs the document boundaries"):
        split.groups((1, 9))


def test_only_one_end_symbol_stays():
    sentences = [np.array([4, 5, 2]), np.array([2]), np.array([6, 2])]
    assert join_sentences(sentences).tolist() == [4, 5, 6, 2]
    assert join_sentences(sentences[:1]).tolist() == [4, 5, 2]
    assert join_sentences([]).tolist() == [2]
    assert join_sentences(sentences).dtype == np.int64


@pytest.mark.parametrize("separators", [None, Separators(8, 9)])
def test_long_sources_are_cut(side, separators):
    sides = side("de", [[4, 5, 6, 7, 2], [4, 2]]), side("en", [[4] * 9 + [2]] * 2)
    side("align", [[3, 8, 0, 1, 1, 0], [0, 0]], np.uint32)
    aligned = AlignmentDataset(sides[0].prefix.replace("de", "align"))
    data = Split(*sides, separators=separators, alignments=aligned)
    assert data.aligned(range(1)).tolist() == [[3, 8], [0, 1], [1, 0]]
    data = replace(data, longest_source=3)
    assert data.aligned(range(1)).tolist() == [[0, 1], [1, 0]][: 2 if separators is None else 1]
    data = replace(data, longest_source=4)
    ends = [2] if separators is None else [8, 2]
    assert data.pair(0)[0].tolist() == [4, 5, 6][: 4 - len(ends)] + ends
    assert data.pair(1)[0].tolist() == [4, *ends]
    for index in range(2):
        sizes = (data.source_sizes[index], data.target_sizes[index])
        assert sizes == tuple(map(len, data.pair(index)))
    assert data.num_truncated == 1
    data = replace(data, longest_source=1)  # no words are left, only the symbols that end it
    assert data.pair(1)[0].tolist() == ends and data.source_sizes.tolist() == [len(ends)] * 2


def test_a_sentence_alone_is_counted_without_the_separator_that_it_lacks(side):
    sides = side("de", [[4, 5, 2], [4, 2], [6, 2]]), side("en", [[7, 2], [8, 2], [9, 10, 2]])
    separators = Separators(11, 12, alone=False)
    data = Split(*sides, separators=separators, documents=np.array([1, 2]))
    for lengths in ((), (1,), (3,), (8,)):
        groups = data.groups(lengths)
        sizes = np.transpose(data.group_sizes(groups)).tolist()
        joined = map(data.joined, map(groups.sentences, range(len(groups))))
        assert sizes == [list(map(len, row)) for row in joined]
        assert not groups.over_long.any()
    data.refuse_too_long(3)
    rules = BatchRules(BatchLimits(9), (3,), is_training=True, longest_sentences=(3, 3))
    batches = TranslationBatches(data, rules)
    assert len(batches.planned.all) == 3
