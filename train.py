"""Train and score: adapt a pretrained backbone by masked language modelling, fine-tune it, score it on GLUE's dev split.

    python train.py --masker typhoon --seed 3

One run is two stages on one task [A]: `adapt` trains the backbone as a masked language model on the task's own
training sentences, under one masker; `fine_tune` trains it as a classifier on the same sentences. `run` puts them
together, and `main` takes the product of tasks, models, maskers, spreads and seeds and leaves one JSON log a run.

Pairing [D]: every purpose (head, order, dropout, masks) has a stream of random numbers of its own, so that runs of one
seed which differ only in the masker start from the same weights and see the same batches in the same order.
Sources of rules: [A] the paper's abstract, [C] its authors' 2023 code, [D] our decision.
"""
from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from pathlib import Path


# ---- The command line ------------------------------------------------------------------------------------------------

def number(kind: type, low: float, high: float = float("inf"), inside: bool = False):
    """An argparse type: an int or a float from low to high, or strictly inside (low, high)."""
    def parse(text: str):
        value = kind(text)
        if not (low < value < high if inside else low <= value <= high):
            bounds = f"between {low} and {high}" if inside else f"from {low} to {high}" if high < 9e9 else f"from {low} up"
            raise argparse.ArgumentTypeError(f"{text} is out of range, give a number {bounds}")
        return value
    parse.__name__ = "whole number" if kind is int else "number"  # argparse puts it into "invalid number value: 'x'"
    return parse


def place(text: str) -> str:
    """An argparse type: a file name, which logs and messages can hold too. "$UNSET" must not mean this directory."""
    if not text or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!a} is no name of printable characters, give one")
    return text


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    whole, rate = number(int, 1), number(float, 0, 1, inside=True)
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__.split("\n")[0], allow_abbrev=False,
                                     formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, 28, 110))
    parser.error = lambda message: parser.exit(2, f"train.py: {' '.join(message.split())}; see python train.py --help\n")
    add = parser.add_argument_group("axes (one or more values each; the runs are their product)").add_argument
    add("--task", nargs="+", choices=["mrpc", "cola"], help="GLUE's task (default: mrpc)")
    add("--model", nargs="+", type=place, metavar="M", help="tinybert, distilbert, bert-base, or a directory in the "
        "Hugging Face layout (default: tinybert)")
    add("--masker", nargs="+", default=["typhoon"], metavar="M", help="random, whole-word, typhoon, or another ...Masker "
        "class of typhoon.py (default: typhoon)")
    add("--seed", nargs="+", type=number(int, 0, 2 ** 63), default=[0], metavar="N", help="of all that is drawn: heads, "
        "order, dropout, masks (default: 0)")
    add("--spread", nargs="+", type=number(float, 0, 1), default=[0.4], metavar="X", help="how far calibration pulls "
        "masking rates apart, from 0 to 1 (default: 0.4)")
    add = parser.add_argument_group("files").add_argument
    add("--data-dir", type=place, metavar="DIR", help="GLUE directory, with MRPC/ and CoLA/; a task that it lacks is "
        "downloaded into it (default: a cache of our own, filled in the same way)")
    add("--sample", action="store_true", help="use the made-up data and tiny model of tests/sample (default: only when "
        "the real ones cannot be had and none was named)")
    add("--out", type=place, default="runs", metavar="DIR", help="where the run logs go (default: runs)")
    add("--save", type=place, metavar="DIR", help="keep the fine-tuned classifier there, in the Hugging Face layout, in "
        "the place of an earlier one; one folder a run if there are several (default: not kept)")
    add = parser.add_argument_group("masking").add_argument
    add("--budget", type=rate, default=0.3, metavar="P", help="fraction of maskable tokens to select (default: 0.3)")
    add("--ema", type=number(float, 0, 1), default=0.8, metavar="A", help="weight of the newest score, not of the old "
        "ones, in Typhoon's moving average (default: 0.8)")
    add("--corruption", choices=["mask", "80-10-10"], default="mask", help="selected positions become [MASK], or 80%% of "
        "them, while 10%% become a random token and 10%% stay (default: mask)")
    add = parser.add_argument_group("the two stages").add_argument
    add("--objective", choices=["mlm", "mae"], default="mlm", help="mae is MAE-LM: the encoder never sees the selected "
        "positions (default: mlm)")
    add("--decoder-layers", type=number(int, 1, 100), default=4, metavar="N", help="of MAE-LM's decoder (default: 4)")
    add("--mlm-epochs", type=number(int, 0, 10 ** 6), default=3, metavar="N", help="of adaptation; 0 leaves it out "
        "(default: 3)")
    add("--mlm-lr", type=rate, default=1e-4, metavar="LR", help="learning rate of adaptation (default: 1e-4)")
    add("--cls-epochs", type=number(int, 1, 10 ** 6), default=3, metavar="N", help="of fine-tuning (default: 3)")
    add("--cls-lr", type=rate, default=5e-5, metavar="LR", help="learning rate of fine-tuning (default: 5e-5)")
    add("--clip", type=number(float, 0), default=1.0, metavar="X", help="largest norm of the gradients of a step, in both; "
        "0 for no clipping (default: 1.0)")
    add("--warmup", type=number(float, 0, 1), default=0.0, metavar="X", help="fraction of the steps in which the learning "
        "rate rises, in both (default: 0.0)")
    add("--batch-size", type=whole, default=16, metavar="N", help="sentences or pairs a step, in both (default: 16)")
    add("--max-length", type=number(int, 4), default=128, metavar="N", help="of a sequence, in pieces (default: 128)")
    add("--effective-rank", action="store_true", help="log the effective rank of every layer before adaptation, after "
        "it, and after fine-tuning (default: no)")
    add = parser.add_argument_group("machine").add_argument
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="(default: auto, CUDA if there is one)")
    add("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16 is autocast, for CUDA or a CPU with "
        "bfloat16 (default: fp32)")
    options = parser.parse_args(arguments)
    if options.sample and (options.data_dir or options.model):
        parser.error("--sample brings its own data and model: leave out --data-dir and --model")
    if options.objective == "mae" and options.corruption != "mask":
        parser.error("--corruption 80-10-10 means nothing with --objective mae, which leaves selected positions out")
    return options


