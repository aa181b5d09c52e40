import argparse
import json
import math
import struct
from typing import ClassVar

import pytest
import yaml

from relu_nmt import config as c
from relu_nmt.config.registry import Registry
from relu_nmt.errors import ConfigError
from tests.commands import command_line

SHAPES = Registry("shape", {"square": "nowhere", "circle": "nowhere"})
PRESETS = {"small": {"width": 8, "style": "plain"}, "big": {"width": 64, "style": "striped"}}


@c.settings
class Model:
    arch: str = c.option("small", "preset", presets=PRESETS)
    style: str = c.option("plain", "style", presets={"plain": {}, "striped": {"stripes": 4}})
    width: int = c.option(16, "width", least=1)
    stripes: int = c.option(0, "stripes", least=0)
    dropout: float = c.option(0.1, "dropout", least=0, below=1, flags=("--drop",))
    shape: str = c.option(
        "square", "shape", choices=SHAPES, constants={"--round": "circle", "--no-corners": "circle"}
    )


@c.settings
class Training:
    max_tokens: int | None = c.option(None, "tokens", least=1)
    name: str | None = c.option(None, "name", flags=("-n",))
    share: bool = c.option(False, "share")
    no_save: bool = c.option(False, "do not save")
    keep: int = c.option(-1, "keep", needs=("no_save", False))
    betas: tuple[float, ...] = c.option((0.9, 0.98), "pair", least=0, below=1)
    store_ema: bool = c.option(False, "average")
    ema_decay: float = c.option(0.9999, "decay", least=0, below=1, needs="store_ema")
    schedule: str = c.option("fixed", "schedule", choices=("fixed", "cosine", "linear"))
    shrink: float = c.option(0.1, "factor", needs=("schedule", "cosine", "linear"))
    penalty: float = c.option(0.0, "penalty", above=-math.inf, most=math.inf)
    power: int = c.option(1, "exponent", choices=(1, 2))
    backend: str = c.option("a", "as elsewhere", no_effect="there is one process")

    def check(self):
        if self.share and self.no_save:
            raise ConfigError("--share and --no-save exclude each other")


@c.settings
class Extra:
    fast: bool = c.option(True, "be fast")


@c.settings
class Command:
    data: str = c.option(c.REQUIRED, "data folder", metavar="DATA", positional=True)
    model: Model = c.group("model", Model)
    training: Training = c.group("training", Training)
    extra: Extra = c.group("speed", Extra, stored=False)


def parsed(*argv):
    parser = argparse.ArgumentParser()
    c.add_settings(parser, Command)
    return c.read_settings(Command, parser.parse_args(command_line(argv)))


def test_typed_flags_go_before_the_file_the_file_before_presets_presets_before_defaults(tmp_path):
    assert parsed("d").model.width == 8
    assert parsed("d", "--arch", "big", "--width", "5").model.width == 5
    file = tmp_path / "own.yaml"
    file.write_text("data: here\nmodel:\n  dropout: 0.5\nbetas: [0.5, 0.6]\nno_save: true\n")
    config = parsed("--config", str(file), "--dropout", "0.25")
    assert (config.data, config.model.dropout, config.model.width) == ("here", 0.25, 8)
    assert config.training.betas == (0.5, 0.6) and config.training.no_save
    assert parsed("there", "--config", str(file)).data == "there"


def test_settings_files_are_read_as_yaml_1_2(tmp_path):
    config = in_file(tmp_path / "own.yaml", "data: no\nname: 1:30\nwidth: 010\ndropout: 1e-1\n")
    assert (config.data, config.training.name) == ("no", "1:30")
    assert (config.model.width, config.model.dropout) == (10, 0.1)
    assert in_file(tmp_path / "same.yaml", c.to_yaml(config)) == config
    with pytest.raises(ConfigError, match="--share yes: expected true or false"):
        in_file(tmp_path / "own.yaml", "data: d\nshare: yes\n")


