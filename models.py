"""The backbones: BERT, TinyBERT and DistilBERT as one Encoder, with the three heads of the study.

Read it top to bottom:

    Config             what config.json says, checked
    Encoder            word embeddings -> hidden states, with the pooler where the architecture has one
    MaskedLM           the first stage: predict the tokens at the selected positions
    MAELM              the same, but the encoder never sees a selected position: encode, place, decode, predict
    Classifier         the second stage: one decision a sentence (pair)
    reading, writing   checkpoints in the Hugging Face layout, every key accounted for
    finding            a backbone by its name: the user's caches, else a download

MaskedLM and MAELM share one interface for training,

    model.forward_selected(word_embeddings, segments, attention_mask, selected) -> logits at the selected positions

where word_embeddings = model.encoder.embed_words(ids) is the tensor whose gradient is Typhoon's saliency.

Shapes: B sequences of T positions, H the width, V the vocabulary, S selected positions in the batch.
"""
from __future__ import annotations

import json
import math
import os
import re
import shutil
import struct
import tempfile
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glue_data import Tokenizer, UserError, cache_dir, fetch

ACTIVATIONS = {"gelu": F.gelu, "gelu_new": partial(F.gelu, approximate="tanh"), "relu": F.relu}

# DistilBERT's config.json has its own names for some fields of Config.
DISTILBERT_FIELDS = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                     "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
                     "attention_probs_dropout_prob": "attention_dropout", "classifier_dropout": "seq_classif_dropout"}


@dataclass(frozen=True)
class Config:
    """An architecture, with the field names of BERT's config.json."""
    model_type: str  # "bert" (TinyBERT is one) or "distilbert"
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2  # 0 for DistilBERT: it has no segment embeddings
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None  # None: BERT takes hidden_dropout_prob, DistilBERT 0.2
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02  # standard deviation of newly initialised weights
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True  # the MLM head's output matrix is the word embeddings

    @staticmethod
    def from_pretrained(directory: str | Path) -> Config:
        """Read config.json. Raises UserError naming the key that is missing, malformed or not supported."""
        path = Path(directory) / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path}: cannot be read as JSON ({error}); give a model in the Hugging Face layout") from None
        if not isinstance(raw, dict):
            raise UserError(f"{path}: holds no JSON object; give a model in the Hugging Face layout")

        def require(key: str, condition: bool, what: str) -> None:
            if not condition:
                raise UserError(f"{path}: {key} is {json.dumps(raw.get(key))[:80]}, but must be {what}")

        raw.setdefault("model_type", "distilbert" if "dim" in raw else "bert")  # older configs do not say
        require("model_type", raw["model_type"] in ("bert", "distilbert"), '"bert" or "distilbert"')
        distilbert = raw["model_type"] == "distilbert"
        if distilbert:
            raw["type_vocab_size"], raw["layer_norm_eps"] = 0, 1e-12
        values = {}
        for field in fields(Config):
            key = DISTILBERT_FIELDS.get(field.name, field.name) if distilbert else field.name
            if key not in raw and field.default is not MISSING:
                continue
            value = values[field.name] = raw.get(key)
            if field.type == "int":
                lowest, highest = (0 if distilbert else 2) if key == "type_vocab_size" else 1, 1 << 24
                require(key, type(value) is int and lowest <= value <= highest, f"an integer from {lowest} to {highest}")
            elif "float" in field.type:
                optional = value is None and "None" in field.type
                require(key, optional or type(value) in (int, float) and 0 <= value < 1, "a number from 0 to below 1")
        config = Config(**values)
        require("n_layers" if distilbert else "num_hidden_layers", config.num_hidden_layers <= 1000, "at most 1000")
        require("n_heads" if distilbert else "num_attention_heads",
                config.hidden_size % config.num_attention_heads == 0, f"a divisor of the width {config.hidden_size}")
        require("activation" if distilbert else "hidden_act", config.hidden_act in list(ACTIVATIONS),
                f"one of {', '.join(ACTIVATIONS)}")
        pad = config.pad_token_id
        require("pad_token_id", pad is None or type(pad) is int and 0 <= pad < config.vocab_size, "a token id")
        require("tie_word_embeddings", type(config.tie_word_embeddings) is bool, "true or false")
        require("position_embedding_type", raw.get("position_embedding_type", "absolute") == "absolute", '"absolute"')
        require("is_decoder", not raw.get("is_decoder"), "false: only encoders are supported")
        return config

    def to_json(self, architecture: str, num_labels: int | None = None) -> str:
        """The text of a config.json from which transformers builds `architecture`."""
        values = asdict(self)
        if self.model_type == "distilbert":
            del values["type_vocab_size"], values["layer_norm_eps"]
            values = {DISTILBERT_FIELDS.get(name, name): value for name, value in values.items()}
            values["seq_classif_dropout"] = self.dropout_before_classifier
        if num_labels is not None:
            values["id2label"] = {str(label): f"LABEL_{label}" for label in range(num_labels)}
            values["label2id"] = {f"LABEL_{label}": label for label in range(num_labels)}
        return json.dumps({"architectures": [architecture], **values}, indent=2) + "\n"

    @property
    def dropout_before_classifier(self) -> float:
        if self.classifier_dropout is not None:
            return self.classifier_dropout
        return 0.2 if self.model_type == "distilbert" else self.hidden_dropout_prob


