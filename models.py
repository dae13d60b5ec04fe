"""The backbones: BERT, TinyBERT and DistilBERT as one Encoder, and the study's models on top of it.

    Config, Encoder     the architecture; the pooler belongs to the encoder, and stays
    MaskedLM            stage 1: predict the tokens at the selected positions
    MAELM               stage 1 without [MASK] in the encoder: encode, place, decode, predict
    Classifier          stage 2
    load, save          checkpoints in the Hugging Face layout, every key accounted for
    find_model          a backbone by its name, from the user's caches or the hub

Shapes: B sequences of T positions, S selected positions in a batch, H the width, V the vocabulary.
"""
from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glue_data import (
    DownloadError, Tokenizer, UserError, cache_dir, environment_path, fetch, print_once,
    tokenizer_files)

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


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

    def forward(self, hidden: Tensor, attention_mask: Tensor, asking: int | None = None) -> Tensor:
        """hidden (B, T, H) -> (B, Q, H): the new states of the first Q = `asking` positions, or of
        all. attention_mask (B, T): false where nobody looks."""
        queries = hidden[:, :asking]  # (B, Q, H)
        attended = F.scaled_dot_product_attention(
            self.split_heads(self.query(queries)),  # (B, heads, Q, H / heads)
            self.split_heads(self.key(hidden)),  # (B, heads, T, H / heads)
            self.split_heads(self.value(hidden)),
            attn_mask=attention_mask[:, None, None, :],  # for every head and query
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        attended = self.attention_output(attended.transpose(1, 2).flatten(2))  # (B, Q, H)
        hidden = self.attention_norm(queries + self.output_dropout(attended))

        expanded = self.activation(self.feed_forward(hidden))  # (B, Q, intermediate size)
        transformed = self.feed_forward_output(expanded)  # (B, Q, H)
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
                positions: Tensor | None = None, asking: int | None = None) -> Tensor:
        """embedded (B, T, H) from embed_words -> the last layer's hidden states (B, T, H).

        segments (B, T); attention_mask (B, T), false at padding; positions (B, T), 0 to T - 1 where
        they are not given. asking: the last layer at so many first positions only, (B, asking, H).
        """
        return self.all_hidden_states(embedded, segments, attention_mask, positions, asking)[-1]

    def all_hidden_states(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor,
                          positions: Tensor | None = None, asking: int | None = None
                          ) -> list[Tensor]:
        """As forward; returns all L + 1 hidden states (B, T, H), the embeddings' first."""
        if positions is None:
            positions = torch.arange(embedded.shape[1], device=embedded.device)  # (T,)
        embedded = embedded + self.position_embeddings(positions)
        if self.segment_embeddings is not None:
            embedded = embedded + self.segment_embeddings(segments)
        states = [self.dropout(self.embedding_norm(embedded))]  # (B, T, H)
        for layer in self.layers:
            # A layer's output at one position feeds the next layer's keys and values at all. No
            # layer follows the last: where only [CLS] is read, the rest need not be computed.
            asked = asking if layer is self.layers[-1] else None
            states.append(layer(states[-1], attention_mask.bool(), asked))
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
    script runs it, but for the encoder's positions: absolute here, relative there. Only the encoder
    is kept afterwards, as there.

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
        return load(directory, lambda config, tokenizer:
                    cls(config, decoder_layers, tokenizer.mask_id))

    def forward_selected(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor,
                         selected: Tensor) -> Tensor:
        """embedded (B, T, H), selected (B, T) -> logits (S, V), row by row."""
        visible = attention_mask & ~selected  # (B, T)
        encoded = self.forward_encoder(embedded, segments, visible)  # (B, T', H)
        placed = self.place(encoded, visible)  # (B, T, H)
        decoded = self.forward_decoder(placed, attention_mask)  # (B, T, H)
        return self.predict(decoded[selected])  # (S, H) -> (S, V)

    def forward_encoder(self, embedded: Tensor, segments: Tensor, visible: Tensor) -> Tensor:
        """[MASK] never enters: each row's visible positions, with their own position ids, alone.

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
        places = (visible.cumsum(1) - 1).clamp(min=0)  # (B, T): of each one in `encoded`
        placed = encoded.take_along_dim(places[:, :, None], dim=1)  # (B, T, H)
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
        first = self.encoder(embedded, segments, attention_mask, asking=1)[:, 0]  # (B, H): [CLS]
        if self.pre_classifier is None:
            pooled = torch.tanh(self.encoder.pooler(first))  # (B, H)
        else:
            pooled = F.relu(self.pre_classifier(first))
        return self.classifier(self.dropout(pooled))


# ---- Reading a checkpoint ------------------------------------------------------------------------

COUNT, SHARE = (1, 10 ** 7), (0.0, 0.99)  # from, to
FIELDS = {  # of Config: its key in DistilBERT's config.json; the values that it may have
    "model_type": ("model_type", ["bert", "distilbert"]),
    "vocab_size": ("vocab_size", COUNT),
    "hidden_size": ("dim", COUNT),
    "num_hidden_layers": ("n_layers", (1, 1000)),
    "num_attention_heads": ("n_heads", COUNT),
    "intermediate_size": ("hidden_dim", COUNT),
    "max_position_embeddings": ("max_position_embeddings", COUNT),
    "type_vocab_size": (None, (2, 1000)),  # a pair has two segments
    "hidden_act": ("activation", list(ACTIVATIONS)),
    "hidden_dropout_prob": ("dropout", SHARE),
    "attention_probs_dropout_prob": ("attention_dropout", SHARE),
    "classifier_dropout": ("seq_classif_dropout", SHARE),  # or null
    "layer_norm_eps": (None, (1e-20, 1.0)),
    "initializer_range": ("initializer_range", (0.0, 1.0)),
    "tie_word_embeddings": ("tie_word_embeddings", [True, False]),
    "position_embedding_type": ("position_embedding_type", ["absolute"]),  # these two: no others
    "is_decoder": ("is_decoder", [False]),
}
# What older files do not say:
UNSAID = {"model_type": "bert", "position_embedding_type": "absolute", "is_decoder": False}
MODULES = {  # ours: in BERT and TinyBERT, in DistilBERT; encoders have a prefix there, "bert."
    "encoder.word_embeddings": ("embeddings.word_embeddings", "embeddings.word_embeddings"),
    "encoder.position_embeddings": (
        "embeddings.position_embeddings", "embeddings.position_embeddings"),
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
# What may not be missing, nor be there in vain: of encoders all but the pooler and index buffers.
ENCODER = re.compile(r"(encoder|embeddings|transformer)\.(?!pooler|position_ids|token_type_ids)")
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64,  # index buffers
}


def read_config(path: Path) -> Config:
    """config.json; what it leaves out is Config's default. UserError: a field is not as it must."""
    try:
        described = UNSAID | json.loads(path.read_text(encoding="utf-8-sig"))
    except Exception as error:  # no file, no JSON, no object
        raise UserError(f"{path}: is no JSON object ({type(error).__name__}: {error!s:.80}); "
                        "get it again") from error
    distilbert = described["model_type"] == "distilbert"
    values = {}
    for name, (distilbert_key, must) in FIELDS.items():
        key = distilbert_key if distilbert else name
        values[name] = described.get(key, getattr(Config, name, "missing"))
        if name != "classifier_dropout" or values[name] is not None:
            check(f"{path}: {key}", values[name], must)
    width, heads = values["hidden_size"], values["num_attention_heads"]
    if width % heads:
        raise UserError(f"{path}: the width is {width}; it must be a multiple of the number of "
                        f"attention heads, {heads}")
    if distilbert:
        values["type_vocab_size"] = 0  # it has no segments
    del values["position_embedding_type"], values["is_decoder"]
    return Config(**values)


