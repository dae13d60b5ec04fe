"""The backbones: BERT, TinyBERT and DistilBERT as one Encoder, and the study's models on top of it. Read in this order:

    Config, Encoder     the architecture; the pooler belongs to the encoder and stays through both stages
    MaskedLM            stage 1: predict the tokens at the selected positions
    MAELM               stage 1 without [MASK] in the encoder: encode, place, decode, predict
    Classifier          stage 2
    load, save          checkpoints in the Hugging Face layout, every key accounted for
    find_model          a backbone by its name, from the user's caches or the hub

Shapes: B sequences of T positions, S selected positions in the batch, H the width, V the vocabulary.
"""
from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
import warnings
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glue_data import Tokenizer, UserError, cache_dir, fetch

ACTIVATIONS = {"gelu": F.gelu, "gelu_new": partial(F.gelu, approximate="tanh"), "relu": F.relu}
# DistilBERT's config.json has its own names for some fields of Config.
DISTILBERT_FIELDS = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                     "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
                     "attention_probs_dropout_prob": "attention_dropout", "classifier_dropout": "seq_classif_dropout"}


@dataclass(frozen=True)
class Config:
    """An architecture, in the words of BERT's config.json. TinyBERT is a small BERT."""
    model_type: str
    vocab_size: int
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
        """Read directory/config.json. Raises UserError naming the key that is missing, malformed or unsupported."""
        path = Path(directory) / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8-sig"))
            distilbert = raw.setdefault("model_type", "bert") == "distilbert"  # older BERTs do not say
        except (OSError, ValueError, RecursionError, AttributeError) as error:
            raise UserError(f"{path}: is no JSON object ({error}); give a model in the Hugging Face layout") from None

        def check(key: str, passed: bool, wanted: str) -> None:
            if not passed:
                raise UserError(f"{path}: {key} is {json.dumps(raw.get(key))[:80]}, but must be {wanted}")

        check("model_type", raw["model_type"] in ("bert", "distilbert"), "bert or distilbert")
        check("position_embedding_type", raw.get("position_embedding_type", "absolute") == "absolute", "absolute")
        check("is_decoder", raw.get("is_decoder", False) is False, "false: only encoders are supported")
        values = {}
        for field in fields(Config):
            key = DISTILBERT_FIELDS.get(field.name, field.name) if distilbert else field.name
            value = values[field.name] = raw.get(key, field.default)
            if field.type == "int":
                low, high = (2 if key == "type_vocab_size" else 1), (1000 if "layers" in key else 1 << 24)
                check(key, type(value) is int and low <= value <= high, f"a whole number from {low} to {high}")
            elif field.type == "bool":
                check(key, type(value) is bool, "true or false")
            elif field.type != "str":
                check(key, type(value) in (int, float) and 0 <= value < 1 or value is field.default, "in [0, 1)")
            elif field.name == "hidden_act":
                check(key, value in list(ACTIVATIONS), f"one of {', '.join(ACTIVATIONS)}")
        heads = "n_heads" if distilbert else "num_attention_heads"
        check(heads, values["hidden_size"] % values["num_attention_heads"] == 0, "a divisor of the width")
        return Config(**values | ({"type_vocab_size": 0, "layer_norm_eps": 1e-12} if distilbert else {}))


def initialise(parameters: dict[str, Tensor], config: Config) -> None:
    """BERT's initial values, from torch's global generator: weights normal, biases 0, LayerNorm the identity."""
    for name, parameter in parameters.items():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith("norm.weight"):
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=config.initializer_range)


