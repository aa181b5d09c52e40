"""relu-nmt-preprocess: from text files to a data folder."""

from relu_nmt.cli.command import RecipeCommand
from relu_nmt.recipes.preprocess_settings import PreprocessSettings

DESCRIPTION = """\
Make a data folder: dictionaries, binarised text, and everything needed to start from raw text
and to end in raw text. The text is either tokenised (tokens between spaces, as for
fairseq-preprocess; the folder is then the same as fairseq's) or raw:

  relu-nmt-preprocess -s de -t en --trainpref corpus/train --validpref corpus/valid \\
      --testpref corpus/test --destdir data-bin/corpus --joined-dictionary \\
      --tokenizer moses --lowercase --subword subword-nmt --subword-size 8000

Large text comes in shards, which become data folders of their own, one after the other or as jobs
of a cluster; each epoch of relu-nmt-train data-bin/shard0:data-bin/shard1:... reads one:

  relu-nmt-preprocess -s de -t en --trainpref corpus/a,corpus/b,corpus/c --destdir data-bin ... \\
      --cluster slurm --cluster-parameters cpus_per_task=16,timeout_min=600

Start an interrupted run again, and it continues where it stopped.
"""

main = RecipeCommand(
    "relu-nmt-preprocess",
    DESCRIPTION,
    PreprocessSettings,
    "preprocess",
    computes=False,
    most_used=(
        "source_lang",
        "target_lang",
        "trainpref",
        "validpref",
        "testpref",
        "destdir",
        "tokenizer",
        "subword",
        "subword_size",
        "joined_dictionary",
        "document_separator",
    ),
)

if __name__ == "__main__":
    raise SystemExit(main())
