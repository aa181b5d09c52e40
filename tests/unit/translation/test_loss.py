import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.attention.regularizer import regularizer_terms
from relu_nmt.data.translation_batches import collate
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.translation.blockwise_loss import (
    BLOCK_TOKENS,
    CPU_BLOCK_BYTES,
    projected_cross_entropy,
)
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.loss import TranslationObjective, alignment_loss, smoothed_loss
from tests.tiny import EOS, PAD, both_sides, pairs_of_ids, without_gradient

OFF = AttentionRegularizerConfig()


def tiny_model(attention="reluformer", **changes):
    torch.manual_seed(0)
    config = TransformerConfig(attention=attention, dropout=0.0, **both_sides(SHAPE), **changes)
    return EncoderDecoder(config, 20, 20, PAD, separators=(18, 19)).double()


SHAPE = {"embed_dim": 8, "ffn_embed_dim": 16, "layers": 2, "attention_heads": 2}


def batch(alignments=None):
    pairs = [([5, 6, 7, EOS], [8, 9, EOS]), ([10, EOS], [11, 12, 13, 14, EOS])]
    return collate(pairs_of_ids(pairs), ids=[0, 1], alignments=alignments)


def test_loss_is_the_sum_over_real_target_tokens_plus_the_mean_regularizer():
    model = tiny_model()
    config = AttentionRegularizerConfig(0.3, 0.2, 0.1)
    result = TranslationObjective(model, 0.1, config).train()(batch())
    b = batch()
    with record_attention(model, Need(statistics=True)) as records:
        features = model(b.src_tokens, b.prev_output_tokens)
    log_probs = (features @ model.output_projection.weight.T).log_softmax(-1)
    nll = smooth = 0.0
    for row, targets in zip(log_probs, b.tgt_tokens, strict=True):
        for scores, target in zip(row, targets.tolist(), strict=True):
            if target != PAD:
                nll -= scores[target]
                smooth -= 0.9 * scores[target] + 0.1 / 19 * (scores.sum() - scores[target])
    terms = [regularizer_terms(r.statistics, r.visibility, 0.1) for r in records]
    assert len(terms) == 6
    penalty = sum(0.3 * norm + 0.2 * entropy for norm, entropy in terms) / 6
    assert result.sample_size == 8
    torch.testing.assert_close(result.loss, smooth + 8 * penalty)
    torch.testing.assert_close(result.metrics["nll_loss"][0], nll.detach())
    torch.testing.assert_close(result.metrics["loss"][0], smooth.detach())


def test_accuracy_is_the_percentage_of_most_probable_tokens():
    model = tiny_model()
    b = batch()
    logits = model(b.src_tokens, b.prev_output_tokens) @ model.output_projection.weight.T
    real = b.tgt_tokens != PAD
    b.tgt_tokens[0, 0] = logits[0, 0].argmax()
    b.tgt_tokens[1, 2] = logits[1, 2].argmax()
    right = (logits.argmax(-1) == b.tgt_tokens)[real].double().mean()
    reporting = TranslationObjective(model, 0.1, OFF, report_accuracy=True)
    correct, count = reporting(b).metrics["accuracy"]
    assert float(correct / count) == pytest.approx(100 * float(right))
    assert right >= 0.25
    assert "accuracy" not in TranslationObjective(model, 0.1, OFF)(b).metrics


ALIGNMENTS = [np.array([[0, 0], [2, 1], [1, 1]]), np.array([[0, 3]])]
PAIRS = [(0, 0, 0, 1), (0, 2, 1, 2), (0, 1, 1, 2), (1, 0, 3, 1)]
"""Row, source position, target position, pairs of the target position."""


def plain_alignment_loss(weights):
    """Return the alignment loss by its definition, for weights [B, T, S] as nested lists."""
    loss = 0.0
    for row, source, target, count in PAIRS:
        total = sum(weights[row][target])
        share = weights[row][target][source] / total if total else 0.0
        loss -= math.log(share + 1e-6) / count
    return loss


