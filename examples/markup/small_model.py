"""The model of the comparison and its training, as flags of ``relu-nmt-train``."""

MODEL = """
    --arch reluformer_hybrid_tiny --share-all-embeddings
    --encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512
    --encoder-attention-heads 4
    --decoder-layers 3 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512
    --decoder-attention-heads 4 --encoder-normalize-before --decoder-normalize-before
    --positions sinusoidal+rotary
"""
TRAINING = """
    --max-tokens 768 --dropout 0 --label-smoothing 0.1 --clip-norm 1.0
    --optimizer adam --adam-betas (0.9,0.98) --lr 3e-3 --lr-scheduler inverse_sqrt
    --warmup-updates 600 --store-ema --ema-decay 0.998
"""
