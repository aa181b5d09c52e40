import json
import os
import re
import subprocess
import sys
from collections import Counter

import grammar_corpus
import pytest
from bilingual_grammar.documents import write_document
from bilingual_grammar.lexicon import THINGS
from prep_tools.command import run_script
from prep_tools.documents import pairs_of

DOCUMENTS = [write_document(3, number) for number in range(150)]


def run(*arguments):
    return run_script(grammar_corpus.make_parser(), grammar_corpus.make_corpus, [*arguments])


def test_documents_do_not_depend_on_the_order_of_sets_and_dicts():
    program = (
        "from bilingual_grammar.documents import write_document\n"
        "print([write_document(3, n) for n in range(20)])"
    )
    outputs = set()
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", program]
        outputs.add(subprocess.check_output(command, env={**os.environ, **environment}, text=True))
    assert outputs == {f"{DOCUMENTS[:20]}\n"}


def test_another_seed_gives_other_documents():
    assert write_document(4, 0) != DOCUMENTS[0]


def test_sentences_are_varied_and_well_formed():
    pairs = pairs_of(DOCUMENTS)
    assert len(set(pairs)) > 0.6 * len(pairs)
    for pair in pairs:
        for text in pair:
            assert text[0].isupper() and text[-1] in ".!?"
            assert "  " not in text and " ." not in text and "None" not in text


def test_a_reference_names_an_earlier_sentence_and_only_wrong_readings():
    phenomena = set()
    for document in DOCUMENTS:
        for reference in document.references:
            phenomena.add((reference.phenomenon, reference.source_language))
            assert 0 <= reference.antecedent < reference.sentence < len(document.pairs)
            right = document.pairs[reference.sentence][
                0 if reference.source_language == "en" else 1
            ]
            assert reference.contrasts and right not in reference.contrasts
    assert phenomena == {
        ("thing pronoun", "en"),
        ("thing pronoun", "de"),
        ("person pronoun", "de"),
        ("form of address", "en"),
    }


def test_the_antecedent_of_a_pronoun_has_the_gender_of_the_right_translation():
    gender_of = {"er": "m", "ihn": "m", "sie": "f", "es": "n"}
    checked = 0
    for document in DOCUMENTS:
        for reference in document.references:
            right, source = document.pairs[reference.sentence]
            if reference.phenomenon != "thing pronoun" or source.split()[0] not in ("It", "it"):
                continue
            words = document.pairs[reference.antecedent][0].replace(",", "").rstrip(".?").split()
            genders = {noun.gender for noun in THINGS if noun.german in words}
            assert gender_of[right.split()[0].lower()] in genders
            checked += 1
    assert checked > 50


def test_a_german_pronoun_of_a_contrast_means_a_person_as_often_as_a_thing():
    pronouns = Counter()
    english = {"thing pronoun": ("it", ("he", "she")), "person pronoun": (("he", "she"), "it")}
    for number in range(1500):
        document = write_document(3, number)
        for reference in document.references:
            if reference.source_language == "de":
                pair = document.pairs[reference.sentence]
                [wrong] = reference.contrasts
                right = pair[1].lower().rstrip(".").split()
                other = wrong.lower().rstrip(".").split()
                changes = zip(right, other, strict=True)
                [changed] = {(before, after) for before, after in changes if before != after}
                right, other = english[reference.phenomenon]
                assert changed[0] in right and changed[1] in other
                [pronoun] = {"er", "sie"} & {*pair[0].lower().split()}
                pronouns[reference.phenomenon, pronoun] += 1
    # Four numbers near 180, of which a blind choice by sentence or pronoun gains nothing.
    assert sum(pronouns.values()) > 500
    assert max(pronouns.values()) < 0.32 * sum(pronouns.values())


INFORMAL = re.compile(r"\b(du|dir|dich|dein\w*)\b|^(Gib|Zeig|Leih|Schick|Bring) ", re.IGNORECASE)


def test_the_greeting_decides_the_form_of_address():
    forms = set()
    for document in DOCUMENTS:
        greeting = document.pairs[0][0]
        is_informal = not ("Herr " in greeting or "Frau " in greeting)
        for reference in document.references:
            if reference.phenomenon == "form of address":
                text = document.pairs[reference.sentence][0]
                assert bool(INFORMAL.search(text)) == is_informal
                assert bool(INFORMAL.search(reference.contrasts[0])) != is_informal
                forms.add(is_informal)
    assert forms == {True, False}


def test_all_files_are_written(tmp_path, capsys):
    assert run("--out", str(tmp_path), "--documents", "80", "--held-out", "3") == 0
    for split in ("train", "valid", "test"):
        source = (tmp_path / f"{split}.de").read_text("utf-8")
        target = (tmp_path / f"{split}.en").read_text("utf-8")
        assert source.count("\n") == target.count("\n") > 0
    record = json.loads((tmp_path / "test.contrasts.jsonl").read_text("utf-8").splitlines()[0])
    assert record["distance"] == record["sentence"] - record["antecedent"]
    assert len(record["source_context"]) == len(record["reference_context"]) == record["sentence"]
    report = json.loads((tmp_path / "corpus.json").read_text("utf-8"))
    assert report["train"]["documents"] == 74
    assert "sentence pairs in 74 documents" in capsys.readouterr().out


def test_held_out_lines_are_not_in_the_training_text(tmp_path):
    assert run("--out", str(tmp_path), "--documents", "200", "--held-out", "9") == 0
    for language in ("de", "en"):
        train = set((tmp_path / f"train.{language}").read_text("utf-8").splitlines())
        test = set((tmp_path / f"test.{language}").read_text("utf-8").splitlines())
        assert len(test) > 10
        assert not (train & test) - {""}


@pytest.mark.parametrize("number", ["0", "19"])
def test_too_few_documents_are_an_error(number, tmp_path, capsys):
    assert run("--out", str(tmp_path), "--documents", number) == 2
    assert "at least 20" in capsys.readouterr().err