def initialise(name: str, parameter: Tensor, config: Config) -> None:
    """BERT's initial values, from torch's global generator: weights normal, biases 0, LayerNorm the identity."""
    if name.endswith("bias"):
        nn.init.zeros_(parameter)
    elif name.endswith("norm.weight"):
        nn.init.ones_(parameter)
    else:
        nn.init.normal_(parameter, std=config.initializer_range)


def initialise_all(module: nn.Module, config: Config) -> None:
    for name, parameter in module.named_parameters():
        initialise(name, parameter, config)


class TransformerLayer(nn.Module):
    """Self-attention, then a feed-forward network; each adds to its input, and LayerNorm follows the sum."""

    def __init__(self, config: Config):
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.attention_output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.feed_forward = nn.Linear(width, config.intermediate_size)
        self.feed_forward_output = nn.Linear(config.intermediate_size, width)
        self.feed_forward_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.attention_dropout = config.attention_probs_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        # DistilBERT drops nothing between attention and its residual sum.
        self.output_dropout = self.dropout if config.model_type == "bert" else nn.Identity()

    def forward(self, hidden: Tensor, context: Tensor, attention_mask: Tensor) -> Tensor:
        """hidden (B, Q, H) attends to context (B, T, H) where attention_mask (B, 1, 1, T) is true -> (B, Q, H)."""
        def split(x: Tensor) -> Tensor:  # (B, T, H) -> (B, heads, T, H / heads)
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        attended = F.scaled_dot_product_attention(
            split(self.query(hidden)), split(self.key(context)), split(self.value(context)), attn_mask=attention_mask,
            dropout_p=self.attention_dropout if self.training else 0.0)
        attended = self.attention_output(attended.transpose(1, 2).flatten(2))  # (B, Q, H)
        hidden = self.attention_norm(self.output_dropout(attended) + hidden)
        transformed = self.feed_forward_output(self.activation(self.feed_forward(hidden)))  # (B, Q, H)
        return self.feed_forward_norm(self.dropout(transformed) + hidden)


