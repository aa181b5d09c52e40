"""Translators in spawned processes, and copies of them, translate token for token the same."""

import copy
import itertools
import multiprocessing
import pickle
import subprocess
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

from relu_nmt.config import to_dict
from relu_nmt.config.registry import import_user_module
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.base import JoinedPieces
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.tokenization.subwords import SubwordNmt
from relu_nmt.training.checkpoint import Checkpoint, save_checkpoint
from relu_nmt.translation.agreement import describe_task
from relu_nmt.translation.building import build_model, load_model
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.tiny import tiny_config

pytestmark = pytest.mark.filterwarnings("ignore:.*reached the longest output")

LINES = ["Das Haus ist gross.", "", "ein Hund, ein Haus", "Haus"]
TOKENS = "das haus ist gro@@ ss . ein hund , house dog is big a the"
WORDS = Dictionary(TOKENS.split())
KINDS = ("loaded", "int8", "bfloat16", "ensemble", "shortlist", "made")


def found_by(translator):
    """Return tokens, texts and scores, and whether layers are stepped through in one call."""
    best = itertools.chain(*translator.translate_nbest(LINES, nbest=2, beam=3, max_len_b=7))
    quick = [getattr(decoder, "layers_kernel", None) is not None for decoder in translator.decoders]
    return [
        (translation.text, translation.tokens, translation.score) for translation in best
    ], quick


def make_task():
    pieces = SubwordNmt(b"#version: 0.2\ng r\ngr o\ns s</w>\n")
    source = TextPipeline("de", tokenizer="moses", lowercase=True, subword=pieces)
    target = TextPipeline("en", tokenizer="moses", subword=pieces)
    return TranslationTask(source, target, WORDS, WORDS)


def save(path, seed, attention="softmax"):
    torch.manual_seed(seed)
    shape = {"layers": 2, "embed_dim": 64, "ffn_embed_dim": 64}
    config = tiny_config(shape, attention=attention, share_all_embeddings=True)
    task = make_task()
    metadata = {"model_config": to_dict(config), "task": task.to_state()}
    save_checkpoint(path, Checkpoint(build_model(config, task).state_dict(), metadata))
    return path


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translators")
    first = save(folder / "1.safetensors", 1)
    second = save(folder / "2.safetensors", 2)
    model, task, _ = load_model(first)
    by_kind = {
        "loaded": Translator.from_checkpoint(first, "cpu"),
        "int8": Translator.from_checkpoint(first, "cpu", int8=True),
        "bfloat16": Translator.from_checkpoint(first, "cpu", torch.bfloat16),
        "ensemble": Translator.from_checkpoint([first, second], "cpu"),
        "shortlist": Translator.from_checkpoint(first, "cpu", attention_backend="reference"),
        "made": Translator([model], task, "cpu", max_doc_tokens=9),
    }
    candidates = torch.zeros(len(WORDS), 1, dtype=torch.int64)
    by_kind["shortlist"].shortlist = Shortlist(torch.tensor([5, 9]), candidates, len(WORDS))
    by_kind["made"].task = by_kind["made"].task.with_post_processing(None, "none")
    return by_kind


