"""The backbones: their definition is transformers'. Then checkpoints, MAE-LM, finding a model.

tests/golden/models is made by make_model_golden.py: small checkpoints as people have them, each
with the ids and, in float64, the logits that transformers gets from it.
"""
import http.server
import json
import os
import pickle
import random
import shutil
import struct
import threading
import time
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F

import models
import train
from glue_data import DownloadError, Tokenizer, UserError

GOLDEN = Path(__file__).resolve().parent / "golden" / "models"
SENTENCES = json.loads((GOLDEN / "sentences.json").read_text())
ALL = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
SAMPLE = GOLDEN.parent.parent / "sample"
HEADS = {"mlm": models.MaskedLM, "classifier": models.Classifier}


@pytest.fixture(autouse=True)
def a_new_command():
    models.print_once.cache_clear()


def golden(name: str) -> dict[str, torch.Tensor]:
    arrays = numpy.load(GOLDEN / name / "expected.npz")
    return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def inputs(name: str) -> list[torch.Tensor]:
    return [golden(name)[key] for key in ("ids", "segments", "attention_mask")]


def equal(ours: torch.Tensor, expected: torch.Tensor) -> bool:
    """Of float64 numbers near 1: more than rounding of their sums never differs."""
    assert ours.dtype == expected.dtype == torch.float64
    return torch.allclose(ours, expected, rtol=0, atol=1e-10)


@torch.no_grad()
def logits(directory: Path, head: str, name: str, **arguments) -> torch.Tensor:
    model = HEADS[head].from_pretrained(directory, **arguments).double().eval()
    result = model(*inputs(name))
    return result[:, :4] if head == "mlm" else result


def assert_golden_logits(directory: Path, name: str) -> None:
    for head in HEADS.keys() & golden(name).keys():
        expected = golden(name)[head]
        labels = {"num_labels": expected.shape[-1]} if head == "classifier" else {}
        assert equal(logits(directory, head, name, **labels), expected)


# ---- The definition ------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ALL)
def test_ids_and_logits_are_those_of_transformers(name):
    assert_golden_logits(GOLDEN / name, name)
    tokenizer = Tokenizer.from_pretrained(GOLDEN / name)
    ids, segments, attention_mask = inputs(name)
    for row, texts in enumerate(SENTENCES):
        encoding = tokenizer.encode(*texts)
        assert encoding.ids == ids[row][attention_mask[row].bool()].tolist()
        assert encoding.segments == segments[row][attention_mask[row].bool()].tolist()


# ---- Checkpoints: the same model under other names, in other formats -----------------------------

def stored(name: str) -> dict[str, torch.Tensor]:
    return models.read_checkpoint(GOLDEN / name / "model.safetensors")


def checkpoint(directory: Path, name="bert", tensors=None, form="safetensors", **config) -> Path:
    """A copy of a golden checkpoint with other tensors, format or configuration (None: no key)."""
    shutil.copytree(GOLDEN / name, directory, dirs_exist_ok=True)
    described = json.loads((directory / "config.json").read_text()) | config
    described = {key: value for key, value in described.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(described))
    if tensors is not None or form != "safetensors":
        (directory / "model.safetensors").unlink()
        tensors = stored(name) if tensors is None else tensors
        if form == "safetensors":
            models.write_safetensors(directory / "model.safetensors", tensors)
        else:
            torch.save(tensors, directory / "pytorch_model.bin",
                       _use_new_zipfile_serialization=form == "zip")
    return directory


def without_prefix(tensors):
    names = (key.removeprefix("bert.").removeprefix("distilbert.") for key in tensors)
    return dict(zip(names, tensors.values()))


def gamma_beta(tensors):
    renamed = {key.replace("orm.weight", "orm.gamma"): each for key, each in tensors.items()}
    return {key.replace("orm.bias", "orm.beta"): each for key, each in renamed.items()}


def with_extras(tensors):
    extras = ("embeddings.position_ids", "embeddings.token_type_ids", "qa_outputs.bias",
              "cls.seq_relationship.weight", "own_head.weight", "fit_dense.weight", "fit_denses.11.bias")
    return tensors | {key: torch.zeros(3) for key in extras}


def backwards(tensors):
    return dict(reversed(tensors.items()))


@pytest.mark.parametrize("change", [without_prefix, gamma_beta, with_extras, backwards])
@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_older_names(name, change, tmp_path, capsys):
    assert_golden_logits(checkpoint(tmp_path, name, change(stored(name))), name)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("form", ["zip", "pickle"])
def test_both_formats_of_bin_after_safetensors(form, tmp_path):
    assert_golden_logits(checkpoint(tmp_path, "bert", form=form), "bert")
    checkpoint(tmp_path, "bert")
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read where there are safetensors")
    assert_golden_logits(tmp_path, "bert")
    files = models.backbone_files(tmp_path)
    assert list(files) == ["config.json", "model.safetensors", "vocab.txt"]