def test_a_preset_can_choose_another_one_and_a_typed_one_goes_before_the_file(tmp_path):
    assert (parsed("d").model.stripes, parsed("d", "--arch", "big").model.stripes) == (0, 4)
    assert parsed("d", "--arch", "big", "--style", "plain").model == Model("big", "plain", 64)
    assert parsed("d", "--style", "striped").model == Model("small", "striped", 8, 4)
    file = tmp_path / "own.yaml"
    file.write_text(c.to_yaml(parsed("d", "--width", "5")))
    assert parsed("--config", str(file)).model.width == 5
    assert parsed("--config", str(file), "--arch", "small").model.width == 5
    assert parsed("--config", str(file), "--arch", "big").model.width == 64


def ways(name, text):
    """Return calls that set a field of Command, each in another way."""
    value = yaml.safe_load(text)
    return {
        "flag": lambda tmp: parsed("d", f"--{name.replace('_', '-')}={text}"),
        "yaml": lambda tmp: in_file(tmp / "own.yaml", f"data: d\n{name}: {text}\n"),
        "json": lambda tmp: in_file(tmp / "own.json", json.dumps({"data": "d", name: value})),
        "dict": lambda tmp: c.from_dict(Command, {"data": "d", "x": {name: value}}),
        "keyword": lambda tmp: Command.of(data="d", **{name: value}),
        "string": lambda tmp: c.from_flat(class_of(name), {name: text}),
        "constructor": lambda tmp: class_of(name)(**{name: value}),
        "preset": lambda tmp: with_preset({name: value}),
    }


def in_file(path, text):
    path.write_text(text)
    return parsed("--config", str(path))


def class_of(name):
    return next(k for k in (Model, Training, Extra) if name in c.fields.options_of(k))


def with_preset(values):
    @c.settings
    class Chosen(Training):
        arch: str = c.option("it", "preset", presets={"it": values})
        dropout: float = c.option(0.1, "dropout", least=0, below=1)
        width: int = c.option(16, "width", least=1)
        shape: str = c.option("square", "shape", choices=SHAPES)

    return Chosen.of()


WRONG = [
    ("width", "x", "expected a whole number"),
    ("width", "1.5", "expected a whole number"),
    ("width", "true", "expected a whole number"),
    ("width", "0", "expected 1 or more"),
    ("max_tokens", "0", "expected 1 or more"),
    ("dropout", "1", "expected 0 to below 1"),
    ("dropout", ".nan", "expected a number"),
    ("dropout", "[1]", "expected a number"),
    ("shrink", ".inf", "expected a number"),
    ("penalty", "-.inf", "expected more than -inf"),
    ("betas", "[0.9, 2]", "expected 0 to below 1"),
    ("betas", "[0.9, x]", "expected numbers with commas"),
    ("schedule", "cosin", r"expected one of fixed, cosine, linear; did you mean cosine\?"),
    ("shape", "squar", r"one of circle, square, or your own: .*; did you mean square\?"),
    ("power", "3", "expected one of 1, 2$"),
    ("share", "maybe", "expected true or false"),
]


@pytest.mark.parametrize("way", ways("width", "1"))
@pytest.mark.parametrize(("name", "text", "expected"), WRONG)
def test_every_way_in_refuses_a_wrong_value(way, name, text, expected, tmp_path):
    if way == "flag":
        text = text.replace(".nan", "nan").replace(".inf", "inf")
        if name == "share":
            return  # a flag without a value
    elif way == "string":
        text = text.replace(".nan", "nan").replace(".inf", "inf")
    elif "." in text and text != "1.5" and way in ("json",) and "[" not in text:
        return  # JSON has no such numbers
    with pytest.raises(ConfigError, match=expected) as error:
        ways(name, text)[way](tmp_path)
    assert name.replace("_", "-") in str(error.value).replace("_", "-")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("way", ways("width", "1"))
