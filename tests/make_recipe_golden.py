"""Make tests/golden/recipe.npz: three optimisation steps of transformers' Trainer, in float64.

    python tests/make_recipe_golden.py

Run by hand, in an environment with transformers 5, accelerate and torch; the test needs none of
that. The Trainer's defaults are what the 2023 code trained with: AdamW, gradients clipped to norm
1, no weight decay on biases and LayerNorm, linear decay. A warm-up of two steps of five shows that
ours counts as it does. Without dropout, so that nothing is drawn.
"""
import tempfile
from pathlib import Path

import numpy
import torch
import transformers
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

GOLDEN = Path(__file__).resolve().parent / "golden"
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
COMPARED = {  # our name -> theirs
    "encoder.word_embeddings.weight": "bert.embeddings.word_embeddings.weight",
    "encoder.embedding_norm.weight": "bert.embeddings.LayerNorm.weight",
    "encoder.layers.0.query.weight": "bert.encoder.layer.0.attention.self.query.weight",
    "encoder.layers.0.query.bias": "bert.encoder.layer.0.attention.self.query.bias",
    "encoder.layers.1.feed_forward.weight": "bert.encoder.layer.1.intermediate.dense.weight",
    "encoder.layers.1.feed_forward_norm.bias": "bert.encoder.layer.1.output.LayerNorm.bias",
    "encoder.layers.1.attention_norm.weight": "bert.encoder.layer.1.attention.output.LayerNorm.weight",
    "encoder.position_embeddings.weight": "bert.embeddings.position_embeddings.weight",
    "encoder.segment_embeddings.weight": "bert.embeddings.token_type_embeddings.weight",
    "encoder.pooler.weight": "bert.pooler.dense.weight",
    "classifier.weight": "classifier.weight",
    "classifier.bias": "classifier.bias",
    "predict.transform.weight": "cls.predictions.transform.dense.weight",
    "predict.norm.bias": "cls.predictions.transform.LayerNorm.bias",
}


def make_batch(vocabulary_size: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, vocabulary_size, (4, 10))
    attention_mask = torch.ones(4, 10, dtype=torch.bool)
    attention_mask[3, 7:] = False
    segments = torch.zeros(4, 10, dtype=torch.long)
    segments[:, 5:] = 1
    selected = (torch.rand(4, 10) < 0.4) & attention_mask
    return {"ids": ids, "segments": segments, "attention_mask": attention_mask,
            "selected": selected, "labels": torch.randint(2, (4,))}


def for_transformers(batch: dict, stage: str) -> dict:
    arguments = {"token_type_ids": batch["segments"],
                 "attention_mask": batch["attention_mask"].long()}
    if stage == "mlm":
        return arguments | {"input_ids": batch["ids"].masked_fill(batch["selected"], 4),
                            "labels": batch["ids"].masked_fill(~batch["selected"], -100)}
    return arguments | {"input_ids": batch["ids"], "labels": batch["labels"]}


class ThreeSteps(transformers.TrainerCallback):
    """Of a schedule of five, so that the learning rate has risen and begun to fall."""
    def on_step_end(self, arguments, state, control, **_):
        control.should_training_stop = state.global_step == 3


def train(stage: str, clip: float, batches: list[dict], scratch: str) -> dict:
    auto = AutoModelForMaskedLM if stage == "mlm" else AutoModelForSequenceClassification
    model = auto.from_pretrained(GOLDEN / "models" / "bert", dtype=torch.float32, **NO_DROPOUT)
    model = model.double()
    examples = [{key: value[row] for key, value in for_transformers(batch, stage).items()}
                for batch in batches for row in range(4)]
    arguments = transformers.TrainingArguments(
        scratch, per_device_train_batch_size=4, learning_rate=1e-2, weight_decay=0.01,
        max_steps=5, warmup_steps=2, max_grad_norm=clip, use_cpu=True, save_strategy="no",
        report_to=[], disable_tqdm=True, logging_strategy="no")

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(examples)

    InOrder(model, arguments, train_dataset=examples, callbacks=[ThreeSteps()]).train()
    parameters = dict(model.named_parameters())
    return {f"{stage}_{clip}_{ours}": parameters[theirs].detach().numpy()
            for ours, theirs in COMPARED.items() if theirs in parameters}


if __name__ == "__main__":
    torch.manual_seed(0)
    vocabulary_size = transformers.AutoConfig.from_pretrained(GOLDEN / "models" / "bert").vocab_size
    batches = [make_batch(vocabulary_size) for _ in range(3)]
    arrays = {f"{name}_{step}": value.numpy()
              for step, batch in enumerate(batches) for name, value in batch.items()}
    with tempfile.TemporaryDirectory() as scratch:
        for stage in ("mlm", "classifier"):
            for clip in (1.0, 0.0):
                arrays |= train(stage, clip, batches, scratch)
    numpy.savez_compressed(GOLDEN / "recipe.npz", **arrays)
