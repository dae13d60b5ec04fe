"""Adapt, fine-tune, score: does it matter which tokens are masked?

    python train.py --masker typhoon --seed 3

One run is two stages on one task [A]. `adapt` trains a pretrained backbone as a masked language
model on the task's own training sentences, under one masker; `fine_tune` trains it as a classifier
on the same sentences, and `score` reads GLUE's dev split after every epoch. `run` is the whole
experiment: these four are what there is to read for the science. The rest is the record of what
a masker does, effective rank, logs, files and options: a command takes the product of tasks,
models, maskers, spreads and seeds, and leaves one JSON log a run (main -> study -> run).
`options` are the command's, with lists on these axes; `settings` are one run's.

Pairing [D]: each purpose has random numbers of its own, seeded by its name: dropout and new heads
draw from torch's global generator, seeded anew before each head and stage, order, masks and
corruption from one each. So runs of one seed that differ only in the masker start from the same
weights, see the same batches in the same order, have the same dropout, and their maskers the same
draw at each position; a CPU and a GPU draw differently. (MAE-LM's dropout in
adaptation is no pair: the length of what its encoder sees depends on what is selected.)

Sources: [A] the paper's abstract, [C] its authors' 2023 code, [M] the MAE-LM paper, [D] ours.
"""
from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import itertools
import json
import math
import os
import platform
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

import glue_data
import models
import typhoon
from glue_data import (
    TASKS, Batch, EncodedSplit, Tokenizer, UserError, epoch_batches, print_once)

try:
    import fcntl
except ImportError:  # Windows: no locks
    fcntl = None

SAMPLE = (Path(__file__).parent / "tests" / "sample").resolve()
EVALUATION_BATCH = 64
RECIPE = 2  # one more after a change here, in models.py or glue_data.py that moves the numbers


@dataclass
class Inputs:
    """What a run reads: one task, tokenised for one backbone, on the run's device."""
    backbone: Path
    tokenizer: Tokenizer
    train: EncodedSplit
    dev: EncodedSplit
    frequency: Tensor  # (V,) float64: each token type's share of the maskable training tokens
    maskable_tokens: int
    sample: bool  # the made-up data of tests/sample
    data_sha256: dict[str, str]  # by file name
    backbone_sha256: dict[str, str]


class RunFailed(Exception):
    """The numbers of one run went wrong. The command's other runs go on, and its exit code is 1."""


# ---- One run ------------------------------------------------------------------------------------

def run(settings: Namespace, inputs: Inputs) -> tuple[dict, models.Classifier]:
    """The experiment: adapt the backbone under one masker, fine-tune it, score it.

    Returns the log's records of the stages, and the scored classifier. Raises RunFailed where the
    numbers go wrong.
    """
    torch.manual_seed(stream(settings.seed, "classifier head"))
    classifier = models.Classifier.from_pretrained(inputs.backbone).to(settings.device)

    # The dev positions to predict are random ones at the budget, whatever the masker, so that dev
    # losses can be compared between maskers [D].
    dev_masker = typhoon.RandomMasker(inputs.frequency, settings.budget, spread=None, ema=0)
    dev_selected = dev_masker.select(
        inputs.dev.ids, inputs.dev.words, generator(settings, "dev masks"))  # (N, T)

    def measure(stage: str) -> list[dict]:
        if not settings.effective_rank:
            return []
        return measure_effective_rank(classifier.encoder, inputs, dev_selected, stage)

    ranks = measure("before")
    mlm_record = {"epochs": [], "best_epoch": 0, "last_epoch": 0, "frequent_rates": {}}
    if settings.mlm_epochs:
        encoder_weights, mlm_record = adapt(settings, inputs, dev_selected)
        classifier.encoder.load_state_dict(encoder_weights)  # its pooler too, which MLM left alone
        ranks += measure("adapted")
    classifier_record = fine_tune(settings, inputs, classifier)
    ranks += measure("fine-tuned")
    return {"mlm": mlm_record, "classifier": classifier_record, "effective_rank": ranks}, classifier


# ---- Stage 1: masked language modelling ---------------------------------------------------------

