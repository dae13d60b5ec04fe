"""The two stages, the command line and the run log, on a tiny model and a few sentences."""
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import models
import tiny
import train
import typhoon


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The options that name the tiny data and model, and the CPU."""
    folder = tmp_path_factory.mktemp("inputs")
    return ["--device", "cpu", "--data-dir", str(tiny.write_glue(folder / "glue")),
            "--model", str(tiny.write_checkpoint(folder / "tiny"))]


def command(*arguments) -> int:
    return train.command(train.parse_arguments([str(argument) for argument in arguments]))


def logs(directory) -> dict[str, dict]:
    """Every log in the directory, less its times."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
    for log in found.values():
        log.pop("seconds")
    return found


# ---- The saliency of the real models ---------------------------------------------------------------------------------

@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_saliency_is_the_gradient_at_a_literal_one_hot_input(model_type):
    torch.manual_seed(0)
    model = models.MaskedLM(tiny.config(model_type)).double().eval()
    size = model.config.vocab_size
    ids, segments = torch.randint(5, size, (3, 9)), torch.zeros(3, 9, dtype=torch.long)
    segments[:, 5:], attention_mask = 1, torch.ones(3, 9, dtype=torch.bool)
    attention_mask[2, 7:], selected = False, torch.rand(3, 9) < 0.4
    selected &= attention_mask
    weight = model.encoder.word_embeddings.weight
    one_hot = F.one_hot(ids.masked_fill(selected, 4), size).double().requires_grad_()  # (B, T, V)
    # The tied output embedding is not part of the input path: one_hot is differentiated, E is not.
    embeddings = one_hot @ weight
    embeddings.retain_grad()
    logits = model.forward_selected(embeddings, segments, attention_mask, selected)
    F.cross_entropy(logits, ids[selected]).backward()
    literal = one_hot.grad.gather(2, ids[..., None])[..., 0]
    assert literal.abs().max() > 1e-6
    torch.testing.assert_close(typhoon.one_hot_saliency(embeddings.grad, weight, ids), literal, rtol=1e-12, atol=1e-18)


def test_selected_positions_head_gives_the_loss_and_gradients_of_the_full_head():
    torch.manual_seed(0)
    model, size = models.MaskedLM(tiny.config()).eval(), tiny.config().vocab_size
    ids, segments = torch.randint(5, size, (3, 9)), torch.zeros(3, 9, dtype=torch.long)
    attention_mask, selected = torch.ones(3, 9, dtype=torch.bool), torch.rand(3, 9) < 0.4
    corrupted, results = ids.masked_fill(selected, 4), []
    for full in (True, False):
        model.zero_grad()
        if full:
            logits = model(corrupted, segments, attention_mask)  # (B, T, V)
            loss = F.cross_entropy(logits.transpose(1, 2), ids.masked_fill(~selected, -100))
        else:
            logits = model.forward_selected(model.encoder.embed_words(corrupted), segments, attention_mask, selected)
            loss = F.cross_entropy(logits, ids[selected])
        loss.backward()
        results.append([loss.detach()] + [p.grad for p in model.parameters() if p.grad is not None])
    assert len(results[0]) > 30
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-8)


# ---- Runs and their logs ---------------------------------------------------------------------------------------------