@pytest.fixture(scope="module")
def pool():
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, torch.set_num_threads, (1,)) as pool:
        yield pool


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_spawned_process_translates_the_same(translators, pool, kind):
    translator = translators[kind]
    expected = found_by(translator)
    assert pool.submit(found_by, translator).result(timeout=120) == expected
    # PyTorch moved the weights to shared memory, away from the addresses that kernels know.
    assert found_by(translator) == expected
    models = nn.ModuleList(translator.models)
    assert not any(map(torch.Tensor.is_shared, models.parameters()))
    assert all(module.is_current for module in models.modules() if hasattr(module, "is_current"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_translates_the_same_and_shares_nothing(translators, kind, copied):
    translator = translators[kind]
    state = torch.get_rng_state()
    expected = found_by(translator)
    twin = copied(translator)
    assert torch.equal(torch.get_rng_state(), state)
    assert found_by(twin) == expected
    assert (twin.max_doc_tokens, twin.device) == (translator.max_doc_tokens, translator.device)
    assert describe_task(twin.task) == describe_task(translator.task)
    with torch.no_grad():
        for weight in nn.ModuleList(twin.models).parameters():
            weight.zero_()
    assert found_by(translator) == expected


def test_each_thread_may_have_a_copy(translators):
    expected = found_by(translators["loaded"])
    results = []

    def translate(twin):
        for _ in range(5):
            results.append(found_by(twin))

    threads = []
    for _ in range(3):
        twin = copy.deepcopy(translators["loaded"])
        threads.append(threading.Thread(target=translate, args=(twin,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 15


def test_a_copy_keeps_text_processing_and_data_folder(translators, tmp_path):
    translator = copy.deepcopy(translators["loaded"])
    text = replace(translator.task.target_text, subword=JoinedPieces("@@ "))
    translator.task = replace(translator.task, target_text=text, folder=tmp_path)
    twin = pickle.loads(pickle.dumps(translator))
    assert twin.task.folder == tmp_path and found_by(twin) == found_by(translator)


def test_kernels_find_weights_that_moved_to_shared_memory(tmp_path):
    translator = Translator.from_checkpoint(save(tmp_path / "x.safetensors", 1), "cpu", torch.int8)
    expected = found_by(translator)
    for model in translator.models:
        model.share_memory()
    blocks = [torch.full((64,), 7.0) for _ in range(1000)]  # reuse the freed memory
    assert found_by(translator) == expected and len(blocks) == 1000
    for decoder in translator.decoders:
        kernel = decoder.layers_kernel
        if kernel is not None:
            norm = kernel.layers[0].self_attention_residual.norm
            assert kernel._weights.address == norm.weight.data_ptr()


def test_a_model_with_hooks_cannot_be_pickled(tmp_path):
    translator = Translator.from_checkpoint(save(tmp_path / "x.safetensors", 1), "cpu")
    translator.models[0].encoder.register_forward_hook(lambda *call: None)
    message = "a translator with hooks cannot be pickled or copied, and there are some on 'encoder'"
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ConfigError, match=message) as error:
            copied(translator)
        assert "Translator.from_checkpoint" in str(error.value)


OWN = """from relu_nmt.attention import attentions
from relu_nmt.attention.normalized import SoftmaxAttention

@attentions.register({name!r})
class {name}(SoftmaxAttention):
    pass
"""


def test_a_class_from_a_users_file_cannot_be_pickled(tmp_path):
    (tmp_path / "mine.py").write_text(OWN.format(name="MineByFile"))
    import_user_module(str(tmp_path / "mine.py"))
    path = save(tmp_path / "x.safetensors", 1, "MineByFile")
    with pytest.raises(
        ConfigError, match="with MineByFile cannot be pickled or copied: it is from"
    ):
        pickle.dumps(Translator.from_checkpoint(path, "cpu"))


def test_a_pickle_imports_the_package_of_its_classes(tmp_path, monkeypatch, quick_python):
    (tmp_path / "own_package.py").write_text(OWN.format(name="MineByImport"))
    monkeypatch.syspath_prepend(tmp_path)
    __import__("own_package")
    translator = Translator.from_checkpoint(
        save(tmp_path / "x.safetensors", 1, "MineByImport"), "cpu"
    )
    (tmp_path / "pickled").write_bytes(pickle.dumps(translator))
    code = (
        f"import pickle, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"translator = pickle.load(open({str(tmp_path / 'pickled')!r}, 'rb'))\n"
        f"print(translator.translate({LINES!r}, beam=3, max_len_b=7))"
    )
    words = [quick_python, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(list(translator.translate(LINES, beam=3, max_len_b=7)))
