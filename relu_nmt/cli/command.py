"""Shared parts of all commands: the parser, errors as one line, and advice on fairseq's flags."""

import argparse
import importlib
import os
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NoReturn

import relu_nmt.cli
from relu_nmt.config import add_settings, flag_of, read_settings
from relu_nmt.config.command_line import HelpFormatter
from relu_nmt.config.registry import FLAG, close_names, import_user_module
from relu_nmt.errors import ConfigError, ReluNmtError, is_out_of_memory
from relu_nmt.io.process import choose_threads, crowding_note, utf8_streams

KERNEL_CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
"""Variable that limits oneDNN's cache of matrix products (bfloat16 on a CPU), compiled by shape.

Batches of text rarely repeat a shape, so that oneDNN's own limit of 1,024 mainly costs memory."""

MOST_NAMED = 3
"""Most commands that an error message names."""
USER_ERROR, INTERRUPTED, READER_LEFT = 2, 130, 141
"""Exit codes; those of a signal are 128 + SIGINT and 128 + SIGPIPE, as in a shell."""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports errors as one line."""

    def error(self, message: str) -> NoReturn:
        """Raise an error that suggests the right flag for an unknown one."""
        # First the hints for fairseq's flags, with the number that was typed in place of N.
        _, _, words = message.partition("unrecognized arguments: ")
        unknown = re.findall(r"(?<!\S)--[^\s=]+", words)
        advice = (*NEAREST.items(), *ELSEWHERE.items())
        for flag in unknown:
            found = (text for flags, text in advice if is_one_of(flag, flags))
            if instead := next(found, ""):
                number = re.search(rf"{flag}[ =](\d[\d.]*)", words)
                instead = re.sub(r"\bN\b", number[1], instead) if number else instead
                raise ConfigError(f"{flag}: {instead}")
        # Then the commands that have the flag, and last the nearest flag of this command.
        for flag in unknown:
            if commands := _commands_with(flag):
                raise ConfigError(f"{flag}: it is a flag of {' and '.join(commands[:MOST_NAMED])}")
        hint = close_names(unknown[0], self._option_string_actions) if unknown else ""
        raise ConfigError(f"{message}; {hint}" if hint else f"{message}; see --help")


def is_one_of(flag: str, patterns: str) -> bool:
    """Return True if a flag fits one of the patterns, as ``--bpe --moses-*``."""
    return any(fnmatchcase(flag, pattern) for pattern in patterns.split())


def _commands_with(flag: str) -> list[str]:
    """Return the names of the commands that have a flag."""
    names = [module.name for module in pkgutil.iter_modules(relu_nmt.cli.__path__)]
    mains = [vars(importlib.import_module(f"relu_nmt.cli.{name}")).get("main") for name in names]
    commands = [main for main in mains if isinstance(main, RecipeCommand)]
    return [one.prog for one in commands if flag in one.parser()._option_string_actions]


def make_parser(
    prog: str, description: str | None, user_modules: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the options that every command has."""
    parser = Parser(prog=prog, description=description, formatter_class=HelpFormatter)
    parser.add_argument(
        "--debug", action="store_true", help="show the trace of an error, not only its message"
    )
    parser.add_argument("--version", action="version", version=f"relu_nmt {relu_nmt.__version__}")
    # Import the files while parsing, so that later flags can name their attentions.
    if user_modules:
        parser.add_argument(
            FLAG,
            "--user-dir",
            action="append",
            default=[],
            type=import_user_module,
            metavar="FILE",
            help="Python file or package folder with parts of your own; repeatable",
        )
    return parser


