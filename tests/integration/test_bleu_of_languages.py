"""BLEU of a language without spaces: the commands agree with sacreBLEU and with each other."""

import json
import random

import pytest
import sacrebleu

from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.cli import generate, score, train
from relu_nmt.jobs.score.settings import ScoreSettings
from relu_nmt.jobs.sweep.job import plan_steps
from tests.outputs import column, containing, numbers_of, texts_of
from tests.tiny import as_text, preprocessed

DIGITS = "零一二三四五六七八九"
TRAIN = "--arch reluformer_tiny --cpu --warmup-updates 20 --lr 3e-3 --max-tokens 400 --dropout 0 "
TRAIN += "--eval-bleu --best-checkpoint-metric bleu --log-format simple --no-epoch-checkpoints"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder whose model writes digits in Chinese, and a model that has learned a little."""
    folder = tmp_path_factory.mktemp("zh")
    rng = random.Random(0)
    for split, count in (("train", 200), ("valid", 8), ("test", 8)):
        lines = [rng.choices(range(10), k=rng.randint(4, 7)) for _ in range(count)]
        for lang, between, words in (("en", " ", "0123456789"), ("zh", "", DIGITS)):
            text = ""
            for line in lines:
                text += between.join(words[i] for i in line) + "\n"
            (folder / f"{split}.{lang}").write_text(text)
    subword = {"subword": "sentencepiece", "subword_size": 30}
    languages = {"source_lang": "en", "target_lang": "zh"}
    preprocessed(folder, "data", ("train", "valid", "test"), **subword, **languages)
    flags = f"{TRAIN} --max-epoch 8 --save-dir {folder / 'model'}"
    assert train.main([str(folder / "data"), *flags.split()]) == 0
    return folder


def generated(folder, capsys, flags=""):
    path = folder / "model/checkpoint_best.safetensors"
    command = f"{folder / 'data'} --path {path} --cpu --no-progress-bar {flags}"
    assert generate.main(command.split()) == 0
    return capsys.readouterr().out


def test_validation_is_not_0_and_says_how_it_was_measured(folder, tmp_path, capsys):
    results = json.loads((folder / "model/results.json").read_text())
    validations = results["valid"]["valid"]
    assert results["best"]["value"] > 5
    signatures = column(validations, "bleu_signature")
    assert containing(signatures, "|tok:zh|") == signatures
    flags = [*TRAIN.split(), "--max-update", "1", "--save-dir"]
    assert train.main([str(folder / "data"), *flags, str(tmp_path / "chosen")]) == 0
    out = capsys.readouterr().out
    assert out.count("note: BLEU of zh uses the tokenizer zh") == 1 and "|tok:zh|" in out
    for name in ("--sacrebleu-tokenizer", "--tokenize"):
        command = [*flags, str(tmp_path / name), name, "char"]
        assert train.main([str(folder / "data"), *command]) == 0
        out = capsys.readouterr().out
        assert "|tok:char|" in out and "note: BLEU" not in out


def test_with_13a_it_is_0_which_is_told_and_the_same_command_goes_on_without(
    folder, tmp_path, capsys
):
    flags = f"{TRAIN} --patience 1 --max-epoch 3 --save-dir {tmp_path}".split()
    assert train.main([str(folder / "data"), *flags, "--sacrebleu-tokenizer", "13a"]) == 0
    out = capsys.readouterr().out
    assert "WARNING: bleu stays 0 while the loss falls" in out
    assert "no better bleu in 1 validations (--patience); bleu stayed 0" in out
    assert train.main([str(folder / "data"), *flags]) == 0
    out = capsys.readouterr().out
    assert "note: the best bleu so far, 0, was measured otherwise" in out
    assert "epoch 3 is finished" in out


def test_generating_and_scoring_agree_with_sacrebleu(folder, tmp_path, capsys):
    out = generated(folder, capsys)
    assert out.count("NOTE: BLEU of zh uses the tokenizer zh") == 1
    assert numbers_of(out, "D") == list(range(8))
    hypotheses = texts_of(out)
    references = (folder / "test.zh").read_text().splitlines()
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh")
    assert f"{expected} signature: nrefs:1|case:mixed|eff:no|tok:zh|" in out and expected.score > 1
    (tmp_path / "sys").write_text(as_text(hypotheses))
    for ending, flags in ((".zh", ()), (".txt", ("--target-lang", "zho_Hans"))):
        reference = tmp_path / f"ref{ending}"
        reference.write_text((folder / "test.zh").read_text())
        assert score.main(["--sys", str(tmp_path / "sys"), "--ref", str(reference), *flags]) == 0
        out = capsys.readouterr().out
        assert f"{expected} signature: " in out and "uses the tokenizer zh" in out
    assert score.main(["--sys", str(tmp_path / "sys"), "--ref", str(reference)]) == 0
    assert "|tok:13a|" in capsys.readouterr().out


def test_a_text_that_came_in_pieces_is_scored_as_the_language_is(folder, tmp_path, capsys):
    """The folder is one of fairseq, whose pieces ``--remove-bpe sentencepiece`` joins."""
    for split in ("train", "test"):
        for lang in ("en", "zh"):
            lines = (folder / f"{split}.{lang}").read_text().split("\n")[:-1]
            pieces = [" ".join("\u2581" + line.replace(" ", "\u2581")) for line in lines]
            (tmp_path / f"{split}.{lang}").write_text(as_text(pieces))
    languages = {"source_lang": "en", "target_lang": "zh"}
    preprocessed(tmp_path, "data", ("train", "test"), **languages)
    flags = TRAIN.split(" --eval-bleu")[0] + " --disable-validation --max-epoch 8 --no-epoch"
    flags += f"-checkpoints --save-dir {tmp_path / 'model'}"
    assert train.main([str(tmp_path / "data"), *flags.split()]) == 0
    capsys.readouterr()
    path = tmp_path / "model/checkpoint_last.safetensors"
    flags = f"--path {path} --cpu --no-progress-bar --quiet --remove-bpe sentencepiece"
    assert generate.main([str(tmp_path / "data"), *flags.split()]) == 0
    out = capsys.readouterr().out
    assert "|tok:zh|" in out and float(out.split("BLEU = ")[1].split()[0]) > 1


def test_a_tokenizer_that_is_missing_is_an_error_before_anything_is_done(folder, tmp_path, capsys):
    pytest.importorskip("sacrebleu")
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    if tokenizer_ja_mecab.MeCab is not None:
        pytest.skip("MeCab is installed")
    flags = f"{TRAIN} --tokenize ja-mecab --save-dir {tmp_path / 'none'}"
    assert train.main([str(folder / "data"), *flags.split()]) == 2
    assert "pip install sacrebleu[ja]" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "none/checkpoint_last.safetensors").exists()


def test_scoring_settings_know_the_flag_by_both_names():
    for name in ("tokenize", "sacrebleu_tokenizer"):
        assert ScoreSettings.of(ref="r", **{name: "zh"}).sacrebleu_tokenizer == "zh"


def test_a_sweep_hands_the_flag_to_what_scores():
    varied = {"lengths": (128,), "attentions": ("softmax",), "seeds": (1,), "budget": "9u"}
    for train_flags, trained in ((), False), (("--eval-bleu",), True):
        settings = SweepSettings.of(
            data="d", sacrebleu_tokenizer="zh", train_flags=train_flags, **varied
        )
        training, evaluation = plan_steps(settings)
        for step, expected in ((training, trained), (evaluation, True)):
            assert (" --sacrebleu-tokenizer zh " in f" {' '.join(step.commands[0])} ") == expected
    plain = SweepSettings.of(data="d", **varied)
    assert "--sacrebleu-tokenizer" not in (*plain.shared_flags, *plan_steps(plain)[1].commands[0])
