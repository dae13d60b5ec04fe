"""The backbones: BERT, TinyBERT and DistilBERT as one Encoder, and the study's models on top of it.

Read in this order:

    Config, Encoder     the architecture; the pooler belongs to the encoder, and stays
    MaskedLM            stage 1: predict the tokens at the selected positions
    MAELM               stage 1 without [MASK] in the encoder: encode, place, decode, predict
    Classifier          stage 2
    load, save          checkpoints in the Hugging Face layout, every key accounted for
    find_model          a backbone by its name, from the user's caches or the hub

Shapes: B sequences of T positions, S selected positions in a batch, H the width, V the vocabulary.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glue_data import DownloadError, Tokenizer, UserError, cache_dir, fetch, tokenizer_files

ACTIVATIONS = {"gelu": F.gelu, "gelu_new": partial(F.gelu, approximate="tanh"), "relu": F.relu}


# ---- The architecture ----------------------------------------------------------------------------

@dataclass(frozen=True)
class Config:
    """An architecture, in the words of BERT's config.json. TinyBERT is a small BERT."""
    model_type: str
    vocab_size: int  # rows of the word embeddings; a tokenizer may have fewer tokens
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2  # segments; 0 in DistilBERT, which does not embed them
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None  # None: hidden_dropout_prob in BERT, 0.2 in DistilBERT
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True  # the MLM head's output matrix is the word embeddings

    @staticmethod
    def from_pretrained(directory: str | Path) -> Config:
        """Read directory/config.json. UserError names a key that is missing or unsupported."""
        return read_config(Path(directory, "config.json"))


def initialise(parameters: dict[str, Tensor], config: Config) -> None:
    """BERT's initial values: weights normal, biases 0, LayerNorm the identity."""
    for name, parameter in parameters.items():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith("norm.weight"):
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=config.initializer_range)


class TransformerLayer(nn.Module):
    """Self-attention, then a feed-forward network; LayerNorm follows each one's residual sum."""

    def __init__(self, config: Config):
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.attention_dropout = config.attention_probs_dropout_prob
        self.attention_output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.feed_forward = nn.Linear(width, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.feed_forward_output = nn.Linear(config.intermediate_size, width)
        self.feed_forward_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        bert = config.model_type == "bert"  # DistilBERT has no dropout after attention
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob) if bert else nn.Identity()

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """hidden (B, T, H) -> (B, T, H). attention_mask (B, T): false where nobody looks."""
        attended = F.scaled_dot_product_attention(
            self.split_heads(self.query(hidden)),  # (B, heads, T, H / heads)
            self.split_heads(self.key(hidden)),
            self.split_heads(self.value(hidden)),
            attn_mask=attention_mask[:, None, None, :],  # for every head and query
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        attended = self.attention_output(attended.transpose(1, 2).flatten(2))  # (B, T, H)
        hidden = self.attention_norm(hidden + self.output_dropout(attended))

        expanded = self.activation(self.feed_forward(hidden))  # (B, T, intermediate size)
        transformed = self.feed_forward_output(expanded)  # (B, T, H)
        return self.feed_forward_norm(hidden + self.dropout(transformed))

    def split_heads(self, hidden: Tensor) -> Tensor:
        """(B, T, H) -> (B, heads, T, H / heads)."""
        return hidden.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Encoder(nn.Module):
    """BERT, TinyBERT or DistilBERT without a head."""

    def __init__(self, config: Config):
        super().__init__()
        width, segments = config.hidden_size, config.type_vocab_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.segment_embeddings = nn.Embedding(segments, width) if segments else None
        self.embedding_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        layers = (TransformerLayer(config) for _ in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)
        self.pooler = nn.Linear(width, width) if config.model_type == "bert" else None

    def embed_words(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, H): the lookup alone. Saliency is the gradient at its result."""
        return self.word_embeddings(ids)

    def forward(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor,
                positions: Tensor | None = None) -> Tensor:
        """embedded (B, T, H) from embed_words -> the last layer's hidden states (B, T, H).

        segments (B, T); attention_mask (B, T), false at padding; positions (B, T), 0 to T - 1 where
        they are not given.
        """
        return self.all_hidden_states(embedded, segments, attention_mask, positions)[-1]

    def all_hidden_states(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor,
                          positions: Tensor | None = None) -> list[Tensor]:
        """As forward; returns all L + 1 hidden states (B, T, H), the embeddings' first."""
        if positions is None:
            positions = torch.arange(embedded.shape[1], device=embedded.device)  # (T,)
        embedded = embedded + self.position_embeddings(positions)
        if self.segment_embeddings is not None:
            embedded = embedded + self.segment_embeddings(segments)
        states = [self.dropout(self.embedding_norm(embedded))]  # (B, T, H)
        for layer in self.layers:
            states.append(layer(states[-1], attention_mask.bool()))
        return states


class PredictionHead(nn.Module):
    """BERT's MLM head: hidden states (S, H) -> logits (S, V)."""

    def __init__(self, config: Config, word_embeddings: nn.Embedding):
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.output = nn.Linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.output.weight = word_embeddings.weight

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.norm(self.activation(self.transform(hidden))))