class Encoder(nn.Module):
    """BERT, TinyBERT or DistilBERT without a head. The pooler (BERT only) belongs to it and stays through both stages."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.segment_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.embedding_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(width, width) if config.model_type == "bert" else None
        initialise_all(self, config)

    def embed_words(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, H): the plain lookup; Typhoon reads the gradient of what it returns."""
        return self.word_embeddings(ids)

    def forward(self, words: Tensor, segments: Tensor, attention_mask: Tensor, positions: Tensor | None = None,
                all_layers: bool = False, wanted: slice = slice(None)) -> Tensor | list[Tensor]:
        """Word embeddings (B, T, H) -> hidden states (B, T, H) of the last layer.

        segments (B, T); attention_mask (B, T), false where nothing may attend to (padding).
        positions (B, T): position ids, 0 to T - 1 if not given.
        all_layers: return the L + 1 hidden states instead, the embeddings' first (effective rank is read off them).
        wanted: the positions of the last layer that are wanted, all of them if not given; the classifier's slice(1),
        [CLS] alone, saves 5/6 of that layer's arithmetic.
        Raises UserError when T is more than the position embeddings there are.
        """
        length, longest = words.shape[1], self.config.max_position_embeddings
        if length > longest:
            raise UserError(f"a sequence of {length} tokens is longer than the {longest} this model has positions for; "
                            f"use a --max-length of at most {longest}")
        if self.segment_embeddings is not None:
            words = words + self.segment_embeddings(segments)
        position_weight = self.position_embeddings.weight
        words = words + (position_weight[:length] if positions is None else self.position_embeddings(positions))
        hidden = self.dropout(self.embedding_norm(words))  # (B, T, H)
        states = [hidden]
        attention_mask = attention_mask.bool()[:, None, None, :]  # (B, 1, 1, T): the same for all heads and queries
        for layer in self.layers[:-1]:
            states.append(layer(states[-1], states[-1], attention_mask))
        states.append(self.layers[-1](states[-1][:, wanted], states[-1], attention_mask))
        return states if all_layers else states[-1]


class PredictionHead(nn.Module):
    """BERT's MLM head: hidden states (N, H) -> logits (N, V)."""

    def __init__(self, config: Config, word_embeddings: nn.Embedding):
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.output = nn.Linear(config.hidden_size, config.vocab_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        initialise_all(self, config)
        if config.tie_word_embeddings:
            self.output.weight = word_embeddings.weight

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.norm(self.activation(self.transform(hidden))))


class MaskedLM(nn.Module):
    """Masked language modelling: the encoder sees the corrupted sentence, the head predicts the true tokens."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = PredictionHead(config, self.encoder.word_embeddings)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> MaskedLM:
        """Load a checkpoint in the Hugging Face layout; see `load`."""
        return load(cls, directory)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write what BertForMaskedLM / DistilBertForMaskedLM loads; that has no pooler. See `save`."""
        save(self, directory, "ForMaskedLM")

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        """ids, segments, attention_mask (B, T) -> logits (B, T, V) at every position."""
        return self.predict(self.encoder(self.encoder.embed_words(ids), segments, attention_mask))

    def forward_selected(self, word_embeddings: Tensor, segments: Tensor, attention_mask: Tensor,
                         selected: Tensor) -> Tensor:
        """word_embeddings (B, T, H) of the corrupted ids, selected (B, T) bool -> logits (S, V), row by row.

        The head is most of a small model's arithmetic, so it runs at the selected positions only.
        """
        hidden = self.encoder(word_embeddings, segments, attention_mask)  # (B, T, H)
        return self.predict(hidden[selected])  # (S, H) -> (S, V)

    def predict(self, hidden: Tensor) -> Tensor:
        """The MLM head: (N, H) -> (N, V)."""
        return self.head(hidden)