def test_alignment_loss_equals_its_definition_and_null_rows_have_no_gradient():
    weights = torch.rand(2, 5, 4, dtype=torch.float64, requires_grad=True)
    pairs = batch(ALIGNMENTS).alignments
    loss = alignment_loss(weights, pairs)
    expected = plain_alignment_loss(weights.tolist())
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda values: alignment_loss(values, pairs), weights)
    null = torch.rand(2, 5, 4, dtype=torch.float64)
    null[0, 1] = 0.0
    null[1, 3, 0] = 0.0
    scores = null.clone().requires_grad_()
    loss = alignment_loss(scores.relu(), pairs)
    assert float(loss.detach()) == pytest.approx(plain_alignment_loss(null.tolist()))
    loss.backward()
    assert scores.grad.isfinite().all() and not scores.grad[0, 1].any()
    assert not scores.grad[0, 2:].any()  # aligned with nothing
    none = alignment_loss(weights, torch.zeros(0, 3, dtype=torch.int64))
    assert float(none.detach()) == 0.0


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("attention", "chosen"),
    [
        ("softmax", {"alignment_layer": 0, "alignment_heads": 1}),
        ("softmax", {}),
        ("reluformer", {"alignment_layer": 0, "alignment_heads": 1}),
        ("linear", {"alignment_heads": 1}),
    ],
)
def test_alignments_guide_the_chosen_attention(attention, chosen, recompute):
    model = tiny_model(attention, checkpoint_activations=recompute, **chosen)
    b = batch(ALIGNMENTS)
    plain = TranslationObjective(model, 0.1, OFF).train()(b)
    cross = model.decoder.cross_attentions[chosen.get("alignment_layer", 1)]
    with record_attention(cross, Need(weights=True)) as records:
        model(b.src_tokens, b.prev_output_tokens)
    heads = records[0].weights.detach()[:, : chosen.get("alignment_heads", 2)]
    expected = plain_alignment_loss(heads.mean(1).tolist())
    regularizer = AttentionRegularizerConfig(0.1, 0.1, 0.0)
    with_both = TranslationObjective(model, 0.1, regularizer, alignment_lambda=0.5).train()
    guided = TranslationObjective(model, 0.1, OFF, alignment_lambda=0.5).train()
    output = guided(b)
    assert float((output.loss - plain.loss).detach()) == pytest.approx(0.5 * expected, rel=1e-9)
    assert float(output.metrics["alignment_loss"][0]) == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(output.metrics["loss"][0], plain.metrics["loss"][0])
    loss = alignment_loss(model.alignment_weights(records[0]), b.alignments)
    [gradient] = torch.autograd.grad(loss, cross.q.weight)
    width = 4 * heads.size(1)
    assert gradient[:width].any() and not gradient[width:].any()
    [full] = torch.autograd.grad(output.loss, cross.q.weight)
    [without] = torch.autograd.grad(plain.loss, cross.q.weight)
    torch.testing.assert_close(full, without + 0.5 * gradient)
    combined = with_both(b)
    assert combined.metrics.keys() > {"attention_norm", "alignment_loss"}
    assert float(combined.metrics["alignment_loss"][0]) == pytest.approx(expected, rel=1e-9)


def test_alignments_need_weights_that_are_not_negative():
    for model, message in (
        (tiny_model(cross_attention="polynomial"), "--cross-attention polynomial has no weights"),
        (tiny_model("softmax", document_attention="aligned"), "--document-attention aligned"),
    ):
        with pytest.raises(ConfigError, match=message):
            TranslationObjective(model, 0.1, OFF, alignment_lambda=0.05)
        TranslationObjective(model, 0.1, OFF)


class Adapter(nn.Module):
    """A frozen projection plus a trained product of two thin matrices."""

    def __init__(self, projection):
        super().__init__()
        self.projection = projection.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, projection.in_features, dtype=torch.float64))
        self.up = nn.Parameter(torch.zeros(projection.out_features, 2, dtype=torch.float64))

    def forward(self, x):
        return self.projection(x) + x @ self.down.T @ self.up.T


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_adapter_around_the_output_projection_is_called_and_trained(smoothing):
    plain = TranslationObjective(tiny_model(), smoothing, OFF)(batch())
    model = tiny_model()
    model.output_projection = adapter = Adapter(model.output_projection)
    objective = TranslationObjective(model, smoothing, OFF)
    adapted = objective(batch())  # the adapter starts at zero, the logits are float32
    for name, (expected, _) in plain.metrics.items():
        total = adapted.metrics[name][0]
        torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=0)
    adapted.loss.backward()
    assert adapter.up.grad.any() and adapter.projection.weight.grad is None
    with torch.no_grad():
        adapter.up.sub_(0.01 * adapter.up.grad)
    assert objective(batch()).loss < adapted.loss


