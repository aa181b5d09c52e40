"""Every reader on files with bytes changed, cut off or added: new ones each time.

The seed is printed after the tests. ``--hypothesis-seed`` repeats them.
"""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import CheckpointError, ReluNmtError
from relu_nmt.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tests.fuzz.fresh import fresh
from tests.fuzz.readers import CONTRAST, OLD_FILES, READERS, read_or_refuse
from tests.unit.training.toy import Toy

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries, about damaged files

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@st.composite
def damages(draw):
    """A change of a file's bytes: overwritten, cut off, or with bytes put in."""
    share = draw(st.floats(0, 1))
    junk = draw(st.binary(min_size=1, max_size=9) | st.sampled_from([b"\0" * 8, b"\xff" * 8]))
    kind = draw(st.sampled_from(["overwrite", "cut", "insert", "replace all"]))

    def damage(content):
        at = int(share * len(content))
        if kind == "overwrite":
            return content[:at] + junk + content[at + len(junk) :]
        if kind == "cut":
            return content[:at]
        return junk if kind == "replace all" else content[:at] + junk + content[at:]

    return damage


@pytest.fixture(params=READERS)
def reader(request):
    return READERS[request.param]


@pytest.fixture
def path(reader, tmp_path):
    reader.prepare(tmp_path)
    return tmp_path / reader.file


def test_whole_files_are_read(reader, path):
    for content in reader.wholes():
        path.write_bytes(content)
        if reader.read is not READERS["checkpoint"].read:  # some are of images, some of text
            reader.read(path)


@fresh(12)
@given(damage=damages(), which=st.integers(0, 9))
def test_damaged_files(reader, path, damage, which):
    wholes = reader.wholes()
    read_or_refuse(reader, path, damage(wholes[which % len(wholes)]))


@fresh(6)
@given(content=st.binary(max_size=80))
def test_any_bytes(reader, path, content):
    read_or_refuse(reader, path, content)


@fresh(50)
@given(text=st.text(max_size=60))
@pytest.mark.parametrize(
    "name", ["dictionary", "BPE codes", "YAML settings", "contrasts", "TMX", "table of pairs"]
)
def test_any_text(tmp_path, name, text):
    read_or_refuse(READERS[name], tmp_path / READERS[name].file, text.encode("utf-8", "replace"))


@pytest.mark.parametrize(
    "name", ["YAML settings", "YAML of published figures", "results", "course", "contrasts"]
)
@pytest.mark.parametrize("start", [b"[", b'{"a":', b"- "])
def test_deep_nesting(tmp_path, name, start):
    read_or_refuse(READERS[name], tmp_path / READERS[name].file, start * 50_000)
    nested = start * 900 + (b"]" if start == b"[" else b"1" + b"}") * 900
    read_or_refuse(READERS[name], tmp_path / READERS[name].file, b'{"lr": ' + nested + b"}")


BOMB = b"a: &a [1,1,1,1,1,1,1,1,1,1]\n" + b"".join(
    b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 10)) for c in b"bcdefghij"
)


@pytest.mark.parametrize("text", [BOMB + b"lr: *j", b"lr: &x [*x]", b"lr: &x {a: *x}"])
@pytest.mark.parametrize("name", ["YAML settings", "YAML of published figures"])
def test_aliases_that_repeat_without_end(tmp_path, name, text):
    path = tmp_path / READERS[name].file
    path.write_bytes(text)
    with pytest.raises(ReluNmtError, match="more than 100,000 values, or one that is in itself"):
        READERS[name].read(path)


@fresh(100)
@given(changes=st.dictionaries(st.sampled_from(sorted(CONTRAST)), JSON))
def test_contrasts_with_values_of_other_kinds(tmp_path, changes):
    path = tmp_path / "contrasts.jsonl"
    read_or_refuse(READERS["contrasts"], path, json.dumps({**CONTRAST, **changes}).encode())


