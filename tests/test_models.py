"""models.py: golden logits from transformers in every naming and format, refusals, round trip, MAE-LM, finding files.

The golden checkpoints are made by make_model_golden.py; each holds an encoder and every head. The variants of naming,
format and dtype are derived from them here.
"""
import copy
import functools
import http.server
import json
import os
import pickle
import random
import shutil
import stat
import threading
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F

import models
from glue_data import DownloadError, UserError

GOLDEN = Path(__file__).resolve().parent / "golden" / "models"
NAMES = ["bert", "tinybert", "distilbert"]
HEADS = {"mlm": models.MaskedLM, "classifier": models.Classifier}
SAFETENSORS_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
                     torch.float64: "F64", torch.int32: "I32"}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Models this small only wait for a second thread, and for very long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---- Helpers ---------------------------------------------------------------------------------------------------------

@functools.cache
def golden(name: str) -> dict:
    """The arrays of expected.npz as tensors: inputs, and logits by label."""
    arrays = numpy.load(GOLDEN / name / "expected.npz")
    return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def inputs(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return golden(name)["ids"], golden(name)["segments"], golden(name)["attention_mask"].bool()


def base(name: str) -> dict[str, torch.Tensor]:
    """The tensors of a golden checkpoint without the extras of TinyBERT's."""
    tensors = models.read_tensors(models.backbone_files(GOLDEN / name).popitem()[1])
    return {key: tensor for key, tensor in tensors.items()
            if not key.startswith(("fit_dense", "cls.seq", "cls.predictions.decoder"))}


def safetensors_bytes(tensors: dict[str, torch.Tensor], **header_changes) -> bytes:
    """Our own writer of the format, independent of models.save. header_changes replace entries of the header."""
    header, body = {}, b""
    for key, tensor in tensors.items():
        content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[key] = {"dtype": SAFETENSORS_NAMES[tensor.dtype], "shape": list(tensor.shape),
                       "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    text = json.dumps(header | header_changes).encode()
    return len(text).to_bytes(8, "little") + text + body


def checkpoint(directory: Path, name: str, tensors: dict | None = None, form: str = "safetensors",
               **config_changes) -> Path:
    """A copy of a golden checkpoint with these tensors in this form: safetensors, zip or pickle (the older .bin)."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(GOLDEN / name / "vocab.txt", directory)
    config = json.loads((GOLDEN / name / "config.json").read_text()) | config_changes
    config = {key: value for key, value in config.items() if value != "absent"}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = base(name) if tensors is None else tensors
    if form == "safetensors":
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    else:
        torch.save(tensors, directory / "pytorch_model.bin", _use_new_zipfile_serialization=form == "zip")
    return directory


def check_logits(directory: Path, name: str, label: str = "", heads=("mlm", "classifier")) -> None:
    for head in heads:
        model = HEADS[head].from_pretrained(directory).eval()
        assert model.newly_initialised == []
        expected = golden(name)[f"{head}_{label}" if label else head]
        gap = (model(*inputs(name)) - expected).abs()
        real = inputs(name)[2] if head == "mlm" else slice(None)  # what padding predicts is nobody's business
        assert gap[real].max() < 1e-5
        assert expected[real].abs().max() > 0.5  # so that 1e-5 means something


def small_model(kind=models.MaskedLM, *arguments, seed=0, **changes):
    """A randomly initialised BERT with weights large enough to tell inputs apart, without dropout."""
    torch.manual_seed(seed)
    config = models.Config("bert", 40, 16, 2, 4, 24, **{"max_position_embeddings": 12, "initializer_range": 0.4,
                           "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **changes})
    return kind(config, *arguments)


def small_batch(selection: float = 0.4):
    """ids, segments, attention_mask, selected: 3 rows of 10, two of them padded; [CLS] is never selected."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, 40, (3, 10), generator=generator)
    attention_mask = torch.arange(10) < torch.tensor([[10], [7], [4]])
    segments = (torch.arange(10) > 4).long().expand(3, 10)
    selected = (torch.rand(3, 10, generator=generator) < selection) & attention_mask
    selected[:, 0] = False
    return ids * attention_mask, segments, attention_mask, selected


# ---- Golden logits ---------------------------------------------------------------------------------------------------

def decoder_keys(name):
    return ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight") if name == "distilbert" else (
        "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")


def without_prefix(name, tensors):
    return {key.removeprefix("bert.").removeprefix("distilbert."): tensor for key, tensor in tensors.items()}


def gamma_beta(name, tensors):
    return {key.replace("orm.weight", "orm.gamma").replace("orm.bias", "orm.beta"): tensor
            for key, tensor in tensors.items()}


def tied_copy(name, tensors):
    output, words = decoder_keys(name)
    bias = {} if name == "distilbert" else {"cls.predictions.decoder.bias": tensors["cls.predictions.bias"]}
    return tensors | {output: tensors[words]} | bias


def decoder_bias_only(name, tensors):
    tensors = tied_copy(name, tensors)
    tensors.pop("cls.predictions.bias", None)
    return tensors


def extras(name, tensors):
    prefix = "distilbert." if name == "distilbert" else "bert."
    return tensors | {f"{prefix}embeddings.position_ids": torch.arange(16)[None], "fit_dense.weight": torch.zeros(3, 4),
                      f"{prefix}embeddings.token_type_ids": torch.zeros(1, 16, dtype=torch.int64),
                      "fit_dense.bias": torch.zeros(4), "fit_denses.11.weight": torch.zeros(3, 4),
                      "cls.seq_relationship.weight": torch.zeros(2, 5), "cls.seq_relationship.bias": torch.zeros(2)}


def backwards(name, tensors):
    return dict(reversed(tensors.items()))


def everything(name, tensors):
    for change in (tied_copy, extras, gamma_beta, without_prefix, backwards):
        tensors = change(name, tensors)
    return tensors


@pytest.mark.parametrize("name", NAMES)
def test_golden_as_made(name, capsys):
    check_logits(GOLDEN / name, name)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("form", ["safetensors", "zip", "pickle"])
@pytest.mark.parametrize("change", [without_prefix, gamma_beta, tied_copy, decoder_bias_only, extras, backwards,
                                    everything])
@pytest.mark.parametrize("name", NAMES)
def test_golden_namings_and_formats(name, change, form, tmp_path, capsys):
    older = change is everything and name != "distilbert"  # than the key model_type in config.json
    directory = checkpoint(tmp_path, name, change(name, base(name)), form, **{"model_type": "absent"} if older else {})
    check_logits(directory, name)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("form", ["safetensors", "zip", "pickle"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_golden_half_precision_weights(name, dtype, form, tmp_path):
    directory = checkpoint(tmp_path, name, {key: tensor.to(dtype) for key, tensor in base(name).items()}, form)
    check_logits(directory, name, str(dtype).removeprefix("torch."))
    assert {parameter.dtype for parameter in models.MaskedLM.from_pretrained(directory).parameters()} == {torch.float32}


@pytest.mark.parametrize("activation", ["gelu_new", "relu"])
@pytest.mark.parametrize("name", NAMES)
def test_golden_activations(name, activation, tmp_path):
    key = "activation" if name == "distilbert" else "hidden_act"
    check_logits(checkpoint(tmp_path, name, **{key: activation}), name, activation)


@pytest.mark.parametrize("tie_word_embeddings", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_untied_decoder(name, tie_word_embeddings, tmp_path, capsys):
    """With tie_word_embeddings false, and also where the config is wrong: the file's matrix is used, and said so."""
    tensors = tied_copy(name, base(name)) | {decoder_keys(name)[0]: golden(name)["decoder"]}
    directory = checkpoint(tmp_path / "a", name, tensors, tie_word_embeddings=tie_word_embeddings)
    check_logits(directory, name, "untied", heads=["mlm"])
    assert capsys.readouterr().out.count("differs from the word embeddings") == tie_word_embeddings
    model = models.MaskedLM.from_pretrained(directory)
    assert model.predict.output.weight is not model.encoder.word_embeddings.weight
    model.save_pretrained(tmp_path / "b")
    check_logits(tmp_path / "b", name, "untied", heads=["mlm"]) if name == "distilbert" else None
    again = models.MaskedLM.from_pretrained(tmp_path / "b").eval()
    assert torch.equal(again(*inputs(name)), model.eval()(*inputs(name)))


def test_the_decoder_bias_is_the_one_that_transformers_adds(tmp_path):
    tensors = base("bert")
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    tensors["cls.predictions.bias"] = torch.full_like(tensors["cls.predictions.bias"], 7.0)
    check_logits(checkpoint(tmp_path, "bert", tensors), "bert")


def test_safetensors_is_preferred_to_bin(tmp_path):
    checkpoint(tmp_path, "bert")
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read")
    check_logits(tmp_path, "bert")
    assert list(models.backbone_files(tmp_path)) == ["config.json", "vocab.txt", "model.safetensors"]


# ---- What a checkpoint lacks -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("head", HEADS)
def test_missing_heads_are_initialised_and_named_in_one_line(name, head, tmp_path, capsys):
    body = {key: tensor for key, tensor in base(name).items() if key.startswith(("bert.", "distilbert."))
            and "pooler" not in key}
    directory = checkpoint(tmp_path, name, body)
    torch.manual_seed(3)
    model = HEADS[head].from_pretrained(directory)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and all(key in lines[0] for key in model.newly_initialised)
    family = "distilbert" if name == "distilbert" else "bert"
    assert model.newly_initialised == {
        ("mlm", "bert"): ["pooler.dense.weight", "pooler.dense.bias", "cls.predictions.transform.dense.weight",
                          "cls.predictions.transform.dense.bias", "cls.predictions.transform.LayerNorm.weight",
                          "cls.predictions.transform.LayerNorm.bias", "cls.predictions.decoder.bias"],
        ("mlm", "distilbert"): ["vocab_transform.weight", "vocab_transform.bias", "vocab_layer_norm.weight",
                                "vocab_layer_norm.bias", "vocab_projector.bias"],
        ("classifier", "bert"): ["pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias"],
        ("classifier", "distilbert"): ["pre_classifier.weight", "pre_classifier.bias", "classifier.weight",
                                       "classifier.bias"]}[head, family]
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.startswith("encoder.") and "pooler" not in parameter_name:
            continue
        if parameter_name.endswith("bias"):
            assert not parameter.any()
        elif "norm" in parameter_name:
            assert (parameter == 1).all()
        elif parameter.numel() > 100 and parameter is not model.encoder.word_embeddings.weight:
            assert 0.015 < parameter.std() < 0.025  # initializer_range 0.02
    torch.manual_seed(3)
    same = HEADS[head].from_pretrained(directory)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters()))


@pytest.mark.parametrize("name", NAMES)
def test_every_missing_encoder_key_is_an_error(name, tmp_path):
    tensors = base(name)
    for key in tensors:
        if key.startswith(("bert.", "distilbert.")) and "pooler" not in key:
            directory = checkpoint(tmp_path, name, {k: v for k, v in tensors.items() if k != key})
            with pytest.raises(UserError, match=key.split(".", 1)[1]):
                models.MaskedLM.from_pretrained(directory)


def test_loading_draws_no_random_numbers(tmp_path):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    models.MaskedLM.from_pretrained(GOLDEN / "bert")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_loaded_model_is_trainable_and_tied():
    model = models.MaskedLM.from_pretrained(GOLDEN / "bert")
    assert model.predict.output.weight is model.encoder.word_embeddings.weight
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
    model(*inputs("bert")).sum().backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is None} == {
        "encoder.pooler.weight", "encoder.pooler.bias"}


# ---- What is refused -------------------------------------------------------------------------------------------------

def refused(directory: Path, words: str, kind=models.Classifier) -> None:
    """Loading is refused in one line that has these words in it."""
    with pytest.raises(UserError) as caught:
        kind.from_pretrained(directory)
    message = str(caught.value)
    assert str(directory) in message and "\n" not in message and len(message) < 700
    assert words in message.replace(str(directory), "")  # whose name has the test's name in it


WORD = "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize("form", ["safetensors", "zip"])
@pytest.mark.parametrize("change, words", [
    ({"bert.encoder.layer.0.novelty.weight": torch.zeros(2)}, "'bert.encoder.layer.0.novelty.weight' is no part"),
    ({"bert.encoder.layer.2.output.dense.bias": torch.zeros(24)}, "'bert.encoder.layer.2.output.dense.bias' is no"),
    ({"distilbert.transformer.layer.0.ffn.lin1.bias": torch.zeros(9)}, "transformer.layer.0.ffn.lin1.bias' is"),
    ({"bert.embeddings.word_embeddings.bias": torch.zeros(24)}, "'bert.embeddings.word_embeddings.bias'"),
    ({"fit_denser.weight": torch.zeros(2)}, "'fit_denser.weight' is no part"),
    ({WORD: torch.zeros(57, 25)}, f"'{WORD}' is torch.float32 of shape [57, 25]"),
    ({WORD: torch.zeros(57 * 24)}, "shape [1368], but config.json asks for floats of shape [57, 24]"),
    ({WORD: torch.zeros(57, 24, dtype=torch.int64)}, f"'{WORD}' is torch.int64"),
    ({WORD: torch.zeros(57, 24, dtype=torch.float64)}, f"'{WORD}'"),
    ({"classifier.bias": torch.tensor([0.0, float("nan")])}, "'classifier.bias' holds NaN"),
    ({"bert.pooler.dense.bias": torch.full((24,), float("inf"))}, "'bert.pooler.dense.bias' holds NaN or infinity"),
    ({"embeddings.word_embeddings.weight": torch.zeros(57, 24)}, "are two values for one parameter"),
    ({"bert.embeddings.LayerNorm.gamma": torch.zeros(24)}, "'bert.embeddings.LayerNorm.gamma' and"),
    ({"classifier.weight": torch.zeros(3, 24), "classifier.bias": torch.zeros(3)}, "'classifier.weight'"),
])
def test_refused_tensors(change, words, form, tmp_path):
    refused(checkpoint(tmp_path, "bert", base("bert") | change, form), words)


@pytest.mark.parametrize("changes, words", [
    ({"hidden_size": "absent"}, "hidden_size is null"), ({"vocab_size": "absent"}, "vocab_size"),
    ({"hidden_size": "24"}, 'hidden_size is "24"'), ({"hidden_size": 24.0}, "hidden_size"),
    ({"hidden_size": True}, "hidden_size"), ({"hidden_size": 0}, "hidden_size"), ({"hidden_size": -24}, "hidden_size"),
    ({"hidden_size": 28}, "config.json asks for"), ({"vocab_size": 10 ** 12}, "vocab_size"),
    ({"num_hidden_layers": 3}, "'encoder.layer.2.attention.self.query.weight' is missing"),
    ({"num_hidden_layers": 1}, "'bert.encoder.layer.1."), ({"num_hidden_layers": 10 ** 6}, "num_hidden_layers"),
    ({"num_attention_heads": 5}, "num_attention_heads is 5, but must be a divisor"),
    ({"num_attention_heads": 0}, "num_attention_heads"), ({"intermediate_size": 41}, "intermediate.dense.weight"),
    ({"max_position_embeddings": 32}, "position_embeddings"), ({"type_vocab_size": 3}, "token_type_embeddings"),
    ({"type_vocab_size": 1}, "type_vocab_size"), ({"model_type": "roberta"}, 'model_type is "roberta"'),
    ({"model_type": None}, "model_type"), ({"model_type": ["bert"]}, "model_type"),
    ({"model_type": "distilbert"}, "dim"),
    ({"hidden_act": "swish2"}, 'hidden_act is "swish2"'), ({"hidden_act": ["gelu"]}, "hidden_act"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type"), ({"is_decoder": True}, "is_decoder"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"), ({"hidden_dropout_prob": "0.1"}, "hidden_dropout_prob"),
    ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob"),
    ({"layer_norm_eps": float("nan")}, "layer_norm_eps"), ({"initializer_range": float("inf")}, "initializer_range"),
    ({"classifier_dropout": 2}, "classifier_dropout"), ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
])
def test_refused_configs(changes, words, tmp_path):
    refused(checkpoint(tmp_path, "bert", **changes), words)


@pytest.mark.parametrize("changes, words", [
    ({"dim": "absent"}, "dim is null"), ({"n_heads": 7}, "n_heads is 7"), ({"n_layers": -1}, "n_layers"),
    ({"activation": "mish"}, 'activation is "mish"'), ({"dropout": 7}, "dropout is 7"), ({"hidden_dim": 1}, "ffn.lin1"),
])
def test_refused_distilbert_configs(changes, words, tmp_path):
    refused(checkpoint(tmp_path, "distilbert", **changes), words)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"bert"', b"\xff\xfe{}", b"[" * 100_000,
                                     b'{"vocab_size": ' + b"9" * 5000 + b"}"])
