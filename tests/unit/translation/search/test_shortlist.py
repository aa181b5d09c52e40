import collections
import itertools

import numpy as np
import pytest
import torch
from toy_models import generator_of, hypothesis_scores, tokens_of

from relu_nmt.engine.linear import Int8Linear, has_fast_int8
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.forced_terms import ForcedTerms
from relu_nmt.translation.search.shortlist import ROUNDS, Shortlist
from relu_nmt.translation.search.symbol_texts import SymbolTexts
from relu_nmt.translation.search.translations import SourceSentence
from tests.tiny import numbered_words, pairs_of_ids, tiny_config

SYMBOLS = numbered_words(26)


@pytest.fixture(autouse=True)
def no_further_symbols(monkeypatch):
    monkeypatch.setattr("relu_nmt.translation.search.shortlist.MULTIPLE", 1)


def small_model():
    torch.manual_seed(3)
    return EncoderDecoder(tiny_config({"ffn_embed_dim": 32}), 30, 30, pad_index=1).eval()


def sources(number=4, length=6):
    tokens = torch.randint(4, 30, (number, length), generator=torch.Generator().manual_seed(5))
    tokens[:, -1] = SYMBOLS.eos_index
    return tokens


def shortlist_of(*ids):
    return Shortlist(torch.tensor(ids), torch.zeros(30, 1, dtype=torch.int64), 30)


def translated(generator, **options):
    results = generator.generate(sources(), **options)
    hypotheses = list(itertools.chain(*results))
    return tokens_of(hypotheses), np.round(hypothesis_scores(hypotheses), 5).tolist()


def generator_with(shortlist=None, separators=None, **settings):
    settings = {"beam": 3, "max_len_b": 8, **settings}
    return generator_of(small_model(), SYMBOLS, separators, shortlist, **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"nbest": 3}, {"no_repeat_ngram_size": 1}, {"unkpen": 2.0}, {"sampling": True}],
    ids=str,
)
def test_a_shortlist_of_all_symbols_changes_nothing(settings):
    plain = generator_with(**settings)
    listed = generator_with(shortlist_of(*range(4, 30)), **settings)
    assert translated(listed) == translated(plain)


def test_translations_are_those_of_a_model_without_the_other_symbols():
    model = small_model()
    allowed = [5, 9, 11, 17, 28]
    listed = translated(generator_with(shortlist_of(*allowed)))
    words = set(itertools.chain(*listed[0]))
    assert words <= {*range(4), *allowed} and len(words) > 2
    # The definition: all other logits are minus infinity before the softmax.
    project = model.output_projection
    unlisted = torch.ones(30, dtype=torch.bool)
    unlisted[[*range(4), *allowed]] = False
    mask = torch.zeros(30).masked_fill(unlisted, -1e9)
    model.output_projection = type(
        "Masked", (torch.nn.Module,), {"forward": lambda _, x: project(x) + mask}
    )()
    masked = generator_of(model, SYMBOLS, beam=3, max_len_b=8)
    assert listed == translated(masked)


def test_frequent_symbols_fill_the_list_to_a_multiple(monkeypatch):
    monkeypatch.setattr("relu_nmt.translation.search.shortlist.MULTIPLE", 8)
    nothing = torch.tensor([[2]])
    assert shortlist_of(9, 20).of(nothing).tolist() == [0, 1, 2, 3, 4, 5, 9, 20]
    assert shortlist_of(4, 9, 20, 25).of(nothing).tolist() == [0, 1, 2, 3, 4, 9, 20, 25]
    assert shortlist_of(*range(5, 30)).of(nothing).tolist() == list(range(30))


def test_each_of_several_searches_at_once_has_its_own_list(monkeypatch):
    candidates = torch.randint(4, 30, (30, 1), generator=torch.Generator().manual_seed(6))
    shortlist = Shortlist(torch.tensor([7]), candidates, 30)
    generator = generator_with(shortlist, batch_size=1)
    batch = sources(6, 3)
    sentences = [SourceSentence(row.numpy()) for row in batch]
    monkeypatch.setattr("relu_nmt.translation.search.generator.MOST_LEFT", 9.0)  # all at once
    for together, row in zip(generator.translate(sentences), batch, strict=True):
        [alone] = generator.generate(row[None])
        assert tokens_of(together) == tokens_of(alone)
        assert together[0].score == pytest.approx(alone[0].score, abs=1e-5)
    assert len({tuple(shortlist.of(row[None], []).tolist()) for row in batch}) > 3


def test_forced_prefixes_and_terms_and_banned_terms_allow_all_symbols():
    listed = generator_with(shortlist_of(5, 6))
    plain = generator_with()
    prefix = torch.tensor([[20, 21]] * 4)
    assert translated(listed, prefixes=prefix) == translated(plain, prefixes=prefix)
    forced = [ForcedTerms(((22,),))] * 4
    assert translated(listed, forced=forced) == translated(plain, forced=forced)
    texts = SymbolTexts(TextPipeline("en"), SYMBOLS)
    banned = [BannedTerms(texts, [SYMBOLS[7]])] * 4
    assert translated(listed, banned=banned) == translated(plain, banned=banned)
    assert translated(listed) != translated(plain)