def stop(signal_number: int, frame) -> None:
    """Ctrl-C and SIGTERM end with one line; unwinding gives the claim of the unfinished run back."""
    print(f"\ntrain.py: stopped by {signal.Signals(signal_number).name}; finished runs are kept, and the same command "
          "goes on from there", file=sys.stderr)
    raise SystemExit(128 + signal_number)


if __name__ == "__main__":  # before torch is imported, so that --help, a mistyped option and Ctrl-C are answered at once
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    OPTIONS = parse_arguments()

import ctypes
import fcntl
import hashlib
import inspect
import io
import json
import math
import platform
import re
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

import glue_data
import models
import typhoon
from glue_data import TASKS, EncodedSplit, Tokenizer, UserError, epoch_batches
from stats import effective_rank_of_second_moment

SAMPLE = Path(__file__).resolve().parent / "tests" / "sample"
EVALUATION_BATCH = 64


class RunFailed(RuntimeError):
    """The numbers of one run went wrong. The other runs of the command go on; the exit code says that one failed."""


@dataclass
class Inputs:
    """What a run reads: one task, tokenised for one backbone, on the run's device."""
    backbone: Path
    tokenizer: Tokenizer
    train: EncodedSplit
    dev: EncodedSplit
    frequency: Tensor  # (V,) of each token type among the maskable training tokens
    data_record: dict  # for the log: source, sizes, fingerprints
    backbone_record: dict


# ---- The two stages --------------------------------------------------------------------------------------------------

def stream(seed: int, purpose: str) -> int:
    """A random seed for one purpose, so that draws of one kind never shift the draws of another."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:7], "big")


def optimiser_and_schedule(model: torch.nn.Module, learning_rate: float, steps: int, warmup: float):
    """AdamW, weight decay 0.01 but on biases and LayerNorm, the learning rate falling linearly to 0 after warm-up [C]."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimiser = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=learning_rate, fused=True)
    rising = math.ceil(warmup * steps)
    return optimiser, torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: step / rising if step < rising else (steps - step) / max(steps - rising, 1))