# ---- The study's models --------------------------------------------------------------------------

class MaskedLM(nn.Module):
    """Masked language modelling: predict the true tokens from the corrupted sentence."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.predict = PredictionHead(config, self.encoder.word_embeddings)
        initialise(dict(self.named_parameters()), config)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> MaskedLM:
        """A checkpoint in the Hugging Face layout; see `load`."""
        return load(directory, lambda config, _: cls(config))

    def save_pretrained(self, directory: str | Path) -> None:
        """For transformers' class (Distil)BertForMaskedLM, which has no pooler; see `save`."""
        save(self, directory, "ForMaskedLM")

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        """ids, segments, attention_mask (B, T) -> logits (B, T, V)."""
        embedded = self.encoder.embed_words(ids)
        return self.predict(self.encoder(embedded, segments, attention_mask))

    def forward_selected(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor,
                         selected: Tensor) -> Tensor:
        """embedded (B, T, H), the corrupted ids; selected (B, T) -> logits (S, V), row by row."""
        hidden = self.encoder(embedded, segments, attention_mask)  # (B, T, H)
        return self.predict(hidden[selected])  # (S, V): only there, as V outweighs a small encoder


class MAELM(nn.Module):
    """MAE-LM: masked language modelling whose encoder sees nothing at a selected position.

    Source: "Representation Deficiency in Masked Language Modeling" (ICLR 2024), as its pretraining
    script runs it. Deviations: the encoder's positions are absolute (theirs are relative), and the
    budget is 30%. As there, only the encoder is kept afterwards.

    Typhoon's saliency: at a visible position it is read off the gradient at the embeddings, as in
    MaskedLM. At a selected one the embeddings are never read, so that it is exactly 0.
    """

    def __init__(self, config: Config, decoder_layers: int, mask_id: int):
        super().__init__()
        self.config, self.mask_id = config, mask_id
        self.encoder = Encoder(config)
        width = config.hidden_size
        self.decoder_positions = nn.Embedding(config.max_position_embeddings, width)
        self.decoder_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        no_dropout = replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self.decoder = nn.ModuleList(TransformerLayer(no_dropout) for _ in range(decoder_layers))
        self.predict = PredictionHead(config, self.encoder.word_embeddings)
        initialise(dict(self.named_parameters()), config)

    @classmethod
    def from_pretrained(cls, directory: str | Path, decoder_layers: int = 4) -> MAELM:
        """A checkpoint in the Hugging Face layout, see `load`; the decoder is in none of them."""
        def make(config: Config, tokenizer: Tokenizer) -> MAELM:
            return cls(config, decoder_layers, tokenizer.mask_id)

        return load(directory, make)

    def forward_selected(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor,
                         selected: Tensor) -> Tensor:
        """embedded (B, T, H), selected (B, T) -> logits (S, V), row by row."""
        visible = attention_mask & ~selected  # (B, T)
        encoded = self.forward_encoder(embedded, segments, visible)  # (B, T', H)
        placed = self.place(encoded, visible)  # (B, T, H)
        decoded = self.forward_decoder(placed, attention_mask)  # (B, T, H)
        return self.predict(decoded[selected])  # (S, H) -> (S, V)

    def forward_encoder(self, embedded: Tensor, segments: Tensor, visible: Tensor) -> Tensor:
        """The visible positions of each row as a shorter sequence, with their own position ids.

        Returns (B, T', H), where T' is the largest number of visible positions in a row; the other
        rows end in padding.
        """
        lengths = visible.sum(1, keepdim=True)  # (B, 1)
        visible_first = visible.byte().argsort(dim=1, descending=True, stable=True)  # (B, T)
        positions = visible_first[:, :int(lengths.max())]  # (B, T'), ascending
        kept = torch.arange(positions.shape[1], device=visible.device) < lengths  # (B, T')
        positions = positions * kept  # padding repeats position 0: what is left out is never read
        embedded = embedded.take_along_dim(positions[:, :, None], dim=1)  # (B, T', H)
        segments = segments.take_along_dim(positions, dim=1)  # (B, T')
        return self.encoder(embedded, segments, kept, positions)

    def place(self, encoded: Tensor, visible: Tensor) -> Tensor:
        """encoded (B, T', H) back at the visible (B, T) places, [MASK] elsewhere -> (B, T, H)."""
        ranks = (visible.cumsum(1) - 1).clamp(min=0)  # (B, T): the place of each one in `encoded`
        placed = encoded.take_along_dim(ranks[:, :, None], dim=1)  # (B, T, H)
        mask_embedding = self.encoder.word_embeddings.weight[self.mask_id]  # (H,)
        return torch.where(visible[:, :, None], placed, mask_embedding)

    def forward_decoder(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Positions of its own everywhere, LayerNorm, layers without dropout: -> (B, T, H)."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)  # (T,)
        hidden = self.decoder_norm(hidden + self.decoder_positions(positions))
        for layer in self.decoder:
            hidden = layer(hidden, attention_mask)
        return hidden


class Classifier(nn.Module):
    """Fine-tuning: [CLS] -> pooler -> dropout -> linear layer.

    DistilBERT's pooler (pre_classifier) has a ReLU, and no pretraining.
    """

    def __init__(self, config: Config, num_labels: int = 2):
        super().__init__()
        self.config, self.num_labels = config, num_labels
        width, distilbert = config.hidden_size, config.model_type == "distilbert"
        self.encoder = Encoder(config)
        self.pre_classifier = nn.Linear(width, width) if distilbert else None
        self.classifier = nn.Linear(width, num_labels)
        dropout = config.classifier_dropout
        if dropout is None:
            dropout = 0.2 if distilbert else config.hidden_dropout_prob
        self.dropout = nn.Dropout(dropout)
        initialise(dict(self.named_parameters()), config)

    @classmethod
    def from_pretrained(cls, directory: str | Path, num_labels: int = 2) -> Classifier:
        """A checkpoint in the Hugging Face layout; see `load`."""
        return load(directory, lambda config, _: cls(config, num_labels))

    def save_pretrained(self, directory: str | Path) -> None:
        """For transformers' class (Distil)BertForSequenceClassification; see `save`."""
        save(self, directory, "ForSequenceClassification")

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        """ids, segments, attention_mask (B, T) -> logits (B, num_labels)."""
        embedded = self.encoder.embed_words(ids)
        first = self.encoder(embedded, segments, attention_mask)[:, 0]  # (B, H): [CLS]
        if self.pre_classifier is None:
            pooled = torch.tanh(self.encoder.pooler(first))  # (B, H)
        else:
            pooled = F.relu(self.pre_classifier(first))
        return self.classifier(self.dropout(pooled))


# ---- Reading a checkpoint directory --------------------------------------------------------------

# Kinds of values in config.json: a test, and what to call what passes it.

def whole_number(low: int, high: int) -> tuple:
    wanted = f"a whole number from {low} to {high}"
    return (lambda value: type(value) is int and low <= value <= high), wanted


def one_of(*values) -> tuple:
    wanted = " or ".join(json.dumps(value) for value in values)
    return (lambda value: value in values), wanted


def fraction(*others) -> tuple:
    def is_fraction(value) -> bool:
        return value in others or type(value) in (int, float) and 0 <= value < 1

    return is_fraction, "in [0, 1)"


SIZE = whole_number(1, 10_000_000)
CONFIG_KEYS = {  # field of Config: its key in DistilBERT's config.json, and what is supported
    "model_type": ("model_type", one_of("bert", "distilbert")),
    "vocab_size": ("vocab_size", SIZE),
    "hidden_size": ("dim", SIZE),
    "num_hidden_layers": ("n_layers", whole_number(1, 200)),
    "num_attention_heads": ("n_heads", SIZE),
    "intermediate_size": ("hidden_dim", SIZE),
    "max_position_embeddings": ("max_position_embeddings", SIZE),
    "type_vocab_size": (None, whole_number(2, 100)),
    "hidden_act": ("activation", one_of(*ACTIVATIONS)),
    "hidden_dropout_prob": ("dropout", fraction()),
    "attention_probs_dropout_prob": ("attention_dropout", fraction()),
    "classifier_dropout": ("seq_classif_dropout", fraction(None)),
    "layer_norm_eps": (None, fraction()),
    "initializer_range": ("initializer_range", fraction()),
    "tie_word_embeddings": ("tie_word_embeddings", one_of(True, False)),
}
# Our module: its name in BERT and TinyBERT, in DistilBERT. Encoders have a prefix there, "bert.".
MODULES = {
    "encoder.word_embeddings": ("embeddings.word_embeddings", "embeddings.word_embeddings"),
    "encoder.position_embeddings": ("embeddings.position_embeddings",) * 2,
    "encoder.segment_embeddings": ("embeddings.token_type_embeddings", None),
    "encoder.embedding_norm": ("embeddings.LayerNorm", "embeddings.LayerNorm"),
    "encoder.pooler": ("pooler.dense", None),
    "predict.transform": ("cls.predictions.transform.dense", "vocab_transform"),
    "predict.norm": ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
    "predict.output": ("cls.predictions.decoder", "vocab_projector"),
    "pre_classifier": (None, "pre_classifier"),
    "classifier": ("classifier", "classifier"),
}
LAYER_MODULES = {  # in "encoder.layers.N.": in "encoder.layer.N.", in "transformer.layer.N."
    "query": ("attention.self.query", "attention.q_lin"),
    "key": ("attention.self.key", "attention.k_lin"),
    "value": ("attention.self.value", "attention.v_lin"),
    "attention_output": ("attention.output.dense", "attention.out_lin"),
    "attention_norm": ("attention.output.LayerNorm", "sa_layer_norm"),
    "feed_forward": ("intermediate.dense", "ffn.lin1"),
    "feed_forward_output": ("output.dense", "ffn.lin2"),
    "feed_forward_norm": ("output.LayerNorm", "output_layer_norm"),
}
# Index buffers, heads for next sentences and for questions, the layers of TinyBERT's distillation,
# a copy of cls.predictions.decoder.bias.
UNUSED_KEYS = re.compile(r"embeddings\.(position_ids|token_type_ids)"
                         r"|(cls\.seq_relationship|qa_outputs|fit_dense(s\.\d+)?)\.(weight|bias)"
                         r"|cls\.predictions\.bias")
OTHER_WEIGHTS = {  # files that stand for weights which cannot be read: what to do
    "*.index.json": "its weights are in several files; save them in one, with transformers' "
                    "model.save_pretrained(directory, max_shard_size='100GB')",
    "tf_model.h5": "its weights are TensorFlow's; load them with from_tf=True in transformers 4, "
                   "and save them again",
    "*.ckpt*": "its weights are TensorFlow's; turn them into PyTorch's with transformers 4",
    "flax_model.msgpack": "its weights are Flax's; load them with from_flax=True in transformers "
                          "4, and save them again",
}
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64}  # I64: index buffers