def adapt(settings: Namespace, inputs: Inputs, dev_selected: Tensor) -> tuple[dict, dict]:
    """Masked language modelling (or MAE-LM) on the task's training sentences, under one masker.

    dev_selected (N, T) bool: the dev positions to predict, the same for every epoch and masker.
    Returns the encoder's weights of the epoch with the lowest dev loss [C], and the log's record.
    """
    model = language_model(settings, inputs.backbone)
    steps = settings.mlm_epochs * math.ceil(len(inputs.train.lengths) / settings.batch_size)
    optimiser, schedule = optimiser_and_schedule(model, settings.mlm_lr, steps, settings.warmup)
    masker = typhoon.MASKERS[settings.masker](
        inputs.frequency, settings.budget, settings.spread, settings.ema)
    masker.begin(inputs, model, steps)
    embedding_weight = model.encoder.word_embeddings.weight.detach()  # (V, H): E, as it changes
    mask_draws, corruption_draws = generator(settings, "masks"), generator(settings, "corruption")
    order = generator(settings, "MLM order", "cpu")
    dev_corrupted = corrupt(
        settings, inputs, inputs.dev.ids, dev_selected, generator(settings, "dev corruption"))
    torch.manual_seed(stream(settings.seed, "MLM dropout"))
    history, best, best_weights = [], None, None
    for epoch in range(1, settings.mlm_epochs + 1):
        started = time.perf_counter()
        model.train()
        losses, kls, masked = [], [], 0  # on the device until the epoch's end
        for batch in training_batches(settings, inputs, order, f"mlm {epoch}"):
            kls.append(kl_now(masker))  # for the log, before this step's draw

            # 1. Select: which positions will the model have to predict?
            selected = masker.select(batch.ids, batch.words, mask_draws) & (batch.words >= 0)

            # 2. Corrupt: what does it see there? (MAE-LM's encoder leaves these positions out.)
            corrupted = corrupt(settings, inputs, batch.ids, selected, corruption_draws)  # (B, T)

            # 3. Predict. The mean loss is trained on; the sum is for the epoch's average.
            with autocast(settings):
                embeddings = model.encoder.embed_words(corrupted)  # (B, T, H)
                embeddings.retain_grad()
                logits = model.forward_selected(
                    embeddings, batch.segments, batch.attention_mask, selected)  # (S, V)
                summed_loss = F.cross_entropy(logits, batch.ids[selected], reduction="sum")
            loss = summed_loss / max(len(logits), 1)  # where nothing was selected: 0, not NaN
            loss.backward()

            # 4. The masker learns from the gradient at the word embeddings, before it is clipped.
            masker.observe(embeddings.grad, embedding_weight, batch.ids, batch.words, selected)

            # 5. Update the model.
            update(settings, model, optimiser, schedule)
            losses.append(summed_loss.detach())
            masked += len(logits)

        train_loss = fetch_finite(losses, "MLM", epoch).sum().item() / max(masked, 1)
        dev_loss = mlm_dev_loss(settings, model, inputs, dev_corrupted, dev_selected, epoch)
        record = {"epoch": epoch, "train_loss": train_loss, "dev_loss": dev_loss,
                  **describe_masking(masker, inputs, masked, kls)}
        print_mlm_epoch(settings, record, frequent_rates(masker, inputs), started)
        history.append(record)
        if best is None or dev_loss < best["dev_loss"]:
            best, best_weights = record, copy.deepcopy(model.encoder.state_dict())
    record = {"epochs": history, "best_epoch": best["epoch"], "last_epoch": settings.mlm_epochs}
    return best_weights, record | {"frequent_rates": frequent_rates(masker, inputs)}


def language_model(settings: Namespace, backbone: Path) -> models.MaskedLM | models.MAELM:
    """The model of stage 1, on the run's device; what the backbone lacks of it is drawn anew."""
    torch.manual_seed(stream(settings.seed, "MLM head"))
    if settings.objective == "mae":
        model = models.MAELM.from_pretrained(backbone, settings.decoder_layers)
    else:
        model = models.MaskedLM.from_pretrained(backbone)
    return model.to(settings.device)


def corrupt(settings: Namespace, inputs: Inputs, ids: Tensor, selected: Tensor,
            draws: torch.Generator) -> Tensor:
    """typhoon.corrupt, as the options and the tokenizer have it: (B, T) -> (B, T)."""
    tokens = len(inputs.tokenizer.tokens)  # the embeddings can have rows beyond them
    return typhoon.corrupt(
        ids, selected, inputs.tokenizer.mask_id, tokens, settings.corruption, draws)


