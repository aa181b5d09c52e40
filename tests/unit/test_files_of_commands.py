"""No command writes over a file that it reads or writes: all pairs of its path options.

The pairs come from the declarations, so that a new option is covered by being declared.
"""

import importlib
import re
import time
from itertools import permutations
from pathlib import Path

import pytest

from relu_nmt.applications.sweep.settings import SweepSettings
from relu_nmt.config import READ, REQUIRED, Files, from_flat
from relu_nmt.config.fields import Option, all_options
from relu_nmt.data.data_folder import DATA_FILES
from relu_nmt.errors import ConfigError
from relu_nmt.jobs.translate.settings import TranslateSplitSettings

CLI = Path(__file__).parents[2] / "relu_nmt/cli"
COMMANDS = {}
for path in sorted(CLI.glob("[a-z]*.py")):
    module = importlib.import_module(f"relu_nmt.cli.{path.stem}")
    if hasattr(module, "main"):
        COMMANDS[path.stem] = module.main
SETTINGS = {name: getattr(main, "settings_class", SweepSettings) for name, main in COMMANDS.items()}
OTHERS = {  # what a command needs beside the options that must be given
    "analyze": {"data": "data", "path": "model"},
    "generate": {"gen_subset": "test"},
    "import_fairseq": {"trust_pickle": True},
    "preprocess": {"source_lang": "de", "target_lang": "en", "trainpref": "text"},
    "score": {"ref": "references"},
    "sweep": {"budget": "1u"},
    "train": {"max_tokens": 9},
    "vision_probe": {"method": "knn", "train": "images", "test": "images"},
}
NEEDED = {
    "src": {"metrics": "comet"},
    "comet_model": {"metrics": "comet", "src": "sources"},
    "contrastive": {"path": "model"},
}
NAMES = (  # of files that the declarations tell of, in folders
    *("dict.de.txt", "test.de-en.de.raw", "cat/1.png", "checkpoint3.safetensors", "0.svg"),
    *(
        "model.safetensors",
        "generate-test.txt",
        "report.html",
        "events.out.tfevents.1",
        "teacher.sqlite",
    ),
)
PATHS = {"FILE", "DIR", "DIRS", "DATA", "CKPT", "PATH", "PATHS", "PHOTO", "FP", "MODEL.pt"}


def with_files(command):
    """Return the path options of a command by name, and those that all commands have."""
    options = {k: v for k, v in all_options(SETTINGS[command]).items() if v.files is not None}
    options["config"] = Option(None, "", name="config", files=Files(part_of=("save_dir",)))
    if getattr(COMMANDS[command], "user_modules", True):
        options["user_module"] = Option(None, "", name="user_module", files=READ)
    return options


def complete(command, values_to_set):
    """Return fields with the fields that they or the command need."""
    options = all_options(SETTINGS[command])
    values = {name: name for name, option in options.items() if option.default is REQUIRED}
    values |= OTHERS.get(command, {})
    for name in values_to_set:
        for needed, value in NEEDED.get(name, {}).items():
            if needed in options:
                values[needed] = value
    values |= values_to_set
    todo = list(values)
    for name in todo:
        for needed, *allowed in options[name].conditions if name in options else ():
            if needed in options and needed not in values:
                target = options[needed]
                value = 9 if target.kind is int else True if target.kind is bool else needed
                values[needed] = allowed[0] if allowed else value
                todo.append(needed)
    return {name: value for name, value in values.items() if value not in (None, False)}


def words_of(command, values):
    """Return the words to type, with the arguments of several values at the end."""
    options = {**all_options(SETTINGS[command]), **with_files(command)}
    flags = []
    arguments = []
    for name, option in options.items():
        if name in values and option.positional:
            arguments.append(str(values[name]))
        elif name in values:
            flags += option.with_value(values[name]).split(" ")
    return [*arguments, *flags]


def pairs(command):
    """Yield a written option, another one, whether the paths are folders, and a shared name."""
    options = with_files(command)
    for first, other in permutations(options, 2):
        written = options[first].files
        second = options[other].files
        is_module = other == "user_module" and written.names  # no file that Python could run
        if not written.written or first in second.part_of or is_module:
            continue
        if second.written and list(options).index(other) < list(options).index(first):
            continue
        folders = [bool(written.names), bool(second.names)]
        in_folders = [files for files in (written, second) if files.names]
        for name in ("shared.py", *NAMES):
            if all(matches(files, name) for files in in_folders):
                yield first, other, folders, name
                break
        else:
            assert all(folders), f"--{first} and --{other}: add a name for its files to NAMES"


