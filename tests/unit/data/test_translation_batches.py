import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relu_nmt.config.shared import BatchingConfig, BatchLimits
from relu_nmt.data.batch_plan import BatchRules, batches_by_length
from relu_nmt.data.documents import write_documents
from relu_nmt.data.indexed_dataset import IndexedDataset, indexed_writer
from relu_nmt.data.split import Split, stored_documents
from relu_nmt.data.translation_batches import TranslationBatches, collate, shift_right
from relu_nmt.errors import ConfigError, DataError
from tests.outputs import values
from tests.tiny import loaded_epoch


def split_in(folder, name):
    source = IndexedDataset(folder / f"{name}.de-en.de")
    target = IndexedDataset(folder / f"{name}.de-en.en")
    return Split(source, target, documents=stored_documents(source))


@pytest.fixture
def split(tmp_path):
    """40 documents of 1 to 8 sentences. Each sentence is its own number, repeated."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, 40)
    sizes = rng.integers(2, 10, counts.sum())
    sizes[7] = 50
    for language in ("de", "en"):
        with indexed_writer(tmp_path / f"train.de-en.{language}", np.uint16) as add:
            for number, size in enumerate(sizes):
                ids = np.append(np.full(size, number + 4), 2)
                add(ids, np.array([len(ids)]))
    write_documents(tmp_path / "train.de-en.documents", counts)
    return split_in(tmp_path, "train")


def training(split, limits, lengths=(), seed=1, **rules):
    return TranslationBatches(split, BatchRules(limits, lengths, True, seed, **rules))


def tokens_of(batches, epoch):
    """Return the token rows of each batch of an epoch."""
    return [batch.src_tokens.tolist() for batch in loaded_epoch(batches, epoch)]


def words_of(row):
    return [token for token in row if token > 3]


def sentences_of(rows_of_batches):
    words = map(words_of, itertools.chain(*rows_of_batches))
    return sorted({word - 4 for word in itertools.chain(*words)})


def test_all_sentences_but_the_over_long_one_in_every_epoch(split):
    batches = training(split, BatchLimits(max_tokens=64), (1, 16, 32))
    numbers = set(range(len(split)))
    for epoch in (1, 2, 3, 4):
        sentences = set(sentences_of(tokens_of(batches, epoch)))
        left_out = set(batches.planned.all.first[batches.planned.all.over_long])
        assert sentences == numbers - left_out
        assert left_out <= {7}


def test_an_epoch_is_planned_the_same_again_and_others_differ(split):
    limits = BatchLimits(max_tokens=64)
    first = training(split, limits, (1, 16, 32))
    epochs = [tokens_of(first, epoch) for epoch in (1, 2, 3)]
    assert epochs[0] != epochs[1] != epochs[2]
    again = training(split, limits, (1, 16, 32))
    assert tokens_of(again, 3) == epochs[2]
    assert tokens_of(again, 1) == epochs[0]
    assert tokens_of(training(split, limits, (1, 16, 32), seed=2), 1) != epochs[0]


def test_one_length_keeps_its_groups_and_shuffles_the_batches(split):
    batches = training(split, BatchLimits(max_tokens=48), (24,))
    first = tokens_of(batches, 1)
    second = tokens_of(batches, 2)
    assert first != second

    def groups(epoch):
        return sorted(map(words_of, itertools.chain(*epoch)))

    assert groups(first) == groups(second)


def test_batches_keep_to_max_tokens(split):
    batches = training(split, BatchLimits(max_tokens=60), (1, 16, 32))
    for i in range(batches.begin_epoch(1)):
        batch = batches.load(i)
        assert batch.src_tokens.numel() <= 60
        # The ids are the first sentences of the groups.
        assert torch.equal(batch.ids, batch.src_tokens[:, 0] - 4)


def test_validation_keeps_over_long_sentences_whole(split):
    batches = TranslationBatches(split, BatchRules(BatchLimits(max_tokens=32), (16,)))
    epoch = tokens_of(batches, 1)
    assert sentences_of(epoch) == list(range(len(split)))
    assert max(map(len, itertools.chain(*epoch))) == 51
    assert tokens_of(batches, 2) == epoch
    (description,) = batches.describe_lengths()
    assert description["over_long_sentences"] == 1
    assert description["groups"] == sum(map(len, epoch))


def test_single_sentences_longer_than_a_batch_are_skipped_on_request(split):
    batches = training(split, BatchLimits(max_tokens=32), (1,), skip_too_long=True)
    assert batches.planned.num_skipped == 1
    assert 7 not in sentences_of(tokens_of(batches, 1))


def test_the_mixture_is_described_by_length(split):
    batches = training(split, BatchLimits(max_tokens=64), (1, 16, 32))
    descriptions = batches.describe_lengths()
    assert values(descriptions, "max_doc_tokens") == [1, 16, 32]
    assert sum(values(descriptions, "sentences")) == len(split)
    assert sum(values(descriptions, "documents")) == 40


def test_an_empty_selection_is_an_error(split):
    with pytest.raises(DataError, match="every sentence is longer than 2 tokens; raise --max-doc"):
        training(split, BatchLimits(max_tokens=64), (2,))


PAIRS = [(np.array([4, 5, 6, 2]), np.array([7, 2])), (np.array([4, 2]), np.array([8, 9, 2]))]


def test_padding_is_on_the_right():
    batch = collate(PAIRS, [10, 3])
    assert batch.ids.tolist() == [10, 3]
    assert batch.src_tokens.tolist() == [[4, 5, 6, 2], [4, 2, 1, 1]]
    assert batch.tgt_tokens.tolist() == [[7, 2, 1], [8, 9, 2]]
    assert batch.prev_output_tokens.tolist() == [[2, 7, 1], [2, 8, 9]]
    assert (batch.num_tokens, batch.num_sentences) == (5, 2)
    tensors = (batch.ids, batch.src_tokens, batch.tgt_tokens)
    assert all(tensor.dtype == torch.int64 for tensor in tensors)


def test_empty_sentences_are_batched():
    batch = collate([(np.array([2]), np.array([2]))], [0])
    assert batch.tgt_tokens.tolist() == [[2]]
    assert batch.prev_output_tokens.tolist() == [[2]]


def test_a_batch_on_another_device_has_the_same_shapes_and_counts():
    batch = collate(PAIRS, [0, 1])
    moved = batch.to("meta")
    assert moved.src_tokens.device.type == "meta"
    assert moved.prev_output_tokens.shape == batch.prev_output_tokens.shape
    assert moved.num_tokens == batch.num_tokens


def test_the_shift_puts_the_end_symbol_first_and_padding_last():
    tokens = torch.tensor([[7, 8, 9, 2], [9, 2, 1, 1], [2, 1, 1, 1]])
    shifted = shift_right(tokens, pad_index=1, eos_index=2)
    assert shifted.tolist() == [[2, 7, 8, 9], [2, 9, 1, 1], [2, 1, 1, 1]]
    assert tokens.tolist()[0] == [7, 8, 9, 2]


def test_single_sentences_need_no_documents(split, tmp_path):
    (tmp_path / "train.de-en.documents").unlink()
    split = split_in(tmp_path, "train")
    batches = training(split, BatchLimits(max_tokens=64))
    ids = torch.cat([batch.ids for batch in loaded_epoch(batches, 2)])
    assert ids.sort().values.tolist() == list(range(len(split)))
    assert batches.describe_lengths() == []
    with pytest.raises(DataError, match=r"train.de-en.documents: no such file, but joining"):
        training(split, BatchLimits(max_tokens=64), (16,))


def test_a_limit_of_one_gives_the_batches_of_single_sentences(split):
    limits = BatchLimits(max_tokens=64)
    plain = training(split, limits, seed=3)
    assert tokens_of(plain, 2) == tokens_of(training(split, limits, (1,), seed=3), 2)


def test_sentences_longer_than_a_batch_get_their_own(split):
    limits = BatchLimits(max_tokens=32)
    batches = training(split, limits)
    assert (batches.planned.num_skipped, 7 in sentences_of(tokens_of(batches, 1))) == (0, True)
    skipped = training(split, limits, skip_too_long=True)
    assert skipped.planned.num_skipped == 1
    assert sentences_of(tokens_of(skipped, 1)) == [*range(7), *range(8, len(split))]
    with pytest.raises(DataError, match=r"no sentence to use; all [\d,]+ are longer than --max-t"):
        training(split, BatchLimits(max_tokens=1), skip_too_long=True)


def test_too_long_sentences_are_refused(split):
    longest = np.maximum(split.source_sizes, split.target_sizes)
    max_tokens = int(np.sort(longest)[-2]) - 1
    split.refuse_too_long(None)
    split.refuse_too_long(int(longest.max()))
    too_long = np.flatnonzero(longest > max_tokens)
    first = too_long[0]
    count = len(too_long)
    message = (
        rf"train.de-en.de: sentence {first} has {longest[first]} tokens \(and {count - 1} more\), "
        rf"but --max-tokens is {max_tokens}; .*--skip-"
    )
    with pytest.raises(DataError, match=message):
        split.refuse_too_long(max_tokens)


SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60)
LIMIT = st.one_of(st.none(), st.integers(1, 100))


def batches_of(plan):
    return [plan[i].tolist() for i in range(len(plan))]


def sides(pairs):
    return np.array(pairs, dtype=np.int32).reshape(-1, 2).T


@given(SIZES, LIMIT, LIMIT, st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(1, 5))))
def test_every_sentence_once_and_limits_kept(pairs, max_tokens, max_sentences, seed):
    source, target = sides(pairs)
    plan = batches_by_length(source, target, BatchLimits(max_tokens, max_sentences), seed)
    batches = batches_of(plan)
    assert sorted(itertools.chain(*batches)) == list(range(len(pairs)))
    for batch in batches:
        longest = np.maximum(source, target)[batch].max()
        assert max_sentences is None or len(batch) <= max_sentences
        assert max_tokens is None or len(batch) == 1 or longest * len(batch) <= max_tokens


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(40, 200))
def test_batches_are_as_large_as_the_limit_allows(pairs, max_tokens):
    source, target = sides(pairs)
    batches = batches_of(batches_by_length(source, target, BatchLimits(max_tokens)))
    longer = np.maximum(source, target)
    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * longer[following[0]] > max_tokens


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(1, 5), st.integers(40, 300))
def test_sizes_are_multiples_on_request(pairs, multiple, max_tokens):
    source, target = sides(pairs)
    limits = BatchLimits(max_tokens, multiple=multiple)
    *full, last = [[], *batches_of(batches_by_length(source, target, limits))]
    assert all(len(b) % multiple == 0 or len(b) < multiple for b in full)
    assert sum(map(len, [*full, last])) == len(pairs)


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(0, 3), st.integers(1, 3))
def test_the_plan_depends_only_on_seed_and_epoch(pairs, seed, epoch):
    source, target = sides(pairs)
    limits = BatchLimits(max_tokens=90)
    first = batches_of(batches_by_length(source, target, limits, (seed, epoch)))
    assert batches_of(batches_by_length(source, target, limits, (seed, epoch))) == first


def test_epochs_and_seeds_differ():
    source = target = np.full(300, 7, dtype=np.int32)
    limits = BatchLimits(max_sentences=4)
    plans = [
        batches_of(batches_by_length(source, target, limits, s)) for s in [(1, 1), (1, 2), (2, 1)]
    ]
    assert plans[0] != plans[1] != plans[2] != plans[0]
    # Equal lengths change company between epochs, not only the order of the batches.
    assert set(map(frozenset, plans[0])) != set(map(frozenset, plans[1]))


def test_similar_lengths_share_batches():
    generator = np.random.default_rng(0)
    source = generator.integers(1, 60, 5000).astype(np.int32)
    target = np.maximum(1, source + generator.integers(-5, 6, 5000)).astype(np.int32)
    plan = batches_by_length(source, target, BatchLimits(max_tokens=1000), (1, 1))
    padded = real = 0
    for batch in batches_of(plan):
        padded += len(batch) * (source[batch].max() + target[batch].max())
        real += source[batch].sum() + target[batch].sum()
    assert real / padded > 0.9


def test_without_a_seed_batches_come_in_order_of_length():
    plan = batches_by_length(np.array([3, 5, 4, 1]), None, BatchLimits(max_sentences=2))
    assert batches_of(plan) == [[3, 0], [2, 1]]


def test_source_only_and_empty_data_are_planned():
    assert len(batches_by_length(np.zeros(0, np.int32), None, BatchLimits(10), (1, 1))) == 0


def test_planning_millions_of_pairs_takes_seconds():
    generator = np.random.default_rng(0)
    source = generator.integers(1, 100, 1_000_000).astype(np.int32)
    target = generator.integers(1, 100, 1_000_000).astype(np.int32)
    start = time.process_time()
    plan = batches_by_length(source, target, BatchLimits(max_tokens=4096), (1, 1))
    assert len(plan) > 10_000
    assert time.process_time() - start < 4


def test_limits_must_be_positive():
    with pytest.raises(ConfigError, match="--max-tokens or --batch-size"):
        BatchingConfig()
    with pytest.raises(ConfigError, match="--batch-size 0"):
        BatchingConfig(batch_size=0)
    config = BatchingConfig(max_tokens=100, batch_size_valid=3)
    assert config.training_limits == BatchLimits(100, None)
    assert config.validation_limits == BatchLimits(100, 3)


def rows_of(split, weights, epoch, lengths=()):
    limits = BatchLimits(max_tokens=64)
    batches = training(split, limits, lengths, weights=weights)
    return list(itertools.chain(*tokens_of(batches, epoch)))


def test_weights_repeat_and_draw_corpora_and_tags_begin_their_sources(split):
    chained = Split.chained([split, split], [-1, 3])
    num_sentences = len(split)
    plain = rows_of(chained, (), 1)
    assert len(plain) == 2 * num_sentences
    for epoch in (1, 2):
        rows = rows_of(chained, (2, 0.5), epoch)
        tagged = [row[1:] for row in rows if row[0] == 3]
        assert len(rows) - len(tagged) == 2 * num_sentences
        assert 0.35 * num_sentences < len(tagged) < 0.65 * num_sentences
    assert rows_of(chained, (2, 0.5), 1) != rows_of(chained, (2, 0.5), 2)
    assert rows_of(chained, (2, 0.5), 2) == rows_of(chained, (2, 0.5), 2)


def test_documents_are_drawn_as_a_whole(split):
    chained = Split.chained([split, split], [-1, 3])
    starts = np.append(0, np.cumsum(split.documents))
    rows = rows_of(chained, (1, 0.5), 1, (16,))
    drawn = set(sentences_of([[row[1:] for row in rows if row[0] == 3]]))
    for first, last in itertools.pairwise(starts):
        document = set(range(first, last)) - {7}  # longer than the limit
        assert document <= drawn or not document & drawn
    assert 0 < len(drawn) < len(split)


def test_planned_sizes_count_the_tag(split):
    chained = Split.chained([split, split], [-1, 3])
    batches = training(chained, BatchLimits(max_tokens=52))
    for i in range(batches.begin_epoch(1)):
        batch = batches.load(i)
        assert batch.src_tokens.numel() <= 52 or len(batch.ids) == 1


def test_sentences_without_boundaries_stand_beside_documents(split, tmp_path):
    for file in list(tmp_path.glob("train.*.*.*")):
        file.with_name(file.name.replace("train", "plain")).write_bytes(file.read_bytes())
    plain = split_in(tmp_path, "plain")
    assert plain.documents is None
    chained = Split.chained([split, plain])
    assert chained.documents.tolist() == [*split.documents.tolist(), *[1] * len(plain)]
