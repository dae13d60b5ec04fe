"""The two stages, the command line and the run log, on a tiny model and a few sentences."""
import doctest
import json
import math
import os
import shutil
import subprocess
import sys
from argparse import Namespace

import numpy
import pytest
import torch
import torch.nn.functional as F

import models
import tiny
import train
import typhoon

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no CUDA device"))
TYPHOON = "mrpc-tiny-typhoon-mlm-spread0.4-seed0"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The options that name the tiny data and model, and the CPU."""
    folder = tmp_path_factory.mktemp("inputs")
    glue = tiny.write_glue(folder / "glue")
    checkpoint = tiny.write_checkpoint(folder / "tiny")
    return ["--device", "cpu", "--data-dir", str(glue), "--model", str(checkpoint)]


def command(*arguments) -> int:
    return train.main([str(argument) for argument in arguments])


def quick(*arguments) -> int:
    """One epoch of each stage: for tests of what surrounds them."""
    return command("--mlm-epochs", 1, "--cls-epochs", 1, *arguments)


def logs(directory) -> dict[str, dict]:
    """Every log in the directory, less its times."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
    for log in found.values():
        log.pop("seconds")
    return found


def read(inputs, masker="typhoon", **changes) -> tuple[Namespace, train.Inputs]:
    """The settings of one run and what it reads."""
    options = train.parse_arguments([*inputs, "--masker", masker])
    [backbone] = options.model
    found = train.read_inputs("mrpc", options.data_dir, train.Path(backbone), 128, "cpu")
    [settings] = train.plan(options, ["mrpc"], ["tiny"]).values()
    for option, value in changes.items():
        setattr(settings, option, value)
    return settings, found


# ---- The step -----------------------------------------------------------------------------------

@pytest.mark.parametrize("stage", ["mlm", "classifier"])
@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_three_steps_equal_those_of_transformers_trainer(root, stage, clip):
    """Same weights, batches and learning rate: the same parameters, in float64. Clipping, decay
    groups, warm-up and decay of the learning rate are all in it (tests/make_recipe_golden.py)."""
    golden = numpy.load(root / "tests" / "golden" / "recipe.npz")
    kind = models.MaskedLM if stage == "mlm" else models.Classifier
    model = kind.from_pretrained(root / "tests" / "golden" / "models" / "bert").double().eval()
    settings = Namespace(clip=clip)
    optimiser, schedule = train.optimiser_and_schedule(model, 1e-2, steps=5, warmup=0.4)
    for step in range(3):
        ids, segments, attention_mask, selected, labels = (
            torch.from_numpy(golden[f"{name}_{step}"])
            for name in ("ids", "segments", "attention_mask", "selected", "labels"))
        if stage == "mlm":
            embeddings = model.encoder.embed_words(ids.masked_fill(selected, 4))
            logits = model.forward_selected(embeddings, segments, attention_mask, selected)
            loss = F.cross_entropy(logits, ids[selected])
        else:
            loss = F.cross_entropy(model(ids, segments, attention_mask), labels)
        loss.backward()
        train.update(settings, model, optimiser, schedule)
    compared = 0
    for name, parameter in model.named_parameters():
        key = f"{stage}_{clip}_{name}"
        if key in golden:
            expected = torch.from_numpy(golden[key])
            torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-9)
            compared += 1
    assert compared >= 10


