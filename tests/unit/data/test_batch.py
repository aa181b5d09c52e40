import numpy as np
import torch

from relu_nmt.data.batch import collate

PAIRS = [
    (np.array([4, 5, 6, 2]), np.array([7, 2])),
    (np.array([4, 2]), np.array([8, 9, 2])),
]


def test_padding_is_on_the_right():
    batch = collate(PAIRS, [10, 3], pad_index=1, eos_index=2)
    assert batch.ids.tolist() == [10, 3]
    assert batch.src_tokens.tolist() == [[4, 5, 6, 2], [4, 2, 1, 1]]
    assert batch.src_lengths.tolist() == [4, 2]
    assert batch.tgt_tokens.tolist() == [[7, 2, 1], [8, 9, 2]]
    assert batch.prev_output_tokens.tolist() == [[2, 7, 1], [2, 8, 9]]
    assert (batch.num_tokens, batch.num_sentences) == (5, 2)
    tensors = (batch.ids, batch.src_tokens, batch.src_lengths, batch.tgt_tokens)
    assert all(tensor.dtype == torch.int64 for tensor in tensors)


def test_empty_sentences():
    batch = collate([(np.array([2]), np.array([2]))], [0], pad_index=1, eos_index=2)
    assert batch.tgt_tokens.tolist() == [[2]]
    assert batch.prev_output_tokens.tolist() == [[2]]


def test_source_only():
    batch = collate([(np.array([4, 2]), None)], [0], pad_index=1, eos_index=2)
    assert batch.tgt_tokens is None
    assert batch.prev_output_tokens is None
    assert batch.num_tokens == 0


def test_move_keeps_everything():
    batch = collate(PAIRS, [0, 1], pad_index=1, eos_index=2)
    moved = batch.to("meta")
    assert moved.src_tokens.device.type == "meta"
    assert moved.prev_output_tokens.shape == batch.prev_output_tokens.shape
    assert moved.num_tokens == batch.num_tokens