@torch.no_grad()
def mlm_dev_loss(settings: Namespace, model: torch.nn.Module, inputs: Inputs, corrupted: Tensor,
                 selected: Tensor, epoch: int) -> float:
    """Mean cross-entropy over the selected (N, T) positions of the dev split, in nats a token.

    corrupted (N, T): the dev split's ids as the model sees them.
    """
    dev = inputs.dev
    model.eval()
    losses = []
    for rows in epoch_batches(dev.lengths, EVALUATION_BATCH, None):
        batch = dev.batch(rows)
        length = batch.ids.shape[1]
        batch_selected = selected[rows, :length]  # (B, T)
        with autocast(settings):
            embeddings = model.encoder.embed_words(corrupted[rows, :length])  # (B, T, H)
            logits = model.forward_selected(
                embeddings, batch.segments, batch.attention_mask, batch_selected)  # (S, V)
            losses.append(F.cross_entropy(logits, batch.ids[batch_selected], reduction="sum"))
    summed_loss = fetch_finite(losses, "MLM dev", epoch).sum().item()
    return summed_loss / max(selected.sum().item(), 1)


# ---- Stage 2: fine-tuning, and the score --------------------------------------------------------

def fine_tune(settings: Namespace, inputs: Inputs, classifier: models.Classifier) -> dict:
    """The classifier, with the adapted encoder, on the task's labels; scored after every epoch.

    Leaves the weights of the epoch with the best dev metric [C] (accuracy for MRPC, Matthews for
    CoLA; the first of equals) in the classifier, and returns the log's record.
    """
    metric = TASKS[settings.task].selection_metric
    steps = settings.cls_epochs * math.ceil(len(inputs.train.lengths) / settings.batch_size)
    optimiser, schedule = optimiser_and_schedule(
        classifier, settings.cls_lr, steps, settings.warmup)
    order = generator(settings, "classifier order", "cpu")
    torch.manual_seed(stream(settings.seed, "classifier dropout"))

    history, best, best_weights = [], None, None
    for epoch in range(1, settings.cls_epochs + 1):
        started = time.perf_counter()
        classifier.train()
        losses = []
        for batch in training_batches(settings, inputs, order, f"classifier {epoch}"):
            with autocast(settings):
                logits = classifier(batch.ids, batch.segments, batch.attention_mask)  # (B, 2)
                loss = F.cross_entropy(logits, batch.labels)
            loss.backward()
            update(settings, classifier, optimiser, schedule)
            losses.append(loss.detach())

        train_loss = fetch_finite(losses, "classifier", epoch).mean().item()  # mean of the batches
        record = {"epoch": epoch, "train_loss": train_loss,
                  **score(settings, classifier, inputs.dev, epoch)}
        history.append(record)
        if best is None or record[metric] > best[metric]:
            best, best_weights = record, copy.deepcopy(classifier.state_dict())
        print(f"  classifier {epoch}/{settings.cls_epochs}: train loss {train_loss:.4f}, "
              f"dev loss {record['dev_loss']:.4f}, {scores_of(record)}, "
              f"{time.perf_counter() - started:.1f} s", flush=True)
    classifier.load_state_dict(best_weights)
    return {"epochs": history, "best_epoch": best["epoch"], "last_epoch": settings.cls_epochs}


@torch.no_grad()
def score(settings: Namespace, classifier: models.Classifier, dev: EncodedSplit,
          epoch: int) -> dict:
    """Loss, accuracy, F1, Matthews correlation and the predictions, in the dev file's order."""
    classifier.eval()
    losses = []
    predictions = torch.zeros_like(dev.labels)  # (N,)
    for rows in epoch_batches(dev.lengths, EVALUATION_BATCH, None):
        batch = dev.batch(rows)
        with autocast(settings):
            logits = classifier(batch.ids, batch.segments, batch.attention_mask)  # (B, 2)
            losses.append(F.cross_entropy(logits, batch.labels, reduction="sum"))
        predictions[rows] = logits.argmax(-1)
    dev_loss = fetch_finite(losses, "classifier dev", epoch).sum().item() / len(dev.lengths)
    predictions = predictions.tolist()
    return {"dev_loss": dev_loss, **glue_data.metrics(predictions, dev.labels.tolist()),
            "predictions": "".join(map(str, predictions))}


def scores_of(record: dict) -> str:
    return (f"accuracy {record['accuracy']:.4f}, F1 {record['f1']:.4f}, "
            f"Matthews {record['matthews']:.4f}")


# ---- What the two stages share ------------------------------------------------------------------

def stream(seed: int, purpose: str) -> int:
    """A seed for one purpose, so that draws of one kind never shift the draws of another."""
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "big")  # 56 bits: torch takes no more than 63


def generator(settings: Namespace, purpose: str, device: str | None = None) -> torch.Generator:
    """A generator for one purpose, on the run's device or another."""
    device = device or settings.device
    return torch.Generator(device).manual_seed(stream(settings.seed, purpose))


def training_batches(settings: Namespace, inputs: Inputs, order: torch.Generator,
                     title: str) -> Iterator[Batch]:
    """One epoch of the training split, with a progress bar on a terminal."""
    batches = epoch_batches(inputs.train.lengths, settings.batch_size, order)
    for rows in tqdm(batches, title, disable=None, leave=False):
        yield inputs.train.batch(rows)