class MAELM(nn.Module):
    """MAE-LM: masked language modelling in which the encoder never sees [MASK], nor anything else, at a selected position.

        encode    the visible positions only, as a shorter sequence that keeps its position ids
        place     the outputs back where they came from; [MASK] + position embedding at the selected positions
        decode    with a shallow Transformer, as wide and with as many heads as the encoder; newly initialised
        predict   the tokens at the selected positions, with the MLM head

    After this stage only the encoder goes on to fine-tuning.

    Typhoon's saliency: word_embeddings is the encoder's lookup, and its rows at selected positions are never read, so
    dL/de is exactly zero there. A selected position thus contributes the saliency 0 to the mean over its token type's
    selected positions; all that Typhoon learns comes from the visible positions. (The decoder's [MASK] embedding gets
    a gradient, but it is the same vector at every selected position and says nothing about the token there.)

    Source: "Representation Deficiency in Masked Language Modeling" [M].
    """

    def __init__(self, config: Config, decoder_layers: int, mask_id: int):
        super().__init__()
        self.config, self.mask_id = config, mask_id
        self.encoder = Encoder(config)
        self.decoder = nn.ModuleList(TransformerLayer(config) for _ in range(decoder_layers))
        self.head = PredictionHead(config, self.encoder.word_embeddings)
        initialise_all(self.decoder, config)

    @classmethod
    def from_pretrained(cls, directory: str | Path, decoder_layers: int = 4) -> MAELM:
        """Load a checkpoint in the Hugging Face layout; see `load`. Its vocab.txt says which id is [MASK]."""
        return load(cls, directory, decoder_layers, Tokenizer.from_pretrained(directory).mask_id)

    def forward_selected(self, word_embeddings: Tensor, segments: Tensor, attention_mask: Tensor,
                         selected: Tensor) -> Tensor:
        """word_embeddings (B, T, H) of the ids, selected (B, T) bool -> logits (S, V), row by row."""
        visible = attention_mask & ~selected  # (B, T)
        encoded = self.forward_encoder(word_embeddings, segments, visible)  # (B, T', H)
        decoded = self.forward_decoder(self.place(encoded, visible), attention_mask)  # (B, T, H)
        return self.predict(decoded[selected])  # (S, H) -> (S, V)

    def forward_encoder(self, word_embeddings: Tensor, segments: Tensor, visible: Tensor) -> Tensor:
        """(B, T, H) -> (B, T', H): each row's visible positions, in order, then padding; T' is the longest row's."""
        count = visible.sum(1, keepdim=True)  # (B, 1)
        positions = (~visible).byte().argsort(dim=1, stable=True)  # (B, T): the visible ones first, in order
        positions = positions[:, :int(count.max())]  # (B, T'): the one size that depends on the data
        kept = torch.arange(positions.shape[1], device=visible.device) < count  # (B, T')
        positions = positions * kept  # padding repeats position 0, so that no left-out position is read at all
        words = word_embeddings.gather(1, positions[..., None].expand(-1, -1, word_embeddings.shape[-1]))
        return self.encoder(words, segments.gather(1, positions), kept, positions)

    def place(self, encoded: Tensor, visible: Tensor) -> Tensor:
        """encoded (B, T', H), visible (B, T) -> (B, T, H): the decoder's input."""
        rank = (visible.cumsum(1) - 1).clamp(min=0)  # (B, T): the row of `encoded` that a visible position has
        placed = encoded.gather(1, rank[..., None].expand(-1, -1, encoded.shape[-1]))  # (B, T, H)
        position_embeddings = self.encoder.position_embeddings.weight[:visible.shape[1]]  # (T, H)
        mask_embedding = self.encoder.word_embeddings.weight[self.mask_id]  # (H,)
        return torch.where(visible[..., None], placed, mask_embedding + position_embeddings)

    def forward_decoder(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H): here visible and selected positions attend to each other."""
        for layer in self.decoder:
            hidden = layer(hidden, hidden, attention_mask[:, None, None, :])
        return hidden

    def predict(self, hidden: Tensor) -> Tensor:
        """The MLM head: (N, H) -> (N, V)."""
        return self.head(hidden)


class Classifier(nn.Module):
    """Fine-tuning: the encoder's [CLS] output, pooled, dropped out, and one linear layer."""

    def __init__(self, config: Config, num_labels: int = 2, encoder: Encoder | None = None):
        """encoder: the one that the first stage trained; a newly initialised one if not given."""
        super().__init__()
        self.config, self.num_labels = config, num_labels
        self.encoder = Encoder(config) if encoder is None else encoder
        width = config.hidden_size
        self.pre_classifier = nn.Linear(width, width) if self.encoder.pooler is None else None
        self.classifier = nn.Linear(width, num_labels)
        self.dropout = nn.Dropout(config.dropout_before_classifier)
        for head in (self.pre_classifier, self.classifier):
            if head is not None:
                initialise_all(head, config)

    @classmethod
    def from_pretrained(cls, directory: str | Path, num_labels: int = 2) -> Classifier:
        """Load a checkpoint in the Hugging Face layout; see `load`."""
        return load(cls, directory, num_labels)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write what BertForSequenceClassification / DistilBertForSequenceClassification loads; see `save`."""
        save(self, directory, "ForSequenceClassification", self.num_labels)

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        """ids, segments, attention_mask (B, T) -> logits (B, num_labels)."""
        words = self.encoder.embed_words(ids)
        first = self.encoder(words, segments, attention_mask, wanted=slice(1))[:, 0]  # (B, H)
        if self.pre_classifier is None:
            pooled = torch.tanh(self.encoder.pooler(first))
        else:  # DistilBERT
            pooled = F.relu(self.pre_classifier(first))
        return self.classifier(self.dropout(pooled))


# ---------------------------------------------------------------------------- checkpoints in the Hugging Face layout

# Our module: its name in BERT's and TinyBERT's checkpoints, and in DistilBERT's. The encoder's have the prefix "bert."
# or "distilbert." in most files.
CHECKPOINT_NAMES = {
    "encoder.word_embeddings": ("embeddings.word_embeddings", "embeddings.word_embeddings"),
    "encoder.position_embeddings": ("embeddings.position_embeddings", "embeddings.position_embeddings"),
    "encoder.segment_embeddings": ("embeddings.token_type_embeddings", None),
    "encoder.embedding_norm": ("embeddings.LayerNorm", "embeddings.LayerNorm"),
    "encoder.layers.*.query": ("encoder.layer.*.attention.self.query", "transformer.layer.*.attention.q_lin"),
    "encoder.layers.*.key": ("encoder.layer.*.attention.self.key", "transformer.layer.*.attention.k_lin"),
    "encoder.layers.*.value": ("encoder.layer.*.attention.self.value", "transformer.layer.*.attention.v_lin"),
    "encoder.layers.*.attention_output": ("encoder.layer.*.attention.output.dense",
                                          "transformer.layer.*.attention.out_lin"),
    "encoder.layers.*.attention_norm": ("encoder.layer.*.attention.output.LayerNorm",
                                        "transformer.layer.*.sa_layer_norm"),
    "encoder.layers.*.feed_forward": ("encoder.layer.*.intermediate.dense", "transformer.layer.*.ffn.lin1"),
    "encoder.layers.*.feed_forward_output": ("encoder.layer.*.output.dense", "transformer.layer.*.ffn.lin2"),
    "encoder.layers.*.feed_forward_norm": ("encoder.layer.*.output.LayerNorm",
                                           "transformer.layer.*.output_layer_norm"),
    "encoder.pooler": ("pooler.dense", None),
    "head.transform": ("cls.predictions.transform.dense", "vocab_transform"),
    "head.norm": ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
    "head.output": ("cls.predictions.decoder", "vocab_projector"),
    "pre_classifier": (None, "pre_classifier"),
    "classifier": ("classifier", "classifier"),
}
# Keys of a checkpoint that no model here has a use for: index buffers, BERT's next-sentence head, TinyBERT's
# distillation layers.
KNOWN_EXTRAS = re.compile(r"embeddings\.(position_ids|token_type_ids)|cls\.seq_relationship\.(weight|bias)"
                          r"|fit_dense(s\.\d+)?\.(weight|bias)")
# dtypes of the safetensors format that BERT-family files hold; parameters must be of the first three.
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "I64": torch.int64,
          "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
VOCABULARY_FILES = ("vocab.txt", "tokenizer_config.json")
MODEL_FILES = ("config.json", *VOCABULARY_FILES, *WEIGHT_FILES)




def checkpoint_keys(config: Config) -> dict[str, str]:
    """Our parameter's name -> its key in a checkpoint, without prefix, for every head there is."""
    keys = {}
    for ours, theirs in CHECKPOINT_NAMES.items():
        name = theirs[config.model_type == "distilbert"]
        for number in range(config.num_hidden_layers if "*" in ours else 1):
            for suffix in ("weight",) if ours.endswith("embeddings") else ("weight", "bias"):
                if name is not None:
                    keys[f"{ours}.{suffix}".replace("*", str(number))] = f"{name}.{suffix}".replace("*", str(number))
    if config.model_type == "bert":
        keys["head.output.bias"] = "cls.predictions.bias"  # newer files repeat it as cls.predictions.decoder.bias
    return keys


