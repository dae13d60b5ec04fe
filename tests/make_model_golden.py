"""Make tests/golden/models with transformers 5, and check what models.py saves against it.

    python tests/make_model_golden.py                     # the golden directories, then the checks
    python tests/make_model_golden.py --check             # the checks alone: transformers 4 or 5
    python tests/make_model_golden.py CHECKPOINT GLUE     # the same with a real model and real data

Run by hand, in an environment with transformers and safetensors; the tests need none of that.
A golden directory is a small checkpoint of random weights as somebody might have it, with
expected.npz: ids, segments and attention_mask (N, T) of SENTENCES by its tokenizer, and the logits
of transformers' models in float64: mlm (N, 4, V), at the first four positions, and classifier
(N, labels).
"""
import json
import logging
import shutil
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
from glue_data import Tokenizer, load_task  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "models"
SENTENCES = [
    ["The cat sat.", None],
    ["Le caf\u00e9 CAT!", "A dog sat: \u732b"],
    ["the newtoken cats", "Dogs, unknowable"],
]
WORDS = "the cat dog sat ##s ##nown caf\u00e9 cafe . , ! : \u732b".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
CASED = VOCABULARY + ["The", "A", "Dog", "Le", "CA", "##T"]
SMALL_BERT = dict(
    vocab_size=len(VOCABULARY), hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=12, max_position_embeddings=20, hidden_dropout_prob=0.2,
    attention_probs_dropout_prob=0.15)
SMALL_DISTILBERT = dict(
    vocab_size=len(VOCABULARY), dim=8, n_layers=2, n_heads=2, hidden_dim=12,
    max_position_embeddings=20, seq_classif_dropout=0.3)
HEADS = {"mlm": "ForMaskedLM", "classifier": "ForSequenceClassification"}


# ---- Making the checkpoints ----------------------------------------------------------------------

def random_model(head: str, family: str = "Bert", **changes) -> torch.nn.Module:
    """A model whose every value is far from its initial one, so that one not loaded shows."""
    small = SMALL_BERT if family == "Bert" else SMALL_DISTILBERT
    config = getattr(transformers, family + "Config")(**small | changes)
    model = getattr(transformers, family + HEADS[head])(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "orm.weight" in name else 0.0, 0.5)
    return model


def with_both_heads(directory: Path, family: str, vocabulary_end: str = "") -> dict:
    """config.json and vocab.txt as on the hub -> the state of an encoder with both heads."""
    masked_lm, classifier = random_model("mlm", family), random_model("classifier", family)
    masked_lm.config.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n" + vocabulary_end)
    state = {**classifier.state_dict(), **masked_lm.state_dict()}
    for tied in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
        state.pop(tied, None)
    state.pop("vocab_projector.weight", None)
    return state


def save_state(directory: Path, state: dict) -> None:
    safetensors.torch.save_file(state, directory / "model.safetensors", metadata={"format": "pt"})


def make_bert(directory: Path) -> None:
    save_state(directory, with_both_heads(directory, "Bert"))


def make_distilbert(directory: Path) -> None:
    save_state(directory, with_both_heads(directory, "DistilBert"))


def make_empty_line(directory: Path) -> None:
    """vocab.txt ends in an empty line."""
    save_state(directory, with_both_heads(directory, "Bert", vocabulary_end="\n"))


def make_tinybert(directory: Path) -> None:
    """As on the hub: a pickle, older names, and layers that only its distillation needed."""
    state = with_both_heads(directory, "Bert")
    state = {key.replace("orm.weight", "orm.gamma"): tensor for key, tensor in state.items()}
    state = {key.replace("orm.bias", "orm.beta"): tensor for key, tensor in state.items()}
    words = state["bert.embeddings.word_embeddings.weight"]
    extras = {
        "bert.embeddings.position_ids": torch.arange(20)[None],
        "cls.predictions.decoder.weight": words,
        "cls.seq_relationship.weight": torch.randn(2, 8),
        "cls.seq_relationship.bias": torch.randn(2),
        "fit_dense.weight": torch.randn(9, 8),
        "fit_denses.1.bias": torch.randn(9),
    }
    torch.save(state | extras, directory / "pytorch_model.bin")


