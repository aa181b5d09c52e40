"""Flags of fairseq that some or all commands lack, with advice for each."""


def _by_flag(advice: dict[str, str]) -> dict[str, str]:
    """Return the advice for each flag; the keys of the argument are flags separated by spaces."""
    return {flag: text for flags, text in advice.items() for flag in flags.split()}


NEAREST = _by_flag(
    {
        "--alignfile": "no command makes a dictionary of alignments; --replace-unk FILE of "
        "relu-nmt-generate reads one, and --align-suffix takes alignments to train on",
        "--full-context-alignment": "the alignment of a token depends on the tokens before it; "
        "leave it out",
        "--encoder-layers-to-keep --decoder-layers-to-keep": "a model keeps all its layers; "
        "--encoder-layers and --decoder-layers set their number in a new one",
        "--distributed-world-size --distributed-num-procs --distributed-port --distributed-rank "
        "--distributed-init-method --distributed-backend --nprocs-per-node --local-rank "
        "--local_rank": "torchrun starts the processes: torchrun --nproc-per-node N -m "
        "relu_nmt.cli.train",
        "--device-id": "torchrun starts the processes: torchrun --nproc-per-node N -m "
        "relu_nmt.cli.train; CUDA_VISIBLE_DEVICES chooses GPUs",
        "--distributed-no-spawn": "torchrun starts the processes anyway; leave it out",
        "--find-unused-parameters": "--ddp-backend legacy_ddp does the same",
        "--bpe --bpe-codes --sentencepiece-model --moses-target-lang --moses-source-lang "
        "--moses-no-dash-splits --moses-no-escape": "the checkpoint holds tokeniser and subwords, "
        "and the input is raw text; leave it out (relu-nmt-preprocess --tokenizer, --subword and "
        "--subword-model choose them)",
        "--fp16-no-flatten-grads --fp16-scale-tolerance --on-cpu-convert-precision": "--fp16 "
        "needs no such setting: weights stay in 32 bits; leave it out",
        "--memory-efficient-bf16": "weights stay in 32 bits here: --bf16",
        "--threshold-loss-scale": "training stops at --min-loss-scale",
        "--amp-batch-retries": "an update whose gradient overflows is left out; leave the flag out",
        "--amp-init-scale": "--fp16-init-scale is the same",
        "--amp-scale-window": "--fp16-scale-window is the same",
        "--wandb-project --azureml-logging --aim-repo --aim-run-hash": "the log goes to "
        "--tensorboard-logdir, --log-file and results.json",
        "--eval-bleu-bpe --eval-bleu-bpe-path": "--eval-bleu-remove-bpe undoes subwords",
        "--sentence-avg": "the loss is a mean over target tokens; leave it out",
        "--curriculum --grouped-shuffling --update-epoch-batch-itr "
        "--update-ordered-indices-seed": "batches are shuffled in every epoch; leave it out",
        "--all-gather-list-size": "there is no such limit; leave it out",
        "--empty-cache-freq": "PyTorch empties its cache when it needs to; leave it out",
        "--optimizer-overrides": "flags of the optimiser (--lr, --adam-betas...) are those of the "
        "command line anyway",
        "--reset-logging": "logs are appended to; leave it out",
        "--use-old-adam": "there is one Adam; leave it out",
        "--fp16-adam-stats": "Adam's moments stay in 32 bits; leave it out",
        "--ignore-prefix-size": "--prefix-size of relu-nmt-generate forces beginnings",
        "--ema-fp32": "the average is in 32 bits anyway; leave it out",
        "--ema-seed-model": "--finetune-from-model starts weights and their average",
        "--cross-self-attention": "--attention, --cross-attention and their like choose attention",
        "--no-cross-attention": "every decoder layer attends to the source; --cross-attention "
        "chooses how",
        "--encoder-embed-path --decoder-embed-path": "embeddings are trained; "
        "--finetune-from-model starts from a model's",
        "--decoder-output-dim": "the output has --decoder-embed-dim; leave it out",
        "--adaptive-input --adaptive-softmax-cutoff --adaptive-softmax-dropout "
        "--adaptive-softmax-factor --tie-adaptive-weights --tie-adaptive-proj": "there is one "
        "output layer, over the whole dictionary; --nwordssrc and --nwordstgt of "
        "relu-nmt-preprocess bound it",
        "--quant-noise-pq --quant-noise-pq-block-size --quant-noise-scalar "
        "--quantization-config-path": "training has no quantisation; --int8 of relu-nmt-generate "
        "saves time",
        "--offload-activations --pipeline-checkpoint": "--checkpoint-activations saves memory",
        "--upsample-primary": "splits train, train1, train2... of one folder are joined "
        "without weights; preprocess the text to weight into a folder DATA of its own, the rest "
        "into OTHER, and type relu-nmt-train DATA --extra-data OTHER --corpus-weights N,1",
        "--tagged": "--tag-extra-data of relu-nmt-train begins the sources of --extra-data with a "
        "tag",
        "--lm-path": "no language model is mixed in; several models with --path a:b are an "
        "ensemble",
        "--lm-weight": "no language model is mixed in; leave it out",
        "--iter-decode-max-iter --iter-decode-eos-penalty --iter-decode-force-max-iter "
        "--iter-decode-with-beam --decoding-format --print-step "
        "--iter-decode-with-external-reranker": "models write from left to right; --beam sets "
        "their search",
        "--retain-iter-history": "models write from left to right; --nbest prints more "
        "translations",
        "--raw-text": "the data folder keeps raw text where the checkpoint needs it; leave it out",
        "--eos-token": "the end symbol is that of the dictionary; leave it out",
        "--checkpoint-suffix --checkpoint-shard-count --load-checkpoint-on-all-dp-ranks": "a "
        "checkpoint is one file; --save-dir and --path name it",
        "--match-source-len": "--max-len-a 1 --max-len-b 0 bounds the output by the source",
        "--suppress-crashes": "an error ends the command with a message; leave it out",
        "--max-lr": "--lr is the highest learning rate, and --min-lr the lowest of cosine",
        "--momentum": "Adam has --adam-betas instead",
        "--use-bmuf --broadcast-buffers --bucket-cap-mb --fast-stat-sync --ddp-comm-hook "
        "--gradient-as-bucket-view": "PyTorch's default is used; leave it out",
        "--fix-batches-to-gpus": "batches are shuffled among processes; leave it out",
        "--heartbeat-timeout": "torchrun watches its processes; leave it out",
        "--zero-sharding --cpu-offload --model-parallel-size --pipeline-model-parallel "
        "--pipeline-balance --pipeline-devices --pipeline-chunks --pipeline-encoder-balance "
        "--pipeline-encoder-devices --pipeline-decoder-balance --pipeline-decoder-devices "
        "--no-reshard-after-forward --fp32-reduce-scatter --use-sharded-state "
        "--not-fsdp-flatten-parameters --min-params-to-wrap": "--ddp-backend fully_sharded divides "
        "weights, gradients and optimiser among processes",
        "--lang-pairs --langs": "a model translates one way, from --source-lang to --target-lang; "
        "train one for each pair",
        "--fixed-validation-seed": "validation draws no random numbers; leave it out",
        "--num-batch-buckets --required-seq-len-multiple": "batches have the lengths of their "
        "sentences; leave it out",
        "--data-buffer-size": "--num-workers sets the number of threads that read batches ahead",
        "--combine-val --combine-valid-subsets": "--valid-subset valid,valid1 names the splits to "
        "validate on",
        "--write-checkpoints-asynchronously": "checkpoints are written at once; leave it out",
        "--tpu": "models run on CPU or GPU; leave it out",
        "--wer-args --wer-tokenizer": "BLEU and chrF are the scores: --scoring",
        "--ignore-unused-valid-subsets": "--valid-subset names the splits to validate on; leave it "
        "out",
        "--max-valid-steps": "--valid-subset names the split to validate on, which is read whole",
        "--skip-remainder-batch": "an epoch trains on all of its sentences; leave it out",
        "--profile": "there is no profiler here; leave it out",
        "--debug-param-names": "an error names the weight of a gradient that is not finite; leave "
        "it out",
        "--use-plasma-view --plasma-path": "data is mapped into memory, which processes share; "
        "leave it out",
        "--slowmo-momentum --slowmo-base-algorithm --localsgd-frequency": "gradients are "
        "averaged in every update; leave it out",
        "--continue-once": "--restore-file names the checkpoint to go on from",
        "--keep-interval-updates-pattern": "--keep-interval-updates sets their number",
        "--base-layers --base-sublayers --base-shuffle": "there are no layers of experts; leave it "
        "out",
        "--export": "relu-nmt-convert --to onnx writes a model for other runtimes",
        "--no-decoder-final-norm": "--decoder-normalize-before adds the final norm",
        "--char-inputs": "relu-nmt-preprocess --subword splits words",
        "--encoder-xformers-att-config": "--attention-backend chooses the implementation of "
        "attention",
        "--prepend-bos": "sources begin with their first word; leave it out",
        "--warmup-ratio": "--warmup-updates sets the number of updates",
        "--no-seed-provided": "--seed is 1 if none is given; leave it out",
        "--no-beamable-mm": "it changes no translation; leave it out",
        "--diversity-rate": "--diverse-beam-groups and --diverse-beam-strength do the same",
        "--retain-dropout --retain-dropout-modules": "dropout is for training alone; --sampling "
        "draws translations",
        "--sacrebleu-char-level": "--sacrebleu-tokenizer char is the same",
        "--output-format": "there is one format of data; leave it out",
    }
)
"""Advice for flags that no command has, instead of a guess at the spelling; N stands for the typed
number."""

