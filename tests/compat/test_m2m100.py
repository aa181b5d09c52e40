"""M2M100 and NLLB models in Hugging Face's form translate here as by their formulas."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from relu_nmt.errors import DataError
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import run_here
from tests.compat.plain_m2m100 import CONFIG, END, LINES, PAIRS, PlainM2M100, changed
from tests.outputs import assert_same_tensors

KINDS = {
    "m2m": (("de", "en"), ["__de__", "__en__", "__fr__"]),
    "nllb": (("deu_Latn", "eng_Latn"), ["deu_Latn", "eng_Latn", "fra_Latn"]),
}
LONGEST = 30


@functools.cache
def learned_weights():
    """Return the weights of a model that has learned the pairs. They depend on no code's name."""
    _, codes = KINDS["m2m"]
    plain = PlainM2M100(codes)
    plain.learn(*codes[:2])
    return plain.weights


@pytest.fixture(scope="module", params=KINDS)
def models(request, tmp_path_factory):
    """Return the plain model, its folder, the imported checkpoint and its translator."""
    (source, target), codes = KINDS[request.param]
    plain = PlainM2M100(codes)
    plain.weights = learned_weights()
    folder = tmp_path_factory.mktemp("models") / "theirs"
    plain.save(folder, nllb=request.param == "nllb")
    path = folder.with_name("ours.safetensors")
    done = run_here("import_marian", folder, "-s", source, "-t", target, "--output", path)
    assert done.stdout.startswith(f"written: {path} ({source}-{target}, ")
    return plain, folder, path, Translator.from_checkpoint(path, "cpu")


