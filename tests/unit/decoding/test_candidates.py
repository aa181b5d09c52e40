import pytest
import torch

from relu_nmt.decoding.candidates import BLOCK, top_continuations


@pytest.mark.parametrize("vocab_size", [5, BLOCK, 5 * BLOCK, 5 * BLOCK + 1, 700, 1003])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_top_continuations_equal_a_plain_topk(vocab_size, beam_size):
    generator = torch.Generator().manual_seed(vocab_size)
    for count in (1, 2 * beam_size, 40):
        log_probs = torch.randn(4, beam_size, vocab_size, generator=generator)
        log_probs[:, :, : vocab_size // 2] = -torch.inf
        totals = torch.randn(4, beam_size, generator=generator)
        expected = (log_probs + totals[:, :, None]).flatten(1)
        values, columns = top_continuations(log_probs, totals, count)
        wanted = expected.topk(min(count, expected.size(1)))
        assert torch.equal(values, wanted.values)
        assert torch.equal(expected.gather(1, columns), wanted.values)


def test_beams_without_a_hypothesis_give_no_continuation_while_there_are_others():
    log_probs = torch.zeros(1, 2, 500)
    totals = torch.tensor([[0.0, -torch.inf]])
    values, columns = top_continuations(log_probs, totals, 10)
    assert (columns < 500).all()
    assert torch.equal(values, torch.zeros(1, 10))


def test_the_last_narrow_block_is_searched():
    log_probs = torch.zeros(1, 2, 5 * BLOCK + 3)
    log_probs[0, 1, -1] = 1.0
    values, columns = top_continuations(log_probs, torch.zeros(1, 2), 1)
    assert values.item() == 1.0
    assert columns.item() == 2 * (5 * BLOCK + 3) - 1
