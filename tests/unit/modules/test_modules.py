import pytest
import torch
import torch.nn.functional as F

from relu_nmt.attention.base import build_attention
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.spec import AttentionSpec
from relu_nmt.dropout import dropout
from relu_nmt.errors import DataError
from relu_nmt.modules.cross_entropy import BLOCK_TOKENS, CPU_CHUNK_TOKENS, projected_cross_entropy
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.positions import LearnedPositions, SinusoidalPositions


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens", [1, CPU_CHUNK_TOKENS + 1, BLOCK_TOKENS + 300])
def test_cross_entropy_equals_the_textbook_loss_and_gradient(smoothing, tokens):
    torch.manual_seed(0)
    vocab = 11
    h = torch.randn(tokens, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(vocab, 4, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, vocab, (tokens,))
    loss, nll = projected_cross_entropy(h, w, target, smoothing)
    log_probs = (h @ w.T).log_softmax(-1)
    smoothed = torch.full_like(log_probs, smoothing / (vocab - 1))
    smoothed.scatter_(1, target[:, None], 1 - smoothing)
    expected = -(smoothed * log_probs).sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(nll, -log_probs.gather(1, target[:, None]).sum())
    ours, theirs = (torch.autograd.grad(3 * x, (h, w)) for x in (loss, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_cross_entropy_survives_large_logits_and_half_precision():
    h = torch.full((3, 2), 60.0, requires_grad=True)
    w = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.5, 0.5]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll = projected_cross_entropy(h, w, torch.tensor([0, 0, 1]), 0.1)
    loss.backward()
    assert nll.item() == pytest.approx(240.0, rel=0.01)
    assert h.grad.isfinite().all() and w.grad.isfinite().all() and w.grad.dtype == torch.float32


@pytest.mark.parametrize("shape", [(1,), (7, 3), (100, 1001)])
def test_dropout_keeps_the_expectation_and_never_repeats(shape):
    torch.manual_seed(1)
    x = torch.ones(shape)
    y = dropout(x, 0.3)
    kept = y[y != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.7), rtol=1e-4, atol=0)
    if x.numel() > 1000:
        assert y.mean().item() == pytest.approx(1.0, abs=0.01)
        assert (y == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
        assert not torch.equal(y, dropout(x, 0.3))


def test_dropout_gradient_follows_the_mask():
    x = torch.ones(50, 40, requires_grad=True)
    y = dropout(x, 0.5)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())


def test_sinusoidal_positions_grow_and_stay_what_they_were():
    positions = SinusoidalPositions(6)
    early, late = positions(3).clone(), positions(5, start=5000)
    assert late.shape == (5, 6)
    torch.testing.assert_close(positions(3), early)
    assert early[0].tolist() == [0, 0, 0, 1, 1, 1]
    assert late[0, 0].item() == pytest.approx(torch.tensor(5000.0).sin().item(), abs=1e-4)


def test_learned_positions_refuse_what_does_not_fit():
    positions = LearnedPositions(4, 8, "--max-source-positions")
    assert positions(8).shape == (8, 4)
    with pytest.raises(DataError, match="9 tokens does not fit --max-source-positions 8"):
        positions(9)


def test_multihead_softmax_equals_pytorchs_own():
    torch.manual_seed(2)
    attention = build_attention(AttentionSpec.parse("softmax"), "encoder", 0, 2, 4, 0.0)
    ours = MultiheadAttention(8, attention).double()
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.in_proj_weight,
            "in_proj_bias": ours.in_proj_bias,
            "out_proj.weight": ours.out_proj.weight,
            "out_proj.bias": ours.out_proj.bias,
        }
    )
    x, memory = (torch.randn(3, n, 8, dtype=torch.float64) for n in (4, 5))
    mask = torch.arange(5) < torch.tensor([[5], [2], [4]])
    visibility = Visibility(4, 5, key_mask=mask)
    output = ours.attend(x, ours.queries(x), *ours.keys_values(memory), visibility)
    expected, _ = theirs(x, memory, memory, key_padding_mask=~mask)
    torch.testing.assert_close(output.values, expected)
    itself = ours.attend(x, *ours.self_projections(x), Visibility(4, 4)).values
    torch.testing.assert_close(itself, theirs(x, x, x)[0])


def test_initialisation_has_the_variance_of_fairseqs():
    attention = build_attention(AttentionSpec.parse("softmax"), "encoder", 0, 4, 64, 0.0)
    layer = MultiheadAttention(256, attention)
    assert layer.in_proj_weight.var().item() == pytest.approx(0.5 / 256, rel=0.05)
    assert layer.out_proj.weight.var().item() == pytest.approx(1 / 256, rel=0.05)
    assert F.linear(torch.zeros(256), layer.out_proj.weight, layer.out_proj.bias).abs().sum() == 0