@pytest.mark.parametrize(
    ("name", "text", "read"),
    [("width", "3", 3), ("dropout", "0", 0.0), ("betas", "[0.5, 0.6]", (0.5, 0.6))],
)
def test_every_way_in_reads_a_right_value(way, name, text, read, tmp_path):
    config = ways(name, text)[way](tmp_path)
    values = c.classes.flat(c.to_dict(config))
    assert values[name] == read and type(values[name]) is type(read)


def test_infinity_where_it_means_something():
    assert Training(penalty="inf").penalty == math.inf


@pytest.mark.parametrize("name", ["max_tokns", "max-tokns"])
def test_an_error_suggests_the_right_name_for_a_misspelled_one(name, tmp_path):
    with pytest.raises(ConfigError, match=r"max_tokens") as error:
        Command.of(data="d", **{name: 3})
    assert "version" not in str(error.value)
    with pytest.raises(ConfigError, match=r"own.yaml: unknown .* did you mean max_tokens") as error:
        in_file(tmp_path / "own.yaml", f"training:\n  {name}: 3\n")
    assert "version" not in str(error.value)
    with pytest.raises(ConfigError, match=r"did you mean max_tokens.* another version"):
        c.from_dict(Command, {"data": "d", name: 3})
    with pytest.raises(ConfigError, match="unknown option 'widht': did you mean width"):
        c.from_flat(Model, {"widht": "3"})


def test_further_spellings_name_a_field_in_files_too():
    assert Command.of(data="d", drop=0.3).model.dropout == 0.3


def test_a_flag_may_stand_for_a_value_of_another(tmp_path):
    for config in (
        parsed("d", "--no-corners"),
        in_file(tmp_path / "own.yaml", "data: d\nround: true\n"),
        Command.of(data="d", round=True),
        c.from_dict(Command, {"data": "d", "round": True, "no_corners": False}),
    ):
        assert config.model.shape == "circle"
    assert Command.of(data="d", round=False).model.shape == "square"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--ema-decay", "0.5"], "--ema-decay 0.5 does nothing without --store-ema; give both"),
        (["--ema-decay", "0.9999"], "--ema-decay 0.9999 does nothing without --store-ema"),
        (["--shrink", "1"], "with --schedule fixed; it needs --schedule cosine or linear"),
        (["--no-save", "--keep", "3"], "--keep 3 does nothing with --no-save; leave one"),
    ],
)
def test_a_flag_that_does_nothing_is_refused(flags, expected, tmp_path):
    with pytest.raises(ConfigError, match=expected):
        parsed("d", flags)
    typed = {flags[-2][2:].replace("-", "_"): flags[-1], "no_save": "--no-save" in flags}
    with pytest.raises(ConfigError, match=expected):
        Command.of(data="d", **typed)


def test_a_flag_that_needs_a_value_of_an_absent_flag_names_both():
    @c.settings
    class Probe:
        method: str = c.option(c.REQUIRED, "method", choices=("knn", "linear"))
        lr: float = c.option(0.1, "rate", needs=("method", "linear"))

    parser = argparse.ArgumentParser()
    c.add_settings(parser, Probe)
    message = "--lr 1 does nothing without --method linear; give both, or leave it out"
    with pytest.raises(ConfigError, match=message):
        c.read_settings(Probe, parser.parse_args(["--lr", "1"]))


def test_an_idle_option_in_a_file_is_refused_unless_a_training_stored_it(tmp_path):
    with pytest.raises(ConfigError, match=r"own.yaml: --ema-decay 0.5 does nothing"):
        in_file(tmp_path / "own.yaml", "ema_decay: 0.5\n")
    assert c.from_dict(Training, {"ema_decay": 0.5}) == Training()
    path = tmp_path / "own.yaml"
    path.write_text("data: d\nstore_ema: true\nema_decay: 0.5\n")
    assert parsed("--config", str(path)).training.ema_decay == 0.5
    assert parsed("--config", str(path), "--no-store-ema").training == Training()