def test_an_older_config_has_no_model_type_and_may_have_a_byte_order_mark(tmp_path):
    path = checkpoint(tmp_path, "bert", model_type=None) / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert_golden_logits(tmp_path, "bert")


def test_the_loaded_model_is_trainable_tied_and_float32():
    model = models.MaskedLM.from_pretrained(GOLDEN / "bert")
    assert model.predict.output.weight is model.encoder.word_embeddings.weight
    half = models.MaskedLM.from_pretrained(GOLDEN / "saved_by_5")
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}
    model(*inputs("bert")).sum().backward()
    untouched = {name for name, each in model.named_parameters() if each.grad is None}
    assert untouched == {"encoder.pooler.weight", "encoder.pooler.bias"}


# ---- What a checkpoint lacks, and what it has too much of ----------------------------------------

POOLER = ["pooler.dense.weight", "pooler.dense.bias"]
HEAD = ["classifier.weight", "classifier.bias"]


@pytest.mark.parametrize("name, head, new", [
    ("bert", models.Classifier, []),
    ("cased", models.MaskedLM, POOLER),
    ("cased", models.Classifier, POOLER + HEAD),
    ("three_labels", models.Classifier, HEAD),  # for two labels
    ("saved_by_5_distilbert", models.MaskedLM, []),
    ("saved_by_5_distilbert", models.Classifier,
     ["pre_classifier.weight", "pre_classifier.bias"] + HEAD),
    ("bert", models.MAELM, ["decoder_positions.*", "decoder_norm.*", "decoder.*"]),
])
def test_what_is_newly_initialised_is_named_in_one_line(name, head, new, capsys):
    for _ in range(2):  # it is said once
        model = head.from_pretrained(GOLDEN / name)
        assert model.newly_initialised == new
    said = capsys.readouterr().out
    assert said == (f"{GOLDEN / name}: newly initialised: {', '.join(new)}\n" if new else "")


def test_new_parameters_have_the_initial_values_of_bert():
    model = models.MAELM.from_pretrained(GOLDEN / "bert", decoder_layers=20)
    layers = model.decoder
    weights = torch.cat([layer.feed_forward.weight.flatten() for layer in layers])
    assert 0.019 < weights.std() < 0.021  # initializer_range 0.02
    assert not any(layer.query.bias.any() for layer in layers)
    assert all((layer.attention_norm.weight == 1).all() for layer in layers)