def test_selected_positions_head_gives_the_loss_and_gradients_of_the_full_head():
    torch.manual_seed(0)
    model = models.MaskedLM(tiny.config()).double().eval()
    ids = torch.randint(5, model.config.vocab_size, (3, 9))
    segments = torch.zeros_like(ids)
    attention_mask = torch.ones(3, 9, dtype=torch.bool)
    selected = torch.rand(3, 9) < 0.4
    corrupted = ids.masked_fill(selected, 4)

    logits = model(corrupted, segments, attention_mask)  # (B, T, V)
    full = F.cross_entropy(logits.transpose(1, 2), ids.masked_fill(~selected, -100))
    full_gradients = torch.autograd.grad(full, list(model.parameters()), allow_unused=True)

    embeddings = model.encoder.embed_words(corrupted)
    logits = model.forward_selected(embeddings, segments, attention_mask, selected)  # (S, V)
    loss = F.cross_entropy(logits, ids[selected])
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    torch.testing.assert_close(loss, full, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients, full_gradients, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_last_layer_at_cls_alone_is_that_of_the_whole_layer(architecture, training):
    """Logits and gradients in float64, without dropout, whose draws are others."""
    torch.manual_seed(0)
    classifier = models.Classifier(tiny.config(architecture, dropout=0.0)).double()
    classifier.train(training).dropout.p = 0.0
    ids = torch.randint(5, classifier.config.vocab_size, (3, 9))
    segments = (torch.arange(9) > 4).long().expand(3, 9)
    attention_mask = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]  # (B, T)
    parameters = list(classifier.parameters())
    logits = classifier(ids, segments, attention_mask)
    gradients = torch.autograd.grad(logits.square().sum(), parameters)

    whole = classifier.encoder(classifier.encoder.embed_words(ids), segments, attention_mask)
    assert whole.shape == (3, 9, 16)
    first = whole[:, 0]  # (B, H)
    pooled = (torch.tanh(classifier.encoder.pooler(first)) if architecture == "bert"
              else torch.relu(classifier.pre_classifier(first)))
    expected = classifier.classifier(pooled)
    expected_gradients = torch.autograd.grad(expected.square().sum(), parameters)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-12)


def test_the_last_layer_at_cls_alone_draws_less_dropout(monkeypatch):
    """The trick is at work: dropout after the last layer has one position a sentence."""
    shapes = []
    dropout = F.dropout
    monkeypatch.setattr(F, "dropout", lambda x, *rest: shapes.append(tuple(x.shape))
                        or dropout(x, *rest))
    classifier = models.Classifier(tiny.config()).train()
    ids = torch.randint(5, classifier.config.vocab_size, (3, 9))
    classifier(ids, torch.zeros_like(ids), torch.ones_like(ids))
    # the embeddings, two in each of two layers, the pooled state
    assert shapes == [(3, 9, 16)] * 3 + [(3, 1, 16)] * 2 + [(3, 16)]


def test_the_masker_learns_before_clipping_and_keeps_no_graph(inputs, monkeypatch):
    norms = []

    class Watching(typhoon.TyphoonMasker):
        def observe(self, gradient, weight, ids, words, selected):
            norms.append(gradient.norm().item())
            assert not weight.requires_grad
            super().observe(gradient, weight, ids, words, selected)
            assert not self.scores.requires_grad

    monkeypatch.setitem(typhoon.MASKERS, "typhoon", Watching)
    for clip in (1e-4, 0.0):
        settings, found = read(inputs, mlm_epochs=1, clip=clip)
        train.adapt(settings, found, (found.dev.words >= 0) & (found.dev.words % 2 == 0))
    clipped, unclipped = norms[0], norms[3]  # three steps each; the first before any update
    assert clipped == unclipped > 1e-4


def test_effective_rank_by_batches_equals_the_definition_by_svd(inputs):
    _, found = read(inputs)
    encoder = models.Classifier.from_pretrained(found.backbone).eval().encoder
    dev = found.dev
    selected = (torch.rand(dev.ids.shape) < 0.3) & (dev.words >= 0)
    measured = {(row["input"], row["tokens"]): row["layers"]
                for row in train.measure_effective_rank(encoder, found, selected, "before")}
    groups = {("masked", "all"): dev.attention_mask,
              ("masked", "real"): dev.attention_mask & ~selected,
              ("masked", "[MASK]"): selected,
              ("unmasked", "all"): dev.attention_mask}
    assert set(measured) == set(groups)
    for (name, tokens), where in groups.items():
        ids = dev.ids.masked_fill(selected, 4) if name == "masked" else dev.ids
        with torch.no_grad():
            layers = encoder.all_hidden_states(
                encoder.embed_words(ids), dev.segments, dev.attention_mask)
        for hidden, rank in zip(layers, measured[name, tokens], strict=True):
            energy = torch.linalg.svdvals(hidden[where].double()).square()
            share = energy.cumsum(0) / energy.sum()
            assert rank == (share < 0.9).sum() + 1


