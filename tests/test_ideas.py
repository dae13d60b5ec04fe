"""Published masking ideas and control maskers, each appended to typhoon.py as a reader would: the
protocol on the sample's sentences, each rule on a case worked by hand, and one real run of all."""
import functools
import json
import math
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import models
import train
import typhoon

HERE = Path(__file__).resolve().parent
SOURCE = (HERE.parent / "typhoon.py").read_text(encoding="utf-8")
FILES = {path.stem: path.read_text(encoding="utf-8")
         for folder in ("ideas", "controls") for path in sorted((HERE / folder).glob("*.py"))}
BY_POSITION = {"span", "t5-span", "sample-ratio"}
HOOKED = ["attention", "entropy", "loss-weighted", "token-weighting", "gradient-norm"]


@functools.cache
def masker_class(name: str) -> type:
    """What `cat NAME.py >> typhoon.py` adds: this one masker."""
    namespace = {"__name__": "typhoon_with_an_idea"}
    exec(compile(SOURCE + FILES[name], name, "exec"), namespace)
    assert namespace["MASKERS"].keys() - typhoon.MASKERS.keys() == {name}
    return namespace["MASKERS"][name]


# ---- The protocol -------------------------------------------------------------------------------

@functools.cache
def sample(device: str = "cpu") -> train.Inputs:
    return train.read_inputs("mrpc", train.SAMPLE, train.SAMPLE / "bert", 128, device)


def simulate(name: str, device: str = "cpu", budget: float = 0.3, steps: int | None = None,
             mae: bool = False) -> list[torch.Tensor]:
    """Steps of train.adapt, an epoch of them or fewer, but that the model does not learn: the
    masks."""
    inputs = sample(device)
    torch.manual_seed(0)
    config = models.Config(
        model_type="bert", vocab_size=len(inputs.frequency), hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32)
    model = models.MAELM(config, 1, inputs.tokenizer.mask_id) if mae else models.MaskedLM(config)
    model.to(device).train()
    embedding_weight = model.encoder.word_embeddings.weight.detach()
    batches = train.epoch_batches(inputs.train.lengths, 16, torch.Generator().manual_seed(0))
    spread = 0.4 if masker_class(name).uses_spread else None
    masker = masker_class(name)(inputs.frequency, budget, spread, ema=0.8)
    masker.begin(inputs, model, len(batches))
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    shared, expected = (torch.Generator(device).manual_seed(7) for _ in range(2))
    masks = []
    for batch in map(inputs.train.batch, batches[:steps]):
        rates, global_state = masker.rates(), torch.get_rng_state()
        assert (rates is None) == (name in BY_POSITION)
        if rates is not None:
            assert rates.shape == inputs.frequency.shape and 0 <= rates.min() <= rates.max() <= 1
        selected = masker.select(batch.ids, batch.words, shared)
        torch.rand(batch.ids.shape, generator=expected, device=device)  # one draw a position
        assert torch.equal(shared.get_state(), expected.get_state())
        assert selected.shape == batch.ids.shape and selected.dtype == torch.bool
        assert not selected[batch.words < 0].any()  # special tokens, padding
        masks.append(selected)

        assert torch.equal(torch.get_rng_state(), global_state)  # dropout's
        corrupted = batch.ids.masked_fill(selected, inputs.tokenizer.mask_id)
        with torch.autocast(device, torch.bfloat16):
            embeddings = model.encoder.embed_words(corrupted)
            embeddings.retain_grad()
            logits = model.forward_selected(
                embeddings, batch.segments, batch.attention_mask, selected)
            loss = F.cross_entropy(logits, batch.ids[selected])
        loss.backward()
        global_state = torch.get_rng_state()
        masker.observe(embeddings.grad, embedding_weight, batch.ids, batch.words, selected)
        assert torch.equal(torch.get_rng_state(), global_state)
    return masks


@pytest.mark.parametrize("name", FILES)
def test_the_protocol_is_kept_and_the_budget_met(name):
    masks = simulate(name)
    share = sum(mask.sum().item() for mask in masks) / sample().maskable_tokens
    assert share == pytest.approx(0.3, abs=0.02)
    assert all(map(torch.equal, masks, simulate(name, steps=8)))  # the same again