class Dropout(nn.Dropout):
    """nn.Dropout whose mask on the CPU takes 16 random bits an element, where torch draws a float for each, one by one.

    With the attention below it makes a training step of TinyBERT 7% faster. The probability is p to 1 in 65536.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.training or not self.p or hidden.is_cuda:
            return super().forward(hidden)
        bits = torch.empty(-(-hidden.numel() // 4), dtype=torch.int64).random_(-2 ** 63, None).view(torch.int16)
        kept = bits[:hidden.numel()].view(hidden.shape) >= min(round(65536 * self.p) - 32768, 32767)
        return hidden * kept.to(hidden.dtype).mul_(1 / (1 - self.p))


class TransformerLayer(nn.Module):
    """Self-attention, then a feed-forward network; each is added to its input, and LayerNorm follows the sum."""

    def __init__(self, config: Config):
        super().__init__()
        width = config.hidden_size
        self.heads, self.attention_dropout = config.num_attention_heads, Dropout(config.attention_probs_dropout_prob)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.attention_output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.feed_forward = nn.Linear(width, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.feed_forward_output = nn.Linear(config.intermediate_size, width)
        self.feed_forward_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.output_dropout = self.dropout if config.model_type == "bert" else nn.Identity()  # none in DistilBERT

    def forward(self, hidden: Tensor, context: Tensor, attention_mask: Tensor) -> Tensor:
        """hidden (B, Q, H) attends to context (B, T, H) where attention_mask (B, 1, 1, T) is true -> (B, Q, H)."""
        query, key, value = (x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, heads, Q or T, H / heads)
                             for x in (self.query(hidden), self.key(context), self.value(context)))
        if self.training and not query.is_cuda:  # written out, since torch's attention has no fast dropout on the CPU
            scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])  # (B, heads, Q, T)
            attended = self.attention_dropout(scores.masked_fill(~attention_mask, -torch.inf).softmax(3)) @ value
        else:
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask,
                                                      dropout_p=self.attention_dropout.p if self.training else 0.0)
        attended = self.attention_output(attended.transpose(1, 2).flatten(2))  # (B, Q, H)
        hidden = self.attention_norm(hidden + self.output_dropout(attended))
        transformed = self.feed_forward_output(self.activation(self.feed_forward(hidden)))  # (B, Q, H)
        return self.feed_forward_norm(hidden + self.dropout(transformed))


class Encoder(nn.Module):
    """BERT, TinyBERT or DistilBERT without a head."""

    def __init__(self, config: Config):
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.segment_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.embedding_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(width, width) if config.model_type == "bert" else None

    def embed_words(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, H): the lookup alone. Typhoon's saliency is read off the gradient at its result."""
        return self.word_embeddings(ids)

    def forward(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor, positions: Tensor | None = None,
                all_layers: bool = False, wanted: slice = slice(None)) -> Tensor | list[Tensor]:
        """embedded (B, T, H) from embed_words -> the last layer's hidden states (B, T, H).

        segments (B, T); attention_mask (B, T), false at padding; positions (B, T), 0 to T - 1 where not given.
        all_layers: return the L + 1 hidden states, the embeddings' first.
        wanted: compute the last layer at these positions only; the classifier wants [CLS] alone.
        """
        if self.segment_embeddings is not None:
            embedded = embedded + self.segment_embeddings(segments)
        weight = self.position_embeddings.weight
        embedded = embedded + (weight[:embedded.shape[1]] if positions is None else F.embedding(positions, weight))
        states = [self.dropout(self.embedding_norm(embedded))]  # (B, T, H)
        attention_mask = attention_mask.bool()[:, None, None, :]  # (B, 1, 1, T): for every head and query
        for layer in self.layers:
            hidden = states[-1][:, wanted] if layer is self.layers[-1] else states[-1]
            states.append(layer(hidden, states[-1], attention_mask))
        return states if all_layers else states[-1]


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
        return load(directory, cls)

    def save_pretrained(self, directory: str | Path) -> None:
        """For transformers' BertForMaskedLM or DistilBertForMaskedLM, which have no pooler; see `save`."""
        save(self, directory, "ForMaskedLM")

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        """ids, segments, attention_mask (B, T) -> logits (B, T, V)."""
        return self.predict(self.encoder(self.encoder.embed_words(ids), segments, attention_mask))

    def forward_selected(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor, selected: Tensor) -> Tensor:
        """embedded (B, T, H), the corrupted ids; selected (B, T) bool -> logits (S, V), row by row."""
        hidden = self.encoder(embedded, segments, attention_mask)  # (B, T, H)
        return self.predict(hidden[selected])  # (S, H) -> (S, V): only there, as V outweighs a small encoder