def test_sentences_are_counted_by_the_separators_number_in_the_list():
    separator = 20
    source = sources()
    source[1, 1:3] = separator
    generator = generator_with(shortlist_of(11, 25), (separator, separator))
    for hypotheses, tokens in zip(generator.generate(source), source.tolist(), strict=True):
        count = max(1, tokens.count(separator))
        assert hypotheses[0].ids.tolist().count(separator) == count
        assert set(hypotheses[0].ids.tolist()) <= {2, 3, 11, 25, separator}


def test_the_separator_is_listed_where_sentences_are_not_counted():
    narrow = generator_with(shortlist_of(11, 25), (20, 20), free_sentence_count=True)
    wide = generator_with(shortlist_of(11, 20, 25), (20, 20), free_sentence_count=True)
    assert translated(narrow) == translated(wide)
    assert 20 in itertools.chain(*translated(narrow)[0])


def test_scoring_references_needs_all_symbols():
    with pytest.raises(ConfigError, match="leave out --shortlist"):
        generator_of(small_model(), SYMBOLS, shortlist=shortlist_of(5), score_reference=True)


@pytest.mark.skipif(not has_fast_int8(), reason="needs AVX512-VNNI, or AVX2 and the kernels")
def test_rows_of_a_map_in_8_bits_equal_its_outputs():
    full = Int8Linear(torch.nn.Linear(16, 30).requires_grad_(False))
    x = torch.randn(3, 16)
    rows = torch.tensor([2, 3, 29])
    part = full.restricted_to(rows)
    torch.testing.assert_close(part(x), full(x)[:, rows], atol=1e-6, rtol=0)


def model_1(pairs, rounds):
    """IBM model 1, by the formulas of Brown et al. for each pair of words."""
    table = {}
    for source, target in pairs:
        table |= dict.fromkeys(itertools.product((0, *source), target), 1.0)
    for _ in range(rounds):
        counts = dict.fromkeys(table, 0.0)
        for source, target in pairs:
            for t in target:
                total = sum(table[s, t] for s in (0, *source))
                for s in (0, *source):
                    counts[s, t] += table[s, t] / total
        sums = collections.Counter()
        for (s, _), count in counts.items():
            sums[s] += count
        table = {(s, t): counts[s, t] / sums[s] for s, t in table}
    return table


def test_lists_are_the_likeliest_translations():
    rng = np.random.default_rng(2)
    sources = rng.integers(4, 10, (30, 4)).tolist()
    pairs = list(zip(sources, rng.integers(4, 12, (30, 3)).tolist(), strict=True))
    pairs += [([6, 5], [14, 13]), ([7, 5], [15, 13]), ([8, 5], [16, 13])] * 30
    arrays = pairs_of_ids(pairs)
    learned = Shortlist.learn(iter(arrays), (12, 20), num_candidates=3, num_common=2)
    table = model_1(pairs, ROUNDS)
    for s in range(4, 10):
        mine = sorted((t for first, t in table if first == s), key=lambda t: -table[s, t])
        assert set(learned.candidates[s].tolist()) == set(mine[:3])
    assert learned.candidates[7, 0] == 15
    assert not learned.candidates[10:].any() and not learned.candidates[:4].any()
    counts = np.bincount(np.concatenate([target for _, target in arrays]))
    assert sorted(counts[learned.common.tolist()]) == sorted(counts)[-2:]


def test_a_shortlist_is_written_and_read(tmp_path):
    candidates = torch.zeros(30, 2, dtype=torch.int64)
    candidates[5] = torch.tensor([7, 9])
    candidates[8, 0] = 20
    path = tmp_path / "shortlist.txt"
    text = Shortlist(torch.tensor([11, 12]), candidates, 30).to_text(SYMBOLS, SYMBOLS)
    assert text == "w7 w8\nw1 w3 w5\nw4 w16\n"
    path.write_text(text)
    read = Shortlist.load(path, SYMBOLS, SYMBOLS)
    assert read.common.tolist() == [11, 12] and torch.equal(read.candidates, candidates)
    assert read.of(torch.tensor([[5, 2]]), [25]).tolist() == [0, 1, 2, 3, 7, 9, 11, 12, 25]


def test_a_text_of_the_models_words_is_no_shortlist(tmp_path):
    path = tmp_path / "text"
    path.write_text("w1 w2 w3\nw4 w5\nw6\nw4 w7\n")
    with pytest.raises(DataError, match=r"text: line 4: a second list of 'w4'; give a file that"):
        Shortlist.load(path, SYMBOLS, SYMBOLS)


def test_symbols_of_another_model_are_an_error(tmp_path):
    path = tmp_path / "shortlist.txt"
    path.write_text("w1\nw2 w3\nw4 other\n")
    with pytest.raises(
        DataError, match=r"shortlist\.txt: line 3: 'other' is no symbol of the model"
    ):
        Shortlist.load(path, SYMBOLS, SYMBOLS)
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        Shortlist.load(tmp_path / "nowhere.txt", SYMBOLS, SYMBOLS)
    path.write_text("\n")
    assert not Shortlist.load(path, SYMBOLS, SYMBOLS).candidates.any()
    path.write_text("")
    with pytest.raises(DataError, match=r"shortlist\.txt: the shortlist is empty"):
        Shortlist.load(path, SYMBOLS, SYMBOLS)
