"""Flags of fairseq users: accepted where they have a meaning, else refused with what there is."""

import fnmatch
import itertools
import random
import re
import shutil

import pytest

from relu_nmt.config.command_line import ADVICE
from relu_nmt.config.fields import all_options
from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.jobs.preprocess.settings import PreprocessSettings
from relu_nmt.modules import norms
from tests import outputs, tiny
from tests.commands import assert_refused, run_here
from tests.outputs import json_lines, names_in
from tests.tiny import preprocessed, write_documents

NAMES = ("train", "train1", "valid", "test")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder as fairseq users have it, with train1. Five documents of two sentences for test."""
    folder = tmp_path_factory.mktemp("fairseq-flags")
    rng = random.Random(0)
    for split in NAMES:
        documents = [tiny.digit_lines(rng, 2, 2, 7) for _ in range(5)]
        write_documents(folder, split, documents)
    tests = f"{folder / 'test'},{folder / 'train1'}"
    options = {"joined_dictionary": True, "document_separator": "blank"}
    data = preprocessed(folder, testpref=tests, **options)
    for path in data.glob("test1.*"):
        if path.suffix != ".raw":
            shutil.copy(path, path.with_name(path.name.replace("test1", "train1")))
    return data


def train(data, folder, *flags, check=True):
    options = ("--batch-size", "4", "--no-epoch-checkpoints")
    return tiny.train(data, folder, options, flags, check=check)


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    train(data, folder, "--max-update", "2")
    return folder / "checkpoint_last.safetensors"


def generate(data, model, *flags, check=True):
    words = ["--path", model, "--cpu", "--max-len-b", "6", "--beam", "2", flags]
    return run_here("generate", data, words, check=check)


def numbered(output):
    return outputs.starting(output.splitlines(), ("S-", "T-", "H-", "D-", "P-"))


def test_no_line_of_generate_but_targets_begins_with_t(data, model):
    lines = generate(data, model).stdout.splitlines()
    assert outputs.starting(lines, "T") == outputs.starting(lines, "T-")
    assert len(outputs.starting(lines, "T-")) == 10


def without_scores(lines):
    """Return names and texts. Scores differ in their last digits by what else is in the batch."""
    return re.findall(r"^([STHD]-\d+)\t(?:.*\t)?(.*)$", "\n".join(lines), re.MULTILINE)


@pytest.mark.parametrize("flags", [(), ("--max-doc-tokens", "12")])
def test_shards_are_the_whole_in_order(data, model, flags, tmp_path):
    folder = tmp_path / "shards"
    full = numbered(generate(data, model, flags).stdout)
    shards = []
    for i in range(3):
        shards.append(generate(data, model, flags, "--num-shards", 3, "--shard-id", i).stdout)
    parts = itertools.chain.from_iterable(map(numbered, shards))
    assert without_scores(parts) == without_scores(full)
    assert "Generate test, shard 2 of 3, with beam=2" in shards[2]
    for i in range(2):  # none takes the place of another
        generate(data, model, flags, "--num-shards=2", f"--shard-id={i}", "--results-path", folder)
    files = ["generate-test-0-of-2.txt", "generate-test-1-of-2.txt"]
    assert names_in(folder) == files
    done = generate(data, model, "--num-shards", "3", "--shard-id", "3", check=False)
    assert_refused(done, "--shard-id 3: expected 0 to 2")


def test_train1_belongs_to_train(data, tmp_path):
    lines = json_lines(train(data, tmp_path, "--max-epoch", "1").stdout)
    assert sum(outputs.values(outputs.containing(lines, "update"), "bsz")) == 20
    messages = "\n".join(outputs.values(lines, "message"))
    assert "train1.de-en.de: 10 sentence pairs" in messages
    train(data, tmp_path / "documents", "--max-epoch", "1", "--max-doc-tokens", "12")
    only = tmp_path / "only"
    shutil.copytree(data, only)
    (only / "train1.de-en.documents").unlink()
    train(only, tmp_path / "some", "--max-epoch", "1", "--max-doc-tokens", "12")


def test_settings_of_the_model_can_be_overridden(data, model):
    plain = generate(data, model).stdout
    same = generate(data, model, "--model-overrides", "{'dropout': 0.5, 'norm': 'layer'}").stdout
    assert numbered(same) == numbered(plain)
    changed = generate(data, model, "--model-overrides", '{"no_scale_embedding": true}').stdout
    assert numbered(changed) != numbered(plain)
    for text, message in (
        ("{'dropuot': 1}", "did you mean dropout"),
        ("__import__('os')", "expected settings such as"),
        ("{[]: 1}", "expected settings such as"),
        ("{'encoder_layers': 3}", "does not fit the model"),
        ("{'dropout': 2}", "with --model-overrides {'dropout': 2}: --dropout 2: expected"),
    ):
        assert_refused(generate(data, model, "--model-overrides", text, check=False), message)


def test_progress_may_be_hidden(data, model, tmp_path):
    (tmp_path / "a.de").write_text("1 2\n")
    (tmp_path / "a.en").write_text("1 2\n")
    words = ["-s", "de", "-t", "en", "--trainpref", tmp_path / "a", "--no-progress-bar"]
    done = run_here("preprocess", words, "--destdir", tmp_path / "bin")
    assert "train" not in done.stderr and "%" not in done.stderr
    words = ["--path", model, "--no-progress-bar", "--input", tmp_path / "a.de", "--cpu"]
    assert run_here("interactive", words).stdout.count("\n") == 1


def test_an_early_stop_may_be_forbidden(data, model):
    with_flag = generate(data, model, "--no-early-stop").stdout
    assert numbered(with_flag) == numbered(generate(data, model, "--stop-rule", "exact").stdout)


def test_a_folder_of_the_users_is_imported(data, tmp_path, monkeypatch):
    monkeypatch.setattr(norms, "_entries", dict(norms._entries))  # forget the norm afterwards
    package = tmp_path / "own_parts"
    package.mkdir()
    (package / "__init__.py").write_text("from . import maps\n")
    (package / "maps.py").write_text(
        "from relu_nmt.modules import norms\n"
        "from torch import nn\n"
        "norms.register('users_own')(nn.LayerNorm)\n"
    )
    flags = ("--user-dir", package, "--norm", "users_own", "--max-update", "1")
    train(data, tmp_path / "run", flags)
    done = train(data, tmp_path / "run", "--user-dir", tmp_path, check=False)
    assert_refused(done, "a folder with an __init__.py")


def test_flags_that_change_nothing_here_are_accepted(data, tmp_path):
    flags = "--left-pad-source False --left-pad-target False --report-accuracy --max-update 1 "
    flags += "--lr-scheduler inverse_sqrt --min-lr 1e-9 "
    flags += '--eval-bleu --eval-bleu-detok-args {"target_lang":"en"}'
    done = train(data, tmp_path, flags.split())
    assert "note: --left-pad-source has no effect" in done.stderr
    assert "note: --min-lr has no effect: only cosine has" in done.stderr
    assert "valid_accuracy" in done.stdout


def test_long_sources_are_cut_in_training(data, tmp_path):
    flags = ("--truncate-source", "--max-source-positions", "5", "--max-update", "1", "--eval-bleu")
    done = train(data, tmp_path, flags)
    assert "train: " in done.stdout and "sources cut at 5 tokens" in done.stdout
    assert_refused(train(data, tmp_path, flags[:1], check=False), "give --max-source-positions")
    done = train(data, tmp_path / "documents", flags, "--max-doc-tokens", "12", check=False)
    assert_refused(done, "leave it out for documents")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--left-pad-source True", "expected False, or leave it out: padding stands on the right"),
        ('--eval-bleu --eval-bleu-detok-args {"target_lang":"fr"}', "but the data folder's is en"),
        ('--eval-bleu --eval-bleu-detok-args {"dash":1}', "--eval-bleu-detok-args"),
        ("--eval-bleu --eval-bleu-detok-args en", 'expected JSON such as \'{"target_lang": "en"}'),
        ("--amp", "--fp16 needs a CUDA GPU"),
        ("--memory-efficient-fp16", "--fp16 needs a CUDA GPU"),
        ("--encoder-layers-to-keep 0,2", "--encoder-layers-to-keep: a model keeps all its layers"),
        ("--distributed-world-size 4", "torchrun"),
        ("--local-rank=0", "torchrun"),
        ("--lr-scheduler cosine --max-lr 1", "--max-lr: --lr is the highest learning rate"),
        ("--zero-sharding os --num-workers 4", "--zero-sharding: --ddp-backend fully_sharded"),
        ("--task translation_multi_simple_epoch --lang-pairs de-en", "a model translates one way"),
        ("--max-tokns 4", "did you mean --max-tokens"),
        ("--max-valid-steps 9", "--max-valid-steps: --valid-subset names the split"),
        ("--min-params-to-wrap 9", "--min-params-to-wrap: --ddp-backend fully_sharded"),
        ("--nonsense", "unrecognized arguments: --nonsense; see --help"),
    ],
)
def test_others_are_refused_with_what_there_is(data, tmp_path, flags, message):
    assert_refused(train(data, tmp_path, flags.split(), check=False), message)


def test_a_dictionary_of_alignments_is_refused():
    done = run_here("preprocess", "-s", "de", "-t", "en", "--alignfile", "align", check=False)
    assert_refused(done, "--replace-unk FILE")


SHAPES = {
    "wmt_en_de_big": (1024, 4096, 16, 0.3, 0.1, False),
    "vaswani_wmt_en_de_big": (1024, 4096, 16, 0.3, 0.0, False),
    "vaswani_wmt_en_fr_big": (1024, 4096, 16, 0.1, 0.0, False),
    "wmt_en_de_big_t2t": (1024, 4096, 16, 0.3, 0.1, True),
}


@pytest.mark.parametrize("name", SHAPES)
def test_big_shapes_are_fairseqs(name):
    from relu_nmt.jobs.train.settings import TranslationTrainingSettings as Settings

    for family in ("transformer", "reluformer"):
        model = Settings.of(data="d", max_tokens=9, arch=f"{family}_{name}").model
        values = (model.encoder_embed_dim, model.decoder_ffn_embed_dim)
        values += (model.decoder_attention_heads, model.dropout, model.attention_dropout)
        assert (*values, model.encoder_normalize_before) == SHAPES[name]


def test_what_is_refused_is_no_flag_of_ours():
    from relu_nmt.cli import generate, score, train
    from relu_nmt.jobs.translate.settings import TranslateLinesSettings

    classes = [train.TranslationTrainingSettings, PreprocessSettings]
    classes += [generate.TranslateSplitSettings, score.ScoreSettings]
    classes += [TranslateLinesSettings]
    ours = set()
    for kind in classes:
        for entry in all_options(kind).values():
            ours |= {f"--{entry.name.replace('_', '-')}", *entry.flags, *entry.constants}
    refused = " ".join(parse_yaml(ADVICE.read_text("utf-8"))["nowhere"]).split()
    for pattern in refused:
        assert not fnmatch.filter(ours, pattern)


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("generate", "--format json", "--format: relu-nmt-interactive --format json prints"),
        ("interactive", "--num-shards 2", "--num-shards: relu-nmt-generate has it"),
        ("interactive", "--retain-dropout", "--retain-dropout: dropout is for training"),
        ("preprocess", "--bpe subword_nmt", "--bpe: the checkpoint holds"),
        ("generate", "--log-format simple", "--log-format: it is a flag of training"),
        ("generate", "--input test.de", "--input: relu-nmt-interactive --input FILE"),
        ("generate", "--constraints", "--constraints: relu-nmt-interactive and"),
        ("generate", "--num-workers 4", "--num-workers: it is a flag of training"),
        ("interactive", "--quiet", "--quiet: relu-nmt-generate has it"),
        ("interactive", "--strange 1 --results-path out", "--results-path: relu-nmt-generate"),
        ("generate", "--print-step", "--print-step: models write from left to right"),
        ("preprocess", "--tagged", "--tagged: --tag-extra-data of relu-nmt-train"),
        ("interactive", "--attention-stats f", "--attention-stats: it is a flag of relu-nmt-gen"),
        ("interactive", "--mixup 1", "--mixup: it is a flag of relu-nmt-vision-train"),
        ("interactive", "--max-doc-tokens 9", "--max-doc-tokens: each line is translated on its"),
        ("generate", "--attention-pictures d", "--attention-pictures: relu-nmt-interactive draws"),
    ],
)
def test_a_flag_of_another_command_is_told_whose_it_is(command, words, message):
    done = run_here(command, "data", "--path", "x", words.split(), check=False)
    assert_refused(done, f"error: {message}")


def test_a_flag_of_many_commands_is_told_of_some_of_them():
    done = run_here("serve", "--path", "x", check=False)
    assert_refused(done, "error: --path: it is a flag of relu-nmt-analyze, relu-nmt-generate, ")
    assert "more; --help has this command's" in done.stderr


@pytest.mark.parametrize("command", ["train", "generate", "translate_document", "sweep"])
def test_every_command_tells_its_version(command, capsys):
    from importlib import import_module

    import relu_nmt

    with pytest.raises(SystemExit) as end:
        import_module(f"relu_nmt.cli.{command}").main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"relu_nmt {relu_nmt.__version__}\n"


@pytest.mark.parametrize(
    ("command", "hidden"),
    [
        ("translate_document", ["--nbest", "--print-alignment", "--score-reference"]),
        ("interactive", ["--score-reference", "--prefix-size"]),
        ("generate", []),
    ],
)
def test_help_shows_no_flag_that_is_refused(command, hidden, capsys):
    from importlib import import_module

    with pytest.raises(SystemExit):
        import_module(f"relu_nmt.cli.{command}").main(["--help"])
    text = capsys.readouterr().out
    for flag in ("--nbest", "--print-alignment", "--score-reference", "--prefix-size"):
        assert flag not in text or flag not in hidden
        assert flag in text or flag in {*hidden, "--prefix-size"}


def test_refusals_give_the_line_to_type():
    for words in ("--upsample-primary 16 --fp16", "--fp16 --upsample-primary=16"):
        done = run_here("train", "data", words.split(), check=False)
        assert "relu-nmt-train DATA --extra-data OTHER --corpus-weights 16,1" in done.stderr
    words = ["text", "--path", "x", "--print-alignment"]
    error = run_here("translate_document", words, check=False).stderr
    assert "relu-nmt-generate prints alignments" in error and "one translation" not in error


@pytest.mark.parametrize(
    "flags",
    [
        "--keep-interval-updates -1 --save-interval-updates 0",
        "--keep-interval-updates -1",
        "--no-save --keep-last-epochs -1 --keep-best-checkpoints -1",
        "--disable-validation --patience -1",
    ],
)
def test_fairseqs_defaults_are_accepted_where_they_do_nothing(flags, tmp_path):
    flags = ["--max-tokens", 9, "--save-dir", tmp_path, *flags.split()]
    error = run_here("train", "nowhere", flags, check=False).stderr
    assert "does nothing" not in error and "nowhere" in error


def test_what_the_needed_flag_was_typed_with_is_told():
    flags = ["--keep-interval-updates", 3, "--save-interval-updates", 0]
    error = run_here("train", "data", "--max-tokens", 9, flags, check=False).stderr
    assert "--keep-interval-updates 3 does nothing with --save-interval-updates 0" in error
    assert "give both" not in error


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        (
            "--arch transformer_align --decoder-layers 2",
            "--alignment-layer 4: the decoder's layers are 0 to 1 "
            "(--alignment-layer 4 is the default of --arch transformer_align)",
        ),
        (
            "--arch transformer_tiny --encoder-attention-heads 3",
            "--encoder-attention-heads 3 "
            "(--encoder-embed-dim 64 is the default of --arch transformer_tiny)",
        ),
        ("--alignment-layer 9 --decoder-layers 2", "the decoder's layers are 0 to 1\n"),
    ],
)
def test_a_flag_that_the_shape_has_set_is_told_to_be_its_default(flags, note):
    assert note in run_here("train", "data", "--max-tokens", 9, flags.split(), check=False).stderr