class MAELM(nn.Module):
    """MAE-LM: masked language modelling in which the encoder sees nothing at a selected position, not even [MASK].

    Typhoon's saliency: at a visible position it is read off the gradient at the embeddings, as in MaskedLM. At a
    selected one the embeddings are never read, so gradient and saliency are exactly 0: the mean over a token type's
    selected positions is 0, and its new score is the visible ones' alone; 0, if the batch has it at selected positions
    only. (The [MASK] that the decoder gets is the same vector everywhere, and says nothing about the token there.)

    Source: "Representation Deficiency in Masked Language Modeling"; there too, only the encoder is kept afterwards.
    """

    def __init__(self, config: Config, decoder_layers: int, mask_id: int):
        super().__init__()
        self.config, self.mask_id = config, mask_id
        self.encoder = Encoder(config)
        self.decoder = nn.ModuleList(TransformerLayer(config) for _ in range(decoder_layers))
        self.predict = PredictionHead(config, self.encoder.word_embeddings)
        initialise(dict(self.named_parameters()), config)

    @classmethod
    def from_pretrained(cls, directory: str | Path, decoder_layers: int = 4) -> MAELM:
        """A checkpoint in the Hugging Face layout, see `load`; no checkpoint has the decoder."""
        return load(directory, cls, decoder_layers, Tokenizer.from_pretrained(directory).mask_id)

    def forward_selected(self, embedded: Tensor, segments: Tensor, attention_mask: Tensor, selected: Tensor) -> Tensor:
        """embedded (B, T, H), selected (B, T) bool -> logits (S, V), row by row: encode, place, decode, predict."""
        visible = attention_mask & ~selected  # (B, T)
        encoded = self.forward_encoder(embedded, segments, visible)  # (B, T', H)
        placed = self.place(encoded, visible)  # (B, T, H)
        decoded = self.forward_decoder(placed, attention_mask)  # (B, T, H)
        return self.predict(decoded[selected])  # (S, H) -> (S, V)

    def forward_encoder(self, embedded: Tensor, segments: Tensor, visible: Tensor) -> Tensor:
        """The visible positions of each row as a shorter sequence, which keeps its position ids -> (B, T', H).

        T' is the largest number of visible positions in a row; the other rows end in padding.
        """
        number_visible = visible.sum(1, keepdim=True)  # (B, 1)
        positions = (~visible).byte().argsort(dim=1, stable=True)[:, :int(number_visible.max())]  # (B, T'), in order
        kept = torch.arange(positions.shape[1], device=visible.device) < number_visible  # (B, T'), false at padding
        positions = positions * kept  # padding repeats position 0, so that nothing left out is even read
        embedded = embedded.gather(1, positions[..., None].expand(-1, -1, embedded.shape[2]))  # (B, T', H)
        return self.encoder(embedded, segments.gather(1, positions), kept, positions)

    def place(self, encoded: Tensor, visible: Tensor) -> Tensor:
        """encoded (B, T', H) at the visible (B, T) positions, [MASK] + position embedding elsewhere -> (B, T, H)."""
        rank = (visible.cumsum(1) - 1).clamp(min=0)  # (B, T): where a visible position stands in `encoded`
        placed = encoded.gather(1, rank[..., None].expand(-1, -1, encoded.shape[2]))  # (B, T, H)
        mask_embedding = self.encoder.word_embeddings.weight[self.mask_id]  # (H,)
        position_embeddings = self.encoder.position_embeddings.weight[:visible.shape[1]]  # (T, H)
        return torch.where(visible[..., None], placed, mask_embedding + position_embeddings)

    def forward_decoder(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """A shallow Transformer of the encoder's width and heads: (B, T, H) -> (B, T, H)."""
        for layer in self.decoder:
            hidden = layer(hidden, hidden, attention_mask[:, None, None, :])
        return hidden


class Classifier(nn.Module):
    """Fine-tuning: [CLS] -> pooler -> dropout -> linear layer. DistilBERT's pooler has no pretraining, and a ReLU."""

    def __init__(self, config: Config, num_labels: int = 2):
        super().__init__()
        self.config, self.num_labels, distilbert = config, num_labels, config.model_type == "distilbert"
        self.encoder = Encoder(config)
        self.pre_classifier = nn.Linear(config.hidden_size, config.hidden_size) if distilbert else None
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        usual_dropout = 0.2 if distilbert else config.hidden_dropout_prob
        self.dropout = nn.Dropout(usual_dropout if config.classifier_dropout is None else config.classifier_dropout)
        initialise(dict(self.named_parameters()), config)

    @classmethod
    def from_pretrained(cls, directory: str | Path, num_labels: int = 2) -> Classifier:
        """A checkpoint in the Hugging Face layout; see `load`."""
        return load(directory, cls, num_labels)

    def save_pretrained(self, directory: str | Path) -> None:
        """For transformers' BertForSequenceClassification or DistilBertForSequenceClassification; see `save`."""
        save(self, directory, "ForSequenceClassification", num_labels=self.num_labels)

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        """ids, segments, attention_mask (B, T) -> logits (B, num_labels)."""
        embedded = self.encoder.embed_words(ids)
        first = self.encoder(embedded, segments, attention_mask, wanted=slice(1))[:, 0]  # (B, H): [CLS]
        pooled = F.relu(self.pre_classifier(first)) if self.pre_classifier else torch.tanh(self.encoder.pooler(first))
        return self.classifier(self.dropout(pooled))


# ---- Checkpoints in the Hugging Face layout --------------------------------------------------------------------------

# our module                         in BERT and TinyBERT                        in DistilBERT
CHECKPOINT_NAMES = """
encoder.word_embeddings              embeddings.word_embeddings                  embeddings.word_embeddings
encoder.position_embeddings          embeddings.position_embeddings              embeddings.position_embeddings
encoder.segment_embeddings           embeddings.token_type_embeddings            -
encoder.embedding_norm               embeddings.LayerNorm                        embeddings.LayerNorm
encoder.layers.*.query               encoder.layer.*.attention.self.query        transformer.layer.*.attention.q_lin
encoder.layers.*.key                 encoder.layer.*.attention.self.key          transformer.layer.*.attention.k_lin
encoder.layers.*.value               encoder.layer.*.attention.self.value        transformer.layer.*.attention.v_lin
encoder.layers.*.attention_output    encoder.layer.*.attention.output.dense      transformer.layer.*.attention.out_lin
encoder.layers.*.attention_norm      encoder.layer.*.attention.output.LayerNorm  transformer.layer.*.sa_layer_norm
encoder.layers.*.feed_forward        encoder.layer.*.intermediate.dense          transformer.layer.*.ffn.lin1
encoder.layers.*.feed_forward_output encoder.layer.*.output.dense                transformer.layer.*.ffn.lin2
encoder.layers.*.feed_forward_norm   encoder.layer.*.output.LayerNorm            transformer.layer.*.output_layer_norm
encoder.pooler                       pooler.dense                                -
predict.transform                    cls.predictions.transform.dense             vocab_transform
predict.norm                         cls.predictions.transform.LayerNorm         vocab_layer_norm
predict.output                       cls.predictions.decoder                     vocab_projector
pre_classifier                       -                                           pre_classifier
classifier                           classifier                                  classifier
"""
# Keys that nothing here needs: index buffers, next-sentence head, TinyBERT's distillation, a copy of decoder.bias.
KNOWN_EXTRAS = re.compile(r"embeddings\.(position_ids|token_type_ids)|cls\.seq_relationship\.(weight|bias)"
                          r"|fit_dense(s\.\d+)?\.(weight|bias)|cls\.predictions\.bias")
MODEL_FILES = ("config.json", "vocab.txt", "tokenizer_config.json", "model.safetensors", "pytorch_model.bin")
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}  # I64: index buffers


