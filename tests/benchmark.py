"""Speed and memory of the two stages, as ratios measured side by side. Run by hand:

    python tests/benchmark.py [--data-dir GLUE] [--model DIRECTORY] [--steps N] [--rounds N]

Our own lines time the real `train.adapt` and `train.fine_tune`; one of them is without
deterministic kernels, to see what these cost. Beside them: the literal dense definition of Typhoon
(a one-hot tensor (B, T, V), logits at every position) in plain PyTorch, and, where `transformers`
is importable, its Trainer on the same sentences, with random masking, with the dense Typhoon step,
and as a classifier. All have the same batch size and number of optimiser steps. Each line is a
process of its own, so that its peak memory is its own; the rounds go through all lines in turn, and
medians are printed. The default model is the sample's; for TinyBERT's size give --model tinybert,
or --like tinybert for random weights of its shape with any model's vocabulary.
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
OURS = ["random", "whole-word", "typhoon", ANY_KERNELS, "dense Typhoon", "classifier"]
TRAINERS = ["Trainer, random", "Trainer, dense Typhoon", "Trainer, classifier"]
RATIOS = [("typhoon", "random"), ("typhoon", ANY_KERNELS), ("typhoon", "dense Typhoon"),
          ("random", "Trainer, random"), ("typhoon", "Trainer, dense Typhoon"),
          ("classifier", "Trainer, classifier")]
SHAPES = {  # hidden size, layers, heads, intermediate size
    "tinybert": (312, 4, 12, 1200), "distilbert": (768, 6, 12, 3072),
    "bert-base": (768, 12, 12, 3072)}


def read(options):
    """The settings of a run and its inputs, cut to the examples that the steps need."""
    import models
    import train
    arguments = ["--task", "mrpc", "--mlm-epochs", "1", "--cls-epochs", "1",
                 "--batch-size", str(options.batch_size), "--precision", options.precision]
    [settings] = train.plan(train.parse_arguments(arguments), ["mrpc"], ["model"]).values()
    folder = Path(options.data_dir or ROOT / "tests" / "sample")
    backbone = models.find_model(options.model)
    inputs = train.read_inputs("mrpc", folder, backbone, 128, settings.device)

    def cut(split, count):
        tensors = {name: getattr(split, name)[:count] for name in (
            "ids", "segments", "words", "attention_mask", "labels")}
        return replace(split, lengths=split.lengths[:count], **tensors)

    examples = options.batch_size * (options.steps + WARM_UP)
    if examples > len(inputs.train.lengths):
        raise SystemExit(f"{options.steps} steps need {examples} examples, and the data has only "
                         f"{len(inputs.train.lengths)}")
    dev = cut(inputs.dev, options.batch_size)
    return settings, replace(inputs, train=cut(inputs.train, examples), dev=dev)


class Clock:
    """The time at every step. Stands in for train.tqdm: the loops are measured as they are."""

    def __init__(self, device):
        self.device, self.times = device, []

    def tick(self):
        if self.device == "cuda":
            import torch
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def __call__(self, batches, *_, **__):
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
    settings, inputs = read(options)
    if line == ANY_KERNELS:
        torch.use_deterministic_algorithms(False)
    if line == "classifier":
        classifier = models.Classifier.from_pretrained(inputs.backbone).to(settings.device)
        train.fine_tune(settings, inputs, classifier)
    else:
        settings.masker = line.partition(",")[0]
        position = torch.arange(inputs.dev.words.shape[1], device=settings.device)
        train.adapt(settings, inputs, (inputs.dev.words >= 0) & (position % 3 == 0))


def dense_step(embedding_weight, mask_id, ids, words, masker, generator, predict):
    """Typhoon by its definition: the loss at one-hot inputs, its gradient at the true tokens."""
    import torch
    import torch.nn.functional as F
    selected = masker.select(ids, words, generator)  # (B, T)
    V = len(masker.frequency)
    one_hot = F.one_hot(ids.masked_fill(selected, mask_id), V).float().requires_grad_()  # (B, T, V)
    logits = predict(one_hot @ embedding_weight)  # (B, T, V)
    loss = F.cross_entropy(logits.transpose(1, 2), ids.masked_fill(~selected, -100))
    loss.backward()
    saliency = one_hot.grad.gather(2, ids[..., None])  # (B, T, 1)
    # With width 1 and an embedding of 1, the gradient that observe() takes is the saliency itself.
    masker.observe(saliency, torch.ones(V, 1, device=ids.device), ids, words, selected)
    return loss.detach()


def dense(options, line, clock):
    import torch
    import models
    import typhoon
    settings, inputs = read(options)
    model = models.MaskedLM.from_pretrained(inputs.backbone).to(settings.device).train()
    masker = typhoon.TyphoonMasker(inputs.frequency, 0.3, 0.4, 0.8)
    generator = torch.Generator(settings.device).manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    order = torch.randperm(len(inputs.train.lengths)).tolist()
    size = options.batch_size
    for rows in clock([order[i:i + size] for i in range(0, len(order), size)]):
        batch = inputs.train.batch(rows)

        def predict(embeddings):
            return model.predict(model.encoder(embeddings, batch.segments, batch.attention_mask))

        dense_step(model.encoder.word_embeddings.weight, inputs.tokenizer.mask_id, batch.ids,
                   batch.words, masker, generator, predict)
        optimiser.step()
        optimiser.zero_grad()


def trainer(options, line, clock):
    """transformers' Trainer as its users have it: shuffled batches, logits at every position."""
    import torch
    import transformers
    import typhoon
    settings, inputs = read(options)
    kind = "ForSequenceClassification" if line == "Trainer, classifier" else "ForMaskedLM"
    model = getattr(transformers, "AutoModel" + kind).from_pretrained(inputs.backbone)
    data = inputs.train
    rows = [{"input_ids": data.ids[i, :n], "token_type_ids": data.segments[i, :n],
             "attention_mask": torch.ones(n, dtype=torch.long), "words": data.words[i, :n],
             "labels": data.labels[i]} for i, n in enumerate(data.lengths)]
    masker_class = typhoon.TyphoonMasker if "Typhoon" in line else typhoon.RandomMasker
    masker = masker_class(inputs.frequency, 0.3, 0.4, 0.8)
    generator = torch.Generator(settings.device).manual_seed(0)

    def collate(examples):
        def pad(name, value):
            return torch.nn.utils.rnn.pad_sequence(
                [example[name] for example in examples], batch_first=True, padding_value=value)

        names = ("input_ids", "token_type_ids", "attention_mask")
        batch = {name: pad(name, 0) for name in names}
        if line == "Trainer, classifier":
            return batch | {"labels": torch.stack([example["labels"] for example in examples])}
        batch["words"] = pad("words", -1)
        if line == "Trainer, random":
            selected = masker.select(batch["input_ids"], batch.pop("words"), generator)
            batch["labels"] = batch["input_ids"].masked_fill(~selected, -100)
            batch["input_ids"] = batch["input_ids"].masked_fill(
                selected, inputs.tokenizer.mask_id)
        return batch

    class Measured(transformers.Trainer):
        def training_step(self, model, batch, *arguments):
            clock.tick()
            if "Typhoon" not in line:
                return super().training_step(model, batch, *arguments)
            model.train()
            batch = self._prepare_inputs(batch)

            def predict(embeddings):
                return model(inputs_embeds=embeddings, token_type_ids=batch["token_type_ids"],
                             attention_mask=batch["attention_mask"]).logits

            return dense_step(model.get_input_embeddings().weight, inputs.tokenizer.mask_id,
                              batch["input_ids"], batch["words"], masker, generator, predict)

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=options.batch_size, num_train_epochs=1,
            learning_rate=1e-4, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True, remove_unused_columns=False, bf16=options.precision == "bf16",
            use_cpu=settings.device == "cpu", dataloader_pin_memory=False)
        Measured(model, arguments, train_dataset=rows, data_collator=collate).train()
    clock.tick()


