"""Make tests/golden/models with transformers, and check what models.py saves against it.

    python tests/make_model_golden.py                        # golden files, round trip of the small models
    python tests/make_model_golden.py CHECKPOINT GLUE        # and a real checkpoint on 200 pairs of GLUE/MRPC/dev.tsv

Run by hand, in an environment with transformers 5, safetensors and torch; the tests need none of that. Every small
checkpoint holds an encoder and every head, as transformers' class for each head picks what it knows; the tests
derive the variants of naming, format and dtype from it.
"""
import contextlib
import logging
import sys
import tempfile
from pathlib import Path

import numpy
import safetensors.torch
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import models  # noqa: E402
from glue_data import Tokenizer, encode_split, load_task  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "models"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz",
              *("##" + letter for letter in "abcdefghijklmnopqrstuvwxyz")]
SHAPE = dict(vocab_size=len(VOCABULARY), max_position_embeddings=16, initializer_range=0.02)
CONFIGS = {
    "bert": transformers.BertConfig(**SHAPE, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                    intermediate_size=40, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.15),
    "tinybert": transformers.BertConfig(**SHAPE, hidden_size=12, num_hidden_layers=3, num_attention_heads=2,
                                        intermediate_size=20),
    "distilbert": transformers.DistilBertConfig(**SHAPE, dim=24, n_layers=2, n_heads=3, hidden_dim=40,
                                                seq_classif_dropout=0.3),
}


class Strict(logging.Handler):
    """Fails at any warning that transformers logs while it is on."""
    def emit(self, record):
        raise AssertionError(f"transformers warns: {record.getMessage()}")

    def __enter__(self):
        transformers.logging.set_verbosity_warning()
        logging.getLogger("transformers").addHandler(self)

    def __exit__(self, *_):
        logging.getLogger("transformers").removeHandler(self)
        transformers.logging.set_verbosity_error()