def read_config(path: Path) -> Config:
    """config.json of BERT or DistilBERT. UserError names a key that is missing or unsupported."""
    try:
        raw = {"model_type": "bert"} | json.loads(path.read_text(encoding="utf-8-sig"))
    except Exception as error:  # no file, no JSON, no object
        reason = f"{type(error).__name__}: {error!s:.100}"
        raise UserError(f"{path}: is no readable config.json ({reason}); "
                        "give a model in the Hugging Face layout") from error

    def require(key: str, value, supported: tuple) -> None:
        is_supported, wanted = supported
        if not is_supported(value):
            found = json.dumps(raw[key])[:80] if key in raw else "missing"
            raise UserError(f"{path}: {key} must be {wanted}, and is {found}; "
                            "give a BERT, TinyBERT or DistilBERT encoder")

    values = {}
    distilbert = raw["model_type"] == "distilbert"
    for field in fields(Config):
        distilbert_key, supported = CONFIG_KEYS[field.name]
        key = distilbert_key if distilbert else field.name
        if key is not None:
            values[field.name] = raw.get(key, field.default)
            require(key, values[field.name], supported)
    if distilbert:
        values["type_vocab_size"] = 0
    divides = values["hidden_size"] % values["num_attention_heads"] == 0
    heads_key = "n_heads" if distilbert else "num_attention_heads"
    require(heads_key, divides, (bool, "a divisor of the width"))
    position_type = raw.get("position_embedding_type", "absolute")
    require("position_embedding_type", position_type, one_of("absolute"))
    require("is_decoder", raw.get("is_decoder", False), one_of(False))
    return Config(**values)