def test_only_what_is_new_draws_random_numbers():
    """So the head of one seed is the same, whatever else is loaded before it."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    models.MaskedLM.from_pretrained(GOLDEN / "bert")
    assert torch.equal(torch.get_rng_state(), before)
    one = models.Classifier.from_pretrained(GOLDEN / "three_labels").classifier.weight
    torch.manual_seed(0)
    expected = torch.empty(2, 8).normal_(std=0.02)
    assert torch.equal(one, expected)


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_every_missing_key_of_the_encoder_is_an_error(name, tmp_path):
    tensors = stored(name)
    for key in tensors:
        if key.startswith(f"{name}.") and "pooler" not in key:
            others = {other: tensor for other, tensor in tensors.items() if other != key}
            checkpoint(tmp_path, name, others)
            said = f"{key.removeprefix(name + '.')} is missing, by config.json ("
            refused(tmp_path, said, models.MaskedLM)


def test_more_rows_than_tokens_are_kept_and_fewer_refused(tmp_path):
    model = models.MaskedLM.from_pretrained(GOLDEN / "padded")
    assert model.config.vocab_size == len(model.encoder.word_embeddings.weight) == 64
    with (checkpoint(tmp_path) / "vocab.txt").open("a") as file:
        file.write("one\nmore\n")
    refused(tmp_path, "the tokenizer has 46 tokens, the model only 44 embeddings")


# ---- What is refused: one sentence that says what it is, and what to do --------------------------

def refused(directory: Path, words: str, kind=models.Classifier) -> None:
    with pytest.raises(UserError) as caught:
        kind.from_pretrained(directory)
    message = str(caught.value)
    assert message.isprintable() and "; " in message and words in message.replace(str(directory), "DIR")
    assert len(message.replace(str(directory), "")) < 300


WORD = "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize("change, words", [
    ({"bert.encoder.layer.0.novelty.weight": 2}, "encoder.layer.0.novelty.weight is (2,), by "
     "config.json there is no such tensor (the first of 1 misfits)"),
    ({"bert.encoder.layer.2.output.dense.bias": 8}, "encoder.layer.2.output.dense.bias is (8,), by"),
    ({"bert.transformer.layer.0.ffn.lin1.bias": 9}, "by config.json there is no such tensor"),
    ({"bert.embeddings.word_embeddings.bias": 8}, "by config.json there is no such tensor"),
    ({WORD: 9, "bert.encoder.layer.0.output.dense.bias": 9},
     "embeddings.word_embeddings.weight is (9,), by config.json (44, 8) (the first of 2 misfits)"),
    ({"embeddings." + "x" * 9999: 1}, "(the first of 1 misfits)"),
])
def test_refused_tensors(change, words, tmp_path):
    tensors = {key: torch.zeros(size) for key, size in change.items()}
    refused(checkpoint(tmp_path, "bert", stored("bert") | tensors), words)


@pytest.mark.parametrize("name, change, words", [
    ("bert", {"model_type": "roberta"}, 'model_type is "roberta"; it must be "bert" or "distilb'),
    ("bert", {"hidden_act": "swish"}, 'hidden_act is "swish"; it must be "gelu" or "gelu_new" or'),
    ("bert", {"position_embedding_type": "relative_key"}, 'it must be "absolute"'),
    ("bert", {"is_decoder": True}, "is_decoder is true; it must be false"),
    ("bert", {"hidden_size": None}, 'hidden_size is "missing"; it must be a whole number from 1 to'),
    ("bert", {"hidden_size": "8"}, 'hidden_size is "8"; it must be a whole number'),
    ("bert", {"type_vocab_size": 1}, "type_vocab_size is 1; it must be a whole number from 2 to"),
    ("bert", {"hidden_act": "x" * 5000}, f'hidden_act is "{"x" * 39}; it must be'),
    ("bert", {"num_attention_heads": 3}, "a multiple of the number of attention heads, 3"),
    ("bert", {"num_hidden_layers": 3}, "encoder.layer.2.attention.self.query.weight is missing, by "
     "config.json (8, 8) (the first of 16 misfits)"),
    ("bert", {"num_hidden_layers": 1}, "by config.json there is no such tensor (the first of 16 misfits)"),
    ("bert", {"num_hidden_layers": 10 ** 6}, "it must be a whole number from 1 to 1000"),
    ("bert", {"intermediate_size": 24}, "encoder.layer.0.intermediate.dense.weight is (12, 8), by "
     "config.json (24, 8) (the first of 6 misfits)"),
    ("distilbert", {"dim": None}, 'dim is "missing"'),
    ("distilbert", {"seq_classif_dropout": 1.5}, "seq_classif_dropout is 1.5; it must be a number"),
])
def test_refused_configs(name, change, words, tmp_path):
    refused(checkpoint(tmp_path, name, **change), words)


def test_a_config_that_is_no_json_object(tmp_path):
    for content in (b"", b"[]", b"\xff\xfe{}", b"[" * 100_000):
        (checkpoint(tmp_path) / "config.json").write_bytes(content)
        refused(tmp_path, "config.json: is no JSON object")


ANYTHING = ["missing", "null", '"x"', '"1"', '"1e-12"', "[]", "{}", "true", "-1", "0", "0.5", "1.5",
            "2.5", "NaN", "Infinity", "1e9", "1000000000", "1" + 400 * "0"]
LEGITIMATE = {  # field: what of ANYTHING it may be in the sample's config.json
    "model_type": ["missing"],  # before it had a name
    "hidden_act": ["missing"],
    "type_vocab_size": ["missing"],  # 2
    "hidden_dropout_prob": ["missing", "0", "0.5"],
    "attention_probs_dropout_prob": ["missing", "0", "0.5"],
    "classifier_dropout": ["missing", "null", "0", "0.5"],
    "layer_norm_eps": ["missing", "0.5"],
    "initializer_range": ["missing", "0", "0.5"],
    "tie_word_embeddings": ["missing", "true"],
    "position_embedding_type": ["missing"],
    "is_decoder": ["missing"],
}


@pytest.mark.parametrize("field", models.FIELDS)
def test_config_json_with_anything_in_a_field(field, tmp_path, capsys):
    """It ends well exactly where the value is legitimate: else with a short sentence, and soon."""
    shutil.copytree(SAMPLE / "bert", tmp_path, dirs_exist_ok=True)
    described = json.loads((tmp_path / "config.json").read_text())
    described.pop(field, None)
    others = json.dumps(described)[1:]
    for value in ANYTHING:
        added = "" if value == "missing" else f'"{field}": {value}, '
        (tmp_path / "config.json").write_text("{" + added + others)
        arguments = ["--data-dir", SAMPLE, "--model", tmp_path, "--task", "cola", "--mlm-epochs", 0]
        if value in LEGITIMATE.get(field, []):
            models.Classifier.from_pretrained(tmp_path)
        else:
            started = time.perf_counter()
            assert train.main([*map(str, arguments), "--out", str(tmp_path / "runs")]) == 2, value
            assert time.perf_counter() - started < 10, value
            [said] = capsys.readouterr().err.splitlines()
            assert len(said.replace(str(tmp_path), "")) < 300 and "config.json" in said
            assert "; " in said and said.isprintable()


@pytest.mark.parametrize("file", [
    "model.safetensors.index.json", "pytorch_model.bin.index.json", "tf_model.h5",
    "bert_model.ckpt.index", "flax_model.msgpack", "notes.txt"])
def test_directories_with_other_weights(file, tmp_path):
    """What is there is named, and how it becomes one file."""
    (checkpoint(tmp_path) / "model.safetensors").rename(tmp_path / file)
    (tmp_path / "config.json").unlink()  # some have none
    refused(tmp_path, "DIR: has no model.safetensors and no pytorch_model.bin, only ")
    refused(tmp_path, file)
    refused(tmp_path, "save the weights with transformers, in one file")


# ---- Damaged and hostile files -------------------------------------------------------------------

def safetensors_bytes(header: object, body: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + body


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def test_a_safetensors_file_by_hand(tmp_path):
    second = {"dtype": "F16", "shape": [1, 2], "data_offsets": [8, 12]}
    body = struct.pack("<2f2e", 1.0, -2.0, 0.5, 4.0)
    header = {"__metadata__": {"format": "pt"}, "b": second, "a": ENTRY}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, body))
    tensors = models.read_checkpoint(tmp_path / "model.safetensors")
    assert tensors["a"].tolist() == [1.0, -2.0]
    assert tensors["b"].tolist() == [[0.5, 4.0]]


@pytest.mark.parametrize("header", [
    {"a": ENTRY | {"data_offsets": [0, 4]}},
    {"a": ENTRY | {"data_offsets": [4, 12]}},
    {"a": ENTRY | {"data_offsets": [-8, 0]}},
    {"a": ENTRY | {"data_offsets": [0, 10 ** 12], "shape": [10 ** 12 // 4]}},
    {"a": ENTRY | {"shape": [3]}},
    {"a": ENTRY | {"shape": None}},
    {"a": ENTRY | {"dtype": "F8_E4M3"}},
    {"a": 1},
    [],
])
def test_a_lying_header_is_refused(header, tmp_path):
    (checkpoint(tmp_path) / "model.safetensors").write_bytes(safetensors_bytes(header, bytes(8)))
    refused(tmp_path, "DIR: is no whole checkpoint (model.safetensors: ")


@pytest.mark.parametrize("content", [b"", b"\xff" * 16, b"<!DOCTYPE html><html></html>",
                                     b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"])
def test_other_files_under_the_name_of_weights(content, tmp_path):
    (checkpoint(tmp_path) / "model.safetensors").unlink()
    for file in ("pytorch_model.bin", "model.safetensors"):
        (tmp_path / file).write_bytes(content)
        refused(tmp_path, f"DIR: is no whole checkpoint ({file}: ")


@pytest.mark.parametrize("value", [
    None,
    torch.zeros(2),
    [torch.zeros(2)],
    {"a": 1},
    {"a": torch.eye(3).to_sparse()},
    {"a": torch.zeros(2, device="meta")},
])
def test_pickles_of_other_things(value, tmp_path):
    (checkpoint(tmp_path) / "model.safetensors").unlink()
    torch.save(value, tmp_path / "pytorch_model.bin")
    refused(tmp_path, "DIR: is no whole checkpoint (pytorch_model.bin: ")


class Attack:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("write", [
    lambda attack, path: torch.save(attack, path),
    lambda attack, path: torch.save(attack, path, _use_new_zipfile_serialization=False),
    lambda attack, path: torch.save(stored("bert") | {"attack": attack}, path),
    lambda attack, path: path.write_bytes(pickle.dumps(attack)),
], ids=["zip", "older format", "among tensors", "plain pickle"])
def test_code_in_a_pickle_never_runs(write, tmp_path):
    weights = checkpoint(tmp_path / "model", form="zip") / "pytorch_model.bin"
    write(Attack(tmp_path / "attacked"), weights)  # a real one, were weights_only left out
    refused(tmp_path / "model", "DIR: is no whole checkpoint (pytorch_model.bin: ")
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("file, form", [
    ("config.json", "safetensors"), ("model.safetensors", "safetensors"),
    ("pytorch_model.bin", "zip"), ("pytorch_model.bin", "pickle")])
def test_truncated_files_are_refused(file, form, tmp_path):
    path = checkpoint(tmp_path, form=form) / file
    content = path.read_bytes()
    cuts = random.Random(0).sample(range(len(content) - 2), 20)
    for cut in cuts:
        path.write_bytes(content[:cut])
        refused(tmp_path, "DIR")


# ---- Saving --------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("head", HEADS)
def test_a_saved_model_is_the_same_model(name, head, tmp_path):
    """That transformers loads it without a warning is checked by make_model_golden.py."""
    model = HEADS[head].from_pretrained(GOLDEN / name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(tmp_path / "new" / "saved")
    again = HEADS[head].from_pretrained(tmp_path / "new" / "saved")
    assert again.config == model.config
    for key, parameter in model.named_parameters():
        if head == "classifier" or "pooler" not in key:  # BertForMaskedLM has no pooler
            assert torch.equal(again.get_parameter(key), parameter), key
    files = {path.name: path for path in (tmp_path / "new" / "saved").iterdir()}
    assert {"config.json", "model.safetensors"} < files.keys()
    for file in files.keys() - {"config.json", "model.safetensors"}:
        assert files[file].read_bytes() == (GOLDEN / name / file).read_bytes()


def test_what_transformers_insists_on(tmp_path):
    """Aligned tensors, both biases of the MLM head, no tied copy, no pooler, how many labels."""
    models.MaskedLM.from_pretrained(GOLDEN / "bert").save_pretrained(tmp_path / "mlm")
    content = (tmp_path / "mlm" / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    assert size % 8 == 0 and header["__metadata__"] == {"format": "pt"}
    assert {"cls.predictions.bias", "cls.predictions.decoder.bias", WORD} < header.keys()
    assert not {"cls.predictions.decoder.weight", "bert.pooler.dense.weight"} & header.keys()

    models.Classifier.from_pretrained(GOLDEN / "distilbert", 3).save_pretrained(tmp_path / "three")
    config = json.loads((tmp_path / "three" / "config.json").read_text())
    assert config["architectures"] == ["DistilBertForSequenceClassification"]
    assert config["num_labels"] == 3
    assert "dim" in config and "hidden_size" not in config


def test_nothing_is_ever_written_over(tmp_path):
    model = models.Classifier.from_pretrained(GOLDEN / "bert")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "file").write_text("years of work")
    for name in ("thesis", "file"):
        with pytest.raises(UserError, match="is there already; give a new name"):
            model.save_pretrained(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["file", "thesis"]
    assert not os.listdir(tmp_path / "thesis")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    model = models.Classifier.from_pretrained(GOLDEN / "bert")
    monkeypatch.setattr(Path, "write_bytes", full)  # at the tokenizer's files, the last ones
    with pytest.raises(OSError, match="No space left on device"):  # a sentence of train.py's
        model.save_pretrained(tmp_path / "saved")
    assert not os.listdir(tmp_path)


# ---- The forward passes: two ways to compute one thing, in float64 -------------------------------

def small_model(kind=models.MaskedLM, *arguments, **changes):
    """A random BERT in float64 without dropout, its weights large enough to tell inputs apart."""
    torch.manual_seed(0)
    options = {"max_position_embeddings": 12, "initializer_range": 0.4,
               "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = models.Config("bert", 40, 16, 2, 4, 24, **options | changes)
    return kind(config, *arguments).double()


def small_batch(selection: float = 0.4) -> tuple:
    """ids, segments, attention_mask, selected: 3 rows of 10, two of them padded."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, 40, (3, 10), generator=generator)
    attention_mask = torch.arange(10) < torch.tensor([[10], [7], [4]])
    segments = (torch.arange(10) > 4).long().expand(3, 10)
    selected = (torch.rand(3, 10, generator=generator) < selection) & attention_mask
    selected[:, 0] = False  # [CLS]
    return ids * attention_mask, segments, attention_mask, selected