def test_effective_rank_by_hand():
    assert train.effective_rank(torch.zeros(3, 3)) == 0
    assert train.effective_rank(torch.eye(10)) == 9  # nine of ten equal values reach 0.9
    rotation, _ = torch.linalg.qr(torch.randn(10, 10).double())
    assert train.effective_rank(rotation @ torch.eye(10).double() @ rotation.T) == 9
    assert doctest.testmod(train).attempted >= 1 and doctest.testmod(train).failed == 0


# ---- What the masker does, in the log ------------------------------------------------------------

class FakeMasker(typhoon.RandomMasker):
    """Rates by hand."""
    values = [[0.1, 0.3, 0.5], [0.3, 0.3, 0.3]]

    def rates(self):
        return torch.tensor(self.values[0], dtype=torch.float64)


def test_band_and_mean_kl_by_hand():
    """Three types with 1/2, 3/8 and 1/8 of 1000 tokens, two steps at budget 0.3."""
    frequency = torch.tensor([0.5, 0.375, 0.125], dtype=torch.float64)
    masker = FakeMasker(frequency, 0.3, None, 0.8)

    def kl(rate):
        return rate * math.log(rate / 0.3) + (1 - rate) * math.log((1 - rate) / 0.7)

    first = 0.5 * kl(0.1) + 0.125 * kl(0.5)
    tokenizer = Namespace(tokens=["often", "sometimes", "rarely"])
    found = Namespace(tokenizer=tokenizer, maskable_tokens=1000, frequency=frequency)
    uniform = torch.zeros((), dtype=torch.float64)
    record = train.describe_masking(masker, found, 300, [train.kl_now(masker), uniform])
    assert record["kl_last"] == pytest.approx(first)
    assert record["kl_mean"] == pytest.approx(first / 2)
    assert record["band"] == pytest.approx({"lowest": 0.1, "5%": 0.1, "25%": 0.1, "50%": 0.1,
                                            "75%": 0.3, "95%": 0.5, "highest": 0.5})
    assert record["masked_fraction"] == 0.3 and record["notices"] == []
    assert train.frequent_rates(masker, found) == {"often": 0.1, "sometimes": 0.3, "rarely": 0.5}


class ByPosition(typhoon.RandomMasker):
    """Masks the last positions of each sentence, [SEP] among them, and far too few."""

    def rates(self):
        return None

    def select(self, ids, words, generator):
        return torch.arange(ids.shape[1], device=ids.device).expand_as(ids) > ids.shape[1] - 4


class NotARate(typhoon.RandomMasker):
    def rates(self):
        return torch.full_like(self.frequency, -0.5)