def clip(settings: Namespace, model: torch.nn.Module) -> None:
    """Scale the gradients down to --clip where their norm is larger [C]."""
    if settings.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)


def autocast(settings: Namespace) -> torch.autocast:
    return torch.autocast(settings.device, torch.bfloat16, enabled=settings.precision == "bf16")


def finite(losses: list[Tensor], stage: str, epoch: int) -> Tensor:
    """An epoch's losses (steps,), fetched from the device in one go. RunFailed where one is NaN or infinite."""
    fetched = torch.stack(losses).double().cpu()
    broken = (~fetched.isfinite()).nonzero().flatten().tolist()
    if broken:
        raise RunFailed(f"the {stage} loss is {fetched[broken[0]]:g} at epoch {epoch}, step {broken[0] + 1} of "
                        f"{len(fetched)}; try a lower learning rate")
    return fetched


def adapt(settings: Namespace, inputs: Inputs, dev_selected: Tensor) -> tuple[dict, dict]:
    """Stage 1: masked language modelling (or MAE-LM) on the task's training sentences, under one masker.

    dev_selected (N, T) bool: the dev positions to predict, the same for every epoch and masker.
    Returns the encoder's weights after the epoch with the lowest dev loss [C], and the log's record of the stage.
    """
    device = inputs.train.ids.device
    torch.manual_seed(stream(settings.seed, "MLM head"))
    model = (models.MAELM.from_pretrained(inputs.backbone, settings.decoder_layers) if settings.objective == "mae"
             else models.MaskedLM.from_pretrained(inputs.backbone)).to(device)
    masker = typhoon.maskers()[settings.masker](inputs.frequency, settings.budget, settings.spread, settings.ema)
    order = torch.Generator().manual_seed(stream(settings.seed, "MLM order"))
    masks = torch.Generator(device).manual_seed(stream(settings.seed, "masks"))
    dev_masks = torch.Generator(device).manual_seed(stream(settings.seed, "dev corruption"))
    torch.manual_seed(stream(settings.seed, "MLM dropout"))

    def corrupt(ids: Tensor, selected: Tensor, generator: torch.Generator) -> Tensor:
        return typhoon.corrupt(ids, selected, inputs.tokenizer.mask_id, len(inputs.frequency), settings.corruption,
                               generator)

    dev_corrupted = corrupt(inputs.dev.ids, dev_selected, dev_masks)
    steps = settings.mlm_epochs * len(epoch_batches(inputs.train.lengths, settings.batch_size, None))
    optimiser, schedule = optimiser_and_schedule(model, settings.mlm_lr, steps, settings.warmup)
    embedding_weight = model.encoder.word_embeddings.weight.detach()  # detached: a masker's state must hold no graph
    history, best, encoder_weights = [], None, None
    for epoch in range(1, settings.mlm_epochs + 1):
        started, losses, counts = time.perf_counter(), [], []
        model.train()
        batches = epoch_batches(inputs.train.lengths, settings.batch_size, order)
        for rows in tqdm(batches, f"mlm {epoch}/{settings.mlm_epochs}", disable=None, leave=False):
            batch = inputs.train.batch(rows)
            selected = masker.select(batch.ids, batch.words, masks)  # (B, T)
            with autocast(settings):
                embeddings = model.encoder.embed_words(corrupt(batch.ids, selected, masks))  # (B, T, H)
                embeddings.retain_grad()  # dL/de is what the masker may look at
                logits = model.forward_selected(embeddings, batch.segments, batch.attention_mask, selected)  # (S, V)
                # The mean over the selected positions; max(): a batch in which nothing was selected has loss 0.
                loss = F.cross_entropy(logits, batch.ids[selected], reduction="sum") / max(len(logits), 1)
            loss.backward()
            masker.observe(embeddings.grad, embedding_weight, batch.ids, batch.words, selected)
            clip(settings, model)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            losses.append(loss.detach())
            counts.append(len(logits))
        counts = torch.tensor(counts, dtype=torch.float64)
        train_loss = (finite(losses, "MLM", epoch) @ counts / counts.sum().clamp(min=1)).item()
        dev_loss = mlm_dev_loss(settings, model, inputs.dev, dev_corrupted, dev_selected, epoch)
        history.append({"epoch": epoch, "train_loss": train_loss, "dev_loss": dev_loss,
                        "masked_fraction": counts.sum().item() / inputs.data_record["maskable_tokens"],
                        "kl_per_token": typhoon.kl_from_uniform(masker.rates(), inputs.frequency, settings.budget)})
        if best is None or dev_loss < best["dev_loss"]:
            best = history[-1]
            encoder_weights = {name: weight.clone() for name, weight in model.encoder.state_dict().items()}
        print(f"  mlm {epoch}/{settings.mlm_epochs}: train loss {train_loss:.4f}, dev loss {dev_loss:.4f}, masked "
              f"{history[-1]['masked_fraction']:.4f}, KL per token {history[-1]['kl_per_token']:.2e}, "
              f"{time.perf_counter() - started:.1f} s", flush=True)
    record = {"epochs": history, "best_epoch": best["epoch"], "last_epoch": settings.mlm_epochs}
    rates, occurs = masker.rates(), inputs.frequency > 0
    if rates.min() < rates.max():  # which of the task's token types does this masker like most and least?
        order = rates.argsort(stable=True)
        by_rate = order[occurs[order]].tolist()
        record |= {key: [{"token": inputs.tokenizer.tokens[v], "rate": rates[v].item()} for v in ten] for key, ten in
                   (("highest_rates", by_rate[:-11:-1]), ("lowest_rates", by_rate[:10]))}
    return encoder_weights, record