def test_a_run_writes_one_whole_log(inputs, tmp_path, capsys):
    assert command(*inputs, "--out", tmp_path, "--seed", 3, "--mlm-epochs", 3, "--cls-epochs", 2) == 0
    assert os.listdir(tmp_path) == ["mrpc-tiny-typhoon-mlm-spread0.4-seed3.json"]
    [log] = logs(tmp_path).values()
    assert log["configuration"] == {
        "task": "mrpc", "model": "tiny", "masker": "typhoon", "objective": "mlm", "spread": 0.4, "seed": 3, "budget": 0.3,
        "ema": 0.8, "corruption": "mask", "mlm_epochs": 3, "mlm_lr": 1e-4, "cls_epochs": 2, "cls_lr": 5e-5,
        "batch_size": 16, "max_length": 128, "decoder_layers": None, "device": "cpu", "precision": "fp32",
        "effective_rank": False}
    assert log["data"]["source"] == "directory" and not log["sample"]
    assert (log["data"]["train_examples"], log["data"]["dev_examples"]) == (48, 16)
    assert set(log["data"]["files"]) == {"MRPC/train.tsv", "MRPC/dev.tsv"}
    assert set(log["backbone"]["files"]) == {"config.json", "vocab.txt", "model.safetensors"}
    assert [epoch["epoch"] for epoch in log["mlm"]["epochs"]] == [1, 2, 3]
    dev_losses = [epoch["dev_loss"] for epoch in log["mlm"]["epochs"]]
    assert dev_losses.index(min(dev_losses)) + 1 == log["mlm"]["best_epoch"]
    for epoch in log["mlm"]["epochs"]:
        assert abs(epoch["masked_fraction"] - 0.3) < 0.06 and 0 < epoch["kl_per_token"] < 0.1
    rates = [entry["rate"] for entry in log["mlm"]["highest_rates"]]
    assert len(rates) == 10 and rates == sorted(rates, reverse=True)
    assert log["mlm"]["lowest_rates"][0]["rate"] < 0.3 < rates[0]
    assert not any(entry["token"].startswith("[") for entry in log["mlm"]["highest_rates"])  # those never occur
    accuracies = [epoch["accuracy"] for epoch in log["classifier"]["epochs"]]
    assert accuracies.index(max(accuracies)) + 1 == log["classifier"]["best_epoch"]
    printed = capsys.readouterr()
    assert printed.err == "" and printed.out.count("  mlm ") == 3 and printed.out.count("  classifier ") == 2
    assert printed.out.splitlines()[-1].startswith("result mrpc-tiny-typhoon-mlm-spread0.4-seed3: accuracy ")


def test_the_runs_are_the_product_and_do_not_depend_on_each_other(inputs, tmp_path):
    assert command(*inputs, "--out", tmp_path / "grid", "--task", "mrpc", "cola", "--masker", "typhoon", "random",
                   "--seed", 1, 0, 1, "--spread", 0.4, 0.9) == 0
    grid = logs(tmp_path / "grid")
    assert len(grid) == 2 * 2 * 2 * 2
    assert command(*inputs, "--out", tmp_path / "alone", "--task", "cola", "--spread", 0.9, "--seed", 1) == 0
    [(name, alone)] = logs(tmp_path / "alone").items()
    assert alone == grid[name]
    kl = [grid[f"mrpc-tiny-typhoon-mlm-spread{spread}-seed0"]["mlm"]["epochs"][0]["kl_per_token"] for spread in (0.4, 0.9)]
    assert kl[0] < kl[1]


def test_a_log_does_not_depend_on_process_hash_seed_or_working_directory(inputs, tmp_path, root):
    subprocess.run([sys.executable, root / "train.py", *inputs, "--out", "elsewhere"], cwd=tmp_path, check=True,
                   env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True)
    assert command(*inputs, "--out", tmp_path / "here") == 0
    assert logs(tmp_path / "elsewhere") == logs(tmp_path / "here") and len(logs(tmp_path / "here")) == 1


def test_maskers_of_one_seed_share_head_batches_and_dropout(inputs, tmp_path, monkeypatch):
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
            assert command(*inputs, "--masker", masker, "--out", tmp_path) == 0
    assert len(seen["random"]) > 8
    assert seen["random"] == seen["whole-word"] == seen["typhoon"]


class RareWordMasker(typhoon.RandomMasker):
    """Masks rare types more often."""

    def rates(self):
        return typhoon.calibrate(-self.frequency, self.frequency > 0, self.frequency, self.budget, self.spread)