def randomise(model: torch.nn.Module) -> None:
    """Values far from any initial one, so that a parameter that is not loaded shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.4)
            if "orm.weight" in name:
                parameter.add_(1)


def classes(config) -> tuple[type, type]:
    family = "DistilBert" if config.model_type == "distilbert" else "Bert"
    return (getattr(transformers, family + "ForMaskedLM"), getattr(transformers, family + "ForSequenceClassification"))


def whole_state(config) -> dict[str, torch.Tensor]:
    """Encoder and every head as one state dictionary, each key once with the tied ones left out."""
    masked_lm, classifier = (each(config) for each in classes(config))
    for model in (masked_lm, classifier):
        randomise(model)
    state = {**masked_lm.state_dict(), **{key: value for key, value in classifier.state_dict().items()
                                          if key not in masked_lm.state_dict()}}
    for tied in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "vocab_projector.weight"):
        state.pop(tied, None)
    return {key: value.clone() for key, value in state.items()}


def batch(config) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, config.vocab_size, (3, 11))
    ids[:, 0], ids[:, 5], ids[0, 3] = 2, 3, 4
    attention_mask = torch.ones(3, 11, dtype=torch.long)
    attention_mask[1, 7:] = attention_mask[2, 9:] = 0
    segments = torch.zeros(3, 11, dtype=torch.long)
    segments[:, 6:] = 1
    return {"ids": ids * attention_mask, "segments": segments * attention_mask, "attention_mask": attention_mask}


def expected(directory: Path, inputs: dict, which: tuple[str, ...], **changes) -> dict[str, numpy.ndarray]:
    """Logits of transformers for the checkpoint in directory, computed in float32 whatever its dtype."""
    config = transformers.AutoConfig.from_pretrained(directory, **changes)
    arguments = {"input_ids": inputs["ids"], "attention_mask": inputs["attention_mask"]}
    if config.model_type == "bert":
        arguments["token_type_ids"] = inputs["segments"]
    logits = {}
    for name, model_class in zip(("mlm", "classifier"), classes(config)):
        if name in which:
            model = model_class.from_pretrained(directory, config=config, dtype=torch.float32).eval()
            with torch.no_grad():
                logits[name] = model(**arguments).logits.numpy()
    return logits


def make(name: str) -> None:
    """GOLDEN/name: config.json, vocab.txt, the weights and expected.npz."""
    config, directory = CONFIGS[name], GOLDEN / name
    directory.mkdir(parents=True, exist_ok=True)
    state, inputs = whole_state(config), batch(config)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    config.save_pretrained(directory)
    arrays = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        config.save_pretrained(scratch)

        def logits(label: str, tensors: dict, which: tuple[str, ...] = ("mlm", "classifier"), **changes) -> None:
            safetensors.torch.save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
            for head, values in expected(scratch, inputs, which, **changes).items():
                arrays[f"{head}_{label}" if label else head] = values

        logits("", state)
        for dtype in (torch.float16, torch.bfloat16):
            logits(str(dtype).removeprefix("torch."), {key: value.to(dtype) for key, value in state.items()})
        key = "activation" if name == "distilbert" else "hidden_act"
        for activation in ("gelu_new", "relu"):
            logits(activation, state, **{key: activation})
        output = "vocab_projector.weight" if name == "distilbert" else "cls.predictions.decoder.weight"
        decoder = torch.randn(config.vocab_size, state[next(iter(state))].shape[1]) * 0.4
        bias = {} if name == "distilbert" else {"cls.predictions.decoder.bias": state["cls.predictions.bias"].clone()}
        logits("untied", {**state, output: decoder, **bias}, ("mlm",), tie_word_embeddings=False)
    numpy.savez_compressed(directory / "expected.npz", decoder=decoder.numpy(), **arrays,
                           **{key: value.numpy() for key, value in inputs.items()})
    if name == "tinybert":  # as on the hub: a pickle, with the layers of its distillation and a next-sentence head
        width = config.hidden_size
        for number in range(4):
            state[f"fit_denses.{number}.weight"] = torch.randn(16, width)
            state[f"fit_denses.{number}.bias"] = torch.randn(16)
        state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]
        state["cls.seq_relationship.weight"], state["cls.seq_relationship.bias"] = torch.randn(2, width), torch.randn(2)
        torch.save(state, directory / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    else:
        safetensors.torch.save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "model.safetensors").chmod(0o644)


def difference(ours: torch.nn.Module, auto_class: type, batches: list[tuple]) -> float:
    """Save ours, load it with transformers (a warning fails), and compare logits at real tokens: the largest gap."""
    with tempfile.TemporaryDirectory() as scratch:
        ours.save_pretrained(Path(scratch) / "saved")
        with Strict():
            theirs, report = auto_class.from_pretrained(Path(scratch) / "saved", output_loading_info=True)
    assert not any(report.values()), report
    assert type(theirs).__name__ == theirs.config.architectures[0] and theirs.dtype == torch.float32
    ours.eval(), theirs.eval()
    largest = 0.0
    with torch.no_grad():
        for ids, segments, attention_mask in batches:
            extra = {"token_type_ids": segments} if ours.config.model_type == "bert" else {}
            gap = (ours(ids, segments, attention_mask)
                   - theirs(input_ids=ids, attention_mask=attention_mask.long(), **extra).logits).abs()
            largest = max(largest, (gap[attention_mask.bool()] if gap.dim() == 3 else gap).max().item())
    return largest


def check_real(checkpoint: Path, glue: Path) -> None:
    """Hidden states, pooler and heads of a real BERT checkpoint on the first 200 dev pairs of MRPC."""
    tokenizer = Tokenizer.from_pretrained(checkpoint)
    split = encode_split(load_task("mrpc", "dev", glue)[:200], tokenizer, 128)
    batches = [split.batch(list(range(start, start + 20))) for start in range(0, 200, 20)]
    ours = models.Classifier.from_pretrained(checkpoint).eval()
    theirs = transformers.BertModel.from_pretrained(checkpoint).eval()
    hidden_gap = pooler_gap = 0.0
    with torch.no_grad():
        for each in batches:
            outputs = theirs(input_ids=each.ids, token_type_ids=each.segments,
                             attention_mask=each.attention_mask.long(), output_hidden_states=True)
            embeddings = ours.encoder.embed_words(each.ids)
            states = ours.encoder(embeddings, each.segments, each.attention_mask, all_layers=True)
            assert len(states) == len(outputs.hidden_states)
            for mine, reference in zip(states, outputs.hidden_states):
                hidden_gap = max(hidden_gap, (mine - reference)[each.attention_mask].abs().max().item())
            pooled = torch.tanh(ours.encoder.pooler(states[-1][:, 0]))
            pooler_gap = max(pooler_gap, (pooled - outputs.pooler_output).abs().max().item())
    print(f"{checkpoint.name}, 200 pairs of MRPC dev, largest difference: hidden states of all layers "
          f"{hidden_gap:.2e}, pooler {pooler_gap:.2e}")
    batches = [(each.ids, each.segments, each.attention_mask) for each in batches]
    masked_lm = models.MaskedLM.from_pretrained(checkpoint)
    print(f"  saved as BertForMaskedLM: {difference(masked_lm, transformers.AutoModelForMaskedLM, batches):.2e}")
    gap = difference(ours, transformers.AutoModelForSequenceClassification, batches)
    print(f"  saved as BertForSequenceClassification: {gap:.2e}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    for name in CONFIGS:
        make(name)
    for name in CONFIGS:
        arrays = numpy.load(GOLDEN / name / "expected.npz")
        inputs = [tuple(torch.from_numpy(arrays[key]) for key in ("ids", "segments", "attention_mask"))]
        for model_class, auto_class in ((models.MaskedLM, transformers.AutoModelForMaskedLM),
                                        (models.Classifier, transformers.AutoModelForSequenceClassification)):
            model = model_class.from_pretrained(GOLDEN / name)
            gap = difference(model, auto_class, inputs)
            print(f"{name}: {model_class.__name__} saved and loaded by transformers, logits differ by {gap:.2e}")
        with contextlib.suppress(AssertionError), Strict():
            classes(model.config)[0].from_pretrained(GOLDEN / name)  # it holds keys of other heads, and that must show
            raise SystemExit("a warning of transformers went unnoticed")
        three = models.Classifier(model.config, num_labels=3)
        gap = difference(three, transformers.AutoModelForSequenceClassification, inputs)
        print(f"{name}: 3 labels, newly made: {gap:.2e}")
        untied = models.MaskedLM(models.replace(model.config, tie_word_embeddings=False))
        gap = difference(untied, transformers.AutoModelForMaskedLM, inputs)
        print(f"{name}: untied, newly made: {gap:.2e}")
    if len(sys.argv) == 3:
        check_real(Path(sys.argv[1]), Path(sys.argv[2]))