def test_config_that_is_no_json_object(content, tmp_path):
    checkpoint(tmp_path, "bert")
    (tmp_path / "config.json").write_bytes(content)
    refused(tmp_path, "config.json")


def test_config_with_a_byte_order_mark_is_read(tmp_path):
    checkpoint(tmp_path, "bert")
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    check_logits(tmp_path, "bert")


def test_missing_files(tmp_path):
    refused(tmp_path / "nowhere", "config.json")
    checkpoint(tmp_path, "bert")
    (tmp_path / "model.safetensors").unlink()
    refused(tmp_path, "no model.safetensors and no pytorch_model.bin")


def test_vocabulary_must_fit(tmp_path):
    path = checkpoint(tmp_path, "bert") / "vocab.txt"
    tokens = path.read_text()
    path.write_text(tokens + "more\n")
    refused(tmp_path, "vocab.txt has 58 tokens, but vocab_size in config.json is 57")
    path.write_text(tokens.replace("[MASK]", "[mask]"))
    refused(tmp_path, "[MASK]")
    path.unlink()  # a model alone can be loaded; the tokenizer and MAE-LM say what they lack
    models.MaskedLM.from_pretrained(tmp_path)
    refused(tmp_path, "vocab.txt", models.MAELM)


ENTRY = {"dtype": "F32", "shape": [57, 24], "data_offsets": [0, 5472]}