@dataclass(frozen=True)
class RecipeCommand:
    """The ``main`` of a command that runs a recipe and returns the exit code.

    Args:
        description: first text of ``--help``, most often the module's docstring.
        settings_class: settings whose flags the command has.
        recipe: module of ``relu_nmt.recipes`` whose ``run`` is called, or ``module.function``; or a
            function, of a script that has imported PyTorch already. The exit code is that of its
            result, if it has one.
        user_modules: let the user add parts of their own.
        computes: warn if other processes use the same cores.
        most_used: names of the settings with which ``--help`` begins, with spaces between them.
        usage: first line of ``--help``, if another than the usual one.
        rest: a setting that takes the words behind ``--``, flags of the processes that the command
            starts. The fields ``command`` and ``user_modules`` get all words, and the user's files.
    """

    prog: str
    description: str | None
    settings_class: type[Any]
    recipe: str | Callable[[Any], Any]
    user_modules: bool = True
    computes: bool = True
    most_used: str = ""
    usage: str = ""
    rest: str = ""

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of the command's flags."""
        parser = make_parser(self.prog, self.description, self.user_modules)
        parser.usage = self.usage or None
        add_settings(parser, self.settings_class, self.most_used.split())
        return parser

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the command with these arguments, by default those of the command line."""
        is_named = isinstance(self.recipe, str)
        if is_named and self.settings_class.__module__ == "__main__":
            # Under python -m, leave to the imported module, whose classes are those of the recipe.
            name = self.prog.removeprefix("relu-nmt-").replace("-", "_")
            return importlib.import_module(f"relu_nmt.cli.{name}").main(argv)
        # Leave the threads to the processes that a command starts.
        if is_named and not self.rest:
            choose_threads()
        words = list(sys.argv[1:] if argv is None else argv)
        own = words
        if self.rest and "--" in words:
            first = words.index("--")
            own = [*words[:first], f"{flag_of(self.rest)}={shlex.join(words[first + 1 :])}"]
        return run_command(self.parser(), partial(self._run, words), own)

    def _run(self, words: list[str], arguments: argparse.Namespace) -> int:
        settings = read_settings(self.settings_class, arguments)
        if self.rest:
            modules = tuple(arguments.user_module)
            settings = replace(settings, user_modules=modules, command=tuple(words))
        if not isinstance(self.recipe, str):
            return getattr(self.recipe(settings), "exit_code", 0)
        if self.computes and (note := crowding_note()):
            print(note, file=sys.stderr)
        # Import the recipe now: until here nothing has imported PyTorch.
        module, _, function = self.recipe.partition(".")
        recipe = importlib.import_module(f"relu_nmt.recipes.{module}")
        return getattr(getattr(recipe, function or "run")(settings), "exit_code", 0)


def run_command(
    parser: argparse.ArgumentParser,
    body: Callable[[argparse.Namespace], int | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse ``argv``, run ``body`` and return the exit code.

    Exit codes: 0 success, 2 an error that the user can fix (one line on standard error), 130
    interrupted from the keyboard, 141 the reader of standard output has left.
    """
    # Bound the cache of compiled kernels, since text rarely repeats a shape.
    os.environ.setdefault(KERNEL_CACHE, "256")
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        with utf8_streams():
            # Allow flags between positional arguments, too.
            return body(parser.parse_intermixed_args(argv)) or 0
    except BrokenPipeError:  # print nothing, like a shell, when head or less end
        return READER_LEFT
    except (ReluNmtError, OSError) as error:
        if debug:
            raise
        _print_error(f"{parser.prog}: error: {error}")
        return USER_ERROR
    except (RuntimeError, MemoryError) as error:
        # Report a lack of memory in one line; other errors of these kinds are bugs.
        if debug or not is_out_of_memory(error):
            raise
        reason = f" ({' '.join(str(error).split())})" if str(error) else ""
        remedy = "take a smaller model, batch or input"
        _print_error(f"{parser.prog}: error: out of memory{reason}; {remedy}")
        return USER_ERROR
    except KeyboardInterrupt:
        _print_error(f"{parser.prog}: interrupted")
        return INTERRUPTED


def _print_error(text: str) -> None:
    """Print on standard error; ignore an error there, as the exit code reports it too."""
    with suppress(OSError):
        print(text, file=sys.stderr)


# ------------------------------------------------------------------- flags of fairseq