def test_the_selected_head_equals_the_full_head():
    ids, segments, attention_mask, selected = small_batch()
    model = small_model()
    full = model(ids, segments, attention_mask)[selected]  # (S, V), in row-major order
    F.cross_entropy(full, ids[selected]).backward()
    expected = {name: each.grad for name, each in model.named_parameters() if "pooler" not in name}
    model.zero_grad()
    embedded = model.encoder.embed_words(ids)
    selected_logits = model.forward_selected(embedded, segments, attention_mask, selected)
    assert equal(selected_logits, full)
    F.cross_entropy(selected_logits, ids[selected]).backward()
    for name, gradient in expected.items():
        assert equal(model.get_parameter(name).grad, gradient), name


def test_a_forward_hook_on_predict_sees_the_logits():
    ids, segments, attention_mask, selected = small_batch()
    model, seen = small_model(), []
    model.predict.register_forward_hook(lambda module, arguments, result: seen.append(result))
    embedded = model.encoder.embed_words(ids)
    assert model.forward_selected(embedded, segments, attention_mask, selected) is seen[0]


def test_all_hidden_states_begin_with_the_embeddings_and_end_with_forward():
    ids, segments, attention_mask, _ = small_batch()
    encoder = small_model().encoder
    embedded = encoder.embed_words(ids)
    states = encoder.all_hidden_states(embedded, segments, attention_mask)
    assert [state.shape for state in states] == [(3, 10, 16)] * 3
    assert equal(states[-1], encoder(embedded, segments, attention_mask))
    assert equal(states[0].mean(2), torch.zeros(3, 10).double())  # LayerNorm, as it is initialised
    assert equal(encoder.layers[0](states[0], attention_mask), states[1])