def find_weights(directory: str | Path) -> Path:
    """model.safetensors, else pytorch_model.bin. UserError says what is there instead."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if Path(directory, name).is_file():
            return Path(directory, name)
    for pattern, advice in OTHER_WEIGHTS.items():
        if any(Path(directory).glob(pattern)):
            raise UserError(f"{directory}: {advice}")
    raise UserError(f"{directory}: has no model.safetensors and no pytorch_model.bin; "
                    "give a model in the Hugging Face layout")


def backbone_files(directory: str | Path) -> dict[str, Path]:
    """The files that are read of a model, by name. UserError: weights or tokenizer are missing."""
    config, weights = Path(directory, "config.json"), find_weights(directory)
    return {config.name: config, weights.name: weights} | tokenizer_files(directory)


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its key, as float32. UserError: it is no whole checkpoint."""
    try:
        if path.suffix == ".safetensors":
            stored = read_safetensors(path)
        else:  # weights_only: code in a pickle never runs
            stored = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {}
        for key, tensor in stored.items():
            if tensor.nbytes > path.stat().st_size:
                raise ValueError(f"{key!r} is larger than its file")
            tensors[str(key)] = torch.empty(tensor.shape).copy_(tensor)
            if not tensors[str(key)].isfinite().all():
                raise ValueError(f"{key!r} holds NaN or infinity")
        return tensors
    except Exception as error:  # damaged and hostile files fail in more ways than can be listed
        reason = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise UserError(f"{path.parent}: is no whole checkpoint ({path.name}: {reason:.200}); "
                        "get it again") from error


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The file: its header's size in 8 bytes, the header in JSON, the tensors without a gap."""
    content = numpy.fromfile(path, dtype=numpy.uint8)
    header_end = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:header_end].tobytes())
    header.pop("__metadata__", None)
    body = content[header_end:]

    tensors, position = {}, 0
    for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        if begin != position:
            raise ValueError(f"{key!r} does not begin where the tensor before it ends")
        data = torch.from_numpy(body[begin:end].copy())  # aligned, as it is a copy
        tensors[key] = data.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        position = end
    if position != len(body):
        raise ValueError(f"{len(body)} bytes of tensors, where {position} are described")
    return tensors


