import numpy as np
import pytest

from relu_nmt.data.batching import BatchLimits
from relu_nmt.data.document_batches import DocumentBatches, DocumentSplit
from relu_nmt.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter
from relu_nmt.data.parallel import ParallelDataset
from relu_nmt.errors import DataError


@pytest.fixture
def split(tmp_path):
    """40 documents of 1 to 8 sentences; each sentence is its own number, repeated."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, 40)
    sizes = rng.integers(2, 10, counts.sum())
    sizes[7] = 50
    for language in ("de", "en"):
        with IndexedDatasetWriter(tmp_path / language, np.uint16) as writer:
            for number, size in enumerate(sizes):
                ids = np.append(np.full(size, number + 4), 2)
                writer.add(ids, np.array([len(ids)]))
    sides = [IndexedDataset(tmp_path / language) for language in ("de", "en")]
    return DocumentSplit(ParallelDataset(*sides), counts)


def tokens_of(batches, epoch):
    """The token rows of each batch of an epoch."""
    return [batches.load(i).src_tokens.tolist() for i in range(batches.begin_epoch(epoch))]


def sentences_of(rows_of_batches):
    rows = [row for rows in rows_of_batches for row in rows]
    return sorted({token - 4 for row in rows for token in row if token > 3})


def test_all_sentences_but_the_over_long_one_in_every_epoch(split):
    batches = DocumentBatches(split, (1, 16, 32), BatchLimits(max_tokens=64), seed=1)
    numbers = set(range(len(split.dataset)))
    for epoch in (1, 2, 3, 4):
        seen = set(sentences_of(tokens_of(batches, epoch)))
        left_out = {int(batches.groups.first[i]) for i in np.flatnonzero(batches.groups.over_long)}
        assert seen == numbers - left_out
        assert left_out <= {7}


def test_an_epoch_is_planned_the_same_again_and_others_differ(split):
    limits = BatchLimits(max_tokens=64)
    first = DocumentBatches(split, (1, 16, 32), limits, seed=1)
    epochs = [tokens_of(first, epoch) for epoch in (1, 2, 3)]
    assert epochs[0] != epochs[1] != epochs[2]
    again = DocumentBatches(split, (1, 16, 32), limits, seed=1)
    assert tokens_of(again, 3) == epochs[2]
    assert tokens_of(again, 1) == epochs[0]
    assert tokens_of(DocumentBatches(split, (1, 16, 32), limits, seed=2), 1) != epochs[0]


def test_one_length_keeps_its_groups_and_shuffles_the_batches(split):
    batches = DocumentBatches(split, (24,), BatchLimits(max_tokens=48), seed=1)
    first, second = tokens_of(batches, 1), tokens_of(batches, 2)
    assert first != second

    def groups(epoch):
        return sorted(tuple(t for t in row if t > 3) for rows in epoch for row in rows)

    assert groups(first) == groups(second)


def test_batches_keep_to_max_tokens(split):
    batches = DocumentBatches(split, (1, 16, 32), BatchLimits(max_tokens=60), seed=1)
    for i in range(batches.begin_epoch(1)):
        batch = batches.load(i)
        assert batch.src_tokens.numel() <= 60
        # The ids are the first sentences of the groups.
        assert batch.ids.tolist() == [row[0] - 4 for row in batch.src_tokens.tolist()]


def test_validation_keeps_over_long_sentences_whole(split):
    batches = DocumentBatches(split, (16,), BatchLimits(max_tokens=32))
    epoch = tokens_of(batches, 1)
    assert sentences_of(epoch) == list(range(len(split.dataset)))
    assert max(len(row) for rows in epoch for row in rows) == 51
    assert tokens_of(batches, 2) == epoch
    (description,) = batches.describe_lengths()
    assert description["over_long_sentences"] == 1
    assert description["groups"] == sum(len(rows) for rows in epoch)


def test_single_sentences_longer_than_a_batch_are_skipped_on_request(split):
    batches = DocumentBatches(split, (1,), BatchLimits(max_tokens=32), seed=1, skip_too_long=True)
    assert batches.num_skipped == 1
    assert 7 not in sentences_of(tokens_of(batches, 1))


def test_the_mixture_is_described_by_length(split):
    batches = DocumentBatches(split, (1, 16, 32), BatchLimits(max_tokens=64), seed=1)
    descriptions = batches.describe_lengths()
    assert [d["max_doc_tokens"] for d in descriptions] == [1, 16, 32]
    assert sum(d["sentences"] for d in descriptions) == len(split.dataset)
    assert sum(d["documents"] for d in descriptions) == 40


def test_nothing_left(split):
    with pytest.raises(DataError, match="every sentence is longer than 2 tokens; raise --max-doc"):
        DocumentBatches(split, (2,), BatchLimits(max_tokens=64), seed=1)