@torch.no_grad()
def mlm_dev_loss(settings: Namespace, model: torch.nn.Module, dev: EncodedSplit, corrupted: Tensor, selected: Tensor,
                 epoch: int) -> float:
    """Mean cross-entropy over the selected (N, T) positions of the dev split, nats a token."""
    model.eval()
    losses = []
    for rows in epoch_batches(dev.lengths, EVALUATION_BATCH, None):
        batch = dev.batch(rows)
        length = batch.ids.shape[1]
        batch_selected = selected[rows, :length]
        with autocast(settings):
            embeddings = model.encoder.embed_words(corrupted[rows, :length])
            logits = model.forward_selected(embeddings, batch.segments, batch.attention_mask, batch_selected)
            losses.append(F.cross_entropy(logits, batch.ids[batch_selected], reduction="sum"))
    return finite(losses, "MLM dev", epoch).sum().item() / max(selected.sum().item(), 1)


def fine_tune(settings: Namespace, inputs: Inputs, classifier: models.Classifier) -> dict:
    """Stage 2: the classifier on the task's labels, scored on the dev split after every epoch.

    Leaves the weights of the epoch with the best dev metric [C] (accuracy for MRPC, Matthews for CoLA; the first of
    equals) in the classifier and returns the log's record of the stage.
    """
    order = torch.Generator().manual_seed(stream(settings.seed, "classifier order"))
    torch.manual_seed(stream(settings.seed, "classifier dropout"))
    steps = settings.cls_epochs * len(epoch_batches(inputs.train.lengths, settings.batch_size, None))
    optimiser, schedule = optimiser_and_schedule(classifier, settings.cls_lr, steps, settings.warmup)
    history, best, weights = [], None, None
    for epoch in range(1, settings.cls_epochs + 1):
        started, losses = time.perf_counter(), []
        classifier.train()
        batches = epoch_batches(inputs.train.lengths, settings.batch_size, order)
        for rows in tqdm(batches, f"classifier {epoch}/{settings.cls_epochs}", disable=None, leave=False):
            batch = inputs.train.batch(rows)
            with autocast(settings):
                logits = classifier(batch.ids, batch.segments, batch.attention_mask)  # (B, 2)
                loss = F.cross_entropy(logits, batch.labels)
            loss.backward()
            clip(settings, classifier)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad()
            losses.append(loss.detach())
        history.append({"epoch": epoch, "train_loss": finite(losses, "classifier", epoch).mean().item(),
                        **score(settings, classifier, inputs.dev, epoch)})
        if best is None or history[-1][TASKS[settings.task].selection_metric] > best[TASKS[settings.task].selection_metric]:
            best = history[-1]
            weights = {name: weight.clone() for name, weight in classifier.state_dict().items()}
        print(f"  classifier {epoch}/{settings.cls_epochs}: " + ", ".join(
            f"{name.replace('_', ' ')} {value:.4f}" for name, value in history[-1].items() if name != "epoch")
            + f", {time.perf_counter() - started:.1f} s", flush=True)
    classifier.load_state_dict(weights)
    return {"epochs": history, "best_epoch": best["epoch"], "last_epoch": settings.cls_epochs}


