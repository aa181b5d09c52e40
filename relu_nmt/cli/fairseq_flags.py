"""Flags of fairseq that no command here has, and what there is instead."""

_PROCESSES = "processes are started by torchrun: torchrun --nproc-per-node N -m relu_nmt.cli.train"
_STORED = "the checkpoint holds tokeniser and subwords, so that raw text goes in; leave it out"
_DIVIDED = "--ddp-backend fully_sharded divides weights, gradients and optimiser among processes"
_PAIRS = "a model translates one way, from --source-lang to --target-lang; train one for each pair"
_DDP = "PyTorch's setting of it is used; leave it out"
_DROPPED = (
    "a model keeps all its layers; --encoder-layers and --decoder-layers of a new one are as "
)
_DROPPED += "many as you say"
_FLOAT16 = "--fp16 needs no such setting: weights stay in 32 bits; leave it out"
_BOARD = "the log goes to --tensorboard-logdir, --log-file and results.json"
_QUANTISED = "training knows no quantisation; --int8 of relu-nmt-generate is what saves time"
_SOFTMAX = "there is one output layer, over the whole dictionary; --nwordssrc and --nwordstgt of "
_SOFTMAX += "relu-nmt-preprocess bound it"
_LEFT_TO_RIGHT = "models write from left to right; --beam is how they search"
_ONE_FILE = "a checkpoint is one file; --save-dir and --path say where it is"
_OF_TRAINING = "it is a flag of training; leave it out"
_SCORES = "relu-nmt-generate and relu-nmt-score compare with references"