def test_the_loss_includes_the_bias_of_the_output_projection():
    model = tiny_model()
    before = TranslationObjective(model, 0.1, OFF)(batch()).loss
    bias = torch.arange(20, dtype=torch.float64)
    model.output_projection.bias = nn.Parameter(bias)
    assert TranslationObjective(model, 0.1, OFF)(batch()).loss > before


def test_the_regularizer_counts_in_training_only():
    objective = TranslationObjective(tiny_model(), 0.1, AttentionRegularizerConfig(1.0, 1.0))
    result = objective.eval()(batch())
    torch.testing.assert_close(result.loss.detach(), result.metrics["loss"][0])
    assert result.metrics.keys() == {"loss", "nll_loss"}


@pytest.mark.parametrize("attention", ["softmax", "reluformer"])
def test_telemetry_names_every_layer_and_head(attention):
    objective = TranslationObjective(tiny_model(attention), 0.0, AttentionRegularizerConfig())
    assert not objective(batch()).telemetry
    scalars = objective(batch(), telemetry=True).telemetry
    # Each head of 3 x 2 modules, and of the causal ones positions 1, 2-3 and 4-7.
    assert len(scalars) == 3 * 2 * 2 * 8 + 2 * 3 * 8
    assert np.isfinite(list(scalars.values())).all()
    zeros = scalars["attention/encoder.0.1/zero_fraction"]
    assert (zeros == 0.0) == (attention == "softmax")
    if attention == "softmax":
        assert scalars["attention/cross.1.0/sum"] == pytest.approx(1.0)


def test_gradient_reaches_every_parameter():
    objective = TranslationObjective(tiny_model(), 0.1, AttentionRegularizerConfig(0.1, 0.1, 0.0))
    objective.train()(batch()).loss.backward()
    assert without_gradient(objective) == set()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens", [1, CPU_BLOCK_BYTES + 1, BLOCK_TOKENS + 300])
def test_cross_entropy_equals_the_textbook_loss_and_gradient(smoothing, tokens):
    torch.manual_seed(0)
    vocab = 11
    h = torch.randn(tokens, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(vocab, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, vocab, (tokens,))
    loss, nll, correct = projected_cross_entropy(h, w, target, smoothing)
    log_probs = (h @ w.T).log_softmax(-1)
    smoothed = torch.full_like(log_probs, smoothing / (vocab - 1))
    smoothed.scatter_(1, target[:, None], 1 - smoothing)
    expected = -(smoothed * log_probs).sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, -log_probs.gather(1, target[:, None]).sum())
    assert correct == (log_probs.argmax(1) == target).sum()
    gradients = torch.autograd.grad(3 * loss, (h, w))
    torch.testing.assert_close(gradients, torch.autograd.grad(3 * expected, (h, w)))
    result = smoothed_loss((h @ w.T).log_softmax(-1), target, smoothing)
    torch.testing.assert_close(result, (expected, nll, correct))


def test_cross_entropy_without_autograd_computes_no_gradients():
    tokens, width, vocab = 7, 4, 11
    h = torch.randn(tokens, width, requires_grad=True)
    w = torch.randn(vocab, width, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.int64)
    flops = []
    for has_gradients in (False, True):
        with torch.set_grad_enabled(has_gradients), FlopCounterMode(display=False) as counter:
            projected_cross_entropy(h, w, targets, smoothing=0.0)
        flops.append(counter.get_total_flops())
    assert flops[0] == 2 * tokens * width * vocab < flops[1]


def test_cross_entropy_of_large_logits_in_half_precision_is_finite():
    h = torch.full((3, 2), 60.0, requires_grad=True)
    w = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.5, 0.5]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll, correct = projected_cross_entropy(h, w, torch.tensor([0, 0, 1]), 0.1)
    loss.backward()
    assert nll.item() == pytest.approx(240.0, rel=0.01)
    assert correct == 2
    assert h.grad.isfinite().all() and w.grad.isfinite().all() and w.grad.dtype == torch.float32


def test_cross_entropy_of_a_large_vocabulary_is_exact_in_float16():
    torch.manual_seed(0)
    hidden = torch.randn(3, 8).half()
    weight = (0.02 * torch.randn(250_000, 8)).half()
    results = []
    for dtype in (torch.float16, torch.float32):
        h = hidden.detach().to(dtype).requires_grad_()
        w = weight.detach().to(dtype).requires_grad_()
        loss, nll, _ = projected_cross_entropy(h, w, torch.tensor([5, 6, 7]), 0.1)
        loss.backward()
        results.append((loss.detach().float(), nll.float(), h.grad.float(), w.grad.float()))
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-4)