def test_dumped_settings_are_read_again(tmp_path, capsys):
    typed = ["d", "--arch", "big", "--store-ema", "--ema-decay", "1e-5", "--no-fast"]
    with pytest.raises(SystemExit) as end:
        parsed(typed, "--dump-config")
    assert end.value.code in (0, None)
    text = capsys.readouterr().out
    assert "# average" in text
    again = in_file(tmp_path / "own.yaml", text)
    assert again == parsed(typed)
    # Others are comments, so that a file says what was given.
    assert again.given == parsed(typed).given == {"data", "arch", "store_ema", "ema_decay", "fast"}
    assert "\nema_decay: 1.0e-05\n" in text and "\n#dropout: " in text


def test_checkpoints_and_results_give_their_settings(tmp_path):
    config = parsed("d", "--arch", "big", "--no-fast")
    stored = c.to_dict(config, stored_only=True)
    assert "extra" not in stored and stored["training"]["betas"] == (0.9, 0.98)
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"format": 1, "settings": stored}))
    header = json.dumps({"__metadata__": {"args": json.dumps(stored)}}).encode()
    checkpoint = tmp_path / "checkpoint.safetensors"
    checkpoint.write_bytes(struct.pack("<Q", len(header)) + header)
    for path in (results, checkpoint):
        assert parsed("--config", str(path)).model == config.model
    checkpoint.write_bytes(header)
    with pytest.raises(ConfigError, match="not a checkpoint with settings"):
        parsed("--config", str(checkpoint))


@pytest.mark.parametrize(
    "text",
    [
        *("- a\n- b\n", "a: [1\n", "\x00"),
        "max_tokens: 1\nx:\n  max_tokens: 2",
        "max_tokens: 1\nmax_tokens: 2",
        "? [1]\n: 2",
    ],
)
def test_damaged_files_are_refused_in_one_line(text, tmp_path):
    with pytest.raises(ConfigError, match=r"own.yaml: ") as error:
        in_file(tmp_path / "own.yaml", text)
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_missing_argument(tmp_path):
    with pytest.raises(ConfigError, match=r"none.yaml: cannot read it"):
        parsed("d", "--config", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="DATA is missing: data folder"):
        parsed()


def test_flags_of_fairseq_that_do_nothing_print_a_note(capsys):
    parsed("d", "--backend", "b")
    assert capsys.readouterr().err == "note: --backend has no effect: there is one process\n"
    parsed("d")
    assert not capsys.readouterr().err


def test_settings_take_whole_groups_and_paths(tmp_path):
    config = Command(data=tmp_path, model=Model(width=3))
    assert (config.data, config.model.width) == (str(tmp_path), 3)
    assert Command.of(data=tmp_path, max_tokens=5).training.max_tokens == 5
    with pytest.raises(ConfigError, match="model: expected an instance of Model"):
        Command(data="d", model=3)


def test_own_checks_run_after_the_fields(tmp_path):
    with pytest.raises(ConfigError, match="exclude each other"):
        Training(share=True, no_save=True)


def test_wrong_declarations_are_errors():
    with pytest.raises(TypeError, match="defines check"):

        @c.settings
        class Own:
            def __post_init__(self): ...

    with pytest.raises(TypeError, match="two fields called width"):

        @c.settings
        class Twice:
            width: int = c.option(1, "width")
            model: Model = c.group("model", Model)


