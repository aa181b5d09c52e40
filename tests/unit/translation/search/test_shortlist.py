import itertools

import numpy as np
import pytest
import torch

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.engine.decoder import projection_to
from relu_nmt.engine.linear import Int8Linear, has_fast_int8
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.base import StepDecoder
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.forced_terms import ForcedTerms
from relu_nmt.translation.search.shortlist import ROUNDS, Shortlist
from relu_nmt.translation.search.symbol_texts import SymbolTexts
from relu_nmt.translation.search.translations import SourceSentence
from tests.stepping import Generator
from tests.tiny import tiny_config

SYMBOLS = Dictionary([f"w{i}" for i in range(26)])


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
    return [(h.tokens.tolist(), round(h.score, 5)) for hypotheses in results for h in hypotheses]


@pytest.mark.parametrize(
    "settings",
    [{}, {"nbest": 3}, {"no_repeat_ngram_size": 1}, {"unkpen": 2.0}, {"sampling": True}],
    ids=str,
)
def test_a_shortlist_of_all_symbols_changes_nothing(settings):
    config, model = GenerationConfig(beam=3, max_len_b=8, **settings), small_model()
    plain = Generator([StepDecoder(model)], config, SYMBOLS)
    listed = Generator([StepDecoder(model)], config, SYMBOLS, shortlist=shortlist_of(*range(4, 30)))
    assert translated(listed) == translated(plain)


def test_translations_are_those_of_a_model_without_the_other_symbols():
    model, allowed = small_model(), [5, 9, 11, 17, 28]
    config = GenerationConfig(beam=3, max_len_b=8)
    listed = translated(
        Generator([StepDecoder(model)], config, SYMBOLS, shortlist=shortlist_of(*allowed))
    )
    words = {token for tokens, _ in listed for token in tokens}
    assert words <= {*range(4), *allowed} and len(words) > 2
    # The definition: all other logits are minus infinity before the softmax.
    project, unlisted = model.output_projection, torch.ones(30, dtype=torch.bool)
    unlisted[[*range(4), *allowed]] = False
    mask = torch.zeros(30).masked_fill(unlisted, -1e9)
    model.output_projection = type(
        "Masked", (torch.nn.Module,), {"forward": lambda _, x: project(x) + mask}
    )()
    assert listed == translated(Generator([StepDecoder(model)], config, SYMBOLS))


def test_frequent_symbols_fill_the_list_to_a_multiple(monkeypatch):
    monkeypatch.setattr("relu_nmt.translation.search.shortlist.MULTIPLE", 8)
    nothing = torch.tensor([[2]])
    assert shortlist_of(9, 20).of(nothing).tolist() == [0, 1, 2, 3, 4, 5, 9, 20]
    assert shortlist_of(4, 9, 20, 25).of(nothing).tolist() == [0, 1, 2, 3, 4, 9, 20, 25]
    assert shortlist_of(*range(5, 30)).of(nothing).tolist() == list(range(30))


def test_each_of_several_searches_at_once_has_its_own_list(monkeypatch):
    candidates = torch.randint(4, 30, (30, 1), generator=torch.Generator().manual_seed(6))
    config = GenerationConfig(beam=3, max_len_b=8, batch_size=1)
    shortlist = Shortlist(torch.tensor([7]), candidates, 30)
    generator = Generator([StepDecoder(small_model())], config, SYMBOLS, shortlist=shortlist)
    batch = sources(6, 3)
    sentences = [SourceSentence(row.numpy()) for row in batch]
    monkeypatch.setattr("relu_nmt.translation.search.generator.MOST_LEFT", 9.0)  # all at once
    for together, row in zip(generator.translate(sentences), batch, strict=True):
        [alone] = generator.generate(row[None])
        assert [h.tokens.tolist() for h in together] == [h.tokens.tolist() for h in alone]
        assert together[0].score == pytest.approx(alone[0].score, abs=1e-5)
    assert len({tuple(shortlist.of(row[None], []).tolist()) for row in batch}) > 3


