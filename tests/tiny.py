"""A GLUE directory of a few sentences and two-layer checkpoints of random weights, on which a run takes a tenth of a second."""
import random
from pathlib import Path

import torch

import models

WORDS = "the a cat dog bird saw heard liked no every old young red quick ##s ##ed ##ly walk talk jump run play".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocabulary(path: Path) -> None:
    path.write_text("\n".join(SPECIAL + WORDS) + "\n")


def write_glue(directory: Path, train: int = 48, dev: int = 16) -> Path:
    generator, pieces = random.Random(0), [word for word in WORDS if not word.startswith("#")]
    inflected = [verb + ending for verb in ("walk", "talk", "jump", "play") for ending in ("", "s", "ed")]

    def sentence() -> str:
        return " ".join(generator.choice(pieces + inflected) for _ in range(generator.randint(3, 9)))

    for folder in ("MRPC", "CoLA"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    for split, size in (("train", train), ("dev", dev)):
        pairs = [f"{i % 2}\t{i}\t{i + 1}\t{sentence()}\t{sentence()}" for i in range(size)]
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *pairs]
        (directory / "MRPC" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        (directory / "CoLA" / f"{split}.tsv").write_text("".join(f"x\t{i % 2}\t\t{sentence()}\n" for i in range(size)))
    return directory


def config(model_type: str = "bert") -> models.Config:
    return models.Config(model_type, len(SPECIAL + WORDS), 16, 2, 2, 32, 128, 2 if model_type == "bert" else 0)


def write_checkpoint(directory: Path, scale: float = 1.0, model_type: str = "bert") -> Path:
    """scale: multiplies every weight; a huge one overflows in the first step."""
    torch.manual_seed(0)
    model = models.MaskedLM(config(model_type))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    model.save_pretrained(directory)
    write_vocabulary(directory / "vocab.txt")
    return directory