def test_a_group_may_have_other_defaults():
    @c.settings
    class Inner:
        model: Model = c.group("model", Model)
        ema_decay: float = c.option(0.5, "decay", needs="fast")
        fast: bool = c.option(True, "be fast")

    @c.settings
    class Narrow(Model):
        width: int = c.like(Model, "width", 3)
        stripes: int = c.like(Model, "stripes", 2, "lines")

    @c.settings
    class Slow(Inner):
        model: Narrow = c.group("model", Narrow)
        ema_decay: float = c.like(Inner, "ema_decay", 0.25)

    @c.settings
    class Outer:
        inner: Slow = c.group("inner", Slow)

    assert Outer.of(width=4).inner.model.width == 4 and Outer.of().inner.ema_decay == 0.25
    assert (Outer().inner.model.width, Outer().inner.model.stripes) == (3, 2)
    # All other fields are as they were, and a default is never idle.
    assert Outer().inner.model.dropout == Model().dropout and Inner().model.width == 16
    assert Outer.of(fast=False).inner.ema_decay == 0.25
    assert isinstance(Outer().inner.model, Model)
    # Python may also give an instance of the declared class, with all of its values.
    inner = Outer(inner=Inner(model=Model(width=5), ema_decay=0.5)).inner
    assert (inner.model.width, inner.model.stripes, inner.ema_decay) == (5, Model().stripes, 0.5)
    assert (type(inner), type(inner.model)) == (Slow, Narrow)
    assert Outer(inner=Inner.of(width=5)).inner.model.width == 5


def test_a_command_may_refuse_options_of_its_groups(capsys):
    @c.settings
    class Plain:
        model: Model = c.group("model", Model)
        refused: ClassVar = {"stripes": "there are none here"}

    assert Plain.of(width=4, stripes=0).model.stripes == 0
    with pytest.raises(ConfigError, match="--stripes: there are none here"):
        Plain.of(stripes=2)
    parser = argparse.ArgumentParser()
    c.add_settings(parser, Plain)
    assert "--stripes" not in parser.format_help() and "--width" in parser.format_help()


def test_an_option_like_another_has_its_limits_and_its_own_default():
    @c.settings
    class Wide(Model):
        width: int = c.like(Model, "width", 32)

    assert Wide().width == 32
    with pytest.raises(ConfigError, match="--width 0: expected 1 or more"):
        Wide(width=0)


def test_help_shows_defaults_needs_and_choices():
    parser = argparse.ArgumentParser()
    c.add_settings(parser, Command)
    text = " ".join(parser.format_help().split())
    assert "--schedule {fixed,cosine,linear}" in text
    assert "decay; needs --store-ema (default: 0.9999)" in text


def test_a_heading_stands_above_an_option_and_those_behind_it():
    @c.settings
    class Inner:
        width: int = c.option(1, "width")
        shown: int = c.option(1, "shown", heading="log", stored=False)
        format: int = c.option(1, "format")

    @c.settings
    class Outer:
        data: str = c.option("d", "data")
        inner: Inner = c.group("shape", Inner)

    parser = argparse.ArgumentParser()
    c.add_settings(parser, Outer)
    flags = {}
    for group in parser._action_groups:
        flags[group.title] = [action.dest for action in group._group_actions]
    assert (flags["settings"], flags["shape"]) == (["data"], ["width"])
    assert flags["log"] == ["shown", "format"]
    assert c.to_dict(Outer(), stored_only=True)["inner"] == {"width": 1, "format": 1}
    assert "# log\n# shown\n" in c.to_yaml(Outer())


def test_help_shows_no_default_of_a_required_option():
    @c.settings
    class Own:
        path: str = c.option(c.REQUIRED, "checkpoint", metavar="FILE")

    parser = argparse.ArgumentParser()
    c.add_settings(parser, Own)
    assert "--path FILE checkpoint settings file:" in " ".join(parser.format_help().split())


def test_a_file_may_set_what_only_a_preset_makes_useful(tmp_path):
    @c.settings
    class Chosen(Training):
        arch: str = c.option("averaged", "preset", presets={"averaged": {"store_ema": True}})

    parser = argparse.ArgumentParser()
    c.add_settings(parser, Chosen)
    path = tmp_path / "own.yaml"
    path.write_text("ema_decay: 0.5\n")
    assert c.read_settings(Chosen, parser.parse_args(["--config", str(path)])).ema_decay == 0.5
