"""A GLUE directory of a few sentences and two-layer checkpoints of random weights: a run on them
takes a fraction of a second."""
import random
from pathlib import Path

import torch

import models

PIECES = ("the a cat dog bird saw heard liked no every old young red quick ##s ##ed ##ly walk talk "
          "jump run play").split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = SPECIAL + PIECES


def write_glue(directory: Path, train: int = 48, dev: int = 16) -> Path:
    draw = random.Random(0)
    words = [piece for piece in PIECES if not piece.startswith("#")]
    words += [verb + ending for verb in ("walk", "talk", "jump", "play") for ending in ("s", "ed")]

    def sentence() -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randint(3, 9)))

    for split, size in (("train", train), ("dev", dev)):
        pairs = [f"{i % 2}\t{i}\t{i + 1}\t{sentence()}\t{sentence()}" for i in range(size)]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        singles = [f"x\t{i % 2}\t\t{sentence()}" for i in range(size)]
        for folder, lines in (("MRPC", [header, *pairs]), ("CoLA", singles)):
            (directory / folder).mkdir(parents=True, exist_ok=True)
            (directory / folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return directory


def config(model_type: str = "bert", dropout: float = 0.1) -> models.Config:
    return models.Config(
        model_type=model_type, vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=128,
        type_vocab_size=2 if model_type == "bert" else 0,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def write_checkpoint(directory: Path, scale: float = 1.0, dropout: float = 0.1) -> Path:
    """scale: multiplies every weight; a huge one overflows in the first step."""
    torch.manual_seed(0)
    model = models.MaskedLM(config(dropout=dropout))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return directory