def check(field: str, value: object, must: list | tuple) -> None:
    """UserError: the value is none of a list, or no number from the one to the other."""
    if isinstance(must, list):
        fits = type(value) is type(must[0]) and value in must
        words = " or ".join(map(json.dumps, must))
    else:
        low, high = must
        fits = type(value) in (int, type(low)) and low <= value <= high  # True and NaN never do
        words = f"a {'whole ' if type(low) is int else ''}number from {low} to {high}"
    if not fits:
        raise UserError(f"{field} is {json.dumps(value):.40}; it must be {words}")


def backbone_files(directory: str | Path) -> dict[str, Path]:
    """What is read of a model, by name: config.json, the weights, the tokenizer. UserError: there
    are no weights, or no tokenizer."""
    directory = Path(directory)
    for weights in ("model.safetensors", "pytorch_model.bin"):
        if (directory / weights).is_file():
            ours = {name: directory / name for name in ("config.json", weights)}
            return ours | tokenizer_files(directory)
    there = ", ".join(sorted(path.name for path in directory.glob("*")))
    raise UserError(f"{directory}: has no model.safetensors and no pytorch_model.bin, only "
                    f"{there:.200}; save the weights with transformers, in one file")


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its key, as float32. UserError: it is no whole checkpoint."""
    try:
        if path.suffix == ".safetensors":
            stored = read_safetensors(path)
        else:  # weights_only: code in a pickle never runs
            stored = torch.load(path, map_location="cpu", weights_only=True)
        return {str(key): torch.empty(tensor.shape).copy_(tensor)
                for key, tensor in stored.items()}
    except Exception as error:  # damaged and hostile files fail in more ways than can be listed
        raise UserError(f"{path.parent}: is no whole checkpoint ({path.name}: "
                        f"{type(error).__name__}); get it again") from error


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The file: its header's size in 8 bytes, the header in JSON, the tensors' numbers."""
    content = memoryview(path.read_bytes())
    header_end = 8 + int.from_bytes(content[:8], "little")
    header, body = json.loads(bytes(content[8:header_end])), content[header_end:]
    header.pop("__metadata__", None)
    tensors = {}
    for key, entry in header.items():
        begin, end = entry["data_offsets"]
        numbers = torch.frombuffer(bytearray(body[begin:end]), dtype=DTYPES[entry["dtype"]])
        tensors[key] = numbers.reshape(entry["shape"])
    return tensors