def optimiser_and_schedule(model: torch.nn.Module, learning_rate: float, steps: int,
                           warmup: float):
    """AdamW with weight decay 0.01, but none on biases and LayerNorm, which are the vectors. The
    learning rate rises over the fraction `warmup` of the steps and falls linearly to 0 [C]."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
    rising = math.ceil(warmup * steps)

    def factor(step: int) -> float:
        return step / rising if step < rising else (steps - step) / max(steps - rising, 1)

    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


def update(settings: Namespace, model: torch.nn.Module, optimiser, schedule) -> None:
    """One step down the gradient, whose norm is clipped [C]."""
    if settings.clip:  # 0: no clipping
        clip_grad_norm_(model.parameters(), settings.clip)
    optimiser.step()
    schedule.step()
    optimiser.zero_grad()


def autocast(settings: Namespace) -> torch.autocast:
    return torch.autocast(settings.device, torch.bfloat16, enabled=settings.precision == "bf16")


def fetch_finite(losses: list[Tensor], stage: str, epoch: int) -> Tensor:
    """An epoch's losses (steps,), fetched from the device at once. RunFailed at NaN or infinity."""
    fetched = torch.stack(losses).double().cpu()
    if not fetched.isfinite().all():
        raise RunFailed(f"the {stage} loss is NaN or infinite in epoch {epoch}; "
                        "try a lower learning rate")
    return fetched


# ---- What the masker does, for the log ----------------------------------------------------------

def kl_now(masker: typhoon.RandomMasker) -> Tensor:
    """KL per token from uniform masking, as of now. NaN for a masker that goes by position."""
    rates = masker.rates()
    if rates is None:
        return masker.frequency.new_tensor(math.nan)
    return typhoon.kl_from_uniform(rates, masker.frequency, masker.budget)


def describe_masking(masker: typhoon.RandomMasker, inputs: Inputs, masked: int,
                     kls: list[Tensor]) -> dict:
    """An epoch's masking: the share of tokens masked; KL, its mean over the steps and at the end;
    the band of the rates by now; and what is wrong with it, as notices."""
    share = masked / inputs.maskable_tokens
    record = {"masked_fraction": share, "kl_mean": None, "kl_last": None, "band": None,
              "notices": []}
    if abs(share - masker.budget) > 0.02:
        record["notices"].append(
            f"{share:.3f} of the tokens were masked, but the budget is {masker.budget}")
    rates = masker.rates()
    if rates is None:  # by position, not by type
        return record
    record["band"] = typhoon.band(rates, masker.frequency)
    kl_mean, kl_last = torch.stack(kls).mean().item(), kl_now(masker).item()
    if math.isfinite(kl_mean + kl_last):
        record |= {"kl_mean": kl_mean, "kl_last": kl_last}
    else:
        record["notices"].append("the masker's rates are NaN, negative or above 1")
    return record


def frequent_rates(masker: typhoon.RandomMasker, inputs: Inputs) -> dict[str, float]:
    """The rates of the 200 most frequent types by now: do two seeds rank them alike?"""
    rates = masker.rates()
    if rates is None:
        return {}
    by_frequency = inputs.frequency.cpu().argsort(descending=True, stable=True)
    return {inputs.tokenizer.tokens[v]: round(rates[v].item(), 6)
            for v in by_frequency[:200].tolist() if inputs.frequency[v] > 0}


def print_mlm_epoch(settings: Namespace, record: dict, rates: dict[str, float],
                    started: float) -> None:
    """An epoch's losses, the band of its rates, and its notices. rates: of the frequent types."""
    seconds = time.perf_counter() - started
    kl = "-" if record["kl_mean"] is None else f"{record['kl_mean']:.2e}"
    print(f"  mlm {record['epoch']}/{settings.mlm_epochs}: train loss {record['train_loss']:.4f}, "
          f"dev loss {record['dev_loss']:.4f}, masked {record['masked_fraction']:.4f}, "
          f"KL per token {kl}, {seconds:.1f} s")
    if len(set(rates.values())) > 1:
        band = record["band"]
        most, least = max(rates, key=rates.get), min(rates, key=rates.get)
        print(f"    rates: 5% {band['5%']:.3f}  50% {band['50%']:.3f}  95% {band['95%']:.3f} "
              f"(budget {settings.budget:.3f}); masked most \"{most}\" {rates[most]:.3f}, "
              f"least \"{least}\" {rates[least]:.3f}")
    for notice in record["notices"]:
        print(f"NOTICE: {run_name(settings)}, epoch {record['epoch']}: {notice}")
    sys.stdout.flush()