ELSEWHERE = _by_flag(
    {
        "--constraints": "relu-nmt-interactive and relu-nmt-translate-document force terms",
        "--input": "relu-nmt-interactive --input FILE translates text",
        "--buffer-size": "relu-nmt-interactive has it; leave it out",
        "--gen-subset": "relu-nmt-generate translates splits of a data folder",
        "--results-path": "relu-nmt-generate has it; redirect standard output: > FILE",
        "--quiet": "relu-nmt-generate has it; leave it out",
        "--prefix-size": "relu-nmt-generate has it; --prefixes of relu-nmt-interactive begins "
        "lines",
        "--sacrebleu --scoring --sacrebleu-tokenizer --sacrebleu-lowercase": "relu-nmt-generate "
        "and relu-nmt-score compare with references",
        "--max-target-positions": "--max-len-a and --max-len-b bound translations",
        "--num-workers --required-batch-size-multiple --log-format --log-interval "
        "--optimizer": "it is a flag of training; leave it out",
        "--criterion": "it is a flag of relu-nmt-train; leave it out",
        "--arch": "the checkpoint knows its architecture; leave it out",
        "--num-shards --shard-id": "relu-nmt-generate has it; torchrun divides training",
        "--skip-invalid-size-inputs-valid-test": "a line that is too long gives an empty one "
        "anyway; leave it out",
        "--tokenizer": "relu-nmt-preprocess --tokenizer chooses it, --eval-bleu-detok undoes it",
        "--attention-pictures": "relu-nmt-interactive draws those of lines; those of documents: "
        "relu-nmt-analyze DATA --path CKPT --max-doc-tokens 128 --examples 0 --output report.html",
        "--print-alignment": "relu-nmt-generate and relu-nmt-interactive --format fairseq have it",
        "--max-doc-tokens": "each line is translated on its own here; relu-nmt-translate-document "
        "joins the lines of a document",
        "--format": "relu-nmt-interactive --format json prints translations and scores as JSON",
    }
)
"""Advice for flags that only some commands have, for the other commands."""