def checkpoint_keys(config: Config) -> dict[str, str]:
    """Our name of each parameter -> its key in a checkpoint, without the encoder's prefix."""
    column, stack = (0, "encoder") if config.model_type == "bert" else (1, "transformer")
    modules = {ours: theirs[column] for ours, theirs in MODULES.items() if theirs[column]}
    for number in range(config.num_hidden_layers):
        for ours, theirs in LAYER_MODULES.items():
            modules[f"encoder.layers.{number}.{ours}"] = f"{stack}.layer.{number}.{theirs[column]}"
    keys = {}
    for ours, theirs in modules.items():
        keys[f"{ours}.weight"] = f"{theirs}.weight"
        keys[f"{ours}.bias"] = f"{theirs}.bias"
    return keys


def rename_keys(tensors: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """A checkpoint's tensors by our names; what we have no name for keeps its own."""
    names = {key: name for name, key in checkpoint_keys(config).items()}
    names["cls.predictions.bias"] = "predict.output.bias"  # its older name
    renamed = {}
    for key, tensor in tensors.items():
        plain = key.removeprefix(f"{config.model_type}.")
        plain = plain.replace(".gamma", ".weight").replace(".beta", ".bias")
        renamed[names.get(plain, plain)] = tensor
    return renamed


def load(directory: str | Path, make_model: Callable[[Config, Tokenizer], nn.Module]) -> nn.Module:
    """make_model(config, tokenizer) with the weights of a checkpoint, as float32.

    Every tensor of an encoder is taken over, or it is a UserError. Pooler and heads are taken over
    where they fit, else newly initialised: these are named in one line, printed once, and kept as
    model.newly_initialised.
    """
    _, weights, *_ = backbone_files(directory).values()
    config, tokenizer = Config.from_pretrained(directory), Tokenizer.from_pretrained(directory)
    found = rename_keys(read_checkpoint(weights), config)
    with torch.device("meta"):  # shapes without numbers
        model = make_model(config, tokenizer)

    # 1. Compare the shapes that are there with those that must be.
    keys = checkpoint_keys(config)
    there = {name: tuple(tensor.shape) for name, tensor in found.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    tokens, rows = len(tokenizer.tokens), config.vocab_size  # more rows are padding
    wrong = []
    for name in shapes | there:
        found_shape = there.get(name, "missing")
        right_shape = shapes.get(name, "there is no such tensor")
        if ENCODER.match(name) and found_shape != right_shape:
            key = keys.get(name, name)
            wrong.append(f"{key:.99} is {found_shape}, by config.json {right_shape}")
    if tokens > rows:
        wrong.append(f"the tokenizer has {tokens} tokens, the model only {rows} embeddings")
    if wrong:
        raise UserError(f"{directory}: {wrong[0]} (the first of {len(wrong)} misfits); give a "
                        "whole checkpoint, all files from one place")

    # 2. Take over what fits. Pooler and heads that do not are new.
    new = {name: torch.empty(shape)
           for name, shape in shapes.items() if shape != there.get(name)}
    initialise(new, config)
    fitting = {name: found[name] for name in shapes if name not in new}
    model.load_state_dict(fitting | new, strict=False, assign=True)
    if config.tie_word_embeddings and hasattr(model, "predict"):
        model.predict.output.weight = model.encoder.word_embeddings.weight
    new_keys = [keys.get(name, name.split(".")[0] + ".*") for name in new]
    model.newly_initialised = list(dict.fromkeys(new_keys))  # "decoder.*", of MAE-LM, once
    if new:
        print_once(f"{directory}: newly initialised: {', '.join(model.newly_initialised)}")
    files = tokenizer_files(directory)
    model.tokenizer_files = {name: path.read_bytes() for name, path in files.items()}  # for `save`
    return model


# ---- Saving --------------------------------------------------------------------------------------

def save(model: nn.Module, directory: str | Path, architecture: str) -> None:
    """A new directory with config.json, model.safetensors and the tokenizer's files, or nothing.

    transformers 4 and 5 load it as (Distil)Bert + architecture. UserError: the name is taken.
    """
    directory, config = Path(directory), model.config
    if os.path.lexists(directory):
        raise UserError(f"{directory}: is there already; give a new name")
    distilbert = config.model_type == "distilbert"
    family = "DistilBert" if distilbert else "Bert"
    described = {"architectures": [family + architecture],
                 "num_labels": getattr(model, "num_labels", 2)}
    for name, value in asdict(config).items():
        key = FIELDS[name][0] if distilbert else name
        if key and value is not None:
            described[key] = value
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=directory.parent) as temporary:
        new = Path(temporary, "new")  # with the usual permissions, as `temporary` has not
        new.mkdir()
        (new / "config.json").write_text(json.dumps(described, indent=2) + "\n")
        write_safetensors(new / "model.safetensors", checkpoint_tensors(model, architecture))
        for name, content in getattr(model, "tokenizer_files", {}).items():
            (new / name).write_bytes(content)
        new.rename(directory)


def checkpoint_tensors(model: nn.Module, architecture: str) -> dict[str, Tensor]:
    """The parameters by the keys that transformers' class expects; tied ones once."""
    keys, tensors = checkpoint_keys(model.config), {}
    for name, parameter in model.named_parameters():
        prefix = f"{model.config.model_type}." if name.startswith("encoder.") else ""
        if "pooler" not in name or architecture != "ForMaskedLM":
            tensors[prefix + keys[name]] = parameter.detach().float().cpu()
    if "cls.predictions.decoder.bias" in tensors:  # BertForMaskedLM has both
        tensors["cls.predictions.bias"] = tensors["cls.predictions.decoder.bias"]
    return tensors


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """See read_safetensors. Every tensor is float32."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for key, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[key] = {
            "dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
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
SHA256 = {  # of their model.safetensors; TinyBERT has none
    BACKBONES["distilbert"]: "5e3f1108e3cb34ee048634875d8482665b65ac713291a7e32396fb18f6ff0063",
    BACKBONES["bert-base"]: "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
}
FILES = {  # of a model: what can be in its place, "" if nothing need be
    "config.json": None,
    "tokenizer_config.json": "",
    "vocab.txt": "tokenizer.json",
    "model.safetensors": "pytorch_model.bin",
}
HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@(\w[\w./-]*))?")
ONCE_WITHOUT_ORGANISATION = ("google-bert", "distilbert")  # older caches: models--bert-base-uncased


def find_model(name_or_directory: str | Path) -> Path:
    """The directory of a backbone: a directory, a name of BACKBONES, org/name or org/name@revision.

    A name is looked up in the user's Hugging Face cache and in ours, and downloaded into ours
    otherwise. UserError: no such name. DownloadError: the hub cannot be reached, or has it not.
    """
    name = str(name_or_directory)
    if os.path.isdir(name):
        return Path(name)
    hub_name = HUB_NAME.fullmatch(BACKBONES.get(name, name))
    if hub_name is None:
        raise UserError(f"--model {name:.200} is no directory, none of {', '.join(BACKBONES)} and "
                        "no org/name of the Hugging Face hub; give one of these")
    hub_id, revision = hub_name.groups(default="main")
    ours = cache_dir() / f"models--{hub_id.replace('/', '--')}" / revision
    for wanted in [revision] if "@" in name else [revision, "main", "*"]:
        for directory in filter(is_whole, [*cached_snapshots(hub_id, wanted), ours]):
            if wanted != revision:  # none was asked for: another one will do, and is said
                print(f"{name}: revision {directory.name} from {directory.parent}")
            return directory
    download(hub_id, revision, ours)
    return ours


def cached_snapshots(hub_id: str, revision: str) -> list[Path]:
    """Where the user's Hugging Face cache has a revision: a commit, a name such as main, or *."""
    shared = environment_path("XDG_CACHE_HOME", "~/.cache")
    home = environment_path("HF_HOME", shared / "huggingface")
    hub = environment_path("HF_HUB_CACHE", home / "hub")
    organisation, name = hub_id.split("/")
    folders = [hub / f"models--{organisation}--{name}"]
    if organisation in ONCE_WITHOUT_ORGANISATION:
        folders.append(hub / f"models--{name}")
    snapshots = []
    for folder in folders:
        reference = folder / "refs" / revision  # holds the commit that a name stands for
        commit = reference.read_text().strip() if reference.is_file() else ""
        snapshots += sorted((folder / "snapshots").glob(commit or revision))
    return snapshots


def is_whole(directory: Path) -> bool:
    try:
        return all(path.is_file() for path in backbone_files(directory).values())
    except UserError:  # no weights, or no tokenizer
        return False


def download(hub_id: str, revision: str, destination: Path) -> None:
    """A model's files from the hub, the weights last, so that a model with weights is whole."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    url, sha256 = f"{endpoint}/{hub_id}/resolve/{revision}", SHA256.get(f"{hub_id}@{revision}")
    for file, otherwise in FILES.items():
        try:
            checksum = sha256 if file == "model.safetensors" else None
            fetch(f"{url}/{file}", destination / file, checksum)
        except DownloadError:
            if checksum or otherwise is None:
                raise
            if otherwise:
                fetch(f"{url}/{otherwise}", destination / otherwise)


def model_name(name_or_directory: str | Path) -> str:
    """The short name for logs: that of BACKBONES, the last part of a hub id, a directory's own, or
    in a hub's cache (models--org--name/snapshots/COMMIT) the last part of the hub id again."""
    name = str(name_or_directory)
    if not os.path.isdir(name):
        return name.split("@")[0].split("/")[-1]
    directory = Path(os.path.abspath(name))  # a link is called as it is given
    for parent in directory.parents[:2]:
        if parent.name.startswith("models--"):
            return parent.name.split("--")[-1]
    return directory.name
