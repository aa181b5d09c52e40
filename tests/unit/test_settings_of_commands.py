"""The settings of the commands: a wrong value is refused in the same words on every way in."""

import json
import math
from pathlib import Path

import pytest

from relu_nmt import config as c
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.train.settings import TranslationTrainingSettings
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.search.config import GenerationConfig
from tests.unit.training.toy import parsed

TRAIN = {"data": "data-bin", "max_tokens": 100}


def ways(settings_class, own_class, name, value, folder):
    """Yield calls that set ``name`` of a command's settings, each in another way."""
    base = TRAIN if settings_class is TranslationTrainingSettings else {}
    flags = [] if not base else ["data-bin", "--max-tokens=100"]
    flag = f"--{name.replace('_', '-')}={value}"
    yaml = folder / "own.yaml"
    stored = folder / "results.json"
    text = {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan" if value != value else value)
    yaml.write_text(f"{name}: {text}\n")
    stored.write_text(json.dumps({"settings": {"group": {name: value}}}))
    yield lambda: parsed(settings_class, [*flags, flag])
    yield lambda: parsed(settings_class, [*flags, "--config", str(yaml)])
    yield lambda: parsed(settings_class, [*flags, "--config", str(stored)])
    yield lambda: settings_class.of(**base, **{name: value})
    yield lambda: settings_class.of(**base, **{name: str(value)})
    yield lambda: c.from_dict(settings_class, {**base, "group": {name: value}})
    yield lambda: c.from_flat(own_class, {name: str(value)})
    yield lambda: own_class(**{name: value})


@pytest.mark.parametrize(
    ("settings_class", "own_class", "name", "value", "expected"),
    [
        (GenerationConfig, GenerationConfig, "stop_rule", "fulll", "did you mean full?"),
        (GenerationConfig, GenerationConfig, "lenpen_form", "foo", "expected one of power, gnmt"),
        (GenerationConfig, GenerationConfig, "temperature", math.nan, "expected a number"),
        (GenerationConfig, GenerationConfig, "temperature", math.inf, "expected a number"),
        (TranslationTrainingSettings, TransformerConfig, "feed_forward", "foo", "choose one of"),
        (TranslationTrainingSettings, TransformerConfig, "norm", "foo", "expected one of layer"),
        (TranslationTrainingSettings, TransformerConfig, "positions", "foo", "choose one of"),
        (TranslationTrainingSettings, TransformerConfig, "dropout", math.nan, "expected a number"),
        (
            TranslationTrainingSettings,
            TransformerConfig,
            "encoder_layers",
            0,
            "expected 1 to 10000",
        ),
    ],
)
def test_every_way_in_refuses_a_wrong_value(
    settings_class, own_class, name, value, expected, tmp_path
):
    for way in ways(settings_class, own_class, name, value, tmp_path):
        with pytest.raises(ConfigError) as error:
            way()
        assert expected in str(error.value)
        assert name in str(error.value).replace("-", "_")


def test_a_field_of_earlier_versions_is_read_and_a_wrong_value_of_it_refused():
    assert (
        TranslationTrainingSettings.of(**TRAIN, activation_fn="gelu").model.feed_forward == "gelu"
    )
    with pytest.raises(ConfigError, match="--feed-forward: unknown feed-forward network 'foo'"):
        TranslationTrainingSettings.of(**TRAIN, activation_fn="foo")
    stored = {"encoder_learned_pos": True, "decoder_learned_pos": False, "activation_fn": "relu"}
    config = c.from_dict(TransformerConfig, stored)
    assert (config.positions_of("encoder"), config.positions_of("decoder")) == (
        "learned",
        "sinusoidal",
    )


def test_the_attention_preset_goes_with_any_shape():
    tiny = TranslationTrainingSettings.of(**TRAIN, arch="transformer_tiny")
    settings = TranslationTrainingSettings.of(
        **TRAIN, arch="transformer_tiny", attention_preset="reluformer"
    )
    named = TranslationTrainingSettings.of(**TRAIN, arch="reluformer_tiny")
    assert (tiny.model.attention, tiny.regularizer.active) == ("softmax", False)
    assert settings.model == named.model and settings.regularizer == named.regularizer
    assert named.model.attention == "reluformer:gamma=8"
    assert (named.regularizer.attention_norm_weight, named.model.encoder_embed_dim) == (0.1, 64)
    plain = TranslationTrainingSettings.of(**TRAIN, arch="reluformer_tiny", attention_preset="none")
    assert plain.model == tiny.model
    image = ImageTrainingSettings.of(data="d", arch="vit_s", attention_preset="reluformer")
    assert (image.model.attention, image.model.embed_dim) == ("reluformer:gamma=8", 384)
    assert image.regularizer.active


def test_a_recipe_goes_with_any_shape_and_flags_go_before_it(tmp_path):
    flags = ["d", "--recipe", "deit", "--arch", "vit_s", "--mixup", "0", "--lr-batch-size", "0"]
    config = parsed(ImageTrainingSettings, flags)
    assert (config.augmentation.mixup, config.augmentation.cutmix) == (0.0, 1.0)
    assert (config.model.embed_dim, config.model.drop_path) == (384, 0.05)
    assert (config.trainer.schedule.lr, config.trainer.lr_batch_size) == ((5e-4,), 0)
    # Updates of warm-up go before the recipe's epochs, and no RandAugment before its magnitude.
    flags += ["--warmup-updates", "7", "--rand-augment", "0"]
    other = parsed(ImageTrainingSettings, flags)
    assert (other.trainer.warmup_epochs, other.trainer.schedule.warmup) == (0, 7)
    path = tmp_path / "own.yaml"
    path.write_text(c.to_yaml(other))
    assert parsed(ImageTrainingSettings, ["--config", str(path)]) == other
    assert c.from_dict(ImageTrainingSettings, json.loads(json.dumps(c.to_dict(config)))) == config
    for flag in ("--rand-augment-std=1", "--rand-augment-magnitude=3"):
        with pytest.raises(ConfigError, match="does nothing without --rand-augment"):
            parsed(ImageTrainingSettings, ["d", flag])


def test_typed_attention_options_go_before_the_preset():
    flags = ["d", "--max-tokens", "9", "--arch", "reluformer_tiny", "--attention", "softmax"]
    assert parsed(TranslationTrainingSettings, flags).model.attention == "softmax"


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ("--ema-decay 0.9999", "--store-ema"),
        ("--ema-start-update 5", "--store-ema"),
        ("--fp16-init-scale 4", "--fp16"),
        ("--attention-entropy-margin 0.7", "--attention-entropy-weight"),
        ("--criterion cross_entropy --label-smoothing 0.1", "label_smoothed_cross_entropy"),
        ("--eval-bleu-print-samples", "--eval-bleu"),
        ("--eval-bleu-detok moses", "--eval-bleu"),
        ("--keep-interval-updates 3", "--save-interval-updates"),
        ("--no-save --keep-last-epochs 3", "--no-save"),
        ("--disable-validation --patience 3", "--disable-validation"),
        ("--disable-validation --eval-bleu", "--disable-validation"),
        ("--disable-validation --valid-subset valid1", "--disable-validation"),
        ("--lr-period-updates 9", "--lr-scheduler cosine"),
        ("--total-num-update 9", "--lr-scheduler polynomial_decay"),
    ],
)
def test_a_flag_that_does_nothing_says_what_it_needs(flags, needed):
    model = ["d", "--max-tokens", "9", "--arch", "transformer_tiny"]
    with pytest.raises(ConfigError, match="does nothing") as error:
        parsed(TranslationTrainingSettings, [*model, *flags.split()])
    assert needed in str(error.value)