def test_a_new_masker_is_one_class_of_typhoon_py(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(typhoon, "RareWordMasker", RareWordMasker, raising=False)
    assert command(*inputs, "--masker", "rare-word", "random", "--out", tmp_path) == 0
    rare, random = (logs(tmp_path)[f"mrpc-tiny-{name}-mlm-spread0.4-seed0"] for name in ("rare-word", "random"))
    assert rare["mlm"]["epochs"][0]["kl_per_token"] > 1e-4 and abs(random["mlm"]["epochs"][0]["kl_per_token"]) < 1e-12
    assert rare["mlm"]["epochs"][0]["train_loss"] != random["mlm"]["epochs"][0]["train_loss"]


def test_an_edited_masker_is_another_run(inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(typhoon, "RareWordMasker", RareWordMasker, raising=False)
    assert command(*inputs, "--masker", "rare-word", "--out", tmp_path) == 0
    with monkeypatch.context() as patch:  # another masker is none of its concern, a function of the method is
        patch.setattr(typhoon, "OtherMasker", type("OtherMasker", (typhoon.RandomMasker,), {}), raising=False)
        assert command(*inputs, "--masker", "rare-word", "--out", tmp_path) == 0
        patch.setattr(typhoon, "one_hot_saliency", lambda gradient, weight, ids: (weight[ids] * gradient).sum(-1))
        assert command(*inputs, "--masker", "rare-word", "--out", tmp_path) == 2
        assert "with other code of rare-word" in capsys.readouterr().err

    class Edited(typhoon.TyphoonMasker):
        """Masks what its name no longer says."""

    monkeypatch.setattr(typhoon, "RareWordMasker", Edited)
    assert command(*inputs, "--masker", "rare-word", "--out", tmp_path) == 2
    assert "with other code of rare-word" in capsys.readouterr().err


def test_the_masker_keeps_no_graph(inputs, tmp_path, monkeypatch):
    kept = []

    class KeptMasker(typhoon.TyphoonMasker):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            kept.append(self)

    monkeypatch.setattr(typhoon, "KeptMasker", KeptMasker, raising=False)
    assert command(*inputs, "--masker", "kept", "--out", tmp_path) == 0
    assert kept[0].seen.any() and not kept[0].scores.requires_grad


CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"))


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("extra", [["--objective", "mae", "--decoder-layers", 1], ["--corruption", "80-10-10"],
                                   ["--precision", "bf16"], ["--budget", 0.01], ["--spread", 1], ["--mlm-epochs", 0]])
def test_variants_run_and_repeat_exactly(inputs, tmp_path, extra, device):
    inputs = [*inputs, "--device", device]
    for folder in ("one", "two"):
        assert command(*inputs, *extra, "--out", tmp_path / folder, "--masker", "whole-word", "typhoon") == 0
    assert logs(tmp_path / "one") == logs(tmp_path / "two")
    assert command(*inputs, "--out", tmp_path / "plain", "--masker", "typhoon") == 0
    name = next(iter(logs(tmp_path / "plain")))
    assert logs(tmp_path / "plain")[name]["mlm"] != logs(tmp_path / "one").get(name, {"mlm": None})["mlm"]


@pytest.mark.parametrize("extra", [["--spread", 0.4, 1], ["--objective", "mae", "--effective-rank"]])
def test_no_operation_that_cuda_refuses_to_do_deterministically(inputs, tmp_path, extra):
    """Of the operations that torch.use_deterministic_algorithms makes an error on CUDA, those that a run could want."""
    always = {"put_", "histc", "median", "kthvalue", "nll_loss2d_forward", "nll_loss2d_backward"}
    used = set()

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            name = function._schema.name.removeprefix("aten::")
            assert name not in always, name
            assert name != "bincount" or arguments[1] is None, "bincount with weights"
            assert name not in ("cumsum", "cumprod") or not arguments[0].is_floating_point(), f"{name} of floats"
            used.add(name)
            return function(*arguments, **(options or {}))

    with Recorder():
        assert command(*inputs, *extra, "--masker", "random", "whole-word", "typhoon", "--out", tmp_path) == 0
    assert {"index_add_", "embedding_dense_backward", "nll_loss_backward", "cummax"} <= used  # it saw both passes


def test_effective_rank_is_logged_for_three_stages(inputs, tmp_path):
    assert command(*inputs, "--effective-rank", "--out", tmp_path) == 0
    [log] = logs(tmp_path).values()
    rows = log["effective_rank"]
    assert [row["stage"] for row in rows[::4]] == ["before", "adapted", "fine-tuned"] and len(rows) == 12
    for row in rows:
        assert len(row["layers"]) == 3 and all(1 <= rank <= 16 for rank in row["layers"])
    masks = [row["layers"][0] for row in rows if row["tokens"] == "[MASK]"]
    reals = [row["layers"][0] for row in rows if row["tokens"] == "real"]
    assert all(mask < real for mask, real in zip(masks, reals))  # [MASK] embeddings differ by position only


def test_effective_rank_by_batches_equals_the_definition_by_svd(inputs):
    options = train.parse_arguments(inputs)
    read = train.read_inputs("mrpc", train.Path(options.data_dir), train.Path(options.model[0]), "directory", 64, "cpu")
    encoder = models.Classifier.from_pretrained(read.backbone).eval().encoder
    selected = typhoon.RandomMasker(read.frequency, 0.3, 0, 0).select(read.dev.ids, read.dev.words,
                                                                       torch.Generator().manual_seed(0))
    attention_mask = torch.arange(read.dev.ids.shape[1]) < torch.tensor(read.dev.lengths)[:, None]
    measured = {(row["input"], row["tokens"]): row["layers"]
                for row in train.measure_effective_rank(encoder, read, selected, "before")}
    for name, ids in (("masked", read.dev.ids.masked_fill(selected, 4)), ("unmasked", read.dev.ids)):
        with torch.no_grad():
            layers = encoder(encoder.embed_words(ids), read.dev.segments, attention_mask, all_layers=True)
        for tokens, where in {"all": attention_mask, "real": attention_mask & ~selected, "[MASK]": selected}.items():
            if (name, tokens) in measured:
                energy = [torch.linalg.svdvals(hidden[where].double()).square() for hidden in layers]
                ranks = [int((e.cumsum(0) / e.sum() < 0.9 - 1e-12).sum()) + 1 for e in energy]
                assert ranks == measured.pop((name, tokens))
    assert not measured


def test_save_keeps_the_scored_classifier(inputs, tmp_path):
    assert command(*inputs, "--out", tmp_path / "runs", "--save", tmp_path / "kept", "--cls-epochs", 2) == 0
    [log] = logs(tmp_path / "runs").values()
    classifier = models.Classifier.from_pretrained(tmp_path / "kept")
    assert classifier.newly_initialised == []
    options = train.parse_arguments(inputs)
    read = train.read_inputs("mrpc", train.Path(options.data_dir), tmp_path / "kept", "directory", 128, "cpu")
    best = log["classifier"]["epochs"][log["classifier"]["best_epoch"] - 1]
    scored = train.score(train.Namespace(device="cpu", precision="fp32"), classifier, read.dev, 1)
    assert scored == {key: best[key] for key in scored}


def test_save_is_refused_before_the_first_run_and_says_what_a_skipped_run_does_not_save(inputs, tmp_path, capsys):
    (tmp_path / "full" / "mrpc-tiny-typhoon-mlm-spread0.4-seed1").mkdir(parents=True)
    (tmp_path / "full" / "mrpc-tiny-typhoon-mlm-spread0.4-seed1" / "note").write_text("mine")
    assert command(*inputs, "--out", tmp_path / "runs", "--save", tmp_path / "full", "--seed", 0, 1) == 2
    printed = capsys.readouterr()
    assert "seed1" in printed.err and printed.err.count("\n") == 1 and not (tmp_path / "runs").exists()
    assert command(*inputs, "--out", tmp_path / "runs") == 0
    assert command(*inputs, "--out", tmp_path / "runs", "--save", tmp_path / "kept") == 0
    assert f"{tmp_path / 'kept'} gets nothing of it" in capsys.readouterr().out


# ---- Existing logs ---------------------------------------------------------------------------------------------------

def test_a_finished_run_is_skipped_and_another_configuration_stops(inputs, tmp_path, capsys):
    assert command(*inputs, "--out", tmp_path) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert command(*inputs, "--out", tmp_path) == 0
    assert "exists with the same configuration, skipped" in capsys.readouterr().out
    assert command(*inputs, "--out", tmp_path, "--budget", 0.15, "--seed", 1, 0) == 2
    error = capsys.readouterr().err
    assert "--budget 0.3" in error and "0.15" in error and error.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_changed_data_and_a_broken_log_stop(inputs, tmp_path, capsys):
    glue = tiny.write_glue(tmp_path / "glue")
    assert command(*inputs, "--data-dir", glue, "--out", tmp_path / "runs") == 0
    tiny.write_glue(glue, dev=15)
    assert command(*inputs, "--data-dir", glue, "--out", tmp_path / "runs") == 2
    assert "with other data files" in capsys.readouterr().err
    [path] = (tmp_path / "runs").iterdir()
    for broken in (path.read_bytes()[:100], b"[" * 100_000):
        path.write_bytes(broken)
        assert command(*inputs, "--data-dir", glue, "--out", tmp_path / "runs") == 2
        assert f"{path} is not a run log" in capsys.readouterr().err


# ---- Bad input -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments, named", [
    (["--budget", 0], "--budget"), (["--budget", 1], "--budget"), (["--budget", "nan"], "--budget"),
    (["--budget", "much"], "--budget"), (["--spread", 1.5], "--spread"), (["--spread", -1], "--spread"),
    (["--ema", 2], "--ema"), (["--seed", -1], "--seed"), (["--seed", 1.5], "--seed"), (["--seed", 10 ** 30], "--seed"),
    (["--mlm-epochs", -1], "--mlm-epochs"), (["--cls-epochs", 0], "--cls-epochs"), (["--mlm-lr", 0], "--mlm-lr"),
    (["--cls-lr", "inf"], "--cls-lr"), (["--batch-size", 0], "--batch-size"), (["--max-length", 3], "--max-length"),
    (["--out", ""], "--out"), (["--save", ""], "--save"), (["--data-dir", ""], "--data-dir"), (["--model", "a\nb"], "--model"),
    (["--decoder-layers", 0], "--decoder-layers"), (["--decoder-layers", 1000], "--decoder-layers"), (["--task", "rte"], "--task"), (["--masker"], "--masker"),
    (["--masker", "rando"], "--masker rando"), (["--masker", "Random"], "--masker Random"), (["--device", "tpu"], "--device"),
    (["--objective", "clm"], "--objective"), (["--corruption", "90"], "--corruption"), (["--precision", "fp8"], "--precision"),
    (["--objective", "mae", "--corruption", "80-10-10"], "--corruption"), (["--sample"], "--sample"),
    (["--max-length", 129], "--max-length 129"), (["--model", "no/such"], "--model no/such"), (["--mask", "random"], "--mask"),
    (["--data-dir", __file__], "test_train.py"), (["--out", __file__], "test_train.py"),
    (["--out", "/proc/none"], "/proc/none"), (["--save", __file__], "test_train.py"), (["leftover"], "leftover"),
    pytest.param(["--device", "cuda"], "--device cuda",
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device"))])
def test_bad_options_end_with_one_sentence(inputs, tmp_path, capsys, monkeypatch, arguments, named):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    try:
        code = command(*inputs, *arguments)
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    assert code == 2 and printed.err.count("\n") == 1 and named in printed.err, printed
    assert not list(tmp_path.rglob("*.json")) and not list(tmp_path.rglob("*.claim"))


@pytest.mark.parametrize("save", ["runs", ".", "..", "tiny", "to-tiny", "loop"])
def test_save_never_takes_the_place_of_what_the_command_uses(inputs, tmp_path, capsys, monkeypatch, save):
    tiny.write_checkpoint(tmp_path / "work" / "tiny")
    (tmp_path / "work" / "to-tiny").symlink_to("tiny")
    (tmp_path / "work" / "loop").symlink_to("loop")
    (tmp_path / "work" / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "work" / ("empty" if save in (".", "..") else ""))
    before = sorted(tmp_path.rglob("*"))
    assert command(*inputs[:4], "--model", tmp_path / "work" / "tiny", "--out",
                   tmp_path / "runs" if save in (".", "..") else "runs", "--save", save) == 2
    error = capsys.readouterr().err
    assert "give another directory" in error and error.count("\n") == 1 and sorted(tmp_path.rglob("*")) == before


def test_a_damaged_second_model_and_spreads_of_one_name_stop_before_the_first_run(inputs, tmp_path, capsys):
    other = tiny.write_checkpoint(tmp_path / "other")
    (other / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes()[:-1])
    assert command(*inputs, other, "--out", tmp_path / "runs") == 2
    assert "model.safetensors" in capsys.readouterr().err
    assert command(*inputs, "--spread", 0.4, 0.40000001, "--out", tmp_path / "runs") == 2
    assert "--spread" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_two_models_of_one_name_are_refused(inputs, tmp_path, capsys):
    other = tiny.write_checkpoint(tmp_path / "tiny")
    assert command(*inputs, other, "--out", tmp_path / "runs") == 2
    assert "'tiny'" in capsys.readouterr().err


def test_a_loss_that_overflows_fails_its_run_alone(inputs, tmp_path, capsys):
    huge = tiny.write_checkpoint(tmp_path / "huge", scale=1e25)
    for stage, epochs in (("MLM", 1), ("classifier", 0)):
        assert command(*inputs[:4], "--model", huge, inputs[5], "--out", tmp_path / stage, "--mlm-epochs", epochs) == 1
        error = capsys.readouterr().err
        assert f"the {stage} loss is nan at epoch 1, step 1" in error and error.count("\n") == 1
        assert os.listdir(tmp_path / stage) == ["mrpc-tiny-typhoon-mlm-spread0.4-seed0.json"]
    assert command(*inputs[:4], "--model", huge, "--effective-rank", "--out", tmp_path / "rank") == 1
    assert "hidden states of the stage 'before' are NaN" in capsys.readouterr().err and not os.listdir(tmp_path / "rank")


# ---- The sample ------------------------------------------------------------------------------------------------------

QUICK = ["--mlm-epochs", "0", "--cls-epochs", "1", "--max-length", "32"]


def test_only_the_bare_command_falls_back_to_the_sample_and_says_so(tmp_path, capsys, monkeypatch):
    for name in ("TYPHOON_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for named in (["--task", "mrpc"], ["--model", "tinybert"], ["--data-dir", tmp_path / "none"]):
        assert command(*named, "--out", tmp_path / "runs", *QUICK) == 2
        printed = capsys.readouterr()
        assert "NOTICE" not in printed.out and printed.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    assert command("--out", tmp_path / "runs", *QUICK) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("NOTICE: ") and "HF_HUB_OFFLINE" in printed[0] and "SAMPLE" in printed[-1]
    [(name, log)] = logs(tmp_path / "runs").items()
    assert log["sample"] and log["data"]["source"] == "sample" and name == "mrpc-sample-typhoon-mlm-spread0.4-seed0"
    assert command("--sample", "--task", "cola", "--out", tmp_path / "runs", *QUICK) == 0
    assert "cola-sample-typhoon-mlm-spread0.4-seed0" in logs(tmp_path / "runs")
    assert command("--data-dir", train.SAMPLE, "--model", train.SAMPLE / "bert", "--out", tmp_path / "runs", *QUICK) == 0
    assert logs(tmp_path / "runs")["mrpc-bert-typhoon-mlm-spread0.4-seed0"]["sample"]  # by its path, it is the sample too


def test_help_names_every_option_and_default_without_importing_torch(root):
    done = subprocess.run([sys.executable, "-X", "importtime", root / "train.py", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and " torch" not in done.stderr
    assert done.stdout.count("(default") >= 23