def test_padding_is_never_read():
    ids, segments, attention_mask, _ = small_batch()
    model = small_model()
    expected = model(ids, segments, attention_mask)
    other_padding = torch.where(attention_mask, ids, 17)
    assert equal(model(other_padding, segments, attention_mask)[attention_mask],
                 expected[attention_mask])
    alone = model(ids[2:, :4], segments[2:, :4], attention_mask[2:, :4])
    assert equal(alone[0], expected[2, :4])


def test_training_without_dropout_equals_evaluation():
    ids, segments, attention_mask, _ = small_batch()
    model = small_model(models.Classifier)
    training = model.train()(ids, segments, attention_mask)
    assert equal(training, model.eval()(ids, segments, attention_mask))


def test_dropout_is_where_the_architectures_have_it():
    bert = models.Classifier.from_pretrained(GOLDEN / "bert")
    distilbert = models.Classifier.from_pretrained(GOLDEN / "distilbert")
    assert (bert.encoder.dropout.p, bert.dropout.p) == (0.2, 0.2)
    layer = bert.encoder.layers[1]
    assert (layer.attention_dropout, layer.output_dropout.p, layer.dropout.p) == (0.15, 0.2, 0.2)
    used = []
    for name, module in bert.named_modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda *_, name=name: used.append(name))
    bert(*inputs("bert"))
    assert used == [
        "encoder.dropout",
        "encoder.layers.0.output_dropout", "encoder.layers.0.dropout",
        "encoder.layers.1.output_dropout", "encoder.layers.1.dropout",
        "dropout"]
    assert (distilbert.encoder.dropout.p, distilbert.dropout.p) == (0.1, 0.3)
    assert isinstance(distilbert.encoder.layers[0].output_dropout, torch.nn.Identity)
    for family, expected in (("bert", 0.25), ("distilbert", 0.2)):  # where config.json is silent
        config = models.Config(family, 9, 8, 1, 1, 8, hidden_dropout_prob=0.25)
        assert models.Classifier(config).dropout.p == expected