def save_5(directory: Path, model: torch.nn.Module, tokens=VOCABULARY, added: str = "") -> None:
    """Model and tokenizer as transformers 5 saves them: tokenizer.json, no vocab.txt."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = transformers.BertTokenizer(vocabulary, do_lower_case=tokens is not CASED)
    if added:
        tokenizer.add_tokens([added])
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    assert not (directory / "vocab.txt").exists() and (directory / "tokenizer.json").exists()


MAKERS = {  # name -> the heads that the checkpoint holds, and how it is made
    "bert": ("mlm classifier", make_bert),
    "distilbert": ("mlm classifier", make_distilbert),
    "tinybert": ("mlm classifier", make_tinybert),
    "empty_line": ("mlm classifier", make_empty_line),
    "saved_by_5": ("mlm", lambda path: save_5(path, random_model("mlm").half())),
    "saved_by_5_distilbert":
        ("mlm", lambda path: save_5(path, random_model("mlm", "DistilBert").bfloat16())),
    "cased": ("mlm", lambda path: save_5(path, random_model("mlm", vocab_size=len(CASED)), CASED)),
    "padded": ("mlm", lambda path: save_5(path, random_model("mlm", vocab_size=64))),
    "gelu_new": ("mlm", lambda path: save_5(path, random_model("mlm", hidden_act="gelu_new"))),
    "relu": ("mlm", lambda path: save_5(path, random_model("mlm", hidden_act="relu"))),
    "added_tokens": ("mlm", lambda path: save_5(path, random_model("mlm"), added="newtoken")),
    "untied": ("mlm", lambda path: save_5(path, random_model("mlm", tie_word_embeddings=False))),
    "three_labels":
        ("classifier", lambda path: save_5(path, random_model("classifier", num_labels=3))),
}


# ---- What transformers makes of them -------------------------------------------------------------

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


def encode(tokenizer, text_a: str, text_b: str | None) -> tuple[list[int], list[int]]:
    encoded = tokenizer(text_a, text_b, return_token_type_ids=True)
    return encoded["input_ids"], encoded["token_type_ids"]


def batch(tokenizer) -> dict[str, torch.Tensor]:
    encoded = [encode(tokenizer, *texts) for texts in SENTENCES]
    length = max(len(ids) for ids, _ in encoded)

    def pad(rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor([row + [0] * (length - len(row)) for row in rows])

    return {"ids": pad([ids for ids, _ in encoded]),
            "segments": pad([segments for _, segments in encoded]),
            "attention_mask": pad([[1] * len(ids) for ids, _ in encoded])}


def load(directory: Path, head: str) -> tuple[torch.nn.Module, dict]:
    """The model in float64, whatever its file has, and what transformers says of its keys."""
    auto = getattr(transformers, "AutoModel" + HEADS[head])
    model, report = auto.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    return model.double().eval(), report


@torch.no_grad()
def logits(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    arguments = {"input_ids": inputs["ids"], "attention_mask": inputs["attention_mask"]}
    if model.config.model_type == "bert":
        arguments["token_type_ids"] = inputs["segments"]
    result = model(**arguments).logits
    return result[:, :4] if result.dim() == 3 else result


def make(name: str) -> None:
    directory = GOLDEN / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    heads, maker = MAKERS[name]
    maker(directory)
    arrays = batch(transformers.AutoTokenizer.from_pretrained(directory))
    for head in heads.split():
        model, _ = load(directory, head)
        arrays[head] = logits(model, arrays)
    numpy.savez_compressed(directory / "expected.npz", **arrays)
    for path in directory.iterdir():
        path.chmod(0o644)


# ---- What transformers makes of our copies -------------------------------------------------------

@torch.no_grad()
def check_saved(directory: Path) -> None:
    """Our copies load without a warning, tokenizer included; logits and ids are equal."""
    ours_of = {"mlm": models.MaskedLM, "classifier": models.Classifier}
    for head, model_class in ours_of.items():
        ours = model_class.from_pretrained(directory)
        with tempfile.TemporaryDirectory() as scratch:
            saved = Path(scratch, "saved")
            ours.save_pretrained(saved)
            with Strict():
                theirs, report = load(saved, head)
                tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
        assert not any(report.values()), report
        assert type(theirs).__name__ == theirs.config.architectures[0]

        inputs = batch(tokenizer)
        own_tokenizer = Tokenizer.from_pretrained(directory)
        for texts in SENTENCES:
            encoded = own_tokenizer.encode(*texts)
            assert (encoded.ids, encoded.segments) == encode(tokenizer, *texts), texts
        arguments = [inputs["ids"], inputs["segments"], inputs["attention_mask"]]
        result = ours.double().eval()(*arguments)
        result = result[:, :4] if head == "mlm" else result
        gap = (result - logits(theirs, inputs)).abs().max().item()
        print(f"{directory.name}: {type(theirs).__name__} of our copy differs by {gap:.1e}")
        assert gap < 1e-10


def check_real(checkpoint: Path, glue: Path) -> None:
    """A real model saved again by this transformers: the same ids on all of MRPC and CoLA."""
    with tempfile.TemporaryDirectory() as scratch:
        transformers.AutoTokenizer.from_pretrained(checkpoint).save_pretrained(scratch)
        transformers.AutoModel.from_pretrained(checkpoint).save_pretrained(scratch)
        check_saved(Path(scratch))
        ours = Tokenizer.from_pretrained(scratch)
        theirs = transformers.AutoTokenizer.from_pretrained(scratch)
        for task in ("mrpc", "cola"):
            examples = load_task(task, "train", glue) + load_task(task, "dev", glue)
            for example in examples:
                encoded = ours.encode(example.text_a, example.text_b, max_length=512)
                expected = encode(theirs, example.text_a, example.text_b)
                assert (encoded.ids, encoded.segments) == expected, example
            print(f"{checkpoint.name} saved again: the same ids on {len(examples)} of {task}")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    print(f"transformers {transformers.__version__}")
    if "--check" not in sys.argv:
        for name in MAKERS:
            make(name)
        (GOLDEN / "sentences.json").write_text(json.dumps(SENTENCES))
    for name in MAKERS:
        check_saved(GOLDEN / name)
    if len(sys.argv) == 3:
        check_real(Path(sys.argv[1]), Path(sys.argv[2]))