@pytest.mark.parametrize("entry", [
    ENTRY | {"data_offsets": [4, 5476]}, ENTRY | {"data_offsets": [0, 5476]}, ENTRY | {"data_offsets": [0, 5468]},
    ENTRY | {"data_offsets": [-4, 5468]}, ENTRY | {"data_offsets": [5472, 0]}, ENTRY | {"data_offsets": [0]},
    ENTRY | {"data_offsets": [0, "5472"]}, ENTRY | {"data_offsets": None}, ENTRY | {"data_offsets": [0.0, 5472.0]},
    ENTRY | {"data_offsets": [0, 10_000_000_000], "shape": [50_000, 50_000]},
    ENTRY | {"data_offsets": [10_000_000_000, 10_000_005_472]}, ENTRY | {"shape": [57, 25]},
    ENTRY | {"shape": [-57, -24]}, ENTRY | {"shape": [57.0, 24.0]}, ENTRY | {"shape": ["57", 24]},
    ENTRY | {"shape": 1368}, ENTRY | {"shape": [1368] * 99},
    ENTRY | {"shape": [2 ** 62, 2 ** 62]}, ENTRY | {"shape": None}, ENTRY | {"dtype": "F64"}, ENTRY | {"dtype": "I32"},
    ENTRY | {"dtype": "F8_E4M3"}, ENTRY | {"dtype": "float32"}, ENTRY | {"dtype": None}, ENTRY | {"dtype": ["F32"]},
    ENTRY | {"dtype": "I64"}, ENTRY | {"dtype": "F16"}, {}, [], None, 1, "F32",
])
def test_lying_safetensors_headers(entry, tmp_path, monkeypatch):
    tensors = base("bert")
    tensors = {WORD: tensors.pop(WORD), **tensors}
    checkpoint(tmp_path, "bert")
    content = safetensors_bytes(tensors, **{WORD: entry})
    (tmp_path / "model.safetensors").write_bytes(content)
    asked, empty = [], torch.empty
    monkeypatch.setattr(models.torch, "empty", lambda *size, **options: asked.append(size) or empty(*size, **options))
    refused(tmp_path, "model.safetensors")
    assert all(numpy.prod([numpy.prod(n) for n in size]) <= len(content) for size in asked)