def checkpoint_keys(config: Config) -> dict[str, str]:
    """Our name of each parameter -> its key in a checkpoint, less the prefix "bert." or "distilbert."."""
    keys = {}
    for line in CHECKPOINT_NAMES.strip().splitlines():
        ours, bert, distilbert = line.split()
        theirs = bert if config.model_type == "bert" else distilbert
        for number in range(config.num_hidden_layers if "*" in ours else theirs != "-"):
            for kind in ("weight",) if ours.endswith("embeddings") else ("weight", "bias"):
                keys[f"{ours}.{kind}".replace("*", str(number))] = f"{theirs}.{kind}".replace("*", str(number))
    return keys


def backbone_files(directory: str | Path) -> dict[str, Path]:
    """The files that are read from a model's directory, by name; of two files with weights, model.safetensors."""
    files = {name: Path(directory, name) for name in MODEL_FILES if Path(directory, name).is_file()}
    if "model.safetensors" in files:
        files.pop("pytorch_model.bin", None)
    elif "pytorch_model.bin" not in files:
        raise UserError(f"{directory}: has no model.safetensors and no pytorch_model.bin; give a model in the Hugging "
                        "Face layout")
    return files


def load(directory: str | Path, model_class: type, *arguments) -> nn.Module:
    """model_class(config, *arguments) with the weights of a checkpoint in the Hugging Face layout, as float32.

    Nothing is silent: every key of the file is used, belongs to a head that this model has not, or is one of
    KNOWN_EXTRAS; what the file lacks of pooler and head is newly initialised, named in one printed line and kept as
    model.newly_initialised. Raises UserError naming the key for anything else: a key unknown or missing, a shape, a
    dtype, NaN, a config or a vocabulary that does not fit.
    """
    config, files = Config.from_pretrained(directory), backbone_files(directory)
    path = files.get("model.safetensors") or files["pytorch_model.bin"]

    def refuse(what: str) -> UserError:
        return UserError(f"{path}: {what}; give a whole checkpoint, with all files from one place")

    if "vocab.txt" in files and (tokens := len(Tokenizer.from_pretrained(directory).tokens)) != config.vocab_size:
        raise refuse(f"vocab.txt has {tokens} tokens, but vocab_size in config.json is {config.vocab_size}")
    keys = checkpoint_keys(config)
    names, found = {key: name for name, key in keys.items()}, {}  # found: our name -> key in this file, tensor
    for key, tensor in read_tensors(path).items():
        plain = re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", key.removeprefix(config.model_type + ".")))
        name = names.get(plain)
        if name is None and not KNOWN_EXTRAS.fullmatch(plain):
            raise refuse(f"{key!r} is no part of the {config.model_type} model that config.json describes")
        if name in found and not torch.equal(found[name][1].float(), tensor.float()):
            raise refuse(f"{key!r} and {found[name][0]!r} are two values for one parameter")
        found[name or plain] = key, tensor
    if "cls.predictions.bias" in found:  # where both are there, transformers adds decoder.bias
        found.setdefault("predict.output.bias", found["cls.predictions.bias"])
    words, output = found.get("encoder.word_embeddings.weight"), found.get("predict.output.weight")
    if config.tie_word_embeddings and words and output and not torch.equal(words[1].float(), output[1].float()):
        print(f"{path}: {output[0]} differs from the word embeddings, so the two are not tied")
        config = replace(config, tie_word_embeddings=False)

    with torch.device("meta"):  # shapes without memory, and without a random number drawn
        model = model_class(config, *arguments)
    state, missing = {}, []
    for name, parameter in model.named_parameters():
        if name in found:
            key, tensor = found[name]
            if tensor.shape != parameter.shape or not tensor.is_floating_point():
                raise refuse(f"{key!r} is {tensor.dtype} of shape {list(tensor.shape)}, but config.json asks for "
                             f"floats of shape {list(parameter.shape)}")
            value = torch.empty(parameter.shape)
            if not value.copy_(tensor).isfinite().all():
                raise refuse(f"{key!r} holds NaN or infinity")
        elif name.startswith("encoder.") and "pooler" not in name:
            raise refuse(f"{keys[name]!r} is missing")
        else:
            value = torch.empty(parameter.shape)
            initialise({name: value}, config)
            missing.append(keys.get(name, "decoder.*"))  # MAE-LM's decoder is in no checkpoint
        state[name] = nn.Parameter(value)
    if config.tie_word_embeddings and hasattr(model, "predict"):
        state["predict.output.weight"] = state["encoder.word_embeddings.weight"]
    model.load_state_dict(state, assign=True)
    model.newly_initialised = list(dict.fromkeys(missing))
    if missing:
        print(f"{path}: newly initialised, as it lacks them: {', '.join(model.newly_initialised)}")
    model.vocabulary = {name: files[name].read_bytes() for name in MODEL_FILES[1:3] if name in files}  # for `save`
    return model


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Key -> tensor of a .safetensors or .bin file; UserError for anything that is not one, or not whole."""
    try:
        return read_safetensors(path) if path.suffix == ".safetensors" else read_pickle(path)
    except Exception as error:  # there is no list of what json and torch raise at damaged and hostile files
        reason = str(error).splitlines()[0][:200] if isinstance(error, ValueError) else type(error).__name__
        raise UserError(f"{path}: is no whole file of tensors ({reason}); get it again") from None


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The file: its header's size in 8 bytes, the header in JSON, the bytes of the tensors without gap or overlap."""
    tensors, position, size = {}, 0, path.stat().st_size
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        body_size = size - 8 - header_size
        if body_size < 0 or header_size > 100_000_000:
            raise ValueError(f"the header cannot have {header_size} of {size} bytes")
        header = json.loads(file.read(header_size))
        header.pop("__metadata__", None)
        for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            (begin, end), dtype, shape = entry["data_offsets"], DTYPES.get(entry["dtype"]), entry["shape"]
            if dtype is None or len(shape) > 2 or end - begin != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{key!r} is described as {entry}")
            if begin != position or end > body_size:  # so no memory is taken for more than the file holds
                raise ValueError(f"{key!r} cannot lie in bytes {begin} to {end} of {body_size}")
            data, position = torch.empty(end - begin, dtype=torch.uint8), end
            file.readinto(data.numpy())
            tensors[key] = data.view(dtype).reshape(shape)
        if position != body_size:
            raise ValueError(f"{body_size - position} bytes belong to no tensor")
    return tensors


