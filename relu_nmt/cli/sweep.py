r"""Compare attentions, document lengths and seeds.

Does an attention translate long documents better? Train and evaluate a model for every attention,
document length and seed, and write report.html and results.csv:

  relu-nmt-sweep data-bin --lengths 128,256,512 --attentions softmax,reluformer --seeds 1,2,3 \
      --budget 4000u --save-dir sweep -- --max-tokens 4096 --arch transformer_iwslt_de_en --bf16

or one model for each attention and seed, trained on several lengths and evaluated at each:

  relu-nmt-sweep data-bin --lengths 1,128,512,1024 --doc-mixture 1,128,512,1024 ...

Sentence models learn documents faster. Train them first, and start from them:

  relu-nmt-sweep data-bin --lengths 1 --save-dir sentences ...
  relu-nmt-sweep data-bin --lengths 128,512 --save-dir documents --start-from sentences ...

Models may differ in more than the attention:

  relu-nmt-sweep data-bin --lengths 1 --attentions softmax --variants \
      "pre: --encoder-normalize-before" "sharp: --attention reluformer:gamma=8 --lr 2e-3" ...

The flags behind -- go to relu-nmt-train. To join sentences, DATA needs document boundaries
(relu-nmt-preprocess --document-separator). The same command continues a stopped sweep: it repeats
failed steps and skips finished ones. Several sweeps may share a --save-dir at once, also on several
machines. Exit code 1: a step failed (a step that diverged is a result).
"""

from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.cli.command import StartingCommand

main = StartingCommand(
    "relu-nmt-sweep",
    __doc__,
    SweepSettings,
    "relu_nmt.jobs.sweep.job:run",
    computes=False,
    most_used="lengths attentions seeds budget doc_mixture jobs save_dir",
    usage="relu-nmt-sweep DATA --budget N[u|s|m|h|e] [options] [-- flags of relu-nmt-train]",
    remainder="train_flags",
)

if __name__ == "__main__":
    raise SystemExit(main())