@fresh(30)
@given(
    value=JSON,
    where=st.sampled_from(
        [
            *(("format",), ("version",), ("text",), ("text", "de"), ("files",), ("splits",)),
            *(("text", "de", name) for name in ("tokenizer", "subword", "subword_file")),
            *(("text", "de", "lowercase"), ("files", "dict.de.txt")),
            *(("files", "dict.de.txt", "bytes"), ("files", "subword.codes", "sha256")),
        ]
    ),
)
def test_manifest_with_any_value(tmp_path, value, where):
    reader = READERS["data folder: manifest.json"]
    reader.prepare(tmp_path)
    [manifest] = reader.wholes()
    read_or_refuse(reader, tmp_path / "manifest.json", with_value(manifest, where, value))


def with_value(text, where, value):
    content = json.loads(text)
    inner = content
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    return json.dumps(content).encode()


@fresh(25)
@given(damage=damages())
@pytest.mark.parametrize("name", ["subword.codes", "valid.de-en.de.idx", "valid.de-en.en.bin"])
def test_behind_the_check_of_sizes(tmp_path, name, damage):
    shutil.copytree(OLD_FILES / "data-joined", tmp_path, dirs_exist_ok=True)
    content = damage((OLD_FILES / "data-joined" / name).read_bytes())
    manifest = (OLD_FILES / "data-joined/manifest.json").read_bytes()
    manifest = with_value(manifest, ("files", name, "bytes"), len(content))
    (tmp_path / "manifest.json").write_bytes(manifest)
    read_or_refuse(READERS[f"data folder: {name}"], tmp_path / name, content)


@fresh(25)
@given(data=st.data())
def test_metadata_of_a_checkpoint_with_any_value(tmp_path, data):
    """Behind the checksums."""
    path = tmp_path / "checkpoint_last.safetensors"
    model = load_checkpoint(OLD_FILES / "checkpoints/ema.safetensors", with_training_state=True)
    inner = model.metadata
    name = data.draw(st.sampled_from(sorted(model.metadata)))
    while isinstance(inner[name], dict) and inner[name] and data.draw(st.booleans()):
        inner = inner[name]
        name = data.draw(st.sampled_from(sorted(inner)))
    inner[name] = data.draw(JSON)
    save_checkpoint(path, model)
    read_or_refuse(READERS["checkpoint"], path, path.read_bytes())


@fresh(50)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_checkpoint_cut_off_never_goes_unnoticed(tmp_path, share):
    contents = (OLD_FILES / "checkpoints/ema.safetensors").read_bytes()
    path = tmp_path / "checkpoint_last.safetensors"
    path.write_bytes(contents[: int(share * len(contents))])
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    Toy(folder, run={"max_update": 2}, optimizer={"store_ema": True}).trainer().train()
    return folder / "checkpoint_last.safetensors"


@fresh(15)
@given(data=st.data())
def test_training_does_not_go_on_with_what_does_not_fit(trained, tmp_path, data):
    checkpoint = load_checkpoint(trained, with_training_state=True)
    groups = [checkpoint.model_tensors, checkpoint.training_tensors]
    group = groups[data.draw(st.integers(0, 1))]
    name = data.draw(st.sampled_from(sorted(group)))
    how = data.draw(st.sampled_from(["drop", "rename", "reshape", "state"]))
    tensor = group.pop(name) if how != "state" else None
    if how == "rename":
        group[name + "x"] = tensor
    elif how == "reshape":
        group[name] = torch.zeros(*tensor.shape, 2)
    elif how == "state":
        state = checkpoint.metadata["training_state"]
        state.pop(data.draw(st.sampled_from(["inner", "epoch_meters"])))
    save_checkpoint(tmp_path / trained.name, Checkpoint(*vars(checkpoint).values()))
    with pytest.raises(ReluNmtError) as caught:
        Toy(tmp_path, run={"max_update": 3}).trainer().train()
    assert "\n" not in str(caught.value)