def test_forced_prefixes_and_terms_and_banned_terms_allow_all_symbols():
    model, few = small_model(), shortlist_of(5, 6)
    config = GenerationConfig(beam=3, max_len_b=8)
    listed = Generator([StepDecoder(model)], config, SYMBOLS, shortlist=few)
    plain = Generator([StepDecoder(model)], config, SYMBOLS)
    prefix = torch.tensor([[20, 21]] * 4)
    assert translated(listed, prefixes=prefix) == translated(plain, prefixes=prefix)
    forced = [ForcedTerms(((22,),))] * 4
    assert translated(listed, forced=forced) == translated(plain, forced=forced)
    texts = SymbolTexts(TextPipeline("en"), SYMBOLS)
    banned = [BannedTerms(texts, [SYMBOLS[7]])] * 4
    assert translated(listed, banned=banned) == translated(plain, banned=banned)
    assert translated(listed) != translated(plain)


def test_sentences_are_counted_by_the_separators_number_in_the_list():
    separator, source = 20, sources()
    source[1, 1:3] = separator
    config = GenerationConfig(beam=3, max_len_b=8)
    shortlist = shortlist_of(11, 25)
    generator = Generator(
        [StepDecoder(small_model())],
        config,
        SYMBOLS,
        separators=(separator, separator),
        shortlist=shortlist,
    )
    for hypotheses, tokens in zip(generator.generate(source), source.tolist(), strict=True):
        count = max(1, tokens.count(separator))
        assert hypotheses[0].tokens.tolist().count(separator) == count
        assert set(hypotheses[0].tokens.tolist()) <= {2, 3, 11, 25, separator}


def test_the_separator_is_listed_where_sentences_are_not_counted():
    config = GenerationConfig(beam=3, max_len_b=8, free_sentence_count=True)
    model, outputs = StepDecoder(small_model()), []
    for words in ((11, 25), (11, 20, 25)):
        options = {"separators": (20, 20), "shortlist": shortlist_of(*words)}
        outputs.append(translated(Generator([model], config, SYMBOLS, **options)))
    assert outputs[0] == outputs[1] and any(20 in tokens for tokens, _ in outputs[0])


def test_scoring_references_needs_all_symbols():
    config = GenerationConfig(score_reference=True)
    with pytest.raises(ConfigError, match="leave out --shortlist"):
        Generator([StepDecoder(small_model())], config, SYMBOLS, shortlist=shortlist_of(5))


@pytest.mark.skipif(not has_fast_int8(), reason="needs AVX512-VNNI, or AVX2 and the kernels")
def test_rows_of_a_map_in_8_bits():
    full = Int8Linear(torch.nn.Linear(16, 30).requires_grad_(False))
    x, rows = torch.randn(3, 16), torch.tensor([2, 3, 29])
    torch.testing.assert_close(projection_to(full, rows)(x), full(x)[:, rows], atol=1e-6, rtol=0)


def model_1(pairs, rounds):
    """IBM model 1, by the formulas of Brown et al. for each pair of words."""
    words = sorted({t for _, target in pairs for t in target})
    table = {(s, t): 1.0 for source, target in pairs for s in (0, *source) for t in target}
    for _ in range(rounds):
        counts = dict.fromkeys(table, 0.0)
        for source, target in pairs:
            for t in target:
                total = sum(table[s, t] for s in (0, *source))
                for s in (0, *source):
                    counts[s, t] += table[s, t] / total
        sums = {s: sum(counts.get((s, t), 0) for t in words) for s, _ in table}
        table = {(s, t): counts[s, t] / sums[s] for s, t in table}
    return table


def test_lists_are_the_likeliest_translations():
    rng = np.random.default_rng(2)
    pairs = [(rng.integers(4, 10, 4).tolist(), rng.integers(4, 12, 3).tolist()) for _ in range(30)]
    pairs += [([s, 5], [s + 8, 13]) for s in (6, 7, 8)] * 30
    arrays = [(np.array(s), np.array(t)) for s, t in pairs]
    learned = Shortlist.learn(iter(arrays), (12, 20), num_candidates=3, num_common=2)
    table = model_1(pairs, ROUNDS)
    for s in range(4, 10):
        mine = sorted((t for first, t in table if first == s), key=lambda t: -table[s, t])
        assert set(learned.candidates[s].tolist()) == set(mine[:3])
    assert learned.candidates[7, 0] == 15
    assert not learned.candidates[10:].any() and not learned.candidates[:4].any()
    counts = np.bincount(list(itertools.chain(*(t for _, t in pairs))))
    assert sorted(counts[learned.common.tolist()]) == sorted(counts)[-2:]


def test_a_shortlist_is_written_and_read(tmp_path):
    candidates = torch.zeros(30, 2, dtype=torch.int64)
    candidates[5], candidates[8, 0] = torch.tensor([7, 9]), 20
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