def read_pickle(path: Path) -> dict[str, Tensor]:
    """With weights_only, torch makes tensors and plain containers, and never runs code that the file brings along."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about pickle's versions
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    for key, tensor in tensors.items():
        if type(key) is not str or tensor.dtype not in DTYPES.values() or tensor.is_nested:
            raise ValueError(f"{key!r} is no tensor of {', '.join(DTYPES)}")
        if tensor.untyped_storage().nbytes() < tensor.nbytes:
            raise ValueError(f"{key!r} is larger than its data")
    return tensors


def check_replaceable(directory: Path) -> None:
    """UserError unless `save` may take this name: nothing is there yet, or nothing but an earlier model."""
    parent = next(parent for parent in directory.absolute().parents if parent.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK)):
        raise UserError(f"{directory}: nothing can be written into {parent}; give another directory")
    if os.path.lexists(directory) and not (
            directory.is_dir() and {file.name for file in directory.iterdir()} <= set(MODEL_FILES)):
        raise UserError(f"{directory}: is there, and holds other things than a model; give another directory")


def save(model: nn.Module, directory: str | Path, architecture: str, num_labels: int | None = None) -> None:
    """Write config.json, model.safetensors and the vocabulary that the model was loaded with, all or nothing.

    They go into a new directory, which then takes the name; an earlier model of that name is replaced. Raises
    UserError when something else is there, or the disk refuses.
    """
    directory, config, keys = Path(directory).resolve(), model.config, checkpoint_keys(model.config)
    distilbert = config.model_type == "distilbert"
    description = {DISTILBERT_FIELDS.get(name, name) if distilbert else name: value
                   for name, value in asdict(config).items()
                   if value is not None and not (distilbert and name in ("type_vocab_size", "layer_norm_eps"))}
    description["architectures"] = [("DistilBert" if distilbert else "Bert") + architecture]
    if num_labels is not None:
        description["id2label"] = {str(label): f"LABEL_{label}" for label in range(num_labels)}
        description["label2id"] = {f"LABEL_{label}": label for label in range(num_labels)}

    tensors = {f"{config.model_type}." * name.startswith("encoder.") + keys[name]: parameter
               for name, parameter in model.named_parameters() if architecture != "ForMaskedLM" or "pooler" not in name}
    if "cls.predictions.decoder.bias" in tensors:  # BertForMaskedLM has both
        tensors["cls.predictions.bias"] = tensors["cls.predictions.decoder.bias"]
    tensors = {key: tensor.detach().float().cpu().contiguous().numpy() for key, tensor in tensors.items()}
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for key, tensor in tensors.items():
        header[key] = {"dtype": "F32", "shape": tensor.shape,
                       "data_offsets": [position, position := position + tensor.nbytes]}
    header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)  # so that the tensors are aligned
    try:
        check_replaceable(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as temporary:
            (new := Path(temporary, "new")).mkdir()  # its permissions are the usual ones, the temporary one's are not
            (new / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
            for name, content in getattr(model, "vocabulary", {}).items():
                (new / name).write_bytes(content)
            with (new / "model.safetensors").open("wb") as file:
                file.write(len(header).to_bytes(8, "little") + header)
                for tensor in tensors.values():
                    file.write(tensor.data)
            if directory.exists():
                directory.rename(Path(temporary, "old"))
            new.rename(directory)
    except OSError as error:
        raise UserError(f"{directory}: cannot be written ({error.strerror}); give another directory") from None


# ---- Finding a backbone by its name ----------------------------------------------------------------------------------

BACKBONES = {  # name: id on the Hugging Face hub, revision, weights, their sha256 where known
    "tinybert": ("huawei-noah/TinyBERT_General_4L_312D", "34707a33cd59a94ecde241ac209bf35103691b43",
                 "pytorch_model.bin", None),
    "distilbert": ("distilbert/distilbert-base-uncased", "12040accade4e8a0f71eabdb258fecc2e7e948be",
                   "model.safetensors", "5e3f1108e3cb34ee048634875d8482665b65ac713291a7e32396fb18f6ff0063"),
    "bert-base": ("google-bert/bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594",
                  "model.safetensors", "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"),
}


def find_model(name_or_directory: str | Path) -> Path:
    """The directory of a backbone. A name of BACKBONES is looked up in the user's Hugging Face cache, then in ours, and
    downloaded into ours otherwise; anything else is a directory already. HF_HUB_CACHE, HF_HOME and HF_ENDPOINT are
    honoured as Hugging Face's own tools do. Raises UserError for an unknown name, DownloadError without the hub.
    """
    if str(name_or_directory) not in BACKBONES:
        if not Path(name_or_directory).is_dir():
            raise UserError(f"--model {name_or_directory} is no directory and none of {', '.join(BACKBONES)}")
        return Path(name_or_directory)
    hub_id, revision, weights, sha256 = BACKBONES[str(name_or_directory)]
    folder, names = "models--" + hub_id.replace("/", "--"), ("config.json", "vocab.txt", weights)
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    theirs = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"), folder, "snapshots", revision)
    theirs = Path(os.path.expanduser(theirs))
    if all((theirs / name).is_file() for name in names):
        return theirs
    ours = cache_dir() / folder / revision
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    for name in names:  # those that are there already are left alone
        fetch(f"{endpoint}/{hub_id}/resolve/{revision}/{name}", ours / name, sha256 if name == weights else None)
    return ours