NEAREST = {
    "--alignfile": "no command makes a dictionary of alignments; --replace-unk FILE of "
    "relu-nmt-generate reads one, and --align-suffix takes alignments to train on",
    "--full-context-alignment": "the alignment of a token depends on the tokens before it; leave "
    "it out",
    "--encoder-layers-to-keep --decoder-layers-to-keep": "a model keeps all its layers; "
    "--encoder-layers and --decoder-layers set their number in a new one",
    "--distributed-no-spawn": "torchrun starts the processes anyway; leave it out",
    "--distributed-* --nprocs-per-node --local-rank --local_rank": "torchrun starts the processes: "
    "torchrun --nproc-per-node N -m relu_nmt.cli.train",
    "--device-id": "torchrun starts the processes: torchrun --nproc-per-node N -m "
    "relu_nmt.cli.train; CUDA_VISIBLE_DEVICES chooses GPUs",
    "--find-unused-parameters": "--ddp-backend legacy_ddp does the same",
    "--bpe --bpe-codes --sentencepiece-model --moses-*": "the checkpoint holds tokeniser and "
    "subwords, and the input is raw text; leave it out (relu-nmt-preprocess --tokenizer, --subword "
    "and --subword-model choose them)",
    "--fp16-no-flatten-grads --fp16-scale-tolerance --on-cpu-convert-precision": "--fp16 needs no "
    "such setting: weights stay in 32 bits; leave it out",
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
    "--no-cross-attention": "every decoder layer attends to the source; --cross-attention chooses "
    "how",
    "--encoder-embed-path --decoder-embed-path": "embeddings are trained; --finetune-from-model "
    "starts from a model's",
    "--decoder-output-dim": "the output has --decoder-embed-dim; leave it out",
    "--adaptive-* --tie-adaptive-*": "there is one output layer, over the whole dictionary; "
    "--nwordssrc and --nwordstgt of relu-nmt-preprocess bound it",
    "--quant-noise-* --quantization-config-path": "training has no quantisation; --int8 of "
    "relu-nmt-generate saves time",
    "--offload-activations --pipeline-checkpoint": "--checkpoint-activations saves memory",
    "--upsample-primary": "splits train, train1, train2... of one folder are joined without "
    "weights; preprocess the text to weight into a folder DATA of its own, the rest into OTHER, "
    "and type relu-nmt-train DATA --extra-data OTHER --corpus-weights N,1",
    "--tagged": "--tag-extra-data of relu-nmt-train begins the sources of --extra-data with a tag",
    "--lm-path": "no language model is mixed in; several models with --path a:b are an ensemble",
    "--lm-weight": "no language model is mixed in; leave it out",
    "--iter-decode-* --decoding-format --print-step": "models write from left to right; --beam "
    "sets their search",
    "--retain-iter-history": "models write from left to right; --nbest prints more translations",
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
    "--zero-sharding --cpu-offload --model-parallel-size --pipeline-* --no-reshard-after-forward "
    "--fp32-reduce-scatter --use-sharded-state --not-fsdp-* --min-params-to-wrap": "--ddp-backend "
    "fully_sharded divides weights, gradients and optimiser among processes",
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
    "--ignore-unused-valid-subsets": "--valid-subset names the splits to validate on; leave it out",
    "--max-valid-steps": "--valid-subset names the split to validate on, which is read whole",
    "--skip-remainder-batch": "an epoch trains on all of its sentences; leave it out",
    "--profile": "there is no profiler here; leave it out",
    "--debug-param-names": "an error names the weight of a gradient that is not finite; leave it "
    "out",
    "--use-plasma-view --plasma-path": "data is mapped into memory, which processes share; leave "
    "it out",
    "--slowmo-momentum --slowmo-base-algorithm --localsgd-frequency": "gradients are averaged in "
    "every update; leave it out",
    "--continue-once": "--restore-file names the checkpoint to go on from",
    "--keep-interval-updates-pattern": "--keep-interval-updates sets their number",
    "--base-layers --base-sublayers --base-shuffle": "there are no layers of experts; leave it out",
    "--export": "relu-nmt-convert --to onnx writes a model for other runtimes",
    "--no-decoder-final-norm": "--decoder-normalize-before adds the final norm",
    "--char-inputs": "relu-nmt-preprocess --subword splits words",
    "--encoder-xformers-att-config": "--attention-backend chooses the implementation of attention",
    "--prepend-bos": "sources begin with their first word; leave it out",
    "--warmup-ratio": "--warmup-updates sets the number of updates",
    "--no-seed-provided": "--seed is 1 if none is given; leave it out",
    "--no-beamable-mm": "it changes no translation; leave it out",
    "--diversity-rate": "--diverse-beam-groups and --diverse-beam-strength do the same",
    "--retain-dropout --retain-dropout-modules": "dropout is for training alone; --sampling draws "
    "translations",
    "--sacrebleu-char-level": "--sacrebleu-tokenizer char is the same",
    "--output-format": "there is one format of data; leave it out",
}
"""Advice for flags that no command has; N stands for the typed number."""

ELSEWHERE = {
    "--constraints": "relu-nmt-interactive and relu-nmt-translate-document force terms",
    "--input": "relu-nmt-interactive --input FILE translates text",
    "--buffer-size": "relu-nmt-interactive has it; leave it out",
    "--gen-subset": "relu-nmt-generate translates splits of a data folder",
    "--results-path": "relu-nmt-generate has it; redirect standard output: > FILE",
    "--quiet": "relu-nmt-generate has it; leave it out",
    "--prefix-size": "relu-nmt-generate has it; --prefixes of relu-nmt-interactive begins lines",
    "--sacrebleu --scoring --sacrebleu-tokenizer --sacrebleu-lowercase": "relu-nmt-generate and "
    "relu-nmt-score compare with references",
    "--max-target-positions": "--max-len-a and --max-len-b bound translations",
    "--num-workers --required-batch-size-multiple --log-format --log-interval --optimizer": "it is "
    "a flag of training; leave it out",
    "--criterion": "it is a flag of relu-nmt-train; leave it out",
    "--arch": "the checkpoint knows its architecture; leave it out",
    "--num-shards --shard-id": "relu-nmt-generate has it; torchrun divides training",
    "--skip-invalid-size-inputs-valid-test": "a line that is too long gives an empty one anyway; "
    "leave it out",
    "--tokenizer": "relu-nmt-preprocess --tokenizer chooses it, --eval-bleu-detok undoes it",
    "--attention-pictures": "relu-nmt-interactive draws those of lines; those of documents: "
    "relu-nmt-analyze DATA --path CKPT --max-doc-tokens 128 --examples 0 --output report.html",
    "--print-alignment": "relu-nmt-generate and relu-nmt-interactive --format fairseq have it",
    "--max-doc-tokens": "each line is translated on its own here; relu-nmt-translate-document "
    "joins the lines of a document",
    "--format": "relu-nmt-interactive --format json prints translations and scores as JSON",
}
"""Advice for flags that only some commands have, for the other commands."""