@pytest.mark.parametrize("content", [
    b"", b"\0", b"\0" * 8, b"\xff" * 8, (10_000_000_000).to_bytes(8, "little") + b"{}",
    (2).to_bytes(8, "little") + b"{",
    (2).to_bytes(8, "little") + b"[]", (4).to_bytes(8, "little") + b"null", (2).to_bytes(8, "little") + b"\xff\xfe",
    (2).to_bytes(8, "little") + b"{}", (2).to_bytes(8, "little") + b"{}surplus",
    (100_000).to_bytes(8, "little") + b"[" * 100_000, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    b"<!DOCTYPE html><html></html>"])
def test_files_that_are_no_safetensors(content, tmp_path):
    checkpoint(tmp_path, "bert")
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(tmp_path, "model.safetensors")


def test_overlaps_gaps_and_surplus(tmp_path):
    first, second = torch.zeros(2), torch.ones(2)
    for begin, surplus in ((4, b""), (12, b"\0\0\0\0"), (8, b"\0\0\0\0")):
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [begin, begin + 8]}
        path = tmp_path / "model.safetensors"
        path.write_bytes(safetensors_bytes({"a": first, "b": second}, b=entry) + surplus)
        with pytest.raises(UserError, match="'b' cannot lie in|4 bytes belong to no tensor"):
            models.read_tensors(path)


class Attack:
    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle", "inside a tensor dictionary"])
def test_a_pickle_that_runs_code_is_refused(form, tmp_path):
    marker = tmp_path / "marker"
    checkpoint(tmp_path, "bert", form="zip")
    path = tmp_path / "pytorch_model.bin"
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    if form == "plain pickle":
        path.write_bytes(pickle.dumps(Attack(marker)))
    elif form == "inside a tensor dictionary":
        torch.save(base("bert") | {"attack": Attack(marker)}, path)
    else:
        torch.save(Attack(marker), path, _use_new_zipfile_serialization=form == "zip")
    refused(tmp_path, "pytorch_model.bin: is no whole file of tensors (UnpicklingError)")
    assert not marker.exists()
    if form != "zip":
        return
    torch.load(path, weights_only=False)  # the attack is a real one
    assert marker.exists()


