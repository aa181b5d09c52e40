"""Training text in shards, and text that is split at random."""

import pytest

from relu_nmt.cli.preprocess import main
from relu_nmt.io.cluster import cluster_queue
from relu_nmt.jobs.preprocess import job
from relu_nmt.translation.task import TranslationTask
from tests.integration.spoken_digits import run
from tests.outputs import column, contents, names_in, starting

SHARDED = ("--joined-dictionary", "--tokenizer", "moses", "--subword", "subword-nmt")
SHARDED += ("--workers", "1")


def test_shards_share_the_dictionary_and_subwords_of_the_first(corpus, monkeypatch, capsys):
    more = str(corpus / "more")
    flags = ["-s", "de", "-t", "en", "--trainpref", f"{corpus / 'train'},{more}", *SHARDED]
    flags += ["--validpref", str(corpus / "valid"), "--subword-size", "20", "--destdir"]
    assert main([*flags, str(corpus / "here")]) == 0
    monkeypatch.setattr(job, "cluster_queue", lambda _, *options: cluster_queue("debug", *options))
    assert main([*flags, str(corpus / "jobs"), "--cluster", "local"]) == 0
    assert "shard1: made by job " in capsys.readouterr().out
    for shard in ("shard0", "shard1"):
        assert contents(corpus / "here" / shard) == contents(corpus / "jobs" / shard)
    first, second = (contents(corpus / f"here/shard{i}") for i in range(2))
    assert "valid.de-en.de.bin" in first and "valid.de-en.de.bin" not in second
    shared = [name for name in first if name in second and not name.startswith("train")]
    assert len(shared) == 3 and all(first[name] == second[name] for name in shared)
    # It is what a user makes by hand.
    by_hand = ["--srcdict", str(corpus / "here/shard0/dict.de.txt"), *SHARDED]
    by_hand += ["--subword-model", str(next((corpus / "here/shard0").glob("*code*")))]
    by_hand += ["--trainpref", more, "--destdir", str(corpus / "hand")]
    assert main([*flags[:4], *by_hand]) == 0
    assert contents(corpus / "hand") == second


def test_a_text_with_a_comma_in_its_name_is_no_shards(corpus):
    (corpus / "a,b").mkdir()
    for language in ("de", "en"):
        (corpus / f"train.{language}").rename(corpus / "a,b" / f"train,new.{language}")
    text = f"{corpus}/a,b/train,new"
    flags = ["-s", "de", "-t", "en", "--workers", "1", "--joined-dictionary"]
    for name, texts in (("one", text), ("two", f"{text},{corpus}/more")):
        assert main([*flags, "--trainpref", texts, "--destdir", str(corpus / name)]) == 0
    assert names_in(corpus / "two") == ["shard0", "shard1"]
    assert contents(corpus / "two/shard0").keys() == contents(corpus / "one").keys()


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("a,b", "--dict-only", "--dict-only: give one --trainpref"),
        ("a,b", "--subword sentencepiece", "of several --trainpref: add --joined-dictionary"),
        ("a", "--cluster slurm", "--cluster runs a job for each shard of the training text"),
        ("a,b", "--cluster slurm --cluster-parameters gpus", "'gpus': expected NAME=VALUE"),
        ("a,b", "--cluster-parameters timeout_min=3", "does nothing without --cluster"),
    ],
)
def test_mistakes_with_shards_are_refused(tmp_path, capsys, text, flags, message):
    words = ["-s", "de", "-t", "en", "--trainpref", text, "--destdir", str(tmp_path)]
    assert main([*words, *flags.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("subword", ["subword-nmt", "sentencepiece"])
def test_training_text_is_split_at_random(corpus, subword):
    splits = ("train", "valid")
    common = ["--joined-dictionary", "--subword", subword, "--subword-size", "60", "--workers"]
    sampled = ["--subword-sampling", "0.2"]
    assert run(corpus, common, "1", dest="usual", splits=splits) == 0
    assert run(corpus, common, "1", sampled, dest="one", splits=splits) == 0
    assert run(corpus, common, "3", sampled, dest="two", splits=splits) == 0
    usual = contents(corpus / "usual")
    first = contents(corpus / "one")
    assert first == contents(corpus / "two")
    [model] = starting(first, ("subword.", "sentencepiece."))
    assert usual[model] == first[model]
    assert usual["train.de-en.de.bin"] != first["train.de-en.de.bin"]
    files = ["--subword-model", corpus / "one" / model, "--srcdict", corpus / "one" / "dict.de.txt"]
    flags = [*common[:3], *map(str, files), *sampled, "--seed", "2"]
    assert run(corpus, flags, dest="other", splits=splits) == 0
    other = contents(corpus / "other")
    assert other["train.de-en.de.bin"] != first["train.de-en.de.bin"]
    assert other["valid.de-en.de.bin"] == first["valid.de-en.de.bin"]
    assert other["dict.de.txt"] == first["dict.de.txt"]
    texts = []
    for name in ("usual", "one", "other"):
        task = TranslationTask.from_data_folder(corpus / name)
        train = task.load_split("train")
        texts.append(list(map(task.decode_target, train.targets())))
    assert texts[0] == texts[1] == texts[2]  # in other pieces


def test_each_shard_of_one_text_has_its_own_random_split(corpus):
    text = ",".join([str(corpus / "train")] * 3)
    words = ["-s", "de", "-t", "en", "--trainpref", text, "--destdir", str(corpus / "samples")]
    flags = ["--joined-dictionary", "--subword", "subword-nmt", "--subword-size", "60"]
    assert main([*words, *flags, "--subword-sampling", "0.2"]) == 0
    folders = [corpus / f"samples/shard{i}" for i in range(3)]
    shards = list(map(contents, folders))
    for language in ("de", "en"):
        assert len(set(column(shards, f"train.de-en.{language}.bin"))) == 3
    assert len(set(column(shards, "dict.de.txt"))) == 1
    texts = []
    for task in map(TranslationTask.from_data_folder, folders):
        texts.append(list(map(task.decode_target, task.load_split("train").targets())))
    assert texts[0] == texts[1] == texts[2]
    # Without draws the folders are the same, whatever their number.
    words[-1] = str(corpus / "usual-shards")
    assert main([*words, *flags]) == 0
    first = contents(corpus / "usual-shards/shard0")
    second = contents(corpus / "usual-shards/shard1")
    name = "train.de-en.de.bin"
    assert first[name] == second[name] != shards[0][name]
