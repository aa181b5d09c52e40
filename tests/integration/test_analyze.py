"""relu-nmt-analyze on a made corpus of documents and untrained models."""

import base64
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relu_nmt.applications.layer_statistics import LayerStatistics
from relu_nmt.applications.statistics import ANALYZED
from relu_nmt.applications.weight_statistics import PERCENTS
from relu_nmt.jobs.analyze import job as analyze
from relu_nmt.jobs.analyze.analyzed_model import without_heads
from relu_nmt.jobs.analyze.job import distinct_names
from relu_nmt.modules import feed_forwards
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.training.checkpoint import load_checkpoint, save_checkpoint
from relu_nmt.translation.agreement import at_folder
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.outputs import column, csv_rows, names_in, select
from tests.tiny import both_sides, preprocessed, save_tiny_model

SHAPE = both_sides({"layers": 2, "embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2})
VISION = Path(__file__).parents[1] / "compat/files/checkpoints/vit-mean.safetensors"
NUM_DOCUMENTS = 6
NUM_SENTENCES = 3


def save(path, task, **settings):
    save_tiny_model(path, task, shape={"layers": 2}, **settings)


@pytest.fixture(scope="module")
def own_network():
    """A feed-forward network of another kind than ours, as a user may register."""
    feed_forwards.register("own_network")(lambda dim, inner, dropout: nn.Linear(dim, dim))
    yield
    del feed_forwards._entries["own_network"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, own_network):
    """A data folder with documents, and checkpoints."""
    folder = tmp_path_factory.mktemp("analyze")
    rng = random.Random(0)
    words = ["Haus", "Hund", "ist", "ein", ",", ".", "rot", "Brot"]
    for split, documents in (("train", 20), ("test", NUM_DOCUMENTS)):
        for side in ("de", "en"):
            text = ""
            for number in range(documents * NUM_SENTENCES):
                if number and number % NUM_SENTENCES == 0:
                    text += "\n"
                text += " ".join(rng.choices(words, k=rng.randint(2, 9))) + "\n"
            (folder / f"{split}.{side}").write_text(text, "utf-8")
    options = {"joined_dictionary": True, "document_separator": "blank"}
    preprocessed(folder, "data-bin", ("train", "test"), **options)
    task = TranslationTask.from_data_folder(folder / "data-bin")
    save(folder / "relu/checkpoint_best.safetensors", task, attention="reluformer")
    save(folder / "softmax/checkpoint_best.safetensors", task, attention="softmax")
    slots = {"encoder_attention": "nystromformer", "cross_attention": "linformer"}
    save(folder / "few/checkpoint_best.safetensors", task, attention="softmax", **slots)
    save(folder / "own/checkpoint_best.safetensors", task, feed_forward="own_network")
    aligned = {"attention": "reluformer", "document_attention": "aligned", "global_layers": 1}
    save(folder / "aligned/last.safetensors", task.with_sentence_separator(), **aligned)
    results = {"format": 1, "train": [{"num_updates": 1, "loss": 8}, {"num_updates": 2, "loss": 7}]}
    (folder / "relu/results.json").write_text(json.dumps({**results, "valid": {}}))
    (folder / "softmax/results.json").write_text('{"train": [], "valid": {}}')  # none logged yet
    return folder


def checkpoint_of(folder, name):
    return str(next((folder / name).glob("*.safetensors")))


def command(folder, output, *flags, names=("relu", "softmax"), check=True):
    paths = [checkpoint_of(folder, name) for name in names]
    flags = ["--path", paths, "--cpu", flags] if names else flags
    data = [folder / "data-bin"] if names else []
    return run_here("analyze", data, "--output", output, flags, check=check)


def images_of(page):
    """Return caption and SVG of each figure, and see that nothing else is loaded."""
    assert not re.search(r'(?:src|href)="(?!data:|[\w.-]+\.csv")', page)
    figures = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)" alt="([^"]*)">', page)
    pictures = {}
    for image, caption in figures:
        pictures[caption] = base64.b64decode(image).decode()
        assert not re.search(r'(?:href="|url\()(?!#|data:)', pictures[caption])
    return pictures


@pytest.fixture
def without_drawing(monkeypatch):
    """Leave figures empty, where a test looks at numbers: drawing takes nearly all of the time."""
    for module in ("relu_nmt.drawing.panels", "relu_nmt.drawing.attention_maps"):
        monkeypatch.setattr(f"{module}.draw_svg", lambda *size_and_draw: "<svg/>")


@pytest.fixture(scope="module")
def analyzed(folder):
    output = folder / "out/report.html"
    done = command(folder, output, "--examples", "0,5", "--places", "encoder.-1,cross.0.1")
    return output, done


def test_the_page_and_its_csv_files_are_written(analyzed):
    output, done = analyzed
    names = ["attention", "top_sums", "branches", "feed_forward", "training"]
    files = [output, *(output.with_name(f"report_{name}.csv") for name in names)]
    assert done.stdout == f"written: {', '.join(map(str, files))}\n"
    assert sorted(output.parent.iterdir()) == sorted(files)
    page = output.read_text("utf-8")
    assert "<title>Attention of relu, softmax</title>" in page
    for file in files[1:]:
        assert f'href="{file.name}"' in page
    captions = "\n".join(images_of(page))
    for text in ("Entropy by layer", "exactly zero", "Row sums", "Mean distance"):
        assert text in captions
    assert "outside the own sentence" not in captions  # of single sentences
    # The largest 1.5 % of up to ten keys are one key: lines without anything to see.
    assert "Figure 4" not in captions and "there is no curve to draw" in page
    assert "memory" in captions and "Averages since" in captions
    assert page.count("encoder self-attention, last layer, mean of the heads.</fig") == 2
    assert page.count("encoder self-attention, last layer, every head.</fig") == 2
    assert page.count("cross-attention, layer 0, head 1.</fig") == 2
    assert "read</dt><dd>all 18 sentences" in page
    assert page.count('<td class="text">self-attention</td>') == 4  # of two layers a side


def test_the_answers_stand_before_the_folded_sections(analyzed, folder):
    output, _ = analyzed
    answers, *sections = output.read_text("utf-8").split("<details>")
    assert re.findall("<h2>(.*?)</h2>", answers) == [
        "Which model translates better?",
        "Where do the heads look?",
        "How many weights are exactly zero?",
        "Which heads are dead, or could go?",
    ]
    assert "<h2>" not in "".join(sections) and "<table>" not in answers
    assert "18 sentences are few" in answers
    # The loss is the cross-entropy of all reference tokens, in bits.
    path = checkpoint_of(folder, "relu")
    translator = Translator.from_checkpoint(path, "cpu")
    split = at_folder(translator.task, folder / "data-bin").load_split("test")
    total = 0.0
    for number in range(len(split)):
        source, target = split.pair(number)
        inputs = torch.tensor(source)[None], torch.tensor(np.append(target[-1:], target[:-1]))[None]
        model = translator.ensemble.models[0]
        with torch.no_grad():
            logits = model.logits(model(*inputs))[0].double()
        total += float(F.cross_entropy(logits, torch.tensor(target), reduction="sum"))
    loss = total / math.log(2) / split.target_sizes.sum()
    assert f"relu {loss:.3f} (" in answers


def test_a_model_without_heads_is_one_whose_heads_are_cut_from_the_last_matrix(folder):
    path = checkpoint_of(folder, "softmax")
    translator = Translator.from_checkpoint(path, "cpu")
    model = translator.ensemble.models[0]
    tokens = torch.tensor([[4, 5, 2]]), torch.tensor([[2, 6, 7]])
    heads = [AttentionPlace("cross", 1, 0), AttentionPlace("encoder", 0, 1)]
    with torch.no_grad():
        with without_heads(model, heads):
            states = model(*tokens)
        assert not torch.allclose(model(*tokens), states)
        width = model.config.decoder_embed_dim // 2
        model.decoder.layers[1].cross_attention.out_proj.weight[:, :width] = 0
        model.encoder.layers[0].self_attention.out_proj.weight[:, width:] = 0
        torch.testing.assert_close(model(*tokens), states)


def test_the_csv_files_have_their_columns(analyzed):
    output, _ = analyzed
    attention = csv_rows(output.with_name("report_attention.csv"))
    columns = ["checkpoint", "slot", "sees", "layer", "head"]
    assert list(attention[0]) == [*columns, "rows", *ANALYZED]
    # Two models, three slots: two layers of two heads and their mean, and the mean of the layers.
    assert len(attention) == 2 * 3 * (2 * 3 + 1)
    assert set(column(attention, "sees")) == {"all"}
    means = select(attention, layer="mean")
    assert len(means) == 2 * 3
    for row in means:
        assert (row["checkpoint"] == "softmax") == (float(row["sum"]) == pytest.approx(1))
    ranks = csv_rows(output.with_name("report_top_sums.csv"))
    assert list(ranks[0]) == [*columns, "percent", "top_sum", "share_at_rank", "beyond"]
    assert len(ranks) == len(attention) * len(PERCENTS)
    for row in ranks:
        assert float(row["top_sum"]) + float(row["beyond"]) == pytest.approx(1)
    branches = csv_rows(output.with_name("report_branches.csv"))
    assert list(branches[0]) == ["checkpoint", "side", "layer", "branch", "variance_ratio"]
    assert len(branches) == 2 * (2 * 2 + 2 * 3)
    [loss, _] = csv_rows(output.with_name("report_training.csv"))
    assert list(loss.values()) == ["relu", "train", "loss", "1", "8.0"]


def test_the_numbers_agree_with_the_attention_maps(analyzed, folder):
    """Entropies of the references, from the weights that the translator shows."""
    output, _ = analyzed
    attention = csv_rows(output.with_name("report_attention.csv"))
    path = checkpoint_of(folder, "relu")
    translator = Translator.from_checkpoint(path, "cpu")
    task = at_folder(translator.task, folder / "data-bin")
    split = task.load_split("test")
    values = []
    for number in range(len(split)):
        source, target = (
            " ".join(task.source_dictionary.symbols_of(ids)) for ids in split.pair(number)
        )
        attention_map = translator.attention(source, target, slot="cross", layer=1, head=0)
        for row in attention_map.weights.astype(np.float64):
            shares = row[row > 0] / row.sum() if row.sum() > 1e-6 else np.ones(1)
            values.append(-(shares * np.log(shares)).sum())
    [row] = select(attention, checkpoint="relu", slot="cross", layer="1", head="0")
    assert float(row["entropy"]) == pytest.approx(np.mean(values), abs=1e-5)
    assert int(row["rows"]) == len(values)


def test_the_memory_numbers_agree_with_the_memory_statistics(analyzed, folder):
    output, _ = analyzed
    rows = csv_rows(output.with_name("report_feed_forward.csv"))
    path = checkpoint_of(folder, "softmax")
    translator = Translator.from_checkpoint(path, "cpu")
    split = at_folder(translator.task, folder / "data-bin").load_split("test")
    statistics = LayerStatistics(translator.ensemble, memories_only=True)
    sources, targets = zip(*map(split.pair, range(len(split))), strict=True)
    statistics.add(sources, targets)
    expected = statistics.report()["modules"]
    parts = {f"{row['side']}.{row['layer']}": row for row in select(rows, checkpoint="softmax")}
    assert parts.keys() == expected.keys()
    for name, part in expected.items():
        assert float(parts[name]["variance_ratio"]) == pytest.approx(part["variance_ratio"])
        assert float(parts[name]["top_sum_10"]) == pytest.approx(part["top_sums"]["10"])


@pytest.mark.slow
def test_models_with_and_without_separators_are_compared(folder, tmp_path):
    output = tmp_path / "documents.html"
    flags = ["--max-doc-tokens", "64", "--sample", "4", "--names", "one,two", "--examples", "1"]
    flags.append("--bleu")
    command(folder, output, flags, names=("aligned", "softmax"))
    attention = csv_rows(tmp_path / "documents_attention.csv")
    outside = {}
    for row in select(attention, layer="mean", head="mean"):
        outside[row["checkpoint"], row["sees"]] = float(row["outside"])
    assert outside["one", "sentence"] == 0
    assert outside["one", "all"] > 0.2 and outside["two", "all"] > 0.2
    page = output.read_text("utf-8")
    assert "read</dt><dd>4 of 6 groups" in page
    for name in ("one, own sentence", "one, document"):
        assert f'<td class="text">{name}</td>' in page
    assert "outside the own sentence" in "\n".join(images_of(page))
    answers, *_ = page.split("<details>")
    assert "<h2>Does the context count?</h2>" in answers
    assert re.search(r"BLEU with 95% intervals: one \d+\.\d \(.*; two \d+\.\d \(", answers)


@pytest.mark.usefixtures("without_drawing")
def test_single_sentences_are_read_without_separators_as_in_a_search(folder, tmp_path):
    task = TranslationTask.from_data_folder(folder / "data-bin")
    model = tmp_path / "started.safetensors"
    data = folder / "data-bin"
    save(model, task.with_sentence_separator(task), attention="softmax")
    # Groups of several sentences, and others of one.
    flags = ["--path", model, "--cpu", "--max-doc-tokens"]
    run_here("analyze", data, flags, "12", "--output", tmp_path / "page.html")
    # The sentences alone have as many tokens as for a model without separators.
    stats = tmp_path / "stats.json"
    run_here("generate", data, flags, "1", "--max-len-b", "2", "--memory-stats", stats)
    tokens = json.loads(stats.read_text())["modules"]["encoder.0"]["tokens"]
    assert tokens == task.load_split("test").source_sizes.sum()


def test_the_page_reports_models_without_weights_or_memories(folder, tmp_path):
    output = tmp_path / "few.html"
    command(folder, output, names=("few", "own"))
    page = output.read_text("utf-8")
    left_out = "has no matrix of weights; it is left out"
    assert f"few: encoder self-attention (nystromformer) {left_out}" in page
    assert f"few: cross-attention (linformer) {left_out}" in page
    assert "own: its feed-forward networks (own_network) are no memories" in page
    assert page.count("encoder self-attention, last layer, mean of the heads.</fig") == 1
    rows = csv_rows(tmp_path / "few_attention.csv")
    slots = {(row["checkpoint"], row["slot"]) for row in rows}
    assert slots == {("few", "decoder"), ("own", "encoder"), ("own", "decoder"), ("own", "cross")}


def test_a_diverged_model_is_named_and_gets_no_verdict(folder, tmp_path):
    path = checkpoint_of(folder, "softmax")
    checkpoint = load_checkpoint(path)
    for weight in checkpoint.model_tensors.values():
        weight.fill_(math.nan)
    save_checkpoint(tmp_path / "diverged.safetensors", checkpoint)
    flags = ["--path", tmp_path / "diverged.safetensors", "--cpu", "--sample", "2"]
    run_here("analyze", folder / "data-bin", flags, "--output", tmp_path / "page.html")
    answers, *_ = (tmp_path / "page.html").read_text("utf-8").split("<details>")
    assert "the losses of the references are not finite (training diverged)" in answers
    assert "How well" not in answers


def test_logs_are_drawn_without_models(folder, tmp_path):
    output = tmp_path / "curves.html"
    results = folder / "relu/results.json"
    run_here("analyze", "--log", results, "--output", output)
    assert names_in(tmp_path) == ["curves.html", "curves_training.csv"]
    page = output.read_text("utf-8")
    assert "<title>Training of relu</title>" in page
    assert len(images_of(page)) == 1


@pytest.mark.parametrize(
    "flags",
    [
        *("--gen-subset valid", "--max-doc-tokens 64", "--sample 0", "--examples 0"),
        *("--places cross.0", "--bleu"),
    ],
)
def test_options_of_models_are_errors_without_models(folder, tmp_path, flags):
    words = ["--log", folder / "relu/results.json", "--output", tmp_path / "curves.html"]
    done = run_here("analyze", words, flags.split(), check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert f"{flags} does nothing without --path" in done.stderr


@pytest.mark.usefixtures("without_drawing")
def test_the_recipe_prints_nothing_and_returns_its_numbers(folder, tmp_path, capsys):
    path = [checkpoint_of(folder, "relu")]
    settings = analyze.Settings.of(
        data=str(folder / "data-bin"), path=path, output=str(tmp_path / "r.html"), sample=3
    )
    [model] = analyze.run(settings, progress=False)
    assert capsys.readouterr() == ("", "")
    names = ("attention", "branches", "feed_forward", "top_sums", "training")
    assert names_in(tmp_path) == ["r.html", *(f"r_{name}.csv" for name in names)]
    rows = column(select(model.records, slot="encoder", head=0), "rows")
    split = TranslationTask.from_data_folder(folder / "data-bin").load_split("test")
    assert rows[0] == split.source_sizes[[0, 8, 17]].sum()  # evenly spread over the split


@pytest.mark.parametrize(
    ("names", "flags", "message"),
    [
        ((), [], "nothing to analyze: give --path with checkpoints, or --log"),
        (("relu",), ["--gen-subset", "dev"], "dev"),
        (("relu",), ["--examples", "18"], "--examples 18: split test has 18 sentences, numbered"),
        (("relu",), ["--places", "cross"], "--places: attention 'cross': expected SLOT.LAYER"),
        (("relu",), ["--places", "cross.7"], "attention cross.7: the model's layers are cross.0"),
        (("relu",), ["--places", "cross.0.2"], "attention cross.0.2: its heads are 0 to 1"),
        (("relu",), ["--names", "a,b"], "--names: 2 names for 1 checkpoints"),
        (("relu", "softmax"), ["--names", "a,a"], "--names a,a: give each another name"),
        (("relu",), ["--log", "none.log"], "none.log: cannot read the course"),
        (("relu",), ["--output", "/dev/null"], "--output /dev/null: is no plain file"),
        (("relu",), ["--names", "x", "--log"], "--log: expected at least one argument"),
    ],
)
def test_mistakes_are_one_line(folder, tmp_path, names, flags, message):
    done = command(folder, tmp_path / "r.html", flags, names=names, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--path", VISION], "vit-mean.safetensors: the checkpoint of an image classifier"),
        ([], "nothing to analyze: give --path with checkpoints, or --log"),
        (["--path", "none.safetensors"], "none.safetensors"),
    ],
)
def test_a_checkpoint_without_translation_model_is_an_error(folder, tmp_path, words, message):
    output = ["--output", tmp_path / "r.html"]
    done = run_here("analyze", folder / "data-bin", words, output, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


def test_missing_data_is_an_error(folder, tmp_path):
    flags = ["--path", checkpoint_of(folder, "relu"), "--output", tmp_path / "r.html"]
    done = run_here("analyze", flags, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--path needs a data folder" in done.stderr


def test_two_checkpoints_as_an_ensemble_are_refused(folder, tmp_path):
    pair = f"{checkpoint_of(folder, 'relu')}:{checkpoint_of(folder, 'softmax')}"
    flags = ["--path", pair, "--output", tmp_path / "r.html"]
    done = run_here("analyze", folder / "data-bin", flags, check=False)
    assert_refused(done, "of one model only")


def test_default_names_are_the_parts_in_which_paths_differ():
    assert distinct_names(["a/x/best.pt", "a/y/best.pt"]) == ["x", "y"]
    assert distinct_names(["a/x/best.pt", "a/x/last.pt"]) == ["best", "last"]
    assert distinct_names(["a/x/best.pt", "b/y/last.pt"]) == ["x", "y"]
    assert distinct_names(["a/x/ck/best.pt", "b/x/ck/last.pt"]) == ["a", "b"]
    assert distinct_names(["a/x/best.pt", "b/x/best.pt", "b/y/best.pt"]) == ["a/x", "b/x", "b/y"]
    assert distinct_names(["a/x/best.pt", "a/x/last.pt", "a/y/last.pt"]) == [
        *("x/best", "x/last", "y/last")
    ]
    assert distinct_names(["relu/best.pt"]) == distinct_names(["relu/results.json"]) == ["relu"]
    assert distinct_names(["a/best.pt"] * 3) == ["a", "a 2", "a 3"]
    assert distinct_names(["relu/own.pt"]) == ["own"]
    assert distinct_names(["/"]) == [""]  # which cannot be read, as a later error says
    best = "checkpoints/checkpoint_best.safetensors"
    assert distinct_names([f"runs/relu/{best}"]) == ["relu"]
    assert distinct_names([f"softmax/{best}", "runs/relu/checkpoint_last.pt"]) == [
        *("softmax", "relu")
    ]
    assert distinct_names([f"a/{best}", "a/checkpoints/checkpoint_last.pt"]) == [
        *("checkpoint_best", "checkpoint_last")
    ]
    assert distinct_names([]) == []


@pytest.mark.slow
def test_bfloat16_changes_little(folder, tmp_path):
    command(folder, tmp_path / "r.html", "--no-progress-bar", "--sample", "6", names=("relu",))
    exact = csv_rows(tmp_path / "r_attention.csv")
    done = command(folder, tmp_path / "r.html", "--bf16", "--sample", "6", names=("relu",))
    rough = csv_rows(tmp_path / "r_attention.csv")
    assert "analyze relu" in done.stderr
    exact_sums = np.array(column(exact, "sum"), float)
    rough_sums = np.array(column(rough, "sum"), float)
    assert (exact_sums != rough_sums).any()
    np.testing.assert_allclose(exact_sums, rough_sums, rtol=0.1)