# ---- Effective rank -----------------------------------------------------------------------------

def effective_rank(second_moment: Tensor, tau: float = 0.9) -> int:
    """The smallest k with sum_{i<=k} sigma_i^2 / sum_i sigma_i^2 >= tau, the largest sigma first.

    Of representations H (N, d), by their second moment H^T H (d, d), whose eigenvalues are
    sigma_i^2: it can be summed batch by batch. 0 where all of it is zero. tau = 0.9 [M].

    >>> effective_rank(torch.diag(torch.tensor([80., 15., 5.])))  # .80 < .9 <= .95
    2
    """
    energy = torch.linalg.eigvalsh(second_moment.double().cpu()).flip(0)  # (d,), descending
    if energy[0] <= 0:
        return 0
    share = energy.cumsum(0) / energy.sum()
    return int((share < tau - 1e-9).sum()) + 1


@torch.no_grad()
def measure_effective_rank(encoder: models.Encoder, inputs: Inputs, selected: Tensor,
                           stage: str) -> list[dict]:
    """The effective rank of every layer's hidden states on the dev split [M], not centred.

    Layer 0 is the embeddings'. Two inputs: "masked", with the selected (N, T) positions as [MASK],
    random ones whatever the masker; and "unmasked". Tokens: "[MASK]", "real" (the others, [CLS] and
    [SEP] too), "all" (both). Padding is never counted.
    """
    encoder.eval()
    moments = {}  # (input, tokens) -> (L + 1, H, H) float64
    for rows in epoch_batches(inputs.dev.lengths, EVALUATION_BATCH, None):
        batch = inputs.dev.batch(rows)
        is_mask = selected[rows, :batch.ids.shape[1]]  # (B, T)
        groups = {"masked": {"real": batch.attention_mask & ~is_mask, "[MASK]": is_mask},
                  "unmasked": {"all": batch.attention_mask}}
        ids = {"masked": batch.ids.masked_fill(is_mask, inputs.tokenizer.mask_id),
               "unmasked": batch.ids}
        for name in groups:
            layers = encoder.all_hidden_states(
                encoder.embed_words(ids[name]), batch.segments, batch.attention_mask)
            for tokens, where in groups[name].items():
                hidden = torch.stack(layers)[:, where].double()  # (L + 1, positions, H)
                moment = hidden.transpose(1, 2) @ hidden  # (L + 1, H, H)
                moments[name, tokens] = moments.get((name, tokens), 0) + moment
    moments["masked", "all"] = moments["masked", "real"] + moments["masked", "[MASK]"]
    if not all(moment.isfinite().all() for moment in moments.values()):
        raise RunFailed(f"hidden states are NaN or infinite in the stage {stage!r}; "
                        "try a lower learning rate")
    return [{"stage": stage, "input": name, "tokens": tokens,
             "layers": [effective_rank(moment) for moment in layers]}
            for (name, tokens), layers in sorted(moments.items())]


# ---- The run log --------------------------------------------------------------------------------

def run_name(settings: Namespace) -> str:
    """The log's name: the axes, with the spread only where the masker uses it."""
    spread = "" if settings.spread is None else f"-spread{settings.spread}"
    return (f"{settings.task}-{settings.model}-{settings.masker}-{settings.objective}{spread}"
            f"-seed{settings.seed}")


def identity(settings: Namespace, inputs: Inputs) -> dict:
    """What makes two runs one run: options, the files that were read, the masker's code, and for
    all other code the number of the recipe."""
    return vars(settings) | {"data": inputs.data_sha256, "backbone": inputs.backbone_sha256,
                             "method": method_fingerprint(settings.masker), "recipe": RECIPE}