# ---- Loading and saving --------------------------------------------------------------------------

def checkpoint_keys(config: Config) -> dict[str, str]:
    """Our name of each parameter -> its key in a checkpoint, without the encoder's prefix."""
    column, stack = (0, "encoder") if config.model_type == "bert" else (1, "transformer")
    modules = {ours: theirs[column] for ours, theirs in MODULES.items() if theirs[column]}
    for number in range(config.num_hidden_layers):
        for ours, theirs in LAYER_MODULES.items():
            theirs_in_layer = f"{stack}.layer.{number}.{theirs[column]}"
            modules[f"encoder.layers.{number}.{ours}"] = theirs_in_layer
    keys = {}
    for ours, theirs in modules.items():
        keys[f"{ours}.weight"] = f"{theirs}.weight"
        if not ours.endswith("embeddings"):
            keys[f"{ours}.bias"] = f"{theirs}.bias"
    return keys


def misfit(directory: str | Path, what: str) -> UserError:
    return UserError(f"{directory}: {what}; give a whole checkpoint, all files from one place")


def rename_keys(tensors: dict[str, Tensor], config: Config, directory) -> dict[str, Tensor]:
    """A checkpoint's tensors by our names. UserError names a key that has no place."""
    names = {theirs: ours for ours, theirs in checkpoint_keys(config).items()}
    if "cls.predictions.decoder.bias" not in tensors:  # it is the one that transformers adds
        names["cls.predictions.bias"] = "predict.output.bias"
    renamed = {}
    for key, tensor in tensors.items():
        plain = key.removeprefix(f"{config.model_type}.")
        plain = plain.replace(".gamma", ".weight").replace(".beta", ".bias")
        name = names.get(plain)
        if key.startswith("module."):
            raise misfit(directory, f"{key!r} was saved from nn.DataParallel, save its .module")
        if name is None and not UNUSED_KEYS.fullmatch(plain):
            raise misfit(directory, f"{key!r} is no part of the model that config.json describes")
        if name and not torch.equal(renamed.setdefault(name, tensor), tensor):
            raise misfit(directory, f"{key!r} is there under two names, with two values")
    return renamed