def test_nonsense_of_a_masker_is_said_and_stands_in_the_log(inputs, tmp_path, capsys, monkeypatch):
    for name, masker in (("by-position", ByPosition), ("not-a-rate", NotARate)):
        monkeypatch.setitem(typhoon.MASKERS, name, masker)
        monkeypatch.setattr(train, "method_fingerprint", lambda masker: "of a test")
        assert quick(*inputs, "--masker", name, "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    by_position = logs(tmp_path)["mrpc-tiny-by-position-mlm-seed0"]["mlm"]
    [epoch] = by_position["epochs"]
    assert epoch["kl_mean"] is None and epoch["kl_last"] is None and epoch["band"] is None
    assert by_position["frequent_rates"] == {}
    assert 0 < epoch["masked_fraction"] < 0.25  # special tokens and padding are not among them
    [notice] = epoch["notices"]
    assert "the budget is 0.3" in notice
    assert f"NOTICE: mrpc-tiny-by-position-mlm-seed0, epoch 1: {notice}" in printed
    assert "KL per token -," in printed
    [epoch] = logs(tmp_path)["mrpc-tiny-not-a-rate-mlm-seed0"]["mlm"]["epochs"]
    assert any("NaN, negative or above 1" in notice for notice in epoch["notices"])


# ---- Runs and their logs ------------------------------------------------------------------------

def test_a_run_writes_one_whole_log(inputs, tmp_path, capsys):
    assert command(*inputs, "--out", tmp_path, "--seed", 3, "--cls-epochs", 2) == 0
    assert os.listdir(tmp_path) == ["mrpc-tiny-typhoon-mlm-spread0.4-seed3.json"]
    [log] = logs(tmp_path).values()
    identity = log["identity"]
    assert set(identity.pop("data")) == {"MRPC/train.tsv", "MRPC/dev.tsv"}
    assert set(identity.pop("backbone")) == {"config.json", "vocab.txt", "model.safetensors"}
    assert len(identity.pop("method")) == 64
    assert identity == {
        "task": "mrpc", "model": "tiny", "masker": "typhoon", "objective": "mlm", "spread": 0.4,
        "seed": 3, "budget": 0.3, "ema": 0.8, "corruption": "mask", "decoder_layers": None,
        "mlm_epochs": 3, "mlm_lr": 1e-4, "cls_epochs": 2, "cls_lr": 5e-5, "clip": 1.0,
        "warmup": 0.0, "batch_size": 16, "max_length": 128, "effective_rank": False,
        "device": "cpu", "precision": "fp32", "recipe": train.RECIPE}
    assert log["sample"] is False and log["metric"] == "f1"
    assert (log["train_examples"], log["dev_examples"]) == (48, 16)

    epochs = log["mlm"]["epochs"]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3] and log["mlm"]["last_epoch"] == 3
    dev_losses = [epoch["dev_loss"] for epoch in epochs]
    assert dev_losses.index(min(dev_losses)) + 1 == log["mlm"]["best_epoch"]
    for epoch in epochs:
        assert abs(epoch["masked_fraction"] - 0.3) < 0.06 and 0 < epoch["kl_mean"] < 0.1
        assert epoch["band"]["lowest"] < 0.3 < epoch["band"]["highest"]
    assert log["mlm"]["frequent_rates"]["the"] < 1

    epochs = log["classifier"]["epochs"]
    accuracies = [epoch["accuracy"] for epoch in epochs]
    assert accuracies.index(max(accuracies)) + 1 == log["classifier"]["best_epoch"]
    for epoch in epochs:
        right = sum(prediction == label for prediction, label in zip(epoch["predictions"], "01" * 8))
        assert epoch["accuracy"] == right / 16  # in the dev file's order

    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("  mlm ") == 3 and printed.out.count("  classifier ") == 2
    assert printed.out.splitlines()[-1].startswith(
        "result mrpc-tiny-typhoon-mlm-spread0.4-seed3: accuracy ")


def test_the_runs_are_the_product_and_do_not_depend_on_each_other(inputs, tmp_path):
    assert quick(*inputs, "--out", tmp_path / "grid", "--task", "mrpc", "cola",
                 "--masker", "typhoon", "random", "--seed", 1, 0, 1, "--spread", 0.4, 0.9) == 0
    grid = logs(tmp_path / "grid")
    # Random masking does not use the spread: it runs once a seed and task.
    assert len(grid) == 2 * 2 * (2 + 1) and "mrpc-tiny-random-mlm-seed1" in grid
    assert quick(*inputs, "--out", tmp_path / "alone", "--task", "cola", "--spread", 0.9,
                 "--seed", 1) == 0
    [(name, alone)] = logs(tmp_path / "alone").items()
    assert alone == grid[name]
    narrow, wide = (grid[f"mrpc-tiny-typhoon-mlm-spread{spread}-seed0"]["mlm"]["epochs"][0]
                    for spread in (0.4, 0.9))
    assert narrow["kl_mean"] < wide["kl_mean"]


def test_a_log_does_not_depend_on_process_hash_seed_or_directory(inputs, tmp_path, root):
    subprocess.run([sys.executable, root / "train.py", *inputs, "--out", "elsewhere"], check=True,
                   cwd=tmp_path, env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True)
    assert command(*inputs, "--out", tmp_path / "here") == 0
    assert logs(tmp_path / "elsewhere") == logs(tmp_path / "here") != {}


def test_corruptions_of_one_seed_share_their_masks(inputs, tmp_path, monkeypatch):
    record = []

    class Recording(typhoon.RandomMasker):
        def select(self, ids, words, generator):
            record.append(super().select(ids, words, generator).tolist())
            return torch.tensor(record[-1])

    monkeypatch.setitem(typhoon.MASKERS, "random", Recording)
    masks = []
    for corruption in ("mask", "80-10-10"):
        record.clear()
        assert quick(*inputs, "--masker", "random", "--corruption", corruption,
                     "--out", tmp_path / corruption) == 0
        masks.append(list(record))
    assert masks[0] == masks[1] and len(masks[0]) == 3