def method_fingerprint(masker: str) -> str:
    """A sha256 of the code in typhoon.py that this masker's runs depend on.

    That is the masker's class, `corrupt` and `kl_from_uniform`; every function, class and constant
    of typhoon.py that they name, what those name, and so on; less comments and docstrings. So an
    edited constant is noticed, and a new masker does not invalidate the logs of the others.
    """
    tree = ast.parse(Path(typhoon.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            del node.body[0]
    definitions = {}  # name -> the statement that defines it
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            definitions[statement.name] = statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            definitions |= {node.id: statement for node in ast.walk(statement)
                            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    used = {}  # name -> its code
    waiting = [typhoon.MASKERS[masker].__name__, "corrupt", "kl_from_uniform"]
    while waiting:
        name = waiting.pop()
        if name in definitions and name not in used:
            used[name] = ast.unparse(definitions[name])
            waiting += [node.id for node in ast.walk(definitions[name])
                        if isinstance(node, ast.Name)]
    code = "\n".join(used[name] for name in sorted(used))
    return hashlib.sha256(code.encode()).hexdigest()


def finished(path: Path, mine: dict) -> bool:
    """Whether this run's log exists. UserError where that log is of a run with another identity."""
    if not path.exists():
        return False
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))["identity"]
        differing = [key for key in mine if theirs.get(key) != mine[key]]
    except Exception as error:  # a file of anything
        raise UserError(f"{path}: is no run log ({type(error).__name__}); "
                        "move it away, or choose another --out") from error
    if differing:
        key = differing[0]
        raise UserError(f"{path}: was made with another {key} ({theirs.get(key)!s:.60}, here "
                        f"{mine[key]!s:.60}); choose another --out, or move that log away")
    return True


@contextlib.contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Yields whether this process may do the run whose log will be PATH: no other one is at it.

    The claim is a lock of the operating system, which ends with its process however that ends.
    Without locks a run may be done twice: that costs time, and its log is the same.
    """
    lock_file = path.with_suffix(".claim")
    with open(lock_file, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except (OSError, AttributeError):  # this file system has no locks, or Windows no fcntl
            print_once("NOTICE: no file locks here: processes that share --out may do a run twice")
        try:
            yield True
        finally:
            with contextlib.suppress(PermissionError):  # Windows keeps the name of an open file
                lock_file.unlink(missing_ok=True)


def write_log(path: Path, settings: Namespace, inputs: Inputs, made_by: dict,
              results: dict) -> dict:
    """The log of a run, returned and written, one line a top-level key.

    made_by: the run's identity.  The file appears under its name when it is whole, or not at all.
    """
    on_cuda = settings.device == "cuda"
    log = {
        "format": "typhoon-run-3", "run": path.stem, "sample": inputs.sample, "identity": made_by,
        "metric": TASKS[settings.task].metric,
        "train_examples": len(inputs.train.lengths), "dev_examples": len(inputs.dev.lengths),
        "environment": {
            "python": platform.python_version(), "torch": torch.__version__,
            "numpy": numpy.__version__, "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if on_cuda else platform.machine()},
        **results}
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
             for key, value in log.items()]
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return log


# ---- Finding the inputs -------------------------------------------------------------------------

def find_inputs(options: Namespace) -> tuple[dict[str, Path], dict[str, Path]]:
    """Directories by task, and by the model's name.

    Only a command that named neither task, model nor data falls back to the sample, and says so.
    """
    tasks = options.task or ["mrpc"]
    sample = dict.fromkeys(tasks, SAMPLE), {"sample": SAMPLE / "bert"}
    if options.sample:
        return sample
    try:
        backbones = {}
        for name in options.model or ["tinybert"]:
            directory = models.find_model(name)
            other = backbones.setdefault(models.model_name(name), directory)
            if other != directory:
                raise UserError(f"--model: {other} and {directory} have one name, and logs are "
                                "named by it; rename one")
        folders = {task: options.data_dir or glue_data.fetch_task(task) for task in tasks}
        return folders, backbones
    except glue_data.DownloadError as error:
        if options.task or options.model or options.data_dir:
            raise
        print(f"NOTICE: the real data or model is missing ({error}).\n"
              "NOTICE: this run goes on with the small made-up sample of tests/sample; its numbers "
              "say nothing about MRPC or TinyBERT.\n"
              "NOTICE: for the real thing, run once with a network, or give --data-dir GLUE and "
              "--model DIRECTORY.", flush=True)
        return sample


def read_inputs(task: str, folder: Path, backbone: Path, max_length: int, device: str) -> Inputs:
    """Read and tokenise one task for one backbone, and take the fingerprints of the files."""
    tokenizer = Tokenizer.from_pretrained(backbone)
    config = models.Config.from_pretrained(backbone)
    if max_length > config.max_position_embeddings:
        raise UserError(f"--max-length {max_length}: the model in {backbone} has only "
                        f"{config.max_position_embeddings} positions; give no more than that")
    train, dev = (
        glue_data.encode_split(
            glue_data.load_task(task, split, folder), tokenizer, max_length, device)
        for split in glue_data.SPLITS)

    glue_data.notice_unknown(train, tokenizer, backbone)

    def fingerprints(files: dict[str, Path]) -> dict[str, str]:
        return {name: glue_data.sha256_of(path) for name, path in files.items()}

    return Inputs(backbone=backbone, tokenizer=tokenizer, train=train, dev=dev,
                  frequency=glue_data.token_frequency(train, config.vocab_size).to(device),
                  maskable_tokens=(train.words >= 0).sum().item(),
                  sample=folder.resolve() == SAMPLE,
                  data_sha256=fingerprints(glue_data.task_files(task, folder)),
                  backbone_sha256=fingerprints(models.backbone_files(backbone)))


# ---- The command --------------------------------------------------------------------------------

def number(kind: type, low: float, high: float = math.inf):
    """An argparse type: a number from low to high."""
    def parse(text: str):
        if not low <= kind(text) <= high:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {low} to {high}")
        return kind(text)
    parse.__name__ = "whole number" if kind is int else "number"  # for argparse's own sentence
    return parse


FILES = ("data_dir", "sample", "out", "save")  # every other option is part of a run's identity


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every option, once: its default, what it is, and where the default comes from."""
    share = number(float, 0, 1)
    learning_rate = number(float, 1e-9, 1)
    count = number(int, 1)

    add = parser.add_argument_group("axes: one or more values, runs are their product").add_argument
    add("--task", nargs="+", choices=list(TASKS), help="where none is named: mrpc")
    add("--model", nargs="+", help="tinybert, distilbert, bert-base, a hub id org/name"
        "[@revision], or a directory in the Hugging Face layout; where none is named: tinybert")
    add("--masker", nargs="+", choices=list(typhoon.MASKERS), default=["typhoon"],
        help="which tokens are masked [A]")
    add("--seed", nargs="+", type=number(int, 0, 2 ** 63), default=[0], help="of all that is drawn")
    add("--spread", nargs="+", type=share, default=[0.4],
        help="how far calibration pulls the rates apart, 0 to 1 [C]")

    add = parser.add_argument_group("files").add_argument
    add("--data-dir", type=Path, help="GLUE's, with MRPC/ and CoLA/; where none is named, they are "
        "downloaded into a cache of our own")
    add("--sample", action="store_true", help="the made-up data and tiny model of tests/sample")
    add("--out", type=Path, default=Path("runs"), help="directory of the run logs")
    add("--save", type=Path, help="where each run leaves its fine-tuned classifier, as a new "
        "directory with the run's name, in the Hugging Face layout")

    add = parser.add_argument_group("masking").add_argument
    add("--budget", type=number(float, 0.001, 0.999), default=0.3,
        help="share of the maskable tokens to select [C]")
    add("--ema", type=share, default=0.8, help="weight of the newest score in the average [C]")
    add("--corruption", choices=["mask", "80-10-10"], default="mask",
        help="all selected positions become [MASK] [C, M], or as in BERT")
    add("--objective", choices=["mlm", "mae"], default="mlm",
        help="[A]; mae: MAE-LM, whose encoder never sees the selected positions [M]")
    add("--decoder-layers", type=count, default=4, help="of MAE-LM's decoder [M]")

    add = parser.add_argument_group("the two stages").add_argument
    add("--mlm-epochs", type=number(int, 0), default=3,
        help="of adaptation, 0 leaves it out [D; C: 100 on MRPC, 80 on CoLA]")
    add("--mlm-lr", type=learning_rate, default=1e-4, help="its learning rate [C, for TinyBERT]")
    add("--cls-epochs", type=count, default=3,
        help="of fine-tuning [D; C: 100 on MRPC, 120 on CoLA]")
    add("--cls-lr", type=learning_rate, default=5e-5,
        help="its learning rate [D; C: 1e-5 on MRPC, 2e-5 on CoLA]")
    add("--clip", type=number(float, 0), default=1.0,
        help="largest norm of a step's gradient, 0 for none [C]")
    add("--warmup", type=share, default=0.0,
        help="share of the steps in which the learning rate rises [C]; 0.1 is kinder to BERT")
    add("--batch-size", type=count, default=16, help="sentences or pairs a step [C]")
    add("--max-length", type=number(int, 4), default=128,
        help="in pieces [D]; no example of the two tasks is cut")
    add("--effective-rank", action="store_true",
        help="log every layer's, before adaptation, after it and after fine-tuning [M]")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto",
        help="auto: CUDA if there is one")
    add("--precision", choices=["fp32", "bf16"], default="fp32",
        help="bf16 is autocast, for CUDA or a CPU with bfloat16")