def load(directory: str | Path, make_model: Callable[[Config, Tokenizer], nn.Module]) -> nn.Module:
    """make_model(config, tokenizer) with the weights of a checkpoint, as float32.

    Nothing is silent: every key of the file is used, belongs to a head that this model has not, or
    is one of UNUSED_KEYS; what the file lacks of pooler and heads is newly initialised, named in
    one printed line and kept as model.newly_initialised. Anything else is a UserError.
    """
    weights = find_weights(directory)
    config = Config.from_pretrained(directory)
    tokenizer = Tokenizer.from_pretrained(directory)
    found = rename_keys(read_checkpoint(weights), config, directory)
    words, output = "encoder.word_embeddings.weight", "predict.output.weight"
    if config.tie_word_embeddings and output in found and words in found:
        if not torch.equal(found[output], found[words]):
            print(f"{directory}: the MLM head's matrix differs from the word embeddings: not tied")
            config = replace(config, tie_word_embeddings=False)
    with torch.device("meta"):  # shapes, without memory and without random numbers
        model = make_model(config, tokenizer)

    # 1. What is there must fit, and no part of the encoder may lack; the pooler and the heads may.
    keys = checkpoint_keys(config)
    for name, parameter in model.named_parameters():
        if name in found and found[name].shape != parameter.shape:
            shapes = f"{list(found[name].shape)}, not {list(parameter.shape)}"
            if not name.startswith("classifier."):
                raise misfit(directory, f"{keys[name]!r} has the shape {shapes}")
            del found[name]  # a classifier for another number of labels: ours is new
        elif name not in found and name.startswith("encoder.") and "pooler" not in name:
            raise misfit(directory, f"{keys[name]!r} is missing")
    tokens, rows = len(tokenizer.tokens), config.vocab_size
    if tokens > rows:
        raise misfit(directory, f"its tokenizer has {tokens} tokens, but the model only {rows}")
    if tokens < rows:
        print(f"{directory}: {rows} word embeddings for {tokens} tokens; the rest is never used")

    # 2. Take over what is there, and initialise what is missing.
    if config.tie_word_embeddings:
        found[output] = found[words]
    missing = model.load_state_dict(found, strict=False, assign=True).missing_keys
    new = {name: torch.empty(model.get_parameter(name).shape) for name in missing}
    initialise(new, config)
    model.load_state_dict(new, strict=False, assign=True)
    if config.tie_word_embeddings and hasattr(model, "predict"):
        model.predict.output.weight = model.encoder.word_embeddings.weight

    # 3. Say what is new, and keep the tokenizer's files for `save`.
    new_keys = [keys.get(name, name.split(".")[0] + ".*") for name in missing]
    model.newly_initialised = list(dict.fromkeys(new_keys))  # MAE-LM's decoder is "decoder.*"
    if missing:
        print(f"{directory}: newly initialised: {', '.join(model.newly_initialised)}")
    model.tokenizer_files = {
        name: path.read_bytes() for name, path in tokenizer_files(directory).items()
    }
    return model