def measure(options, line, pipe):
    """One line in a process of its own: sends samples per second and the peak memory in MB."""
    import torch
    sys.stdout = open(os.devnull, "w")
    clock = Clock(options.device)
    if line in TRAINERS:
        trainer(options, line, clock)
    else:
        import train
        train.configure_torch()
        (dense if line == "dense Typhoon" else ours)(options, line, clock)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    pipe.send((options.batch_size * options.steps / clock.seconds(), peak / 1e6))


def write_like(options, directory):
    """A model of a known shape with random weights: speed and memory do not depend on them."""
    import models
    from glue_data import Tokenizer, tokenizer_files
    source = models.find_model(options.model)
    hidden_size, layers, heads, intermediate_size = SHAPES[options.like]
    distilbert = options.like == "distilbert"
    model = models.MaskedLM(models.Config(
        model_type="distilbert" if distilbert else "bert", hidden_size=hidden_size,
        vocab_size=len(Tokenizer.from_pretrained(source).tokens), num_hidden_layers=layers,
        num_attention_heads=heads, intermediate_size=intermediate_size,
        type_vocab_size=0 if distilbert else 2))
    model.save_pretrained(directory)
    for name, path in tokenizer_files(source).items():
        (directory / name).write_bytes(path.read_bytes())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--model", default=str(ROOT / "tests" / "sample" / "bert"))
    parser.add_argument("--like", choices=SHAPES)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lines", nargs="+", metavar="LINE", help="only these (default: all)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    options = parser.parse_args()
    import torch
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    temporary = tempfile.TemporaryDirectory()
    if options.like:
        directory = Path(temporary.name, options.like)
        write_like(options, directory)
        options.model = str(directory)
    lines = list(OURS)
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"):
        lines += TRAINERS
    lines = [line for line in lines if line in (options.lines or lines)]
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
          f"{options.precision}, batch {options.batch_size}, {options.steps} steps, "
          f"{options.rounds} rounds, {options.like or Path(options.model).name}", flush=True)

    context = multiprocessing.get_context("spawn")
    results = {line: [] for line in lines}
    for _ in range(options.rounds):
        for line in lines:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=measure, args=(options, line, sender))
            process.start()
            sender.close()
            results[line].append(receiver.recv())
            process.join()

    print(f"{'':24}{'samples/s':>10}{'(lowest - highest)':>20}{'peak MB':>9}")
    memory = {}
    for line in lines:
        speeds, peaks = zip(*results[line])
        memory[line] = statistics.median(peaks)
        span = f"({min(speeds):.1f} - {max(speeds):.1f})"
        print(f"{line:24}{statistics.median(speeds):10.1f}{span:>20}{memory[line]:9.0f}")
    for one, other in RATIOS:
        if one in lines and other in lines:
            ratios = [a[0] / b[0] for a, b in zip(results[one], results[other])]
            print(f"{one} / {other}: {statistics.median(ratios):.2f} x the speed, "
                  f"{memory[one] / memory[other]:.2f} x the memory")


if __name__ == "__main__":
    main()