@pytest.mark.parametrize("name", ["span", "t5-span", "pmi", "content", "frequent-only"])
def test_another_budget_is_met(name):
    share = sum(mask.sum().item() for mask in simulate(name, budget=0.15))
    assert share / sample().maskable_tokens == pytest.approx(0.15, abs=0.02)


@pytest.mark.parametrize("name", HOOKED)
def test_the_hooks_serve_mae_lm(name):
    masks = simulate(name, mae=True)
    share = sum(mask.sum().item() for mask in masks) / sample().maskable_tokens
    assert share == pytest.approx(0.3, abs=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_every_masker_works_on_cuda():
    train.configure_torch()
    for name in FILES:
        simulate(name, "cuda")


def test_every_masker_runs_without_a_notice(root, tmp_path):
    """The real command, in a copy of the project to which all of them were appended."""
    for script in ("train.py", "models.py", "glue_data.py"):
        shutil.copy(root / script, tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "sample").symlink_to(root / "tests" / "sample")
    (tmp_path / "typhoon.py").write_text(SOURCE + "".join(FILES.values()), encoding="utf-8")
    subprocess.run(
        [sys.executable, "train.py", "--sample", "--task", "cola", "--mlm-epochs", "1",
         "--cls-epochs", "1", "--batch-size", "32", "--device", "cpu", "--masker", *FILES],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": ""}, check=True)
    found = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir()]
    assert {log["identity"]["masker"] for log in found} == set(FILES)
    assert [log["run"] for log in found if log["mlm"]["epochs"][0]["notices"]] == []


def test_the_table_lists_every_idea():
    table = (HERE / "ideas" / "README.md").read_text(encoding="utf-8")
    assert all(f"\n| `{path.stem}` |" in table for path in (HERE / "ideas").glob("*.py"))


# ---- Each rule, by hand -------------------------------------------------------------------------

def corpus(*sentences: str, labels=None, vocabulary="") -> tuple[Namespace, dict[str, int]]:
    """Inputs of a few sentences, a space between pieces; and the id of each token."""
    tokens = dict.fromkeys(["[PAD]", "[CLS]", "[SEP]", "[MASK]", *vocabulary.split(),
                            *" ".join(sentences).split()])
    id_of = {token: number for number, token in enumerate(tokens)}
    rows = [["[CLS]", *sentence.split(), "[SEP]"] for sentence in sentences]
    ids = [torch.tensor([id_of[token] for token in row]) for row in rows]
    words = []
    for row in rows:
        begins = [not token.startswith("##") for token in row]
        number = torch.tensor(begins).cumsum(0) - 2
        number[-1] = -1
        words.append(number)
    pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    split = Namespace(ids=pad(ids), words=pad(words, padding_value=-1),
                      labels=torch.tensor(labels or [0] * len(rows)))
    counts = torch.bincount(split.ids[split.words >= 0], minlength=len(tokens)).double()
    tokenizer = Namespace(tokens=list(tokens), pad_id=0, sep_id=2, mask_id=3)
    return Namespace(train=split, tokenizer=tokenizer, frequency=counts / counts.sum()), id_of


class NoModel:
    """A model of which only the hooks are asked for."""
    def __init__(self):
        self.predict = self.query = self.key = self
        self.encoder, self.layers = self, [self]

    def register_forward_hook(self, hook):
        pass

    def split_heads(self, hidden):
        return hidden[:, None]  # one head


def begun(name, inputs, budget=0.3, model=None, steps=10, **options):
    kind = type("Variant", (masker_class(name),), options)
    masker = kind(inputs.frequency, budget, spread=None, ema=0.8)
    masker.begin(inputs, model or NoModel(), steps)
    return masker


def rates_of(masker, id_of, *tokens):
    return pytest.approx([masker.rates()[id_of[token]].item() for token in tokens], abs=1e-5)


def masks(masker, inputs, repetitions):
    for seed in range(repetitions):
        draws = torch.Generator().manual_seed(seed)
        yield masker.select(inputs.train.ids, inputs.train.words, draws)


def observe(masker, inputs, selected):
    split, (N, T) = inputs.train, inputs.train.ids.shape
    masker.observe(torch.zeros(N, T, 2), torch.zeros(9, 2), split.ids, split.words, selected)


def test_span_masks_whole_words_of_geometric_number():
    inputs, _ = corpus(" ".join("ab ##c ##d".split() * 10))
    for mask in masks(begun("span", inputs, budget=0.1), inputs, 30):  # 3 of 30 pieces: one word
        first = mask[0].nonzero()[0].item()
        assert mask[0].nonzero().flatten().tolist() == [first, first + 1, first + 2]
        assert first % 3 == 1
    # Two of 100 words. Lengths 1 and 2 have 2/3 and 1/3: a span of two, or two neighbours.
    inputs, _ = corpus(*[" ".join(f"w{n}" for n in range(100))] * 1500)
    [mask] = masks(begun("span", inputs, budget=0.02001, longest=2, stop=0.5), inputs, 1)
    assert 2 <= mask.sum(1).min() and mask.sum(1).double().mean() < 2.01
    adjacent = (mask[:, 1:] & mask[:, :-1]).any(1).double().mean().item()
    assert adjacent == pytest.approx(1 / 3 + 2 / 3 * 2 / 100, abs=0.04)


def test_t5_masks_two_spans_of_six_pieces_in_twenty():
    inputs, _ = corpus(" ".join(f"w{n}" for n in range(20)))
    masked_last = 0
    for mask in masks(begun("t5-span", inputs, budget=0.3001), inputs, 100):
        mask = mask[0, 1:-1]
        assert mask.sum() in (6, 7) and (mask & ~mask.roll(1)).sum() == 2  # round the corner
        masked_last += mask[-1].item()
    assert 10 < masked_last < 50  # without the roll: 100


def test_pmi_of_three_sentences():
    inputs, id_of = corpus("new york is big", "new york is far", "it is so")
    masker = begun("pmi", inputs, budget=0.5, fewest=1)
    # Of 11 words, new and york are 2 and is 3; of 8 bigrams, "new york" and "york is" are 2; of 5
    # trigrams, "new york is" is 2.
    log_p = {"n": 2 / 11, "y": 2 / 11, "i": 3 / 11, "ny": 2 / 8, "yi": 2 / 8, "nyi": 2 / 5}
    log_p = {tuple(words): math.log(p) for words, p in log_p.items()}
    assert masker.pmi(("n", "y"), log_p) == pytest.approx(math.log(2 / 8 * 11 / 2 * 11 / 2))
    assert masker.pmi(("y", "i"), log_p) == pytest.approx(math.log(2 / 8 * 11 / 2 * 11 / 3))
    assert masker.pmi(("n", "y", "i"), log_p) == pytest.approx(
        math.log(2 / 5 / (2 / 8 * 3 / 11)))  # "new york, is" is the likeliest cut
    # Two bigrams occur twice: the better half of them is the vocabulary.
    assert masker.vocabulary == {((id_of["new"],), (id_of["york"],))}
    drawn = [mask[0, 1:4].tolist() for mask in masks(masker, inputs, 60)]
    assert all(new == york for new, york, _ in drawn)
    assert {(york, is_) for _, york, is_ in drawn} == {(a, b) for a in (0, 1) for b in (0, 1)}


def test_informask_masks_one_of_two_that_tell_of_each_other():
    """"u" and "v" are in every sentence: their PMI with all is log 1; that of x and y is log 3."""
    inputs, id_of = corpus("x y u v", "p q u v", "r s u v")
    masker = begun("informask", inputs, budget=0.5)  # two of four
    for one, other in ("xy", "pq", "rs"):  # both of them would leave nothing to be told by
        assert sorted(masker.rates()[[id_of[one], id_of[other]]].tolist()) == pytest.approx([0, 1])
    assert masker.rates()[[id_of["u"], id_of["v"]]].sum().item() == pytest.approx(1)


@pytest.mark.parametrize("name, budget, sentences, tokens, expected", [
    # idf: 0, log 2, log 2; tf of b 1/3, of c 1/2
    ("tf-idf", 0.2, ["a a b", "a c"], "a b c", [0, 0.4, 0.6]),
    ("content", 0.3, ["the cat ##s sat ."], "the cat ##s sat .", [0, 0.5, 0.5, 0.5, 0]),
    # Shares .4, .3, .2, .1: the first holds .3 / .9 of the tokens, and so do the last three.
    ("frequent-only", 0.3, ["a a a a b b b c c d"], "a b c d", [0.75, 0, 0, 0]),
    ("rare-only", 0.3, ["a a a a b b b c c d"], "a b c d", [0, 0.5, 0.5, 0.5])])
def test_rates_of_a_few_types(name, budget, sentences, tokens, expected):
    inputs, id_of = corpus(*sentences)
    assert rates_of(begun(name, inputs, budget), id_of, *tokens.split()) == expected


def test_difference_masks_what_is_near_the_anchor():
    """Six "the" of rank 1 and six "enzyme" of rank 4: enzyme is the anchor, "cat" is near it."""
    inputs, id_of = corpus("the enzyme " * 6 + "cat", vocabulary="the of cat enzyme")
    directions = {"enzyme": [2.0, 0.0], "the": [0.0, 1.0], "cat": [0.6, 0.8]}
    E = torch.tensor([directions.get(token, [0.0, 0.0]) for token in id_of])
    model = Namespace(encoder=Namespace(embed_words=lambda ids: E[ids]))
    masker = begun("difference", inputs, budget=0.3, model=model, anchors=1)
    assert masker.chosen.tolist() == [id_of["enzyme"]]
    the, cat, enzyme = masker.rates()[[id_of["the"], id_of["cat"], id_of["enzyme"]]].tolist()
    assert the < 1e-9
    assert cat / enzyme == pytest.approx(0.6 / (1 + math.exp(-0.6)) * (1 + math.exp(-1)))


def test_selective_by_label_statistics():
    inputs, id_of = corpus("good good good film new", "bad film", labels=[1, 0])
    expected = {  # four types: 5 and 2 tokens with 1 added to each type are 9 and 6
        "good": math.log(4 / 9 / (1 / 6)) / math.sqrt(1 / 4 + 1),
        "new": math.log(2 / 9 / (1 / 6)) / math.sqrt(1 / 2 + 1),
        "film": math.log(2 / 6 / (2 / 9)) / math.sqrt(1 / 2 + 1 / 2),
        "bad": math.log(2 / 6 / (1 / 9)) / math.sqrt(1 + 1 / 2)}
    masker = begun("selective", inputs, budget=0.2)
    rates = [masker.rates()[id_of[token]].item() for token in expected]
    assert [rate / rates[0] for rate in rates] == pytest.approx(
        [z / expected["good"] for z in expected.values()])


def test_time_variant_rate_falls_from_twice_the_budget():
    inputs, id_of = corpus("a b")
    masker = begun("time-variant", inputs, budget=0.3, steps=4)
    for rate in (0.6, 0.45, 0.3, 0.15):
        assert rates_of(masker, id_of, "a", "b") == [rate, rate]
        observe(masker, inputs, inputs.train.words >= 0)


def test_token_weighting_by_the_loss_of_the_class():
    inputs, id_of = corpus("the cat is quick ##ly walking 1990 .")
    masker = begun("token-weighting", inputs, budget=0.3)
    found = [masker.class_of(token) for token in ("the cat is ##ly walking 1990 ." + " ,").split()]
    assert found == ["DET", "OTHER", "AUX", "PIECE", "VERB", "NUM", "PUNCT", "PUNCT"]
    assert len(set(masker.rates()[masker.frequency > 0].tolist())) == 1  # no loss yet
    masker.logits = torch.zeros(1, len(id_of))  # a loss of log V at "the", whatever its size
    observe(masker, inputs, inputs.train.ids == id_of["the"])
    assert masker.scores.sum().item() == pytest.approx(0.1 * math.log(len(id_of)))
    # One of C scores is s, the others 0: the mean is s / C, the standard deviation s / sqrt C.
    C, the, cat = len(masker.names), *masker.rates()[[id_of["the"], id_of["cat"]]].tolist()
    high, low = (1 / (1 + math.exp(-2 * x * math.sqrt(C))) for x in (1 - 1 / C, -1 / C))
    assert cat / the == pytest.approx(low / high, rel=1e-4)


def test_loss_and_entropy_of_the_predictions():
    inputs, id_of = corpus("a b c c")
    selected = (inputs.train.ids == id_of["a"]) | (inputs.train.ids == id_of["b"])
    never = -1e4
    one_of_two, one_of_four = [never] * 8, [never] * 8
    for row, number in ((one_of_two, 2), (one_of_four, 4)):
        row[4:4 + number] = [0.0] * number  # an even chance for that many, a and b among them
    logits = torch.tensor([one_of_two, one_of_four])[:, :len(id_of) + 1]
    head = Namespace(training=True)
    for name in ("loss-weighted", "entropy"):
        masker = begun(name, inputs, budget=0.2)
        keep = masker.keep_logits if name == "loss-weighted" else masker.keep_entropy
        keep(head, None, logits.bfloat16())
        keep(Namespace(training=False), None, 7 * logits[:1])  # the dev loss: of no interest
        observe(masker, inputs, selected)
        # Scores log 2 and log 4; c, which has none yet, gets their mean, and so the budget's rate.
        assert rates_of(masker, id_of, "a", "b", "c") == [0.2 / 1.5, 0.4 / 1.5, 0.2]


@pytest.mark.parametrize("mae", [False, True])
def test_attention_of_the_first_position(mae):
    """[CLS] attends to a three times as much as to each of the others that the encoder sees."""
    inputs, id_of = corpus("a b c", "a")
    model = NoModel()
    if mae:
        model.decoder = None
    masker = begun("attention", inputs, budget=0.2, model=model)
    third = math.log(3)
    # [CLS] a b c [SEP] and [CLS] a [SEP] [PAD] [PAD]; b is selected, which MAE-LM leaves out.
    keys = [[0, third, 0, 0, 0], [0, third, 0, 9, 9]]
    keys = [[0, third, 0, 0], [0, third, 0, 9]] if mae else keys
    for training, scale in ((True, 1), (False, 5)):  # the dev loss is of no interest
        linear = Namespace(training=training)
        masker.keep_query(linear, None, torch.ones(2, 5, 1))
        masker.keep_key(linear, None, scale * torch.tensor(keys)[..., None])
    observe(masker, inputs, inputs.train.ids == id_of["b"])
    seen = 4 if mae else 5
    a, c = (seen * 3 / (seen + 2) + 3 * 3 / 5) / 2, seen * 1 / (seen + 2)
    b = 0 if mae else c  # to its [MASK]
    assert masker.scores[[id_of["a"], id_of["b"], id_of["c"]]].tolist() == pytest.approx([a, b, c])
    assert masker.seen[id_of["b"]] == (not mae)


def test_gradient_norm():
    inputs, id_of = corpus("a a b c")
    masker = begun("gradient-norm", inputs)
    gradient = torch.zeros(1, 6, 2)
    gradient[0, 1], gradient[0, 2], gradient[0, 3] = torch.tensor([[3.0, 4], [0, 1], [6, 8]])
    split = inputs.train
    masker.observe(gradient, torch.zeros(9, 2), split.ids, split.words, split.ids == id_of["b"])
    assert masker.scores[[id_of["a"], id_of["b"]]].tolist() == [3, 10]
    assert not masker.seen[id_of["c"]]  # its gradient is 0: the encoder never saw it
    assert rates_of(masker, id_of, "a", "b", "c") == [0.3 * 9 / 16, 0.3 * 30 / 16, 0.3]
    gradient = torch.ones(1, 6, 2)
    masker.observe(gradient, torch.zeros(9, 2), split.ids, split.words, split.ids == id_of["a"])
    assert masker.scores[id_of["a"]].item() == pytest.approx(0.2 * 3 + 0.8 * 2 * math.sqrt(2))


def test_sample_ratio_is_drawn_at_cls():
    inputs, _ = corpus("a b c d e f g h", "a b c")
    for budget, low in ((0.3, 0.0), (0.8, 0.6)):
        for seed, mask in enumerate(masks(begun("sample-ratio", inputs, budget), inputs, 20)):
            draw = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed))
            ratio = low + 2 * (budget - low) * draw[:, :1]
            assert torch.equal(mask, (draw < ratio) & (inputs.train.words >= 0))


def test_random_redrawn_is_seeded_once_by_the_first_draw():
    inputs, _ = corpus("a b c d e f g h i j k l m n")
    masker, shared = begun("random-redrawn", inputs), torch.Generator().manual_seed(3)
    found = [masker.select(inputs.train.ids, inputs.train.words, shared) for _ in range(2)]
    draw = torch.rand(found[0].shape, generator=torch.Generator().manual_seed(3))
    private = torch.Generator().manual_seed(int(draw[0, 0] * 2 ** 24))
    for mask in found:
        redrawn = torch.rand(mask.shape, generator=private)
        assert torch.equal(mask, (redrawn < 0.3) & (inputs.train.words >= 0))