def load(model_class: type, directory: str | Path, *arguments) -> nn.Module:
    """Build model_class(config, *arguments) with the weights of a checkpoint in the Hugging Face layout, as float32.

    The file may be model.safetensors or pytorch_model.bin; float32, float16 or bfloat16; with or without the prefix
    of its keys; with gamma/beta for LayerNorm's weight/bias; with or without a copy of the tied output matrix.
    Nothing is silent: every key of the file is used, belongs to a head that this model has not, or is one of
    KNOWN_EXTRAS. What the file lacks is initialised, listed as model.newly_initialised and printed in one line, which
    only a head and the pooler may be.

    Raises UserError naming the key for anything else: a missing encoder key, an unknown key, a wrong shape or dtype,
    NaN or infinite weights, a config or vocabulary that does not fit, a damaged file.
    """
    directory = Path(directory)
    config = Config.from_pretrained(directory)
    if (directory / "vocab.txt").exists():
        tokens = len(Tokenizer.from_pretrained(directory).tokens)
        if tokens != config.vocab_size:
            raise UserError(f"{directory}: vocab.txt has {tokens} tokens, but vocab_size in config.json is "
                            f"{config.vocab_size}; take both from the same checkpoint")
    path = weights_file(directory)
    tensors = read_safetensors(path) if path.suffix == ".safetensors" else read_pickle(path)

    keys = checkpoint_keys(config)
    ours = {key: name for name, key in keys.items()} | {"cls.predictions.decoder.bias": "head.output.bias"}
    found: dict[str, tuple[str, Tensor]] = {}  # our parameter -> its key in this file, the tensor
    for key, tensor in tensors.items():
        plain = key.removeprefix(config.model_type + ".").replace(".gamma", ".weight").replace(".beta", ".bias")
        if plain not in ours:
            if KNOWN_EXTRAS.fullmatch(plain):
                continue
            raise UserError(f"{path}: {key} is no part of a {config.model_type} model with "
                            f"{config.num_hidden_layers} layers; give a checkpoint that fits its config.json")
        name = ours[plain]
        if name in found and not torch.equal(found[name][1], tensor):
            raise UserError(f"{path}: {found[name][0]} and {key} are the same parameter with different values")
        found[name] = key, tensor

    output, words = found.get("head.output.weight"), found.get("encoder.word_embeddings.weight")
    if config.tie_word_embeddings and output and words and not torch.equal(output[1], words[1]):
        print(f"{path}: {output[0]} differs from the word embeddings, so it is kept as a matrix of its own")
        config = replace(config, tie_word_embeddings=False)

    with torch.device("meta"):  # shapes only: no memory, no random numbers
        model = model_class(config, *arguments)
    state, model.newly_initialised = {}, []
    for name, parameter in model.named_parameters():
        key, tensor = found.get(name, (None, None))
        value = torch.empty(parameter.shape)
        if key is None:
            if name.startswith("encoder.") and not name.startswith("encoder.pooler."):
                raise UserError(f"{path}: {keys[name]} is missing; give a whole {config.model_type} checkpoint")
            initialise(name, value, config)
            model.newly_initialised.append(keys.get(name, name))
        else:
            if tensor.shape != parameter.shape:
                raise UserError(f"{path}: {key} has the shape {list(tensor.shape)}, but config.json makes it "
                                f"{list(parameter.shape)}; give a checkpoint that fits its config.json")
            if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
                raise UserError(f"{path}: {key} is {tensor.dtype}, but must be float32, float16 or bfloat16")
            value.copy_(tensor)
            if not value.isfinite().all():
                raise UserError(f"{path}: {key} holds NaN or infinite values; the checkpoint is damaged")
        state[name] = nn.Parameter(value)
    if hasattr(model, "head") and config.tie_word_embeddings:
        state["head.output.weight"] = state["encoder.word_embeddings.weight"]
    model.load_state_dict(state, assign=True)
    if model.newly_initialised:
        print(f"{path}: newly initialised, as the checkpoint lacks them: {', '.join(model.newly_initialised)}")
    model.vocabulary_files = {name: (directory / name).read_bytes() for name in VOCABULARY_FILES
                              if (directory / name).is_file()}  # save_pretrained hands them on
    return model