def save(model: nn.Module, directory: str | Path, architecture: str) -> None:
    """Make a new directory with config.json, model.safetensors and the tokenizer's files.

    transformers 4 and 5 load it as (Distil)Bert + architecture. It takes its name when it is whole.
    UserError: something has the name already, or the disk refuses.
    """
    directory = Path(directory)
    if os.path.lexists(directory):
        raise UserError(f"{directory}: is there already; give a new name")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=directory.parent) as temporary:
            new = Path(temporary, "new")  # with the usual permissions, as `temporary` has not
            new.mkdir()
            description = describe(model, architecture)
            (new / "config.json").write_text(json.dumps(description, indent=2) + "\n")
            write_safetensors(new / "model.safetensors", checkpoint_tensors(model, architecture))
            for name, content in getattr(model, "tokenizer_files", {}).items():
                (new / name).write_bytes(content)
            new.rename(directory)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written ({error.strerror}); "
                        "give another directory") from error


def describe(model: nn.Module, architecture: str) -> dict:
    """What config.json says of a model, in the words of its family."""
    distilbert = model.config.model_type == "distilbert"
    description = {}
    for name, value in asdict(model.config).items():
        key = CONFIG_KEYS[name][0] if distilbert else name
        if key is not None and value is not None:
            description[key] = value
    description["architectures"] = [("DistilBert" if distilbert else "Bert") + architecture]
    if architecture == "ForSequenceClassification":
        labels = {f"LABEL_{number}": number for number in range(model.num_labels)}
        description["label2id"] = labels
        description["id2label"] = {str(number): label for label, number in labels.items()}
    return description


def checkpoint_tensors(model: nn.Module, architecture: str) -> dict[str, Tensor]:
    """The parameters by the keys that transformers' class expects; tied ones once."""
    keys, tensors = checkpoint_keys(model.config), {}
    for name, parameter in model.named_parameters():
        if architecture == "ForMaskedLM" and "pooler" in name:
            continue
        prefix = f"{model.config.model_type}." if name.startswith("encoder.") else ""
        tensors[prefix + keys[name]] = parameter.detach().float().cpu().contiguous()
    if "cls.predictions.decoder.bias" in tensors:  # BertForMaskedLM has both
        tensors["cls.predictions.bias"] = tensors["cls.predictions.decoder.bias"]
    return tensors


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """See read_safetensors. Every tensor is float32."""
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for key, tensor in tensors.items():
        offsets = [position, position + tensor.nbytes]
        header[key] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        position += tensor.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # so that the tensors are aligned
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            file.write(tensor.numpy().data)


# ---- Finding a backbone by its name --------------------------------------------------------------