@pytest.mark.parametrize("kind", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_each_dropout_is_on_in_training_and_follows_the_seed(kind):
    ids, segments, attention_mask, _ = small_batch()
    model = small_model(models.MaskedLM, **{kind: 0.5})
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(model.train()(ids, segments, attention_mask))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    evaluated = [model.eval()(ids, segments, attention_mask) for _ in range(2)]
    assert torch.equal(*evaluated)


@pytest.mark.parametrize("kind, arguments", [(models.MaskedLM, []), (models.MAELM, [2, 4])])
def test_bfloat16_autocast(kind, arguments):
    ids, segments, attention_mask, selected = small_batch()
    model = small_model(kind, *arguments).float()
    embedded = model.encoder.embed_words(ids)
    exact = model.forward_selected(embedded, segments, attention_mask, selected)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.forward_selected(embedded, segments, attention_mask, selected)
    assert F.cosine_similarity(logits.float().flatten(), exact.flatten(), dim=0) > 0.99
    F.cross_entropy(logits.float(), ids[selected]).backward()
    assert model.encoder.word_embeddings.weight.grad.isfinite().all()


# ---- MAE-LM --------------------------------------------------------------------------------------

def mae_and_batch(selection: float = 0.4, **changes) -> tuple:
    ids, segments, attention_mask, selected = small_batch(selection)
    model = small_model(models.MAELM, 2, 4, **changes)  # 2 decoder layers, [MASK] is 4
    return model, model.encoder.embed_words(ids), segments, attention_mask, selected, ids


def test_the_encoder_of_mae_sees_a_really_shortened_sequence():
    model, embedded, segments, attention_mask, selected, ids = mae_and_batch()
    visible = attention_mask & ~selected
    encoded = model.forward_encoder(embedded, segments, visible)
    assert encoded.shape == (3, visible.sum(1).max(), 16)
    assert encoded.shape[1] < 10
    for row in range(3):
        positions = visible[row].nonzero().T  # (1, T'): the ids of positions are kept
        short = model.encoder(model.encoder.embed_words(ids[row][positions]),
                              segments[row][positions], torch.ones_like(positions), positions)
        assert equal(encoded[row, :positions.shape[1]], short[0])


def test_nothing_attends_to_a_selected_place():
    """Not a bit changes with what stands there, even where it is no number."""
    model, embedded, segments, attention_mask, selected, _ = mae_and_batch()
    expected = model.forward_selected(embedded, segments, attention_mask, selected)
    changed = torch.where(selected[:, :, None], torch.nan, embedded)
    result = model.forward_selected(changed, segments, attention_mask, selected)
    assert torch.equal(result, expected)
    moved = torch.where(selected[:, :, None], embedded, embedded.flip(2))  # visible places matter
    result = model.forward_selected(moved, segments, attention_mask, selected)
    assert not equal(result, expected)


def test_place_fills_in_the_mask_embedding_and_no_position():
    model, embedded, segments, attention_mask, selected, _ = mae_and_batch()
    visible = attention_mask & ~selected
    encoded = model.forward_encoder(embedded, segments, visible)
    placed = model.place(encoded, visible)
    assert placed.shape == (3, 10, 16)
    mask_embedding = model.encoder.word_embeddings.weight[4]
    assert torch.equal(placed[selected], mask_embedding.expand(selected.sum(), -1))
    for row in range(3):
        assert torch.equal(placed[row][visible[row]], encoded[row, :visible[row].sum()])


def test_the_decoder_adds_positions_of_its_own_everywhere_and_normalises():
    model, embedded, segments, attention_mask, selected, _ = mae_and_batch()
    placed = torch.randn(3, 10, 16).double()
    table = model.decoder_positions.weight
    assert table.shape == model.encoder.position_embeddings.weight.shape == (12, 16)
    expected = F.layer_norm(placed + table[:10], (16,), eps=1e-12)
    for layer in model.decoder:
        expected = layer(expected, attention_mask)
    assert equal(model.forward_decoder(placed, attention_mask), expected)
    logits = model.forward_selected(embedded, segments, attention_mask, selected)
    logits.sum().backward()
    assert (table.grad[:10].abs().sum(1) > 0).all()
    assert not table.grad[10:].any()


def test_the_decoder_has_no_dropout_in_training_mode():
    model, _, _, attention_mask, _, _ = mae_and_batch(
        hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    hidden = torch.randn(3, 10, 16).double()
    training = model.train().forward_decoder(hidden, attention_mask)
    assert torch.equal(training, model.forward_decoder(hidden, attention_mask))
    assert equal(training, model.eval().forward_decoder(hidden, attention_mask))
    assert model.encoder.layers[0].dropout.p == 0.5  # the encoder's stays


def test_saliency_is_zero_at_selected_places():
    model, embedded, segments, attention_mask, selected, ids = mae_and_batch()
    embedded.retain_grad()
    logits = model.forward_selected(embedded, segments, attention_mask, selected)
    assert logits.shape == (selected.sum(), 40)
    F.cross_entropy(logits, ids[selected]).backward()
    visible = attention_mask & ~selected
    assert not embedded.grad[~visible].any()  # exactly
    assert embedded.grad[visible].abs().sum(1).min() > 0
    untouched = {name for name, each in model.named_parameters() if each.grad is None}
    assert untouched == {"encoder.pooler.weight", "encoder.pooler.bias"}


@pytest.mark.parametrize("selection", [0.0, 1.0])
def test_mae_where_nothing_or_everything_is_selected(selection):
    model, embedded, segments, attention_mask, selected, _ = mae_and_batch(selection)
    logits = model.forward_selected(embedded, segments, attention_mask, selected)
    assert logits.shape == (selected.sum(), 40)
    logits.sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


def test_mae_from_a_checkpoint_gives_its_encoder_to_the_classifier():
    model = models.MAELM.from_pretrained(GOLDEN / "cased", decoder_layers=3)
    assert (len(model.decoder), model.mask_id) == (3, 4)
    classifier = models.Classifier.from_pretrained(GOLDEN / "cased")
    classifier.encoder.load_state_dict(model.encoder.state_dict())
    assert len(models.MAELM.from_pretrained(GOLDEN / "distilbert").decoder) == 4


# ---- Finding a model -----------------------------------------------------------------------------

@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on this machine, with the files of tmp_path/hub; the paths that it was asked for."""
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "hub"))

        def log_message(self, form, *arguments):
            requests.append(self.path)

    requests = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])  # polling, in s
    thread.start()
    for variable in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("TYPHOON_CACHE", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "*")
    yield requests
    server.shutdown()
    server.server_close()
    thread.join()


BERT_REVISION = models.BACKBONES["bert-base"].split("@")[1]


def cached(tmp_path: Path, folder: str, revision: str, refs_main: bool = False) -> Path:
    """A model in the user's Hugging Face cache."""
    repository = tmp_path / "hf" / "hub" / folder
    if refs_main:
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(revision)
    return checkpoint(repository / "snapshots" / revision)


def test_directories_come_first(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(checkpoint(tmp_path / "tinybert").parent)
    assert models.find_model("tinybert") == Path("tinybert")
    assert models.find_model(GOLDEN / "bert") == GOLDEN / "bert"
    assert not hub


@pytest.mark.parametrize("name", ["tinybird", "/no/such/directory", "a/b/c", "a/b@/c", "x" * 5000,
                                  str(GOLDEN / "x.bin")])
def test_what_is_no_name(name, hub):
    with pytest.raises(UserError, match="none of tinybert, distilbert, bert-base"):
        models.find_model(name)


def test_the_cache_of_the_user(hub, tmp_path, capsys):
    """The pinned revision, else the one of refs/main, else any whole one; under both names."""
    now, before = "models--google-bert--bert-base-uncased", "models--bert-base-uncased"
    any_other = cached(tmp_path, now, "0" * 40)
    assert models.find_model("bert-base") == any_other
    assert f"bert-base: revision {'0' * 40}" in capsys.readouterr().out
    main = cached(tmp_path, before, "f" * 40, refs_main=True)
    assert models.find_model("bert-base") == main
    assert f"bert-base: revision {'f' * 40}" in capsys.readouterr().out
    pinned_before = cached(tmp_path, before, BERT_REVISION)
    assert models.find_model("bert-base") == pinned_before
    pinned = cached(tmp_path, now, BERT_REVISION)
    assert models.find_model("bert-base") == pinned
    assert capsys.readouterr().out == "" and not hub
    (pinned / "vocab.txt").unlink()  # what is not whole does not count
    assert models.find_model("bert-base") == pinned_before


def test_hub_names_in_the_cache(hub, tmp_path):
    main = cached(tmp_path, "models--some--model", "a" * 40, refs_main=True)
    other = cached(tmp_path, "models--some--model", "b" * 40)
    assert models.find_model("some/model") == models.find_model("some/model@main") == main
    assert models.find_model(f"some/model@{'b' * 40}") == other
    assert not hub
    with pytest.raises(DownloadError):  # a revision that was asked for is never another one
        models.find_model(f"some/model@{'c' * 40}")
    (tmp_path / "hf/hub/models--some--model/refs/main").write_text("")  # a write that was cut short
    assert models.find_model("some/model") == main
    cached(tmp_path, "models--model", "d" * 40)  # only old names of known organisations
    with pytest.raises(DownloadError):
        models.find_model("another/model")


@pytest.mark.parametrize("variables, folder", [
    ({"HF_HUB_CACHE": "~/hub", "HF_HOME": "~/other", "XDG_CACHE_HOME": "~/other"}, "hub"),
    ({"HF_HOME": "~/hf", "XDG_CACHE_HOME": "~/other"}, "hf/hub"),
    ({"HF_HOME": "", "XDG_CACHE_HOME": "~/xdg"}, "xdg/huggingface/hub"),
    ({}, ".cache/huggingface/hub"),
])
def test_where_the_cache_is(variables, folder, hub, tmp_path, monkeypatch):
    """As huggingface_hub has it."""
    for variable in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in (variables | {"HOME": str(tmp_path)}).items():
        monkeypatch.setenv(variable, value)
    found = checkpoint(tmp_path / folder / "models--some--model" / "snapshots" / ("a" * 40))
    assert models.find_model("some/model") == found and not hub


def test_the_name_of_a_model(tmp_path, monkeypatch):
    """A directory's own; of a cache's, wherever it is, the name of its repository."""
    names = {"new--york": "new--york", "models--bert-base/snapshots/1f": "bert-base",
             "models--org--my-model/snapshots/1f": "my-model", "models--org--own.v1/1f": "own.v1"}
    for folder, name in names.items():
        (tmp_path / folder).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / folder)
        for given in (tmp_path / folder, f"{tmp_path / folder}/", ".", "./"):
            assert models.model_name(given) == name
    (tmp_path / "link").symlink_to("models--org--my-model/snapshots/1f")
    assert models.model_name(tmp_path / "link") == "link"
    for hub_id, name in (("org/my-model", "my-model"), ("org/my-model@v1.0/x", "my-model"),
                         ("bert-base", "bert-base")):
        assert models.model_name(hub_id) == name


@pytest.mark.parametrize("name", ["tinybert", "saved_by_5"])
def test_download(name, hub, tmp_path):
    """tinybert: vocab.txt and a .bin; saved_by_5: tokenizer.json and safetensors."""
    shutil.copytree(GOLDEN / name, tmp_path / "hub" / "some" / "model" / "resolve" / "v2")
    directory = models.find_model("some/model@v2")
    assert directory == tmp_path / "ours" / "models--some--model" / "v2"
    expected = {path.name for path in (GOLDEN / name).iterdir()} - {"expected.npz"}
    assert {path.name for path in directory.iterdir()} == expected
    assert_golden_logits(directory, name)
    hub.clear()
    assert models.find_model("some/model@v2") == directory and not hub  # the second time without


def test_pinned_weights_must_have_their_checksum(hub, tmp_path):
    hub_id, revision = models.BACKBONES["bert-base"].split("@")
    there = checkpoint(tmp_path / "hub" / hub_id / "resolve" / revision)
    (there / "pytorch_model.bin").write_text("another file in their place")
    with pytest.raises(DownloadError, match="sha256"):
        models.find_model("bert-base")
    assert not list((tmp_path / "ours").rglob("*model*.*"))


def test_a_hub_that_refuses_everything(hub, tmp_path):
    with pytest.raises(DownloadError, match="config.json"):
        models.find_model("bert-base")
    assert not os.listdir(tmp_path)