@pytest.mark.parametrize("value", [
    torch.zeros(2), [torch.zeros(2)], {1: torch.zeros(2)}, {"a": 1}, {"a": [torch.zeros(2)]}, None, "text",
    {"a": torch.zeros(2, dtype=torch.complex64)}, {"a": torch.eye(3).to_sparse()},
    {"a": torch.zeros(2, device="meta")}])
def test_pickles_that_are_no_checkpoint(value, tmp_path):
    checkpoint(tmp_path, "bert", form="zip")
    torch.save(value, tmp_path / "pytorch_model.bin")
    refused(tmp_path, "pytorch_model.bin")


def test_a_tensor_larger_than_its_data_is_refused(tmp_path):
    """One number with the strides of a terabyte costs the file nothing, and must not cost memory either."""
    checkpoint(tmp_path, "bert", base("bert") | {WORD: torch.zeros(1).expand(57, 24)}, "zip")
    refused(tmp_path, f"'{WORD}' is larger than its data")


def mutate(content: bytes, random_state: random.Random) -> bytes:
    """Cut it, or change up to four bytes, mostly near the beginning, where the structure is."""
    if random_state.random() < 0.4:
        return content[:random_state.randrange(len(content))]
    mutant = bytearray(content)
    for _ in range(random_state.randint(1, 4)):
        mutant[random_state.randrange(len(mutant) if random_state.random() < 0.4 else min(4000, len(mutant)))] = \
            random_state.choice([0, 1, 34, 45, 48, 57, 91, 123, 125, 127, 128, 255, random_state.randrange(256)])
    return bytes(mutant)


def fuzz(directory: Path, file: str, form: str, seeds) -> dict[str, int]:
    """Load mutants of one file of a small checkpoint: success or a one-line UserError, else the test fails."""
    checkpoint(directory, "tinybert", form=form)
    content = (directory / file).read_bytes()
    outcomes = {"success": 0, "UserError": 0}
    for seed in seeds:
        (directory / file).write_bytes(mutate(content, random.Random(f"{file} {form} {seed}")))
        try:
            models.Classifier.from_pretrained(directory)(*inputs("tinybert"))
            outcomes["success"] += 1
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
            outcomes["UserError"] += 1
    return outcomes


@pytest.mark.parametrize("file, form", [("model.safetensors", "safetensors"), ("pytorch_model.bin", "zip"),
                                        ("pytorch_model.bin", "pickle"), ("config.json", "safetensors"),
                                        ("vocab.txt", "safetensors")])
def test_mutated_files(file, form, tmp_path):
    outcomes = fuzz(tmp_path, file, form, range(20))
    assert outcomes["UserError"] >= 3