def test_maskers_of_one_seed_share_head_batches_and_dropout(inputs, tmp_path, monkeypatch):
    """Even one that draws in `begin`, where dropout's stream has not begun."""
    class Drawing(typhoon.RandomMasker):
        def begin(self, inputs, model, steps):
            assert steps == 3 and len(inputs.train.labels) == 48
            torch.rand(7)

    monkeypatch.setitem(typhoon.MASKERS, "random", Drawing)
    seen = {}
    for masker in ("random", "whole-word", "typhoon"):
        record = seen[masker] = []

        def batches(*arguments, original=train.epoch_batches):
            record.append(original(*arguments))
            return record[-1]

        def fine_tune(settings, inputs, classifier, original=train.fine_tune):
            record.append(classifier.classifier.weight.tolist())
            return original(settings, inputs, classifier)

        class Model(models.MaskedLM):
            def forward_selected(self, embeddings, *arguments):
                record.append(torch.get_rng_state().tolist())  # where the dropout stream stands
                return super().forward_selected(embeddings, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(train, "epoch_batches", batches)
            patch.setattr(train, "fine_tune", fine_tune)
            patch.setattr(models, "MaskedLM", Model)
            assert quick(*inputs, "--masker", masker, "--out", tmp_path) == 0
    assert len(seen["random"]) > 6
    assert seen["random"] == seen["whole-word"] == seen["typhoon"]


VARIANTS = ["--objective mae --decoder-layers 1", "--corruption 80-10-10", "--precision bf16",
            "--budget 0.01", "--spread 1", "--mlm-epochs 0", "--clip 0", "--warmup 0.5"]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("extra", VARIANTS)
def test_variants_run_repeat_exactly_and_differ_from_the_default(inputs, tmp_path, extra, device):
    for folder in ("one", "two"):
        assert quick(*inputs, "--device", device, *extra.split(), "--out", tmp_path / folder,
                     "--masker", "whole-word", "typhoon") == 0
    assert logs(tmp_path / "one") == logs(tmp_path / "two")
    assert quick(*inputs, "--device", device, "--out", tmp_path / "plain") == 0
    plain = logs(tmp_path / "plain")[TYPHOON]
    variants = [log for log in logs(tmp_path / "one").values()
                if log["identity"]["masker"] == "typhoon"]
    assert all(log["mlm"] != plain["mlm"] or log["classifier"] != plain["classifier"]
               for log in variants)


class NothingThatCudaRefuses(torch.utils._python_dispatch.TorchDispatchMode):
    """Fails at what torch.use_deterministic_algorithms makes an error on CUDA, as far as a run
    could want it; records the rest. Sums are allowed on the CPU, where a log is described."""

    refused = {"put_", "histc", "median", "kthvalue", "nll_loss2d_forward", "nll_loss2d_backward"}

    def __init__(self):
        super().__init__()
        self.used = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function._schema.name.removeprefix("aten::")
        assert name not in self.refused, name
        assert name != "bincount" or arguments[1] is None, "bincount with weights"
        if name in ("cumsum", "cumprod"):
            assert not arguments[0].is_floating_point(), f"{name} of floats"
        self.used.add(name)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("masker", typhoon.MASKERS)
@pytest.mark.parametrize("objective, spread", [("mlm", 0.4), ("mlm", 1.0), ("mae", 0.4)])
def test_no_operation_that_cuda_refuses_to_do_deterministically(
        inputs, monkeypatch, masker, objective, spread):
    settings, found = read(inputs, masker, mlm_epochs=1, objective=objective, spread=spread,
                           decoder_layers=1)
    described = {"masked_fraction": 0.3, "kl_mean": None, "kl_last": None, "band": None,
                 "notices": []}
    monkeypatch.setattr(train, "describe_masking", lambda *_: described)  # on the CPU
    monkeypatch.setattr(train, "frequent_rates", lambda *_: {})
    classifier = models.Classifier.from_pretrained(found.backbone)
    with NothingThatCudaRefuses() as recorder:
        train.adapt(settings, found, (found.dev.words >= 0) & (found.dev.words % 2 == 0))
        train.fine_tune(settings, found, classifier)
    assert {"embedding_dense_backward", "nll_loss_backward"} <= recorder.used  # both passes
    assert masker != "typhoon" or "index_add" in recorder.used


def test_effective_rank_is_logged_for_three_stages(inputs, tmp_path):
    assert quick(*inputs, "--effective-rank", "--out", tmp_path) == 0
    rows = logs(tmp_path)[TYPHOON]["effective_rank"]
    assert [row["stage"] for row in rows[::4]] == ["before", "adapted", "fine-tuned"]
    assert len(rows) == 12
    for row in rows:
        assert len(row["layers"]) == 3 and all(1 <= rank <= 16 for rank in row["layers"])
    masks = [row["layers"][0] for row in rows if row["tokens"] == "[MASK]"]
    real = [row["layers"][0] for row in rows if row["tokens"] == "real"]
    assert all(mask < other for mask, other in zip(masks, real))  # [MASK]s differ by position only


def test_save_keeps_the_scored_classifier(inputs, tmp_path):
    assert command(*inputs, "--out", tmp_path / "runs", "--save", tmp_path / "kept") == 0
    log = logs(tmp_path / "runs")[TYPHOON]
    classifier = models.Classifier.from_pretrained(tmp_path / "kept" / TYPHOON)
    assert classifier.newly_initialised == []
    settings, found = read([*inputs[:4], "--model", str(tmp_path / "kept" / TYPHOON)])
    best = log["classifier"]["epochs"][log["classifier"]["best_epoch"] - 1]
    scored = train.score(settings, classifier, found.dev, 1)
    assert scored == {key: best[key] for key in scored}


def test_save_is_refused_before_the_first_run_and_does_not_stop_a_command_from_going_on(
        inputs, tmp_path, capsys):
    (tmp_path / "full" / "mrpc-tiny-typhoon-mlm-spread0.4-seed1").mkdir(parents=True)
    arguments = [*inputs, "--out", tmp_path / "runs"]
    assert quick(*arguments, "--save", tmp_path / "full", "--seed", 0, 1) == 2
    assert "is there already" in capsys.readouterr().err and not logs(tmp_path / "runs")
    for _ in range(2):  # the second time, everything is finished
        assert quick(*arguments, "--save", tmp_path / "kept") == 0
    assert "skipped" in capsys.readouterr().out


def test_a_study_says_where_it_is_and_how_long_it_takes(inputs, tmp_path, capsys):
    assert quick(*inputs, "--out", tmp_path, "--seed", 1) == 0
    assert "left" not in capsys.readouterr().out
    assert quick(*inputs, "--out", tmp_path, "--seed", 0, 1, 2) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert [title[:5] for title in titles] == ["[1/3]", "[2/3]", "[3/3]"]
    assert [" left" in title for title in titles] == [False, True, True]


def test_a_reader_that_goes_ends_the_command_quietly(inputs, tmp_path, root):
    """As in `python train.py ... | head -1`."""
    line = f"""'{sys.executable}' '{root / "train.py"}' "$@" | head -1; exit ${{PIPESTATUS[0]}}"""
    arguments = [*inputs, "--seed", "0", "1", "2", "3", "--out", str(tmp_path)]
    done = subprocess.run(["bash", "-c", line, "bash", *arguments], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "" and done.stdout.startswith("[1/4] ")
    assert len(logs(tmp_path)) < 4 and {path.suffix for path in tmp_path.iterdir()} <= {".json"}


# ---- Existing logs ------------------------------------------------------------------------------

def test_a_finished_run_is_skipped_and_another_identity_stops(inputs, tmp_path, capsys):
    assert quick(*inputs, "--out", tmp_path) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert quick(*inputs, "--out", tmp_path) == 0
    assert "exists with the same identity" in capsys.readouterr().out
    assert quick(*inputs, "--out", tmp_path, "--budget", 0.15, "--seed", 1, 0) == 2
    error = capsys.readouterr().err
    assert "another budget (0.3, here 0.15)" in error and error.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_changed_data_backbone_and_a_broken_log_stop(inputs, tmp_path, capsys):
    glue = tiny.write_glue(tmp_path / "glue")
    checkpoint = tiny.write_checkpoint(tmp_path / "tiny")
    arguments = ["--device", "cpu", "--data-dir", glue, "--model", checkpoint,
                 "--out", tmp_path / "runs"]
    assert quick(*arguments) == 0
    tiny.write_glue(glue, dev=15)
    assert quick(*arguments) == 2
    assert "made with another data" in capsys.readouterr().err
    tiny.write_glue(glue)
    shutil.rmtree(checkpoint)
    tiny.write_checkpoint(checkpoint, scale=2)
    assert quick(*arguments) == 2
    assert "made with another backbone" in capsys.readouterr().err
    [path] = (tmp_path / "runs").iterdir()
    for broken in (path.read_bytes()[:100], b"[" * 100_000):
        path.write_bytes(broken)
        assert quick(*arguments) == 2
        assert f"{path}: is no run log" in capsys.readouterr().err


IDEA = '''

STEEPNESS = 2.0


def steep(values):
    return values * STEEPNESS


class IdeaMasker(RandomMasker):
    def rates(self):
        return calibrate(steep(-self.frequency), self.frequency > 0, self.frequency, self.budget, 1)


MASKERS["idea"] = IdeaMasker
'''


def test_the_log_has_the_method_as_it_was_when_the_command_began(inputs, tmp_path, monkeypatch):
    known = iter(["before an edit during the run"])
    monkeypatch.setattr(train, "method_fingerprint", lambda masker: next(known))
    assert quick(*inputs, "--out", tmp_path) == 0
    [log] = logs(tmp_path).values()
    assert log["identity"]["method"] == "before an edit during the run"


@pytest.mark.parametrize("old, new, changed", [
    ("STEEPNESS = 2.0", "STEEPNESS = 3.0", {"idea"}),  # a constant that only the idea uses
    ("* STEEPNESS", "+ STEEPNESS", {"idea"}),  # a function that it uses
    ("class IdeaMasker", "def helper():\n    pass\n\n\nclass IdeaMasker", set()),
    ("import torch\n", "import math\n\nimport torch\n", set()),
    ("capped |= above_1", "capped = capped | above_1", {"idea", "typhoon"}),  # in calibrate
    ("    # With spread 1", "    # Comments and docstrings do not count. With spread 1", set()),
    ("(draw < self.rates()[ids])", "(draw <= self.rates()[ids])", {"idea", "random", "typhoon",
                                                                   "whole-word"}),
    ("(draw < 0.8)", "(draw < 0.7)", {"idea", "random", "typhoon", "whole-word"})])  # in corrupt
def test_the_fingerprint_of_the_method_covers_what_a_masker_uses_and_nothing_else(
        root, tmp_path, monkeypatch, old, new, changed):
    monkeypatch.setattr(typhoon, "__file__", str(tmp_path / "typhoon.py"))
    monkeypatch.setitem(typhoon.MASKERS, "idea", type("IdeaMasker", (), {}))
    source = (root / "typhoon.py").read_text() + IDEA
    assert source.count(old) == 1
    found = []
    for text in (source, source.replace(old, new)):
        (tmp_path / "typhoon.py").write_text(text)
        found.append({name: train.method_fingerprint(name) for name in typhoon.MASKERS})
    assert {name for name in typhoon.MASKERS if found[0][name] != found[1][name]} == changed


# ---- Bad input ----------------------------------------------------------------------------------

BAD_OPTIONS = [
    ("--budget", 0), ("--budget", 1), ("--budget", "nan"), ("--budget", "much"),
    ("--spread", 1.5), ("--spread", -1), ("--ema", 2), ("--seed", -1), ("--seed", 1.5),
    ("--seed", 10 ** 30), ("--mlm-epochs", -1), ("--cls-epochs", 0), ("--mlm-lr", 0),
    ("--cls-lr", "inf"), ("--clip", -1), ("--warmup", 2), ("--batch-size", 0),
    ("--max-length", 3), ("--max-length", 129), ("--decoder-layers", 0), ("--task", "rte"),
    ("--masker",), ("--masker", "rando"), ("--device", "tpu"), ("--objective", "clm"),
    ("--corruption", "90"), ("--precision", "fp8"), ("--sample",), ("--model", "no/such/model"),
    ("--model", "no-such"), ("--data-dir", __file__), ("--out", __file__), ("--save", __file__),
    ("--mask", "random"), ("leftover",),
    ("--corruption", "80-10-10", "--objective", "mae"),
    pytest.param(("--device", "cuda"), marks=pytest.mark.skipif(
        torch.cuda.is_available(), reason="this machine has a CUDA device"))]


@pytest.mark.parametrize("arguments", BAD_OPTIONS, ids=str)
def test_bad_options_end_with_one_sentence(inputs, tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    try:
        code = command(*inputs, *arguments)
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert code == 2 and printed.err.count("\n") == 1, printed
    files = ("--out", "--save", "--data-dir")  # are named by their value
    assert str(arguments[-1] if arguments[0] in files else arguments[0]) in printed.err
    assert not list(tmp_path.rglob("*.json")) and not list(tmp_path.rglob("*.claim"))


def test_two_models_of_one_name_are_refused(inputs, tmp_path, capsys):
    other = tiny.write_checkpoint(tmp_path / "tiny")
    assert command(*inputs, other, "--out", tmp_path / "runs") == 2
    assert "one name" in capsys.readouterr().err


def test_a_loss_that_overflows_fails_its_run_alone(inputs, tmp_path, capsys):
    huge = tiny.write_checkpoint(tmp_path / "huge", scale=1e25)
    for stage, epochs in (("MLM", 1), ("classifier", 0)):
        assert command(*inputs[:4], "--model", huge, inputs[5], "--mlm-epochs", epochs,
                       "--cls-epochs", 1, "--out", tmp_path / stage) == 1
        error = capsys.readouterr().err
        assert f"the {stage} loss is NaN or infinite in epoch 1" in error
        assert error.count("\n") == 1
        assert os.listdir(tmp_path / stage) == [f"{TYPHOON}.json"]
    out = tmp_path / "rank"
    assert command(*inputs[:4], "--model", huge, "--effective-rank", "--out", out) == 1
    assert "hidden states are NaN" in capsys.readouterr().err and not os.listdir(out)


def test_a_collapsed_classifier_is_named(capsys, tmp_path):
    epoch = {"epoch": 1, "accuracy": 0.684, "f1": 0.812, "matthews": 0.0}
    log = {"run": "mrpc-tiny-random-mlm-seed0", "sample": False, "seconds": 1.0,
           "classifier": {"epochs": [epoch], "best_epoch": 1, "last_epoch": 1}}
    train.print_result(log, tmp_path)
    assert "[COLLAPSED: Matthews is 0]" in capsys.readouterr().out


# ---- The sample ---------------------------------------------------------------------------------

def test_only_the_bare_command_falls_back_to_the_sample_and_says_so(tmp_path, capsys, monkeypatch):
    for name in ("TYPHOON_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shortly = ["--out", tmp_path / "runs", "--mlm-epochs", 0, "--cls-epochs", 1, "--max-length", 32]
    for named in (["--task", "mrpc"], ["--model", "tinybert"], ["--data-dir", tmp_path / "none"]):
        assert command(*named, *shortly) == 2
        printed = capsys.readouterr()
        assert "NOTICE" not in printed.out and printed.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()

    assert command(*shortly) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("NOTICE: ") and "HF_HUB_OFFLINE" in printed[0]  # at the start
    assert "SAMPLE" in printed[-1]  # at the end
    log = logs(tmp_path / "runs")["mrpc-sample-typhoon-mlm-spread0.4-seed0"]
    assert log["sample"]  # in the log

    assert command("--sample", "--task", "cola", *shortly) == 0
    assert command("--data-dir", train.SAMPLE, "--model", train.SAMPLE / "bert", *shortly) == 0
    found = logs(tmp_path / "runs")
    assert found["cola-sample-typhoon-mlm-spread0.4-seed0"]["sample"]
    assert found["mrpc-bert-typhoon-mlm-spread0.4-seed0"]["sample"]  # by its path


def test_help_says_each_option_with_its_default():
    text = subprocess.run([sys.executable, train.__file__, "--help"], capture_output=True,
                          text=True, check=True).stdout
    options = vars(train.parse_arguments([]))
    assert all(f"--{option.replace('_', '-')}" in text for option in options)