@pytest.mark.parametrize("flags", ["--positions learned", "--encoder-learned-pos", ""])
def test_longest_source_with_any_positions(flags):
    typed = ["d", "--max-tokens", "9", *flags.split(), "--max-source-positions", "80"]
    assert parsed(TranslationTrainingSettings, typed).model.max_source_positions == 80


def test_settings_dumped_or_stored_give_the_same_settings(tmp_path):
    flags = ["d", "--max-tokens", "9", "--arch", "reluformer_tiny", "--store-ema", "--lr", "1e-3"]
    config = parsed(TranslationTrainingSettings, flags)
    path = tmp_path / "own.yaml"
    path.write_text(c.to_yaml(config))
    assert parsed(TranslationTrainingSettings, ["--config", str(path)]) == config
    stored = json.loads(json.dumps(c.to_dict(config)))
    assert c.from_dict(TranslationTrainingSettings, stored) == config


def test_a_dump_has_the_options_in_the_text_of_a_part_of_a_file(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("data: d\nmax_tokens: 9\noptimizer: adam:beta2=0.95\n")
    config = parsed(TranslationTrainingSettings, ["--config", str(path)])
    path.write_text(c.to_yaml(config, config.given))
    again = parsed(TranslationTrainingSettings, ["--config", str(path)])
    assert again == config
    assert again.trainer.optimizer.adam_betas == (0.9, 0.95)


def test_settings_of_earlier_versions_that_did_nothing_are_left_out():
    stored = {"data": "d", "batching": {"max_tokens": 9}, "trainer": {"ema": {"ema_decay": 0.998}}}
    assert not c.from_dict(TranslationTrainingSettings, stored).trainer.optimizer.store_ema


OLD = sorted((Path(__file__).parents[1] / "compat" / "files" / "checkpoints").glob("*.safetensors"))

SOFTMAX = ["averaged", "fairseq", "learned", "soft", "softmax", "vit-class"]


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_the_settings_of_an_old_checkpoint_are_read(path):
    kind = ImageTrainingSettings if path.stem.startswith("vit") else TranslationTrainingSettings
    config = parsed(kind, ["--config", str(path)])
    assert (config.model.attention == "softmax") == (path.stem in SOFTMAX)