# ---- Saving ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("head", HEADS)
def test_round_trip(name, head, tmp_path, capsys):
    source = checkpoint(tmp_path / "source", name)
    (source / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    model = HEADS[head].from_pretrained(source)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(tmp_path / "new" / "saved")
    assert sorted(os.listdir(tmp_path / "new")) == ["saved"]
    files = {path.name: path for path in (tmp_path / "new" / "saved").iterdir()}
    assert sorted(files) == ["config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    for copied in ("tokenizer_config.json", "vocab.txt"):
        assert files[copied].read_bytes() == (source / copied).read_bytes()
    capsys.readouterr()
    again = HEADS[head].from_pretrained(tmp_path / "new" / "saved")
    assert again.config == model.config
    lost = {"encoder.pooler.weight", "encoder.pooler.bias"} if head == "mlm" else set()  # BertForMaskedLM has no pooler
    assert ("pooler" in capsys.readouterr().out) == (head == "mlm" and name != "distilbert")
    for (key, parameter), other in zip(model.named_parameters(), again.parameters()):
        assert key in lost or torch.equal(parameter, other), key
    assert torch.equal(model.eval()(*inputs(name)), again.eval()(*inputs(name)))
    config = json.loads(files["config.json"].read_text())
    family = "DistilBert" if name == "distilbert" else "Bert"
    assert config["architectures"] == [family + ("ForMaskedLM" if head == "mlm" else "ForSequenceClassification")]
    assert ("dim" in config, "hidden_size" in config) == ((True, False) if name == "distilbert" else (False, True))
    assert stat.S_IMODE((tmp_path / "new" / "saved").stat().st_mode) == stat.S_IMODE((tmp_path / "new").stat().st_mode)


def test_saved_header(tmp_path):
    """What safetensors readers insist on: aligned data, every tensor once, no tied copy, the pt format."""
    models.MaskedLM.from_pretrained(GOLDEN / "bert").save_pretrained(tmp_path / "saved")
    content = (tmp_path / "saved" / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    assert size % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    assert "cls.predictions.decoder.weight" not in header and "bert.pooler.dense.weight" not in header
    assert {"cls.predictions.bias", "cls.predictions.decoder.bias", WORD} <= header.keys()
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(content) - 8 - size


def test_three_labels(tmp_path):
    model = small_model(models.Classifier, 3)
    model.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["label2id"] == {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2} and len(config["id2label"]) == 3
    ids, segments, attention_mask, _ = small_batch()
    again = models.Classifier.from_pretrained(tmp_path / "saved", num_labels=3)
    assert torch.equal(again(ids, segments, attention_mask), model(ids, segments, attention_mask))
    refused(tmp_path / "saved", "'classifier.weight'")  # not for two labels


def test_saving_replaces_a_model_and_nothing_else(tmp_path):
    model = models.Classifier.from_pretrained(GOLDEN / "bert")
    for _ in range(2):
        model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "thesis.tex").write_text("years of work")
    for directory in (tmp_path / "saved", GOLDEN / "bert" / "config.json"):
        with pytest.raises(UserError, match="give another directory"):
            model.save_pretrained(directory)
    assert (tmp_path / "saved" / "thesis.tex").exists() and os.listdir(tmp_path) == ["saved"]


def test_a_full_disk_leaves_the_earlier_model(tmp_path, monkeypatch):
    model = models.Classifier.from_pretrained(GOLDEN / "bert")
    model.save_pretrained(tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    (tmp_path / "empty").mkdir()

    def fails(error):
        def write_bytes(*_):
            raise error
        return write_bytes

    monkeypatch.setattr(Path, "write_bytes", fails(OSError(28, "No space left on device")))  # at the vocabulary
    for directory in ("saved", "fresh", "empty"):
        with pytest.raises(UserError, match="No space left on device"):
            model.save_pretrained(tmp_path / directory)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["empty", "saved"] and not os.listdir(tmp_path / "empty")
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before
    monkeypatch.setattr(Path, "write_bytes", fails(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.save_pretrained(tmp_path / "fresh")
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["empty", "saved"]


def test_a_model_takes_its_name_when_it_is_whole(tmp_path, monkeypatch):
    """A kill at any moment leaves no half model under that name: whole directories are renamed, nothing else."""
    renamed, rename = [], Path.rename

    def watched(self, target):
        renamed.append((self.name, Path(target).name, sorted(os.listdir(self))))
        assert not Path(target).exists()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    whole = ["config.json", "model.safetensors", "vocab.txt"]
    model = models.Classifier.from_pretrained(GOLDEN / "bert")
    model.save_pretrained(tmp_path / "saved")
    model.save_pretrained(tmp_path / "saved")
    assert renamed == [("new", "saved", whole), ("saved", "old", whole), ("new", "saved", whole)]


# ---- The forward passes ----------------------------------------------------------------------------------------------

def test_selected_positions_equal_the_full_head():
    """The same loss and the same gradients, those of the word embeddings included; rows in row-major order."""
    ids, segments, attention_mask, selected = small_batch()
    model = small_model()
    full = model(ids, segments, attention_mask)[selected]
    F.cross_entropy(full, ids[selected]).backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if "pooler" not in name}
    model.zero_grad()
    embedded = model.encoder.embed_words(ids)
    embedded.retain_grad()
    logits = model.forward_selected(embedded, segments, attention_mask, selected)
    assert torch.allclose(logits, full, atol=1e-5)
    F.cross_entropy(logits, ids[selected]).backward()
    for name, gradient in expected.items():
        assert torch.allclose(model.get_parameter(name).grad, gradient, atol=1e-5), name
    assert embedded.grad.shape == (3, 10, 16) and embedded.grad[:, 0].abs().min() > 0


def test_padding_is_never_read():
    model = small_model()
    ids, segments, attention_mask, _ = small_batch()
    states = model.encoder(model.encoder.embed_words(ids), segments, attention_mask, all_layers=True)
    other = model.encoder(model.encoder.embed_words(torch.where(attention_mask, ids, 17)), segments, attention_mask,
                          all_layers=True)
    assert len(states) == 3
    assert all(torch.equal(a[attention_mask], b[attention_mask]) for a, b in zip(states, other))
    alone = model.encoder(model.encoder.embed_words(ids[2:, :4]), segments[2:, :4], attention_mask[2:, :4])
    assert torch.allclose(alone[0], states[-1][2, :4], atol=1e-5)
    integers = model.encoder(model.encoder.embed_words(ids), segments, attention_mask.long())
    assert torch.equal(integers, states[-1])


def test_the_classifier_needs_the_last_layer_at_cls_alone():
    encoder = small_model().encoder
    ids, segments, attention_mask, _ = small_batch()
    embedded = encoder.embed_words(ids)
    whole = encoder(embedded, segments, attention_mask)
    first = encoder(embedded, segments, attention_mask, wanted=slice(1))
    assert first.shape == (3, 1, 16) and torch.allclose(first[:, 0], whole[:, 0], atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_training_mode_without_dropout_equals_evaluation(name, tmp_path):
    """Attention is computed in two ways, one of them in training on the CPU only: logits and gradients agree."""
    keys = ("dropout", "attention_dropout") if name == "distilbert" else ("hidden_dropout_prob",
                                                                          "attention_probs_dropout_prob")
    directory = checkpoint(tmp_path, name, **dict.fromkeys(keys, 0.0), classifier_dropout=0.0, seq_classif_dropout=0.0)
    for head, kind in HEADS.items():
        model = kind.from_pretrained(directory)
        results = []
        for mode in (True, False):
            model.train(mode).zero_grad()
            logits = model(*inputs(name))
            logits = logits[inputs(name)[2]] if head == "mlm" else logits
            logits.square().mean().backward()
            results.append([logits, *(each.grad for each in model.parameters() if each.grad is not None)])
        for training, evaluation in zip(*results):
            assert torch.allclose(training, evaluation, atol=1e-5)


def test_dropout_where_the_architectures_have_it():
    bert, distilbert = (models.Classifier.from_pretrained(GOLDEN / name) for name in ("bert", "distilbert"))
    assert (bert.encoder.dropout.p, bert.dropout.p, bert.encoder.layers[0].dropout.p) == (0.2, 0.2, 0.2)
    assert bert.encoder.layers[1].output_dropout.p == 0.2
    assert (distilbert.encoder.dropout.p, distilbert.dropout.p) == (0.1, 0.3)
    assert isinstance(distilbert.encoder.layers[0].output_dropout, torch.nn.Identity)
    for family, expected in (("bert", 0.25), ("distilbert", 0.2)):  # before the classifier, where config.json is silent
        config = models.Config(family, 9, 8, 1, 1, 8, hidden_dropout_prob=0.25)
        assert models.Classifier(config).dropout.p == expected
    for model in (bert, distilbert):
        name = model.config.model_type
        one, other = (model.train()(*inputs(name)) for _ in range(2))
        assert not torch.equal(one, other)
        torch.manual_seed(1)
        one = model(*inputs(name))
        torch.manual_seed(1)
        assert torch.equal(model(*inputs(name)), one)
        assert torch.equal(model.eval()(*inputs(name)), model(*inputs(name)))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.999])
def test_dropout_drops_that_many_and_scales_the_rest(probability):
    torch.manual_seed(0)
    hidden = torch.ones(301, 1001, requires_grad=True)
    dropped = models.Dropout(probability).train()(hidden)
    values = dropped.unique()
    assert all(min(abs(value), abs(value - 1 / (1 - probability))) < 1e-3 * value + 1e-9 for value in values.tolist())
    standard_error = (probability * (1 - probability) / hidden.numel()) ** 0.5
    assert abs((dropped == 0).float().mean().item() - probability) <= 5 * standard_error + 1 / 65536
    dropped.sum().backward()
    assert torch.equal(hidden.grad, dropped.detach())


@pytest.mark.parametrize("kind", [models.MaskedLM, models.MAELM])
def test_bfloat16_autocast(kind):
    ids, segments, attention_mask, selected = small_batch()
    model = small_model(kind, *([2, 4] if kind is models.MAELM else []))
    exact = model.forward_selected(model.encoder.embed_words(ids), segments, attention_mask, selected)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.forward_selected(model.encoder.embed_words(ids), segments, attention_mask, selected)
    F.cross_entropy(logits.float(), ids[selected]).backward()
    assert F.cosine_similarity(logits.float().flatten(), exact.flatten(), dim=0) > 0.99
    assert all(p.grad.isfinite().all() for name, p in model.named_parameters() if "pooler" not in name)


# ---- MAE-LM ----------------------------------------------------------------------------------------------------------

def test_the_encoder_of_mae_sees_nothing_of_a_selected_position():
    """Not one bit of an encoder output changes with the ids there, even when what stands there is not a number."""
    ids, segments, attention_mask, selected = small_batch()
    model = small_model(models.MAELM, 2, 4)
    visible = attention_mask & ~selected
    embedded = model.encoder.embed_words(ids)
    reference = model.forward_encoder(embedded, segments, visible)
    kept = torch.arange(reference.shape[1]) < visible.sum(1, keepdim=True)
    assert reference.shape[1] == visible.sum(1).max() < 10
    for replacement in (embedded.flip(2), torch.full_like(embedded, float("nan"))):
        changed = torch.where(visible[..., None], embedded, replacement)
        assert torch.equal(model.forward_encoder(changed, segments, visible)[kept], reference[kept])
    logits = model.forward_selected(embedded, segments, attention_mask, selected)
    assert torch.equal(model.forward_selected(changed, segments, attention_mask, selected), logits)
    moved = torch.where(visible[..., None], embedded.flip(2), embedded)  # while visible positions do matter
    assert not torch.allclose(model.forward_encoder(moved, segments, visible)[kept], reference[kept], atol=1e-2)


def test_the_encoder_of_mae_equals_a_really_shortened_sequence():
    ids, segments, attention_mask, selected = small_batch()
    model = small_model(models.MAELM, 2, 4)
    visible = attention_mask & ~selected
    encoded = model.forward_encoder(model.encoder.embed_words(ids), segments, visible)
    for row in range(3):
        positions = visible[row].nonzero().T  # (1, T')
        ids_left, segments_left = ids[row][positions], segments[row][positions]
        short = model.encoder(model.encoder.embed_words(ids_left), segments_left, torch.ones_like(ids_left), positions)
        assert torch.allclose(encoded[row, :positions.shape[1]], short[0], atol=1e-5)


def test_place_and_decode():
    ids, segments, attention_mask, selected = small_batch()
    model = small_model(models.MAELM, 2, 4)
    visible = attention_mask & ~selected
    encoded = model.forward_encoder(model.encoder.embed_words(ids), segments, visible)
    placed = model.place(encoded, visible)
    for row in range(3):
        assert torch.equal(placed[row][visible[row]], encoded[row, :visible[row].sum()])
        for position in (~visible[row]).nonzero()[:, 0]:
            expected = model.encoder.word_embeddings.weight[4] + model.encoder.position_embeddings.weight[position]
            assert torch.equal(placed[row, position], expected)
    decoded = model.forward_decoder(placed, attention_mask)
    changed = torch.where(attention_mask[..., None], placed, 9.0)  # padding is not read here either
    assert torch.equal(model.forward_decoder(changed, attention_mask)[attention_mask], decoded[attention_mask])
    logits = model.forward_selected(model.encoder.embed_words(ids), segments, attention_mask, selected)
    assert torch.equal(logits, model.predict(decoded[selected]))


def test_saliency_of_mae_is_zero_where_the_encoder_does_not_look():
    ids, segments, attention_mask, selected = small_batch()
    model = small_model(models.MAELM, 2, 4)
    embedded = model.encoder.embed_words(ids)
    embedded.retain_grad()
    logits = model.forward_selected(embedded, segments, attention_mask, selected)
    F.cross_entropy(logits, ids[selected]).backward()
    visible = attention_mask & ~selected
    assert not embedded.grad[~visible].any()  # exactly
    assert embedded.grad[visible].abs().sum(1).min() > 0
    missing = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert missing == {"encoder.pooler.weight", "encoder.pooler.bias"}


@pytest.mark.parametrize("selection", [0.0, 1.0])
def test_mae_where_nothing_or_everything_is_selected(selection):
    ids, segments, attention_mask, selected = small_batch(selection)
    model = small_model(models.MAELM, 2, 4).train()
    logits = model.forward_selected(model.encoder.embed_words(ids), segments, attention_mask, selected)
    assert logits.shape == (selected.sum(), 40) and logits.isfinite().all()
    logits.sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_mae_learns():
    ids, segments, attention_mask, selected = small_batch()
    model = small_model(models.MAELM, 2, 4, initializer_range=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(40):
        logits = model.forward_selected(model.encoder.embed_words(ids), segments, attention_mask, selected)
        losses.append(F.cross_entropy(logits, ids[selected]))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 4


def test_mae_from_a_checkpoint(capsys):
    model = models.MAELM.from_pretrained(GOLDEN / "bert", decoder_layers=3)
    assert (len(model.decoder), model.mask_id, model.newly_initialised) == (3, 4, ["decoder.*"])
    assert capsys.readouterr().out.count("\n") == 1
    assert model.predict.output.weight is model.encoder.word_embeddings.weight
    assert not model.decoder[0].query.bias.any() and 0.015 < model.decoder[2].feed_forward.weight.std() < 0.025
    classifier = models.Classifier.from_pretrained(GOLDEN / "bert")
    classifier.encoder.load_state_dict(model.encoder.state_dict())  # stage 2 takes the encoder, pooler included
    assert len(models.MAELM.from_pretrained(GOLDEN / "distilbert").decoder) == 4


# ---- Finding a backbone ----------------------------------------------------------------------------------------------

@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home directory, and no variable that leads elsewhere; the hub is unreachable."""
    for variable in ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "TYPHOON_CACHE", "XDG_CACHE_HOME", "http_proxy",
                     "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def hub_copy(hub: Path, name: str, *files: str) -> Path:
    hub_id, revision, weights, _ = models.BACKBONES[name]
    directory = hub / ("models--" + hub_id.replace("/", "--")) / "snapshots" / revision
    directory.mkdir(parents=True)
    for file in files or ("config.json", "vocab.txt", weights):
        (directory / file).write_text("x")
    return directory


@pytest.mark.parametrize("name", models.BACKBONES)
def test_the_hugging_face_cache_is_looked_up_first(name, home, monkeypatch):
    in_home = hub_copy(home / ".cache" / "huggingface" / "hub", name)
    assert models.find_model(name) == in_home
    monkeypatch.setenv("HF_HOME", "~/hf")
    in_hf_home = hub_copy(home / "hf" / "hub", name)
    assert models.find_model(name) == in_hf_home
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "elsewhere"))
    in_hub_cache = hub_copy(home / "elsewhere", name)
    assert models.find_model(name) == in_hub_cache
    (in_hub_cache / "vocab.txt").unlink()  # a copy that is not complete is no copy
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        models.find_model(name)


def test_directories_and_unknown_names(home):
    assert models.find_model(GOLDEN / "bert") == GOLDEN / "bert" == models.find_model(str(GOLDEN / "bert"))
    with pytest.raises(UserError, match="tinybert, distilbert, bert-base"):
        models.find_model("tinybird")
    with pytest.raises(UserError, match="is no directory"):
        models.find_model(GOLDEN / "bert" / "config.json")


@pytest.fixture
def hub(home, monkeypatch):
    """A hub on this machine, whose files are those of home/served; the requests it got."""
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(home / "served"))

        def log_message(self, form, *arguments):
            requests.append(self.path)

    requests = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    yield requests
    server.shutdown()
    server.server_close()
    thread.join()


def test_download_into_our_cache(home, hub, monkeypatch):
    hub_id, revision, weights, _ = models.BACKBONES["tinybert"]
    checkpoint(home / "served" / hub_id / "resolve" / revision, "tinybert", form="pickle")
    directory = models.find_model("tinybert")
    assert directory.is_relative_to(home / ".cache" / "typhoon")
    assert sorted(path.name for path in directory.iterdir()) == ["config.json", weights, "vocab.txt"]
    assert sorted({path.rsplit("/", 1)[1] for path in hub}) == ["config.json", weights, "vocab.txt"]
    check_logits(directory, "tinybert")
    hub.clear()
    assert models.find_model("tinybert") == directory and not hub  # the second time without the hub
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert models.find_model("tinybert") == directory


def test_a_wrong_checksum_is_refused(home, hub):
    hub_id, revision, weights, _ = models.BACKBONES["distilbert"]
    checkpoint(home / "served" / hub_id / "resolve" / revision, "distilbert")
    with pytest.raises(DownloadError, match="sha256"):
        models.find_model("distilbert")
    assert not list((home / ".cache").rglob(weights))


def test_a_hub_without_the_file(home, hub):
    with pytest.raises(DownloadError):
        models.find_model("bert-base")
    assert not list((home / ".cache").rglob("config.json"))


@pytest.mark.filterwarnings("ignore:.*nested tensor")
def test_a_nested_tensor_is_refused(tmp_path):
    torch.save({"embeddings.LayerNorm.weight": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, tmp_path / "a.bin")
    with pytest.raises(UserError, match="a.bin"):
        models.read_tensors(tmp_path / "a.bin")