def weights_file(directory: Path) -> Path:
    """model.safetensors if there is one, else pytorch_model.bin; UserError if neither."""
    for name in WEIGHT_FILES:
        if (directory / name).is_file():
            return directory / name
    raise UserError(f"{directory}: has neither {' nor '.join(WEIGHT_FILES)}; give a model in the Hugging Face layout")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Key -> tensor. The file: the header's size as a 64-bit integer, the header in JSON, the tensors' bytes.

    Header, dtypes, shapes and offsets are checked against the size of the file before memory is asked for; the
    tensors must fill the file without a gap or an overlap. Raises UserError naming the key.
    """
    def refuse(what: str) -> UserError:
        return UserError(f"{path}: {what}; the file is damaged, get it again")

    def unique(pairs: list) -> dict:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key occurs twice")
        return dict(pairs)

    size, tensors = path.stat().st_size, {}
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if size < 8 or header_size > min(size - 8, 100_000_000):
            raise refuse(f"a header of {header_size} bytes does not fit its size of {size} bytes")
        try:
            header = json.loads(file.read(header_size), object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            raise refuse(f"the header is not JSON ({error})") from None
        if not isinstance(header, dict):
            raise refuse("the header is no JSON object")
        header.pop("__metadata__", None)
        entries = []
        for key, entry in header.items():
            match entry:
                case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
                        dtype in DTYPES and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)):
                    entries.append((begin, end, key, DTYPES[dtype], shape))
                case _:
                    raise refuse(f"{key} is described as {str(entry)[:100]}")
        position, body = 0, size - 8 - header_size
        for begin, end, key, dtype, shape in sorted(entries, key=lambda entry: entry[:2]):
            if begin != position or end - begin != math.prod(shape) * dtype.itemsize or end > body:
                raise refuse(f"{key} lies at bytes {begin} to {end} of {body}, which does not fit its shape {shape} or "
                             f"the tensor before it, which ends at {position}")
            position = end
        if position != body:
            raise refuse(f"the tensors end at byte {position} of {body}")
        for begin, end, key, dtype, shape in sorted(entries, key=lambda entry: entry[:2]):
            content = torch.empty(end - begin, dtype=torch.uint8)
            if file.readinto(content.numpy()) != end - begin:
                raise refuse(f"it ends within {key}")
            tensors[key] = content.view(dtype).reshape(shape)
    return tensors


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """The reverse of read_safetensors, for float32 tensors."""
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for key, tensor in tensors.items():
        end = position + tensor.numel() * 4
        header[key] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().float().cpu().contiguous().numpy().data)


def read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a pytorch_model.bin. Raises UserError for anything else; no code in the file is ever run."""
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no list of what a damaged or hostile file may raise
        raise UserError(f"{path}: is damaged or holds more than tensors ({type(error).__name__}); nothing in it was "
                        "run, get another checkpoint") from None
    for key, tensor in tensors.items() if isinstance(tensors, dict) else [("", tensors)]:
        if not (isinstance(key, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
                and tensor.device.type == "cpu" and not tensor.is_quantized
                and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.itemsize):
            raise UserError(f"{path}: {key!r} is no plain tensor; give a checkpoint that is a dictionary of tensors")
    return tensors


def save(model: nn.Module, directory: str | Path, architecture: str, num_labels: int | None = None) -> None:
    """Write config.json, model.safetensors and the vocabulary the model was loaded with, in the Hugging Face layout.

    Everything goes into a new directory beside the final one, which is then renamed: a directory of that name is
    whole. An earlier model there is replaced. Raises UserError when the directory holds anything else, or cannot be
    written.
    """
    directory = Path(directory).resolve()
    keys, prefix = checkpoint_keys(model.config), model.config.model_type + "."
    family = "Bert" if model.config.model_type == "bert" else "DistilBert"
    tensors = {(prefix if name.startswith("encoder.") else "") + keys[name]: parameter
               for name, parameter in model.named_parameters()
               if not (architecture.endswith("ForMaskedLM") and name.startswith("encoder.pooler."))}
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        if directory.exists() and not {file.name for file in directory.iterdir()} <= set(MODEL_FILES):
            raise UserError(f"{directory}: exists and holds other files than a model's; give another directory")
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            new = temporary / "new"
            new.mkdir()  # mkdtemp's own directory could be read by its owner only
            (new / "config.json").write_text(model.config.to_json(family + architecture, num_labels), encoding="utf-8")
            write_safetensors(new / "model.safetensors", tensors)
            for name, content in getattr(model, "vocabulary_files", {}).items():
                (new / name).write_bytes(content)
            if directory.exists():
                directory.rename(temporary / "old")
            new.rename(directory)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written ({error.strerror}); give another directory") from None


# ------------------------------------------------------------------------------------------ finding a backbone by name

@dataclass(frozen=True)
class Backbone:
    """A checkpoint on the Hugging Face hub, at a pinned revision."""
    hub_id: str
    revision: str
    weights: str
    sha256: str | None  # of the weights, where known


BACKBONES = {
    "tinybert": Backbone("huawei-noah/TinyBERT_General_4L_312D", "34707a33cd59a94ecde241ac209bf35103691b43",
                         "pytorch_model.bin", None),
    "distilbert": Backbone("distilbert/distilbert-base-uncased", "12040accade4e8a0f71eabdb258fecc2e7e948be",
                           "model.safetensors", "5e3f1108e3cb34ee048634875d8482665b65ac713291a7e32396fb18f6ff0063"),
    "bert-base": Backbone("google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594",
                          "model.safetensors", "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"),
}


def find_model(name_or_directory: str | Path) -> Path:
    """The directory of a backbone: tinybert, distilbert or bert-base by name, anything else is a directory already.

    A name is looked up in the user's Hugging Face cache, then in ours, then downloaded into ours. HF_HUB_CACHE,
    HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean to Hugging Face's own tools.
    Raises UserError for an unknown name, and DownloadError when the hub cannot be reached.
    """
    backbone = BACKBONES.get(str(name_or_directory))
    if backbone is None:
        if Path(name_or_directory).is_dir():
            return Path(name_or_directory)
        raise UserError(f"--model {name_or_directory} is neither {', '.join(BACKBONES)} nor a directory")
    names = ("config.json", "vocab.txt", backbone.weights)
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    hub_cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    hub_copy = hub_cache / f"models--{backbone.hub_id.replace('/', '--')}" / "snapshots" / backbone.revision
    our_copy = cache_dir() / "models" / backbone.hub_id.replace("/", "--") / backbone.revision
    for directory in (hub_copy, our_copy):
        if all((directory / name).is_file() for name in names):
            return directory
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    for name in names:
        if not (our_copy / name).is_file():
            fetch(f"{endpoint}/{backbone.hub_id}/resolve/{backbone.revision}/{name}", our_copy / name,
                  sha256=backbone.sha256 if name == backbone.weights else None)
    return our_copy


def backbone_files(directory: str | Path) -> dict[str, Path]:
    """The files of a model directory that are really read, by name; the run log keeps their fingerprints."""
    names = ("config.json", "vocab.txt", "tokenizer_config.json", weights_file(Path(directory)).name)
    return {name: Path(directory) / name for name in names if (Path(directory) / name).is_file()}