@torch.no_grad()
def score(settings: Namespace, classifier: models.Classifier, dev: EncodedSplit, epoch: int) -> dict[str, float]:
    """Loss, accuracy, F1 and Matthews correlation on the dev split."""
    classifier.eval()
    losses, predictions, labels = [], [], []
    for rows in epoch_batches(dev.lengths, EVALUATION_BATCH, None):
        batch = dev.batch(rows)
        with autocast(settings):
            logits = classifier(batch.ids, batch.segments, batch.attention_mask)
            losses.append(F.cross_entropy(logits, batch.labels, reduction="sum"))
        predictions.append(logits.argmax(-1))
        labels.append(batch.labels)
    dev_loss = finite(losses, "classifier dev", epoch).sum().item() / len(dev.lengths)
    return {"dev_loss": dev_loss, **glue_data.metrics(torch.cat(predictions).tolist(), torch.cat(labels).tolist())}


@torch.no_grad()
def measure_effective_rank(encoder: models.Encoder, inputs: Inputs, selected: Tensor, stage: str) -> list[dict]:
    """Effective rank per layer (embeddings first) on the dev split, with the selected (N, T) as [MASK] and without.

    Only each layer's second moment (H, H) is kept, in float64, so that memory does not grow with the data. Real tokens
    are all but [MASK] and padding: [CLS] and [SEP] are among them.
    Source: "Representation Deficiency in Masked Language Modeling": [MASK] takes up dimensions that real tokens lack.
    """
    encoder.eval()
    moments = {}  # (input, tokens) -> (L + 1, H, H)
    for rows in epoch_batches(inputs.dev.lengths, EVALUATION_BATCH, None):
        batch = inputs.dev.batch(rows)
        is_mask = selected[rows, :batch.ids.shape[1]]  # (B, T)
        masked_ids = batch.ids.masked_fill(is_mask, inputs.tokenizer.mask_id)
        for name, ids, groups in (("masked", masked_ids, {"real": batch.attention_mask & ~is_mask, "[MASK]": is_mask}),
                                  ("unmasked", batch.ids, {"all": batch.attention_mask})):
            layers = encoder(encoder.embed_words(ids), batch.segments, batch.attention_mask, all_layers=True)
            for tokens, where in groups.items():
                hidden = torch.stack(layers)[:, where].double()  # (L + 1, positions, H)
                moments[name, tokens] = moments.get((name, tokens), 0) + hidden.transpose(1, 2) @ hidden
    if not all(moment.isfinite().all() for moment in moments.values()):
        raise RunFailed(f"hidden states of the stage {stage!r} are NaN or infinite; try a lower learning rate")
    moments["masked", "all"] = moments["masked", "real"] + moments["masked", "[MASK]"]
    return [{"stage": stage, "input": name, "tokens": tokens, "layers": [*map(effective_rank_of_second_moment, layers)]}
            for (name, tokens), layers in sorted(moments.items())]


