r"""Make a data folder from text files.

The folder has dictionaries, binarized text, and everything needed to start from raw text and to end
in raw text. The text is either tokenized (tokens between spaces, as for fairseq-preprocess, and the
folder is then the same as fairseq's) or raw:

  relu-nmt-preprocess -s de -t en --trainpref corpus/train --validpref corpus/valid \
      --testpref corpus/test --destdir data-bin/corpus --joined-dictionary \
      --tokenizer moses --lowercase --subword subword-nmt --subword-size 8000

Large text comes in shards, which become data folders of their own, one after the other or as jobs
of a cluster. Each epoch of relu-nmt-train data-bin/shard0:data-bin/shard1:... reads one:

  relu-nmt-preprocess -s de -t en --trainpref corpus/a,corpus/b,corpus/c --destdir data-bin ... \
      --cluster slurm --cluster-parameters cpus_per_task=16,timeout_min=600

To go on with a trained model, take dictionaries and all steps of the text from its checkpoint:

  relu-nmt-preprocess --like model.safetensors --trainpref corpus/train --validpref corpus/valid

Start an interrupted run again, and it continues where it stopped.
"""

from relu_nmt.cli.command import Command
from relu_nmt.jobs.preprocess.settings import PreprocessSettings

main = Command(
    "relu-nmt-preprocess",
    __doc__,
    PreprocessSettings,
    "relu_nmt.jobs.preprocess.job:run",
    computes=False,
    most_used="source_lang target_lang trainpref validpref testpref destdir tokenizer subword "
    "subword_size joined_dictionary document_separator",
)

if __name__ == "__main__":
    raise SystemExit(main())