def matches(files, name):
    names = files.names if isinstance(files.names, str) else files.names(Path("none"))
    return re.fullmatch(names, name) is not None


def shared(folder, folders, name):
    """Make a file and return the values of two options that both stand for it."""
    file = folder / "shared" / name
    file.parent.mkdir(parents=True)
    file.write_text("# valuable")
    return file, [str(folder / "shared") if is_folder else str(file) for is_folder in folders]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_output_is_an_input_or_another_output(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = with_files(command)
    for number, (first, second, folders, name) in enumerate(pairs(command)):
        file, texts = shared(tmp_path / str(number), folders, name)
        values = complete(command, dict(zip((first, second), texts, strict=True)))
        words = words_of(command, values)
        assert COMMANDS[command](words) == 2, words
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        for label in (options[first].label, options[second].label):
            assert label in error, (words, error)
        assert str(file) in error
        assert "give two files" in error or "give another" in error
        assert file.read_text() == "# valuable"


@pytest.mark.parametrize("command", COMMANDS)
def test_nor_is_it_by_a_symbolic_link(command, tmp_path):
    for number, (first, second, folders, name) in enumerate(pairs(command)):
        if folders[0] or {first, second} & {"config", "user_module"}:
            continue
        file, texts = shared(tmp_path / str(number), folders, name)
        linked = tmp_path / str(number) / "linked"
        linked.symlink_to(file)
        values = complete(command, {first: str(linked), second: texts[1]})
        with pytest.raises(ConfigError, match=r"give (two files|another)$"):
            from_flat(SETTINGS[command], values)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_path_is_declared_to_be_read_or_written(command):
    for name, option in all_options(SETTINGS[command]).items():
        is_path = option.metavar in PATHS or (
            option.kind is str and name.endswith(("path", "dir", "file", "pref", "dict"))
        )
        assert (option.files is not None) == (is_path or name == "comet_model"), name


def test_other_files_of_a_folder_may_be_written(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("dict.de.txt", "results.json", "shortlist.de-en.txt"):
        (data / name).touch()
    for name in ("results.json", "shortlist.de-en.txt", "new.json"):
        TranslateSplitSettings.of(data=data, path="m", attention_stats=data / name)
    with pytest.raises(ConfigError, match="one of the files of DATA"):
        TranslateSplitSettings.of(data=data, path="m", attention_stats=data / "test.de-en.en.raw")


def test_files_in_a_manifest_belong_to_the_data_folder(tmp_path):
    (tmp_path / "manifest.json").write_text('{"files": {"own.model": {}}}')
    assert matches(DATA_FILES, "subword.de.codes") and not matches(DATA_FILES, "own.model")
    with pytest.raises(ConfigError, match=r"own.model: is a file that is read"):
        TranslateSplitSettings.of(data=tmp_path, path="m", memory_stats=tmp_path / "own.model")


def test_devices_and_standard_input_are_no_files():
    files = {"attention_stats": "/dev/null", "memory_stats": "/dev/null"}
    TranslateSplitSettings.of(data="data", path="/dev/null", **files)


def test_very_many_pictures_are_compared_with_the_maps_alone():
    pictures = tuple(f"{number}.jpg" for number in range(20_000))
    start = time.process_time()
    from_flat(SETTINGS["vision_classify"], {"path": "m", "images": pictures, "attention_maps": "a"})
    assert time.process_time() - start < 10  # comparing all pairs takes half a minute


def test_a_data_folder_may_be_made_beside_its_text_again(tmp_path):
    for name in ("train.de", "train.en", "train.de-en.de.bin", "dict.de.txt"):
        (tmp_path / name).touch()
    paths = {"trainpref": tmp_path / "train", "destdir": tmp_path}
    from_flat(SETTINGS["preprocess"], complete("preprocess", paths))
    paths["srcdict"] = tmp_path / "dict.de.txt"  # which the folder keeps
    from_flat(SETTINGS["preprocess"], complete("preprocess", paths))


def test_a_training_may_go_on_with_the_settings_that_it_has_stored(tmp_path):
    stored = tmp_path / "results.json"
    stored.write_text('{"settings": {"data": "data", "max_tokens": 9}}')
    words = ["--config", str(stored), "--save-dir", str(tmp_path), "--dump-config"]
    with pytest.raises(SystemExit) as ended:
        COMMANDS["train"](words)
    assert ended.value.code == 0
