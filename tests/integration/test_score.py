"""relu-nmt-score on documents, against another system, and with contrasts."""

import gzip
import io
import itertools
import json
import lzma
import re
import sys
import types
from pathlib import Path

import pytest
import sacrebleu

from relu_nmt.cli.score import main
from relu_nmt.evaluation.metrics import Metric
from tests.commands import assert_refused, command_line
from tests.commands import run_here as run
from tests.outputs import column, containing
from tests.tiny import as_text, save_tiny_model, tiny_task

REFERENCES = [["A dog barks .", "It is big ."], ["We go home .", "Yes , we do .", "Now ."]]
SENTENCES = [["A dog barks .", "it is big ."], ["We go home now .", "Yes we do .", "Now ."]]
WORDS = ["it", "is", "red", "here", "a", "hat", "er", "es", "rot", "ist", "ein", "Hut", "hier"]
WORSE = [["A cat barks .", "it was ."], ["We go .", "Yes .", "Now ."]]


def flat(documents):
    return list(itertools.chain.from_iterable(documents))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Texts with sentences or groups on a line, in a folder that is the working directory."""
    groups = [[" ".join(SENTENCES[0])], [" ".join(SENTENCES[1][:2]), SENTENCES[1][2]]]
    separated = [[" <sep> ".join([*lines, ""]).strip()] for lines in SENTENCES]
    texts = {"ref": REFERENCES, "sys": SENTENCES, "groups": groups, "worse": WORSE}
    for name, documents in {**texts, "sep": separated}.items():
        blank = "\n\n".join(map("\n".join, documents))
        for kind, joined in (
            ("plain", blank.replace("\n\n", "\n")),
            ("blank", blank),
            ("tag", "<d>\n" + blank.replace("\n\n", "\n<d>\n")),
            ("counts", "\n".join(map(str, map(len, documents)))),
        ):
            (tmp_path / f"{name}.{kind}").write_text(joined + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(capsys, *arguments):
    assert main(command_line(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def names_of(lines):
    """Return the name of the score, or NOTE, that each line begins with."""
    return [re.match(r"(.*?)( = |:)", line)[1] for line in lines]


def error_of(capsys, *arguments):
    assert main(command_line(arguments)) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_compounds_of_tokenized_text_are_split(files, capsys):
    (files / "one").write_text("a long-term plan , said he\n")
    (files / "other").write_text("a short-term plan , said he\n")
    command = ["--sys", "one", "--ref", "other", "--format", "json", "--tokenize"]
    scores = {}
    for tokenize in ("none", "compound"):
        [line] = [json.loads("".join(lines_of(capsys, command, tokenize)))]
        scores[tokenize] = line[0]
    assert scores["compound"]["score"] > scores["none"]["score"]  # term is right
    assert "tok:compound" in scores["compound"]["signature"]


@pytest.mark.parametrize("system", ["sys", "groups", "sep"])
def test_document_scores_do_not_depend_on_the_form_of_boundaries(files, capsys, system):
    hypotheses = list(map(" ".join, SENTENCES))
    expected = Metric().score(hypotheses, [list(map(" ".join, REFERENCES))])
    separator = ["--sentence-separator"] if system == "sep" else []
    for kind, flags in (
        ("blank", ["--document-separator", "blank"]),
        ("tag", ["--document-separator", "tag"]),
        ("plain", ["--documents", f"{system}.counts"]),
    ):
        if kind == "plain" and system != "sys":
            continue  # --documents counts the lines of the references
        texts = lines_of(
            capsys, "--sys", f"{system}.{kind}", "--ref", f"ref.{kind}", flags, separator
        )
        assert texts[0] == f"d-{expected.text} documents = 2 signature: {expected.signature}"
        if system == "groups":
            assert texts[1] == "s-BLEU: none, no document has as many lines as its reference"
        else:
            by_lines = Metric().score(flat(SENTENCES), [flat(REFERENCES)])
            assert texts[1].startswith(f"s-{by_lines.text} segments = 5 mismatched documents = 0/2")
        assert len(texts) == 2


def test_baseline_and_buckets_are_written_as_json(files, capsys):
    arguments = ["--sys", "groups.blank", "--ref", "ref.blank", "--document-separator", "blank"]
    arguments += ["--metrics", "bleu,chrf", "--length-buckets", "8,64", "--baseline", "worse.blank"]
    arguments += ["--paired-bs-n", "50"]
    lines = lines_of(capsys, arguments)
    names = names_of(lines)
    assert names == [
        *("d-BLEU", "s-BLEU", "d-chrF2", "s-chrF2"),
        *("d-BLEU[0-8]", "d-BLEU[9-64]", "d-chrF2[0-8]", "d-chrF2[9-64]"),
        *("NOTE", "d-BLEU", "d-chrF2"),
    ]
    assert "bs:50|seed:12345" in lines[-1]
    assert " baseline = " in lines[-1]
    assert "only 2 documents" in lines[-3]
    assert main([*arguments, "--format", "json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert column(entries[:8], "name") == names[:8]
    assert entries[1]["score"] is None
    assert entries[4]["bucket"] == "0-8"
    comparison = entries[9]["paired bootstrap"]
    assert comparison["system"]["value"] == pytest.approx(entries[0]["score"])
    assert comparison["difference"] > 0
    assert f"d-BLEU = {entries[0]['score']:.2f} (mean = " in lines[9]


@pytest.mark.parametrize("system", ["sys", "sep"])
def test_sentences_are_scored_by_position(files, capsys, system):
    arguments = ["--sys", f"{system}.blank", "--ref", "ref.blank", "--document-separator", "blank"]
    arguments += ["--sentence-separator"] if system == "sep" else []
    arguments += ["--metrics", "bleu,chrf", "--position-buckets"]
    printed = lines_of(capsys, arguments, "1,3,9")
    expected = []
    for name in ("BLEU", "chrF2"):
        expected += [f"d-{name}", f"s-{name}"]
        expected += [f"s-{name}[position {bucket}]" for bucket in ("1", "2-3", "4-9", ">9")]
    assert names_of(printed) == expected
    for text, part in zip(printed[2:4], (slice(0, 1), slice(1, 3)), strict=True):
        hypotheses = flat(lines[part] for lines in SENTENCES)
        references = flat(lines[part] for lines in REFERENCES)
        expected = sacrebleu.corpus_bleu(hypotheses, [references])
        assert str(expected).removeprefix("BLEU") in text
        assert f" sentences = {len(hypotheses)} signature: nrefs:1" in text
    assert printed[4] == "s-BLEU[position 4-9]: none, no aligned document is that long"
    assert main([*arguments, "--format", "json"]) == 0
    entries = containing(json.loads(capsys.readouterr().out), "position")
    assert column(entries, "position") == ["1", "2-4", "5-9", "10-19", ">19"] * 2
    assert column(entries, "segments") == [2, 3, 0, 0, 0] * 2
    assert entries[4]["score"] is None


def test_without_aligned_documents_no_position_has_a_score(files, capsys):
    arguments = ["--sys", "groups.blank", "--ref", "ref.blank", "--document-separator", "blank"]
    lines = lines_of(capsys, arguments, "--position-buckets")
    assert lines[1:] == ["s-BLEU: none, no document has as many lines as its reference"]


def test_lines_are_resampled_without_documents(files, capsys, monkeypatch):
    text = (files / "sys.plain").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    lines = lines_of(capsys, "--ref", "ref.plain", "--baseline", "sys.plain", "--paired-bs-n", "9")
    assert lines[0].startswith("BLEU = ")
    assert "only 5 lines" in lines[1]
    assert "difference = +0.00 p = 1.0000 resampled = 5" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--sys sys.blank --ref ref.plain --document-separator blank", "ref.plain: 1 document"),
        ("--sys sys.tag --ref ref.blank --document-separator tag", "ref.blank: no line <d> in it"),
        ("--sys sys.blank --ref ref.plain --documents ref.counts", "separators in the text itself"),
        ("--sys sys.plain --ref ref.tag --documents ref.counts", "tag instead of --doc"),
        ("--sys sys.plain --ref ref.plain --documents none", "none: cannot read"),
        ("--sys sys.plain --ref ref.plain,", "--ref ref.plain,: an empty name of a file"),
        ("--sys groups.plain --ref ref.plain --documents ref.counts", "groups.plain with ref"),
        ("--sys sys.plain --ref ref.plain --baseline groups.plain", "groups.plain has 3"),
        ("--sys sys.plain --ref ref.plain --sentence-separator", "document boundaries"),
        ("--sys sys.plain --ref ref.plain --length-buckets 9,3", "rising numbers"),
        ("--sys sys.blank --ref ref.blank --position-buckets 9,3", "rising numbers of sentences"),
        ("--sys sys.blank --ref ref.blank --position-buckets", "needs document boundaries"),
        ("--sys sys.plain --ref ref.plain --sentence-bleu --baseline a", "not with --sentence"),
        ("--sys sys.plain --ref ref.plain --path a", "--path a does nothing without --contrastive"),
        ("--sys sys.plain --ref ref.plain --chrf-word-order 2", "without --metrics chrf"),
        ("--sys sys.plain --ref ref.plain --metrics chrf --order 2", "without --metrics bleu"),
        ("--sys sys.plain --ref ref.plain --metrics chrf --tokenize zh", "without --metrics bleu"),
        ("--ref -", "- is standard input, which is read once"),
        ("--sys sys.plain --ref - --baseline -", "- is standard input"),
        ("--ref ref.plain --sentence-bleu --metrics chrf", "--metrics: not with --sentence-bleu"),
        ("--contrastive c.jsonl", "give its checkpoint with --path"),
        (
            "--contrastive c.jsonl --path a --ref ref.plain",
            "--ref ref.plain: not with --contrastive;",
        ),
        ("--contrastive none.jsonl --path a", "none.jsonl: cannot read"),
        ("--sys /dev/null --ref /dev/null", "/dev/null: no lines to score; give a text"),
    ],
)
def test_mistakes_are_one_line_errors(files, capsys, arguments, message):
    assert message in error_of(capsys, arguments.split())


def test_sizes_of_documents_go_with_no_separator_alone(files, capsys):
    flags = "--sys sys.plain --ref ref.plain --documents ref.counts --document-separator"
    lines = lines_of(capsys, *flags.split(), "none")
    assert lines == lines_of(capsys, *flags.split()[:-1])
    message = "--documents ref.counts does nothing with --document-separator blank; it needs"
    assert message in error_of(capsys, [*flags.split(), "blank"])


@pytest.mark.parametrize("flags", ["--baseline groups.plain", "--length-buckets 9,3"])
def test_mistakes_are_found_before_scores_are_printed(files, capsys, flags):
    assert main(["--sys", "sys.plain", "--ref", "ref.plain", *flags.split()]) == 2
    assert capsys.readouterr().out == ""


def write_contrasts(path):
    base = {
        "source_language": "en",
        "source": "it is red",
        "phenomenon": "thing pronoun",
        "reference": "er ist rot",
        "contrasts": ["es ist rot"],
        "source_context": ["here is a hat"],
        "reference_context": ["hier ist ein Hut"],
        "distance": 1,
    }
    other = {**base, "reference": "es ist rot", "contrasts": ["er ist rot", "rot ist er"]}
    other |= {"phenomenon": "form of address", "distance": 2}
    records = [base, other, {**base, "source_language": "de"}]
    path.write_text(as_text(map(json.dumps, records)), encoding="utf-8")


def test_contrasts(tmp_path, capsys):
    path = str(tmp_path / "model.safetensors")
    save_tiny_model(Path(path), tiny_task(WORDS, ("en", "de")), attention="reluformer")
    write_contrasts(tmp_path / "c.jsonl")
    arguments = ["--contrastive", str(tmp_path / "c.jsonl"), "--path", path, "--cpu"]
    note, *lines = lines_of(capsys, arguments)
    assert note == "NOTE: left out 1 in de: the model translates from en"
    categories = ["all", "form of address", "thing pronoun", "distance 1", "distance 2"]
    assert names_of(lines) == 2 * [f"accuracy[{category}]" for category in categories]
    assert containing(lines, "context = all signature: context:all|") == lines[:5]
    assert containing(lines, "context = 0 signature: context:0|") == lines[5:]
    assert "/2) chance = 41.67" in lines[0] and "/2) chance = 41.67" in lines[5]
    results = ["--results", str(tmp_path / "results.json")]
    assert main([*arguments, "--format", "json", *results]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "results.json").read_text("utf-8")) == entries
    assert entries[0] == {"left out": {"de": 1}}
    right = re.findall(r"\((\d+)/", "\n".join(lines[:5]))
    assert column(entries[1:6], "right") == list(map(int, right))
    assert column(entries[1:], "context") == ["all"] * 5 + ["0"] * 5

    german = (tmp_path / "c.jsonl").read_text("utf-8").splitlines()[2]
    (tmp_path / "c.jsonl").write_text(german + "\n", encoding="utf-8")
    assert "sentences in de, but the model translates from en" in error_of(capsys, arguments)


def test_results_that_cannot_be_written_are_an_error(files, capsys):
    texts = ["--sys", "sys.plain", "--ref", "ref.plain"]
    error = error_of(capsys, texts, "--results", "ref.plain/results.json")
    assert "--results ref.plain/results.json: cannot write it: File exists" in error


def test_compressed_texts_have_the_same_scores(files, capsys):
    plain = lines_of(capsys, "--sys", "sys.plain", "--ref", "ref.plain")
    (files / "sys.gz").write_bytes(gzip.compress((files / "sys.plain").read_bytes()))
    (files / "ref.xz").write_bytes(lzma.compress((files / "ref.plain").read_bytes()))
    assert lines_of(capsys, "--sys", "sys.gz", "--ref", "ref.xz") == plain
    # The ending of a compressed file is not its language.
    (files / "ref.zh.gz").write_bytes(gzip.compress((files / "ref.plain").read_bytes()))
    assert "tok:zh" in lines_of(capsys, "--sys", "sys.gz", "--ref", "ref.zh.gz")[0]


def test_comet_is_computed_if_it_is_installed(files, monkeypatch, capsys):
    """A stand-in takes the place of the library, whose models are gigabytes."""
    calls = {}

    class Model:
        def predict(self, data, batch_size, gpus, progress_bar):
            calls.update(data=data)
            return types.SimpleNamespace(system_score=0.5, scores=[0.5] * len(data))

    library = types.ModuleType("comet")
    library.download_model = lambda name: f"{name}.ckpt"
    library.load_from_checkpoint = lambda path: calls.update(path=path) or Model()
    monkeypatch.setitem(sys.modules, "comet", library)
    monkeypatch.setattr("importlib.metadata.version", lambda package: "2.2.6")
    flags = "--sys sys.plain --ref ref.plain --src worse.plain --metrics bleu,comet"
    assert main(flags.split()) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("BLEU = ")
    line = "COMET = 0.5000 signature: model:Unbabel/wmt22-comet-da|version:2.2.6"
    assert second == line
    assert calls["path"] == "Unbabel/wmt22-comet-da.ckpt"
    expected = {"src": WORSE[0][0], "mt": SENTENCES[0][0], "ref": REFERENCES[0][0]}
    assert (calls["data"][0], len(calls["data"])) == (expected, 5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--metrics comet --src worse.plain", "pip install unbabel-comet"),
        ("--metrics comet", "--metrics comet needs --src FILE"),
        (
            "--metrics ter --ignore-case",
            "--ignore-case does nothing without --metrics bleu or chrf",
        ),
        ("--src worse.plain", "--src worse.plain does nothing without --metrics comet"),
        (
            "--metrics comet --src worse.plain --baseline worse.plain",
            "--baseline worse.plain: not with",
        ),
    ],
)
def test_missing_requirements_of_comet_are_reported(files, flags, message, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "comet", None)
    assert main(["--sys", "sys.plain", "--ref", "ref.plain", *flags.split()]) == 2
    assert message in capsys.readouterr().err


def test_the_score_command_prints_the_score(tmp_path):
    (tmp_path / "ref").write_text("a b c d\nA house is here .\n", encoding="utf-8")
    (tmp_path / "sys").write_text("a b c d\na house is here .\n", encoding="utf-8")
    output = run("score", "--sys", tmp_path / "sys", "--ref", tmp_path / "ref").stdout
    assert "nrefs:1|case:mixed" in output
    assert not output.startswith("BLEU = 100")
    flags = ["--ref", tmp_path / "ref", "--ignore-case"]
    text = (tmp_path / "sys").read_text(encoding="utf-8")
    lines = run("score", flags, "--metrics", "bleu,chrf", stdin=text).stdout.split("\n")
    assert lines[0].startswith("BLEU = 100.00")
    assert lines[1].startswith("chrF2 = 100.00")
    by_line = run("score", flags, "--sentence-bleu", "-s", tmp_path / "sys").stdout.split("\n")
    assert by_line[0].startswith("0 ") and by_line[1].startswith("1 ")
    assert by_line[2].startswith("signature: ")


def test_the_score_command_names_files_that_do_not_match(tmp_path):
    (tmp_path / "ref").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "sys").write_text("a\n", encoding="utf-8")
    done = run("score", "--sys", tmp_path / "sys", "--ref", tmp_path / "ref", check=False)
    assert_refused(done, "ref: 2 lines, but", "sys has 1")
    assert_refused(run("score", "--sys", tmp_path / "sys", check=False), "--ref")
