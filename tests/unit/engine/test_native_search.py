"""Searches find the same hypotheses with and without kernels."""

import pytest
import torch

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.engine import native as kernels
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.step_decoder import StepDecoder
from tests.stepping import Generator
from tests.tiny import tiny_config

VOCAB = 150
SYMBOLS = Dictionary([f"w{i}" for i in range(VOCAB - 4)])

pytestmark = [
    pytest.mark.skipif(kernels.library() is None, reason="needs the kernels"),
    pytest.mark.usefixtures("one_thread"),
]


def make_model(**changes):
    torch.manual_seed(1)
    config = tiny_config({"layers": 2, "embed_dim": 32, "ffn_embed_dim": 64}, **changes)
    model = EncoderDecoder(config, VOCAB, VOCAB, pad_index=SYMBOLS.pad_index)
    with torch.no_grad():
        model.output_projection.weight *= 4  # hypotheses that are told apart
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "softmax"},
        {"attention": "softmax", "decoder_positions": "sinusoidal+rotary+t5"},
        {"attention": "reluformer:gamma=2"},
        {"attention": "reluformer:centered=true,power=2", "decoder_positions": "rotary"},
        {"attention": "linear", "decoder_attention": "softmax"},
        {"attention": "softmax", "cross_attention": "sparsemax"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "search",
    [
        {},
        {"beam_threshold": 2.0},
        {"beam_threshold": 2.0, "no_repeat_ngram_size": 2},
        {"diverse_beam_groups": 2, "diverse_beam_strength": 0.5},
        {"min_len": 6, "nbest": 3},
        {"print_alignment": "hard", "beam_threshold": 2.0},
        {"sampling": True},
    ],
    ids=str,
)
def test_searches_find_the_same_hypotheses(changes, search, monkeypatch):
    model = make_model(**changes)
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, 14, (21,), generator=generator).tolist()
    sources = [torch.randint(4, VOCAB, (n,), generator=generator).numpy() for n in lengths]
    src_tokens = pad_rows(sources, SYMBOLS.pad_index)
    config = GenerationConfig(beam=4, max_len_b=18, **search)

    def translated():
        return Generator([StepDecoder(model)], config, SYMBOLS).generate(src_tokens)

    by_kernels = translated()
    monkeypatch.setattr(kernels, "library", lambda: None)
    for hypotheses, other in zip(by_kernels, translated(), strict=True):
        assert [h.tokens.tolist() for h in hypotheses] == [h.tokens.tolist() for h in other]
        for first, second in zip(hypotheses, other, strict=True):
            assert first.score == pytest.approx(second.score, abs=1e-5)
            if first.alignment is not None:
                assert first.alignment.tolist() == second.alignment.tolist()