def parse_arguments(arguments: list[str] | None = None) -> Namespace:
    """The options as given, checked against each other."""
    parser = argparse.ArgumentParser(
        prog="train.py", description=__doc__.splitlines()[0], allow_abbrev=False,
        epilog=__doc__.splitlines()[-1], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.error = lambda message: parser.exit(
        2, f"train.py: {' '.join(message.split())}; see python train.py --help\n")
    add_options(parser)
    options = parser.parse_args(arguments)
    if options.sample and (options.data_dir or options.model):
        parser.error("--sample brings its own data and model: leave out --data-dir and --model")
    if options.objective == "mae" and options.corruption != "mask":
        parser.error("--corruption 80-10-10 means nothing with --objective mae, "
                     "which leaves selected positions out")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here")
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    return options


def plan(options: Namespace, tasks: list[str], model_names: list[str]) -> dict[str, Namespace]:
    """The settings of each run by its name: the product of the axes, each run once."""
    runs = {}
    axes = tasks, model_names, options.masker, options.spread, options.seed
    for task, model, masker, spread, seed in itertools.product(*axes):
        settings = Namespace(**vars(options))
        settings.task, settings.model, settings.masker = task, model, masker
        settings.seed = seed
        # Spread and decoder of a run that has none are None: they do not make two runs of one.
        settings.spread = spread if typhoon.MASKERS[masker].uses_spread else None
        settings.decoder_layers = options.decoder_layers if options.objective == "mae" else None
        for option in FILES:
            delattr(settings, option)
        runs[run_name(settings)] = settings
    return runs


def configure_torch() -> None:
    """The same numbers every time, and full speed on the CPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that costs time
    torch.set_flush_denormal(True)  # AdamW's averages fade to such numbers, which slow a CPU down


def study(options: Namespace) -> int:
    """Every run of the command. Returns 0, or 1 when the numbers of a run went wrong."""
    configure_torch()
    folders, backbones = find_inputs(options)
    inputs = {(task, model): read_inputs(task, folder, backbone, options.max_length, options.device)
              for task, folder in folders.items() for model, backbone in backbones.items()}
    runs = plan(options, list(folders), list(backbones))
    options.out.mkdir(parents=True, exist_ok=True)
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
    identities = {}  # run -> what it is made of, as of now
    for name, settings in runs.items():  # bad input stops the command before a run was spent
        identities[name] = identity(settings, inputs[settings.task, settings.model])
        done = finished(options.out / f"{name}.json", identities[name])
        if options.save and not done and os.path.lexists(options.save / name):
            raise UserError(f"--save: {options.save / name} is there already; give a new directory")
    failed, durations = 0, []
    for place, (name, settings) in enumerate(runs.items()):
        path, run_inputs = options.out / f"{name}.json", inputs[settings.task, settings.model]
        left = ""
        if durations:
            ahead = [options.out / f"{other}.json" for other in list(runs)[place:]]
            to_do = sum(not log.exists() for log in ahead)
            seconds = sum(durations) / len(durations) * to_do
            left = f", about {timedelta(seconds=round(seconds))} left"
        print(f"[{place + 1}/{len(runs)}] {name}: {settings.device}, {torch.get_num_threads()} "
              f"threads{left}", flush=True)
        with claim(path) as free:
            if finished(path, identities[name]):  # by now: another process may have been at it
                print(f"  skipped: {path} exists with the same identity", flush=True)
                continue
            if not free:
                print("  skipped: another process is at it", flush=True)
                continue
            started = time.perf_counter()
            try:
                stages, classifier = run(settings, run_inputs)
            except RunFailed as error:
                print(f"train.py: {name} failed: {error}; no log was written", file=sys.stderr)
                failed = 1
                continue
            if options.save:
                classifier.save_pretrained(options.save / name)
            durations.append(time.perf_counter() - started)
            results = {"newly_initialised": classifier.newly_initialised, **stages,
                       "seconds": durations[-1]}
            print_result(write_log(path, settings, run_inputs, identities[name], results), path)
    return failed


def print_result(log: dict, path: Path) -> None:
    best = log["classifier"]["epochs"][log["classifier"]["best_epoch"] - 1]
    collapsed = " [COLLAPSED: Matthews is 0]" if best["matthews"] == 0 else ""
    sample = " [SAMPLE: says nothing about the real task]" if log["sample"] else ""
    print(f"result {log['run']}: {scores_of(best)} (best epoch {best['epoch']} of "
          f"{log['classifier']['last_epoch']}), {log['seconds']:.0f} s, {path}"
          f"{collapsed}{sample}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line. Bad input ends with one sentence and exit code 2."""
    options = parse_arguments(arguments)
    try:
        return study(options)
    except UserError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our lines has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        return 1
    except OSError as error:  # the disk
        print(f"train.py: {error.filename or options.out}: {error.strerror}; check that path and "
              "its disk, or name another", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ntrain.py: stopped; finished runs are kept, and the same command goes on from "
              "there", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