BACKBONES = {  # name: id on the Hugging Face hub @ revision
    "tinybert": "huawei-noah/TinyBERT_General_4L_312D@34707a33cd59a94ecde241ac209bf35103691b43",
    "distilbert": "distilbert/distilbert-base-uncased@12040accade4e8a0f71eabdb258fecc2e7e948be",
    "bert-base": "google-bert/bert-base-uncased@86b5e0934494bd15c9632b12f734a8a67f723594",
}
SHA256 = {  # of their files, where it is known; the three have one vocabulary
    "vocab.txt": dict.fromkeys(BACKBONES.values(),
                 "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    "model.safetensors": {
        BACKBONES["distilbert"]: "5e3f1108e3cb34ee048634875d8482665b65ac713291a7e32396fb18f6ff0063",
        BACKBONES["bert-base"]: "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
    },
}
HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
ONCE_WITHOUT_ORGANISATION = ("google-bert", "distilbert")  # older caches: models--bert-base-uncased


def find_model(name_or_directory: str | Path) -> Path:
    """The directory of a backbone: a directory, a name of BACKBONES, org/name or org/name@revision.

    A name is looked up in the user's Hugging Face cache and in ours, and downloaded into ours
    otherwise. HF_HUB_CACHE, HF_HOME and HF_ENDPOINT are honoured as Hugging Face's tools do.
    UserError: no such name. DownloadError: the hub cannot be reached, or does not have it.
    """
    name = str(name_or_directory)
    if Path(name).is_dir():
        return Path(name)
    hub_name = HUB_NAME.fullmatch(BACKBONES.get(name, name))
    if hub_name is None:
        raise UserError(f"--model {name} is no directory, none of {', '.join(BACKBONES)} and no "
                        "org/name of the Hugging Face hub; give one of these")
    hub_id, revision = hub_name.groups(default="main")
    ours = cache_dir() / ("models--" + hub_id.replace("/", "--")) / revision
    exact, others = [*cached_snapshots(hub_id, revision), ours], []
    if "@" not in name:  # no revision was asked for: any will do, and is said
        others = cached_snapshots(hub_id, "main") + cached_snapshots(hub_id, "*")
    for directory in exact + others:
        if is_whole(directory):
            if directory not in exact:
                print(f"{name}: revision {directory.name} from {directory.parent}")
            return directory
    download(hub_id, revision, ours)
    return ours


def cached_snapshots(hub_id: str, revision: str) -> list[Path]:
    """Where the user's Hugging Face cache has a revision: a commit, a name such as main, or *."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
    folders = [hub / ("models--" + hub_id.replace("/", "--"))]
    organisation, name = hub_id.split("/")
    if organisation in ONCE_WITHOUT_ORGANISATION:
        folders.append(hub / f"models--{name}")
    snapshots = []
    for folder in folders:
        reference = folder / "refs" / revision  # holds the commit that a name stands for
        commit = reference.read_text().strip() if reference.is_file() else revision
        snapshots += sorted((folder / "snapshots").glob(commit))
    return snapshots


def is_whole(directory: Path) -> bool:
    def has(*names: str) -> bool:
        return any((directory / name).is_file() for name in names)

    return (has("config.json") and has("vocab.txt", "tokenizer.json")
            and has("model.safetensors", "pytorch_model.bin"))


def download(hub_id: str, revision: str, destination: Path) -> None:
    """A model's files from the hub, the weights last, so that a model with weights is whole."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")

    def known_sha256(file: str) -> str | None:
        return SHA256.get(file, {}).get(f"{hub_id}@{revision}")

    def get(file: str) -> None:
        url = f"{endpoint}/{hub_id}/resolve/{revision}/{file}"
        fetch(url, destination / file, known_sha256(file))

    def get_either(file: str, other: str) -> None:
        try:
            get(file)
        except DownloadError:
            if known_sha256(file):  # the hub has that one: it must be right
                raise
            get(other)

    get("config.json")
    with contextlib.suppress(DownloadError):  # many have none
        get("tokenizer_config.json")
    get_either("vocab.txt", "tokenizer.json")
    get_either("model.safetensors", "pytorch_model.bin")


def model_name(name_or_directory: str | Path) -> str:
    """The short name for logs: a name of BACKBONES, the last part of a hub id, or a directory's."""
    name = str(name_or_directory)
    if Path(name).is_dir():
        return Path(name).resolve().name
    return name.split("@")[0].split("/")[-1]