def test_ids_and_logits_are_the_same(models):
    plain, _, _, translator = models
    [model] = translator.models
    source, target = plain.codes[:2]
    for number, line in enumerate(LINES):
        ids = plain.encode(source, line)
        assert translator.sources.sentence(line).ids.tolist() == ids
        read = [END, *plain.encode(target, PAIRS[number % len(PAIRS)][1])[:-1]]
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([ids]), torch.tensor([read])))[0]
            torch.testing.assert_close(logits, plain.logits(ids, read), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_the_same(models, beam):
    plain, _, _, translator = models
    source, target = plain.codes[:2]
    translations = translator.translate_nbest(LINES, beam=beam, max_len_b=LONGEST, stop_rule="full")
    for line, [best] in zip(LINES, [hypotheses[:1] for hypotheses in translations], strict=True):
        tokens, score = plain.search(plain.encode(source, line), target, beam, LONGEST)
        assert best.hypothesis.ids.tolist() == tokens
        assert best.score == pytest.approx(score, abs=1e-4)
        assert best.text == plain.processor.decode([plain.vocabulary[i] for i in tokens[1:-1]])
    # The model has learned its pairs, and a forced beginning follows the code.
    assert [nbest[0].text for nbest in translations[:3]] == [text for _, text in PAIRS]
    [best] = translator.translate_nbest(LINES[3:4], beam=beam, prefixes=["the red"])
    assert best[0].text.startswith("the red")


def test_typed_codes_of_both_languages_are_the_models_symbols(models):
    plain, _, path, translator = models
    source, target, other = plain.codes
    line, expected = PAIRS[0]
    for begin in (source, target):
        ids = translator.sources.sentence(f" {begin} {line}").ids
        assert ids.tolist() == plain.encode(source, line)
        done = run_here("interactive", "--path", path, "--cpu", stdin=f"{begin} {line}\n")
        assert done.stdout == f"{expected}\n"
    ids = translator.task.encode_target(f"{target} {expected}")
    assert ids.tolist() == plain.encode(target, expected)
    text = f"begins with {other}, but the model is for {source}.*--target-lang {other.strip('_')}$"
    with pytest.raises(DataError, match=text):
        translator.translate([f"{other} {line}"])


def test_ctranslate2_translates_the_same_behind_the_code(models, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    plain, _, path, translator = models
    run_here("convert", path, "--to", "ctranslate2", "--output", tmp_path / "ct2")
    text = translator.task
    model = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu")
    for line, expected in PAIRS:
        tokens = text.source_text.encode(line)
        code = plain.codes[1]
        [result] = model.translate_batch([tokens], target_prefix=[[code]], beam_size=1)
        assert text.target_text.decode(result.hypotheses[0]) == expected


def test_data_and_training_like_the_model(models, tmp_path):
    plain, _, path, translator = models
    source, target = translator.task.source_lang, translator.task.target_lang
    codes = plain.codes[:2]
    for split in ("train", "valid"):
        for side, language in enumerate((source, target)):
            lines = [pair[side] for pair in PAIRS * 2]
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n", "utf-8")
    text = ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid"]
    run_here("preprocess", "--like", path, text, "--destdir", tmp_path / "data")
    split = TranslationTask.from_data_folder(tmp_path / "data").load_split("train")
    for number, (source_line, target_line) in enumerate(PAIRS):
        assert split.source[number].tolist() == plain.encode(codes[0], source_line)
        assert split.target[number].tolist() == plain.encode(codes[1], target_line)
    # Validation forces the code, as translation does.
    flags = ["--config", path, "--finetune-from-model", path, "--max-tokens", 99, "--lr", 1e-9]
    flags += ["--max-update", 1, "--cpu", "--eval-bleu", "--log-format", "json"]
    done = run_here("train", tmp_path / "data", flags, "--save-dir", tmp_path / "new")
    assert '"valid_bleu": 100.0' in done.stdout
    words = ["--path", tmp_path / "new/checkpoint_last.safetensors", "--cpu", "--beam", 2]
    done = run_here("generate", tmp_path / "data", words, "--gen-subset", "valid")
    assert "BLEU = 100.00" in done.stdout


def with_fewer_rows(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.shared.weight"] = tensors["model.shared.weight"][:9].clone()
    save_file(tensors, folder / "model.safetensors")


def in_parts(folder, name="model.safetensors"):
    """Divide the weights into two files and an index, as large models are stored."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save = save_file if name.endswith(".safetensors") else torch.save
    files = {}
    for number in range(2):
        part = f"{number}-of-2-{name}"
        part_tensors = dict(list(tensors.items())[number::2])
        save(part_tensors, folder / part)
        files |= dict.fromkeys(part_tensors, part)
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": files}))


def without_a_part(folder):
    in_parts(folder)
    (folder / "1-of-2-model.safetensors").unlink()


def without_a_weight(folder):
    in_parts(folder)
    save_file({}, folder / "1-of-2-model.safetensors")


def with_a_part_elsewhere(folder):
    in_parts(folder)
    files = {"weight_map": {"model.shared.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(files))


def without_names(folder):
    (folder / "tokenizer_config.json").unlink()


REFUSED = {
    "no languages given": (None, (), "--source-lang missing of"),
    "no target": (None, ("-s", "de"), "--target-lang missing of"),
    "no such language": (None, ("-s", "de", "-t", "es"), "--target-lang es: no such language of"),
    "no codes": (without_names, ("-s", "de", "-t", "en"), "(0 languages)"),
    "another start": (
        changed("config.json", decoder_start_token_id=0),
        ("-s", "de", "-t", "en"),
        "decoder_start_token_id",
    ),
    "fewer rows": (with_fewer_rows, ("-s", "de", "-t", "en"), "no weights and biases of"),
    "wrong codes": (
        changed("tokenizer_config.json", added_tokens_decoder={"x": 1}),
        ("-s", "de", "-t", "en"),
        "tokenizer_config.json: damaged",
    ),
    "other special symbols": (
        changed("vocab.json", **{"<s>": 1, "<pad>": 0}),
        ("-s", "de", "-t", "en"),
        "begin with <s>, <pad>, </s>, <unk>",
    ),
    "another width": (changed("config.json", d_model=32), ("-s", "de", "-t", "en"), "does not fit"),
    "a huge id": (
        changed("tokenizer_config.json", added_tokens_decoder={10**12: {"content": "__de__"}}),
        ("-s", "de", "-t", "en"),
        "tokenizer_config.json: damaged (the id 1,000,000,000,000)",
    ),
    "a missing part": (without_a_part, ("-s", "de", "-t", "en"), "1-of-2-model.safetensors: is"),
    "a missing weight": (without_a_weight, ("-s", "de", "-t", "en"), "which its files lack"),
    "a part elsewhere": (with_a_part_elsewhere, ("-s", "de", "-t", "en"), "index.json: damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_model_is_refused(name, tmp_path):
    change, flags, message = REFUSED[name]
    plain = PlainM2M100(KINDS["m2m"][1])
    plain.save(tmp_path / "theirs")
    if change is not None:
        change(tmp_path / "theirs")
    output = tmp_path / "ours.safetensors"
    words = [tmp_path / "theirs", *flags, "--output", output]
    done = run_here("import_marian", words, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr and not output.exists()


def test_weights_of_another_name_and_half_precision(tmp_path):
    plain = PlainM2M100(KINDS["m2m"][1])
    plain.save(tmp_path / "theirs")
    tensors = {name: weight.half() for name, weight in plain.weights.items()}
    tensors["lm_head.weight"] = tensors.pop("model.shared.weight")
    tensors["model.encoder.embed_positions.weights"] = torch.zeros(68, CONFIG["d_model"])
    (tmp_path / "theirs/model.safetensors").unlink()
    torch.save(tensors, tmp_path / "theirs/pytorch_model.bin")
    output = tmp_path / "ours.safetensors"
    run_here("import_marian", tmp_path / "theirs", "-s", "fr", "-t", "de", "--output", output)
    loaded = Translator.from_checkpoint(output, "cpu").models[0].state_dict()
    assert torch.equal(loaded["encoder.embedding.tokens.weight"], tensors["lm_head.weight"].float())


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files(name, tmp_path):
    PlainM2M100(KINDS["m2m"][1]).save(tmp_path / "theirs")
    models = []
    for change in (lambda _: None, lambda folder: in_parts(folder, name)):
        change(tmp_path / "theirs")
        output = tmp_path / f"{len(models)}.safetensors"
        run_here("import_marian", tmp_path / "theirs", "-s", "de", "-t", "en", "--output", output)
        models.append(load_file(output))
    assert_same_tensors(*models)


def test_codes_keep_their_ids_behind_a_gap(tmp_path):
    plain = PlainM2M100(KINDS["m2m"][1])
    plain.save(tmp_path / "theirs")
    path = tmp_path / "theirs/tokenizer_config.json"
    added = json.loads(path.read_text())["added_tokens_decoder"]
    del added[str(plain.ids["__en__"])]
    path.write_text(json.dumps({"added_tokens_decoder": added}))
    output = tmp_path / "ours.safetensors"
    run_here("import_marian", tmp_path / "theirs", "-s", "fr", "-t", "de", "--output", output)
    sources = Translator.from_checkpoint(output, "cpu").sources
    assert sources.sentence(LINES[0]).ids.tolist() == plain.encode("__fr__", LINES[0])