def run(settings: Namespace, inputs: Inputs) -> tuple[dict, models.Classifier]:
    """One run: adapt, fine-tune, score. Returns its log, whole, and the fine-tuned classifier of the best epoch."""
    started, device = time.perf_counter(), inputs.train.ids.device
    torch.manual_seed(stream(settings.seed, "classifier head"))
    classifier = models.Classifier.from_pretrained(inputs.backbone).to(device)
    dev_masks = torch.Generator(device).manual_seed(stream(settings.seed, "dev masks"))
    dev_selected = typhoon.RandomMasker(inputs.frequency, settings.budget, 0, 0).select(
        inputs.dev.ids, inputs.dev.words, dev_masks)  # (N, T)
    ranks, mlm_record = [], {"epochs": [], "best_epoch": 0, "last_epoch": 0}

    def measure(stage: str) -> None:
        if settings.effective_rank:
            ranks.extend(measure_effective_rank(classifier.encoder, inputs, dev_selected, stage))

    measure("before")
    if settings.mlm_epochs:
        encoder_weights, mlm_record = adapt(settings, inputs, dev_selected)
        classifier.encoder.load_state_dict(encoder_weights)
        measure("adapted")
    adapted = time.perf_counter()
    classifier_record = fine_tune(settings, inputs, classifier)
    fine_tuned = time.perf_counter()
    measure("fine-tuned")
    log = {"format": "typhoon-run-1", "run": run_name(settings), "sample": inputs.data_record["source"] == "sample",
           "configuration": vars(settings),
           "masker_source": masker_source(settings.masker), "data": inputs.data_record,
           "backbone": inputs.backbone_record | {"parameters": sum(p.numel() for p in classifier.parameters()),
                                                 "newly_initialised": classifier.newly_initialised},
           "environment": {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__,
                           "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
                           "threads": torch.get_num_threads()},
           "mlm": mlm_record, "classifier": classifier_record}
    log |= {"effective_rank": ranks} if ranks else {}
    return log | {"seconds": {"mlm": adapted - started, "classifier": fine_tuned - adapted,
                              "total": time.perf_counter() - started}}, classifier


# ---- The run log -----------------------------------------------------------------------------------------------------

def run_name(settings: Namespace) -> str:
    return "{task}-{model}-{masker}-{objective}-spread{spread:g}-seed{seed}".format(**vars(settings))


@contextmanager
def claimed(path: Path) -> Iterator[int | None]:
    """Claim a run for this process: yields a handle on PATH's .claim file, or None when a live process has it.

    The claim is the kernel's lock on that file, which ends with the process however it ends. So a claim that a dead
    process left behind is simply free, and there is nothing to time out or to clean up.
    """
    claim = path.with_suffix(".claim")
    while True:
        handle = os.open(claim, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(claim)):
                break
        except BlockingIOError:
            os.close(handle)
            yield None
            return
        except FileNotFoundError:
            pass
        os.close(handle)  # its holder finished and removed the file between our open and our lock: try again
    try:
        yield handle
    finally:
        claim.unlink(missing_ok=True)
        os.close(handle)


def write_log(path: Path, handle: int, log: dict) -> None:
    """Write the log whole or not at all: into the claimed file, to the disk, then under its name."""
    os.ftruncate(handle, 0)
    with open(handle, "w", encoding="utf-8", closefd=False) as file:
        json.dump(log, file, indent=1, ensure_ascii=False)
        file.write("\n")
    os.fsync(handle)
    os.replace(path.with_suffix(".claim"), path)


def masker_source(name: str) -> str:
    """A fingerprint of the method as this run has it: a log from before an edit is not this run's.

    It covers typhoon.py's functions, the masker's class and those it builds on, but no other masker: one can be added.
    """
    parts = [*typhoon.maskers()[name].__mro__[:-1], *filter(inspect.isfunction, vars(typhoon).values())]
    return hashlib.sha256("".join(map(inspect.getsource, parts)).encode()).hexdigest()


