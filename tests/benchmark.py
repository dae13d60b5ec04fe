"""Speed and memory of the two stages, as ratios measured side by side. Run by hand:

    python tests/benchmark.py [--data-dir GLUE] [--model DIRECTORY] [--steps N] [--rounds N] [--precision bf16]

Our own lines time the real `train.adapt` and `train.fine_tune`; one of them is without deterministic kernels, to see
what these cost. Beside them: the literal dense definition of Typhoon (a one-hot tensor (B, T, V), logits at every
position) in plain PyTorch, and, where `transformers` is importable, its Trainer on the same sentences, with random
masking, with the dense Typhoon step, and as a classifier. All have the same batch size and number of optimiser steps.
Each line is a process of its own, so that its peak memory is its own; the
rounds go through all lines in turn, and medians are printed. The default model is the sample's; for TinyBERT's size
give --model tinybert, or --like tinybert for random weights of its shape with any model's vocabulary.
"""
import argparse
import importlib.util
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
WARM_UP = 5
ANY_KERNELS = "typhoon, any kernels"


def read(options):
    """The inputs, cut to the training examples that the steps need and one batch of dev examples."""
    import models
    import train
    folder = Path(options.data_dir or ROOT / "tests" / "sample")
    inputs = train.read_inputs("mrpc", folder, models.find_model(options.model), "directory", 128, options.device)
    examples = options.batch_size * (options.steps + WARM_UP)

    def cut(split, count):
        return replace(split, ids=split.ids[:count], segments=split.segments[:count], words=split.words[:count],
                       labels=split.labels[:count], lengths=split.lengths[:count])

    if examples > len(inputs.train.lengths):
        raise SystemExit(f"{options.steps} steps need {examples} examples, the data has {len(inputs.train.lengths)}")
    return replace(inputs, train=cut(inputs.train, examples), dev=cut(inputs.dev, options.batch_size))


class Clock:
    """Takes the time at every step; stands in for tqdm in train.py, so that its loops are measured as they are."""

    def __init__(self, device):
        self.device, self.times = device, []

    def tick(self):
        if self.device == "cuda":
            import torch
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def __call__(self, batches, *arguments, **options):
        for batch in batches:
            self.tick()
            yield batch
        self.tick()

    def seconds(self) -> float:
        return self.times[-1] - self.times[WARM_UP]


def ours(options, line, clock):
    import torch
    import models
    import train
    train.tqdm = clock
    inputs = read(options)
    if line == ANY_KERNELS:
        torch.use_deterministic_algorithms(False)
    settings = train.Namespace(seed=0, task="mrpc", masker=line.partition(",")[0], objective="mlm", spread=0.4,
                               budget=0.3, ema=0.8, corruption="mask", mlm_epochs=1, mlm_lr=1e-4, cls_epochs=1, cls_lr=5e-5,
                               batch_size=options.batch_size, device=options.device, precision=options.precision)
    if line == "classifier":
        train.fine_tune(settings, inputs, models.Classifier.from_pretrained(inputs.backbone).to(options.device))
    else:
        train.adapt(settings, inputs, (inputs.dev.words >= 0) & (torch.arange(inputs.dev.words.shape[1],
                                                                              device=options.device) % 3 == 0))


def dense_step(embedding_weight, mask_id, ids, words, masker, generator, predict):
    """Typhoon by its definition: the loss at one-hot inputs (B, T, V), and its gradient read at the true tokens."""
    import torch
    import torch.nn.functional as F
    selected = masker.select(ids, words, generator)
    one_hot = F.one_hot(ids.masked_fill(selected, mask_id), len(masker.frequency)).float().requires_grad_()  # (B, T, V)
    logits = predict(one_hot @ embedding_weight)  # (B, T, V)
    loss = F.cross_entropy(logits.transpose(1, 2), ids.masked_fill(~selected, -100))
    loss.backward()
    saliency = one_hot.grad.gather(2, ids[..., None])  # (B, T, 1)
    # observe() takes a gradient and the embeddings; with width 1 and embedding 1 it receives the saliency itself.
    masker.observe(saliency, torch.ones(len(masker.frequency), 1, device=ids.device), ids, words, selected)
    return loss.detach()


def dense(options, line, clock):
    import torch
    import models
    import typhoon
    inputs = read(options)
    model = models.MaskedLM.from_pretrained(inputs.backbone).to(options.device).train()
    masker = typhoon.TyphoonMasker(inputs.frequency, 0.3, 0.4, 0.8)
    generator = torch.Generator(options.device).manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    order = torch.randperm(len(inputs.train.lengths), generator=torch.Generator().manual_seed(0)).tolist()
    for rows in clock([order[i:i + options.batch_size] for i in range(0, len(order), options.batch_size)]):
        batch = inputs.train.batch(rows)
        dense_step(model.encoder.word_embeddings.weight, inputs.tokenizer.mask_id, batch.ids, batch.words, masker, generator,
                   lambda embeddings: model.predict(model.encoder(embeddings, batch.segments, batch.attention_mask)))
        optimiser.step()
        optimiser.zero_grad()