NEAREST = {
    "--alignfile": "no dictionary is made of alignments; --replace-unk FILE of relu-nmt-generate "
    "reads one, and --align-suffix takes alignments to train on",
    "--full-context-alignment": "what aligns a token sees those before it; leave it out",
    "--encoder-layers-to-keep": _DROPPED,
    "--decoder-layers-to-keep": _DROPPED,
    "--distributed-world-size": _PROCESSES,
    "--distributed-num-procs": _PROCESSES,
    "--distributed-port": _PROCESSES,
    "--distributed-rank": _PROCESSES,
    "--distributed-init-method": _PROCESSES,
    "--distributed-backend": _PROCESSES,
    "--device-id": _PROCESSES + "; CUDA_VISIBLE_DEVICES chooses GPUs",
    "--distributed-no-spawn": "processes are started by torchrun anyway; leave it out",
    "--nprocs-per-node": _PROCESSES,
    "--local-rank": _PROCESSES,
    "--local_rank": _PROCESSES,
    "--find-unused-parameters": "--ddp-backend legacy_ddp does that",
    "--bpe": _STORED,
    "--bpe-codes": _STORED,
    "--sentencepiece-model": _STORED,
    "--moses-target-lang": _STORED,
    "--moses-source-lang": _STORED,
    "--fp16-no-flatten-grads": _FLOAT16,
    "--memory-efficient-bf16": "weights stay in 32 bits here: --bf16",
    "--threshold-loss-scale": "--min-loss-scale is where training stops",
    "--fp16-scale-tolerance": _FLOAT16,
    "--amp-batch-retries": "an update whose gradient overflows is left out; leave the flag out",
    "--amp-init-scale": "--fp16-init-scale is the same",
    "--amp-scale-window": "--fp16-scale-window is the same",
    "--wandb-project": _BOARD,
    "--azureml-logging": _BOARD,
    "--aim-repo": _BOARD,
    "--eval-bleu-bpe": "--eval-bleu-remove-bpe undoes subwords",
    "--eval-bleu-bpe-path": "--eval-bleu-remove-bpe undoes subwords",
    "--sentence-avg": "the loss is a mean over target tokens; leave it out",
    "--curriculum": "batches are shuffled in every epoch; leave it out",
    "--all-gather-list-size": "there is no such limit; leave it out",
    "--empty-cache-freq": "PyTorch empties its cache when it needs to; leave it out",
    "--optimizer-overrides": "flags of the optimiser (--lr, --adam-betas...) are those of the "
    "command line anyway",
    "--reset-logging": "logs are added to; leave it out",
    "--use-old-adam": "there is one Adam; leave it out",
    "--fp16-adam-stats": "Adam's moments stay in 32 bits; leave it out",
    "--ignore-prefix-size": "--prefix-size of relu-nmt-generate forces beginnings",
    "--ema-fp32": "the average is in 32 bits anyway; leave it out",
    "--ema-seed-model": "--finetune-from-model starts weights and their average",
    "--cross-self-attention": "--attention, --cross-attention and their like choose attention",
    "--no-cross-attention": "every decoder layer attends to the source; --cross-attention chooses "
    "how",
    "--encoder-embed-path": "embeddings are trained; --finetune-from-model starts from a model's",
    "--decoder-embed-path": "embeddings are trained; --finetune-from-model starts from a model's",
    "--decoder-output-dim": "it is --decoder-embed-dim",
    "--adaptive-input": _SOFTMAX,
    "--adaptive-softmax-cutoff": _SOFTMAX,
    "--adaptive-softmax-dropout": _SOFTMAX,
    "--quant-noise-pq": _QUANTISED,
    "--quant-noise-pq-block-size": _QUANTISED,
    "--quant-noise-scalar": _QUANTISED,
    "--offload-activations": "--checkpoint-activations saves memory",
    "--upsample-primary": "--extra-data and --corpus-weights join folders with weights; splits "
    "train, train1, train2... of one folder are joined as they are",
    "--lm-path": "no language model is mixed in; several models with --path a:b are an ensemble",
    "--lm-weight": "no language model is mixed in; leave it out",
    "--iter-decode-max-iter": _LEFT_TO_RIGHT,
    "--iter-decode-eos-penalty": _LEFT_TO_RIGHT,
    "--iter-decode-force-max-iter": _LEFT_TO_RIGHT,
    "--iter-decode-with-beam": _LEFT_TO_RIGHT,
    "--decoding-format": _LEFT_TO_RIGHT,
    "--print-step": _LEFT_TO_RIGHT,
    "--retain-iter-history": "models write from left to right; --nbest prints more translations",
    "--raw-text": "the data folder keeps raw text where the checkpoint needs it; leave it out",
    "--eos-token": "the end symbol is that of the dictionary; leave it out",
    "--checkpoint-suffix": _ONE_FILE,
    "--checkpoint-shard-count": _ONE_FILE,
    "--match-source-len": "--max-len-a 1 --max-len-b 0 bounds the output by the source",
    "--suppress-crashes": "errors are told and end the command; leave it out",
    "--max-lr": "--lr is the highest learning rate, and --min-lr the lowest of cosine",
    "--momentum": "it is of other optimisers than Adam; --adam-betas are Adam's",
    "--use-bmuf": _DDP,
    "--broadcast-buffers": _DDP,
    "--bucket-cap-mb": _DDP,
    "--fast-stat-sync": _DDP,
    "--fix-batches-to-gpus": "batches are shuffled among processes; leave it out",
    "--heartbeat-timeout": "torchrun watches its processes; leave it out",
    "--zero-sharding": _DIVIDED,
    "--cpu-offload": _DIVIDED,
    "--model-parallel-size": _DIVIDED,
    "--pipeline-model-parallel": _DIVIDED,
    "--lang-pairs": _PAIRS,
    "--langs": _PAIRS,
    "--fixed-validation-seed": "validation draws no random numbers; leave it out",
    "--num-batch-buckets": "batches have the lengths of their sentences; leave it out",
    "--data-buffer-size": "--num-workers is how many threads read batches ahead",
    "--combine-val": "--valid-subset valid,valid1 names the splits to validate on",
    "--write-checkpoints-asynchronously": "checkpoints are written at once; leave it out",
    "--tpu": "there are CPU and GPU",
    "--wer-args": "BLEU and chrF are the scores: --scoring",
}
"""What to say of a flag instead of guessing at its spelling."""

ELSEWHERE = {
    "--constraints": "relu-nmt-interactive and relu-nmt-translate-document force terms",
    "--input": "relu-nmt-interactive --input FILE translates text",
    "--buffer-size": "relu-nmt-interactive has it; leave it out",
    "--gen-subset": "relu-nmt-generate translates splits of a data folder",
    "--results-path": "relu-nmt-generate has it; lead standard output to a file: > FILE",
    "--quiet": "relu-nmt-generate has it; leave it out",
    "--prefix-size": "relu-nmt-generate has it; --prefixes of relu-nmt-interactive begins lines",
    "--sacrebleu": _SCORES,
    "--scoring": _SCORES,
    "--max-target-positions": "--max-len-a and --max-len-b bound translations",
    "--num-workers": _OF_TRAINING,
    "--required-batch-size-multiple": _OF_TRAINING,
    "--log-format": _OF_TRAINING,
    "--log-interval": _OF_TRAINING,
}
"""The same of flags that only some commands have, for those that have not."""