def already_done(path: Path, settings: Namespace, inputs: Inputs) -> bool:
    """Whether this run's log exists. UserError when it was made with another option, data file or backbone file."""
    if not path.exists():
        return False
    try:
        log = json.loads(path.read_text(encoding="utf-8"))
        there = log["configuration"] | {"data files": log["data"]["files"], "backbone files": log["backbone"]["files"],
                                        f"code of {settings.masker}": log["masker_source"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a run log ({type(error).__name__}); move it away, or choose another --out")
    here = vars(settings) | {"data files": inputs.data_record["files"], "backbone files": inputs.backbone_record["files"],
                             f"code of {settings.masker}": masker_source(settings.masker)}
    for key in here:
        if there.get(key) != here[key]:
            what = (f"with other {key}" if " " in key else
                    f"with --{key.replace('_', '-')} {there.get(key)}, and this run has {here[key]}")
            raise UserError(f"{path} exists and was made {what}; choose another --out, or move that log away")
    return True


# ---- Finding the inputs ----------------------------------------------------------------------------------------------

def find_inputs(options: Namespace) -> tuple[dict[str, Path], dict[str, Path], str]:
    """Folders by task and by model name, and the source: "directory", "download" or "sample".

    Only a command that named neither task, model nor data falls back to the sample, and says so.
    """
    tasks, names = options.task or ["mrpc"], options.model or ["tinybert"]
    if not options.sample:
        try:
            found = {}
            for name in names:
                directory = models.find_model(name)
                label = name if directory != Path(name) else directory.resolve().name
                if found.setdefault(label, directory).resolve() != directory.resolve():
                    raise UserError(f"--model: two directories are called {label!r}, and logs are named by it; rename one")
            folders = {task: glue_data.find_task(task, options.data_dir) for task in tasks}
            if options.data_dir:  # the sample by its path is the sample, too
                return folders, found, "sample" if os.path.realpath(options.data_dir) == str(SAMPLE) else "directory"
            return folders, found, "download"
        except glue_data.DownloadError as error:
            if options.task or options.model or options.data_dir:
                raise
            print(f"NOTICE: the real data or model is missing ({error}).\nNOTICE: this run goes on with the small made-up "
                  "sample of tests/sample; its numbers say nothing about MRPC or TinyBERT.\nNOTICE: for the real thing, "
                  "run once with a network, or give --data-dir GLUE and --model DIRECTORY.", flush=True)
    return dict.fromkeys(tasks, SAMPLE), {"sample": SAMPLE / "bert"}, "sample"


def read_inputs(task: str, folder: Path, backbone: Path, source: str, max_length: int, device: str) -> Inputs:
    """Read and tokenise one task for one backbone, and take the fingerprints of every file read."""
    tokenizer = Tokenizer.from_pretrained(backbone)
    config = models.Config.from_pretrained(backbone)
    if max_length > config.max_position_embeddings:
        raise UserError(f"--max-length {max_length}: the model in {backbone} has only {config.max_position_embeddings} "
                        "positions; give no more than that")
    splits = {split: glue_data.load_task(task, split, folder) for split in ("train", "dev")}
    train, dev = (glue_data.encode_split(splits[s], tokenizer, max_length, device) for s in ("train", "dev"))

    def fingerprints(files: dict[str, Path]) -> dict[str, dict]:
        return {name: glue_data.file_fingerprint(path) for name, path in files.items()}

    return Inputs(backbone, tokenizer, train, dev, glue_data.token_frequency(train, config.vocab_size).to(device),
                  {"source": source, "files": fingerprints(glue_data.task_files(task, folder)),
                   "train_examples": len(splits["train"]), "dev_examples": len(splits["dev"]),
                   "maskable_tokens": (train.words >= 0).sum().item()},
                  {"files": fingerprints(models.backbone_files(backbone))})


# ---- The command -----------------------------------------------------------------------------------------------------

def configure_torch() -> None:
    """The same numbers every time, and full speed on the CPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that writes every new tensor twice
    torch.set_flush_denormal(True)  # AdamW's averages fade to such numbers, at which a CPU is a hundred times slower
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc: keep freed memory for the next step, where the kernel would clear it again page
        libc.mallopt(-3, 2 ** 27)  # by page. TinyBERT's run is 10% faster, and half as large again at its peak.
        libc.mallopt(-1, 2 ** 31 - 1)  # -3 is M_MMAP_THRESHOLD, -1 is M_TRIM_THRESHOLD


def main(options: Namespace) -> int:
    """The product of the axes. Returns the exit code: 0, or 1 when the numbers of a run went wrong."""
    unknown = [name for name in options.masker if name not in typhoon.maskers()]
    if unknown:
        raise UserError(f"--masker {unknown[0]}: typhoon.py has no such masker; choose from {', '.join(typhoon.maskers())}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here; use --device cpu")
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    configure_torch()
    folders, backbones, source = find_inputs(options)
    inputs = {(task, model): read_inputs(task, folders[task], backbones[model], source, options.max_length, device)
              for task, model in itertools.product(folders, backbones)}  # all of it first: bad input ends before any run
    for directory in backbones.values() if len(backbones) > 1 else ():
        with redirect_stdout(io.StringIO()):  # what is newly initialised is said when it is
            models.Classifier.from_pretrained(directory)
    out = Path(options.out)
    shared = {name: getattr(options, name) for name in (
        "objective", "budget", "ema", "corruption", "mlm_epochs", "mlm_lr", "cls_epochs", "cls_lr", "clip", "warmup", "batch_size",
        "max_length", "precision", "effective_rank")}
    shared |= {"device": device, "decoder_layers": options.decoder_layers if options.objective == "mae" else None}
    axes = map(dict.fromkeys, (folders, backbones, options.masker, options.spread, options.seed))  # each value once
    runs = [Namespace(task=task, model=model, masker=masker, spread=spread, seed=seed, **shared)
            for task, model, masker, spread, seed in itertools.product(*axes)]
    planned = [(settings, inputs[settings.task, settings.model], out / f"{run_name(settings)}.json") for settings in runs]
    if len({path for *_, path in planned}) < len(planned):
        raise UserError("--spread: two of its values differ after six digits only, and logs are named by them")
    saved = {path: Path(options.save, path.stem if len(runs) > 1 else "") for *_, path in planned if options.save}
    in_use = [os.path.realpath(path) for path in (".", out, *folders.values(), *backbones.values())]
    for settings, read, path in planned:  # a log that disagrees, or a --save that is taken, stops the command here, too
        already_done(path, settings, read)
        if path in saved:
            models.check_replaceable(saved[path])
            if any(Path(used).is_relative_to(os.path.realpath(saved[path])) for used in in_use):
                raise UserError(f"--save {saved[path]}: holds what this command reads or writes; give another directory")
    out.mkdir(parents=True, exist_ok=True)
    exit_code = 0
    for settings, read, path in planned:
        name = path.stem
        with claimed(path) as handle:
            if already_done(path, settings, read):
                unsaved = path in saved and not saved[path].exists()
                print(f"{name}: {path} exists with the same configuration, skipped"
                      + f"; {options.save} gets nothing of it, as --save keeps what is trained now" * unsaved)
                continue
            if handle is None:
                print(f"{name}: another process is at it, skipped")
                continue
            print(f"{name}: {len(read.train.lengths)} training examples, {device}"
                  + f", {torch.get_num_threads()} threads" * (device == "cpu"), flush=True)
            try:
                log, classifier = run(settings, read)
            except RuntimeError as error:
                if not isinstance(error, RunFailed) and not re.search("out of memory|allocate memory", str(error)):
                    raise  # a bug
                print(f"train.py: {name} failed: {str(error).splitlines()[0]:.200}; no log was written", file=sys.stderr)
                exit_code = 1
                continue
            if path in saved:
                classifier.save_pretrained(saved[path])
            write_log(path, handle, log)
        best = log["classifier"]["epochs"][log["classifier"]["best_epoch"] - 1]
        print(f"result {name}: accuracy {best['accuracy']:.4f}, F1 {best['f1']:.4f}, Matthews {best['matthews']:.4f} "
              f"(best epoch {best['epoch']} of {settings.cls_epochs}), {log['seconds']['total']:.0f} s, {path}"
              + (" [SAMPLE: says nothing about the real task]" if log["sample"] else ""), flush=True)
    return exit_code


def command(options: argparse.Namespace) -> int:
    """main, with its errors as sentences: bad input and a refusing disk end with one line and exit code 2."""
    try:
        return main(options)
    except UserError as error:
        print(f"train.py: {error}", file=sys.stderr)
    except OSError as error:
        print(f"train.py: {error.filename or f'{options.out} or standard output'}: {error.strerror}; free the disk or "
              "name another place with --out", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(command(OPTIONS))