def trainer(options, line, clock):
    """transformers' Trainer as its users have it: shuffled batches, padded to their longest, logits everywhere."""
    import torch
    import transformers
    import typhoon
    inputs = read(options)
    kind = "ForSequenceClassification" if line == "Trainer, classifier" else "ForMaskedLM"
    model = getattr(transformers, "AutoModel" + kind).from_pretrained(inputs.backbone)
    rows = [{"input_ids": inputs.train.ids[i, :n], "token_type_ids": inputs.train.segments[i, :n],
             "words": inputs.train.words[i, :n], "attention_mask": torch.ones(n, dtype=torch.long),
             "labels": inputs.train.labels[i]} for i, n in enumerate(inputs.train.lengths)]
    masker = (typhoon.TyphoonMasker if "Typhoon" in line else typhoon.RandomMasker)(inputs.frequency, 0.3, 0.4, 0.8)
    generator = torch.Generator(options.device).manual_seed(0)

    def collate(examples):
        def pad(name, value):
            return torch.nn.utils.rnn.pad_sequence([e[name] for e in examples], batch_first=True, padding_value=value)
        batch = {"input_ids": pad("input_ids", 0), "token_type_ids": pad("token_type_ids", 0),
                 "attention_mask": pad("attention_mask", 0)}
        if line == "Trainer, classifier":
            return batch | {"labels": torch.stack([e["labels"] for e in examples])}
        words = pad("words", -1)
        if line == "Trainer, random":
            selected = masker.select(batch["input_ids"], words, generator)
            batch["labels"] = batch["input_ids"].masked_fill(~selected, -100)
            batch["input_ids"] = batch["input_ids"].masked_fill(selected, inputs.tokenizer.mask_id)
            return batch
        return batch | {"words": words}

    class Measured(transformers.Trainer):
        def training_step(self, model, batch, *arguments):
            clock.tick()
            if "Typhoon" not in line:
                return super().training_step(model, batch, *arguments)
            model.train()
            batch = self._prepare_inputs(batch)
            return dense_step(model.get_input_embeddings().weight, inputs.tokenizer.mask_id, batch["input_ids"],
                              batch["words"], masker, generator, lambda embeddings: model(
                                  inputs_embeds=embeddings, token_type_ids=batch["token_type_ids"],
                                  attention_mask=batch["attention_mask"]).logits)

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=options.batch_size, num_train_epochs=1, learning_rate=1e-4, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
            bf16=options.precision == "bf16", use_cpu=options.device == "cpu", dataloader_pin_memory=False)
        Measured(model, arguments, train_dataset=rows, data_collator=collate).train()
    clock.tick()


def measure(options, line, pipe):
    """One line in a process of its own: sends samples per second and peak memory in MB."""
    import torch
    sys.stdout = open(os.devnull, "w")
    clock = Clock(options.device)
    if not line.startswith("Trainer"):  # which is measured as its users have it
        import train
        train.configure_torch()
    (trainer if line.startswith("Trainer") else dense if line == "dense Typhoon" else ours)(options, line, clock)
    peak = (torch.cuda.max_memory_allocated() if options.device == "cuda"
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    pipe.send((options.batch_size * options.steps / clock.seconds(), peak / 1e6))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--model", default=str(ROOT / "tests" / "sample" / "bert"))
    parser.add_argument("--like", choices=["tinybert", "distilbert", "bert-base"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lines", nargs="+", metavar="LINE", help="only these, such as random typhoon (default: all)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    import torch
    import models
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    temporary = tempfile.TemporaryDirectory()
    if options.like:  # random weights: speed and memory do not depend on them
        shape = {"tinybert": (312, 4, 12, 1200), "distilbert": (768, 6, 12, 3072), "bert-base": (768, 12, 12, 3072)}
        source = models.find_model(options.model)
        vocabulary = (source / "vocab.txt").read_bytes()
        model = models.MaskedLM(models.Config("distilbert" if options.like == "distilbert" else "bert",
                                              vocabulary.count(b"\n"), *shape[options.like],
                                              type_vocab_size=0 if options.like == "distilbert" else 2))
        options.model = str(Path(temporary.name, options.like))
        model.vocabulary = {"vocab.txt": vocabulary}
        model.save_pretrained(options.model)
    lines = ["random", "whole-word", "typhoon", ANY_KERNELS, "dense Typhoon", "classifier"]
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"):
        lines[4:4] = ["Trainer, random", "Trainer, dense Typhoon"]
        lines.append("Trainer, classifier")
    lines = [line for line in lines if line in (options.lines or lines)]
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, {options.precision}, batch "
          f"{options.batch_size}, {options.steps} steps, {options.rounds} rounds, {options.model}", flush=True)
    context, results = multiprocessing.get_context("spawn"), {line: [] for line in lines}
    for _ in range(options.rounds):
        for line in lines:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=measure, args=(options, line, sender))
            process.start()
            sender.close()
            results[line].append(receiver.recv())
            process.join()
    median = {line: [statistics.median(values) for values in zip(*results[line])] for line in lines}
    print(f"{'':24}{'samples/s':>10}{'(lowest - highest)':>20}{'peak MB':>9}")
    for line in lines:
        speeds = [speed for speed, _ in results[line]]
        print(f"{line:24}{median[line][0]:10.1f}{f'({min(speeds):.1f} - {max(speeds):.1f})':>20}{median[line][1]:9.0f}")
    print()
    for ours_, theirs in [("typhoon", "random"), ("typhoon", ANY_KERNELS), ("typhoon", "dense Typhoon"),
                          ("random", "Trainer, random"), ("typhoon", "Trainer, dense Typhoon"), ("classifier", "Trainer, classifier")]:
        if ours_ in lines and theirs in lines:
            ratios = [a[0] / b[0] for a, b in zip(results[ours_], results[theirs])]
            print(f"{ours_} / {theirs}: {statistics.median(ratios):.2f} x the speed, "
                  f"{median[ours_][1] / median[theirs][1]:.2f} x the memory")


if __name__ == "__main__":
    main()
