"""The embedded sample: a small MRPC, a small CoLA and a tiny pretrained BERT, all from the grammar in this file.

    python tests/sample/make_sample.py DIRECTORY        (about 5 minutes on one CPU; makes DIRECTORY/bert, a new one)

It stands in where the real data cannot be had; its figures say nothing about MRPC, CoLA or English. The same machine,
Python and torch make the same bytes.

MRPC/  A sentence reports an event: who did what to whom, where, when, for which price. Two wordings of one event are a
       paraphrase (1): active or passive, direct or reported speech, synonyms, surname only, adverbials moved or left
       out. Of two events that differ in one point they are not (0): parties swapped, negation, verb, place, day, price.
CoLA/  The grammar writes good~bad wherever English allows one thing and not the other. The left sides make a
       grammatical sentence (1); a right side in the place of one of them makes it ungrammatical (0).
bert/  Pretrained on fresh text of the same two kinds with three losses: masked language modelling, on sound text; "is
       this piece wrong?", as in ELECTRA, where an unsound text differs from its sound twin; and through the pooler, in
       the place of BERT's next-sentence prediction, "is this text sound?": does a pair tell one event, is a sentence
       grammatical? The last two are the tasks in other clothes: without them, so small a model would not learn these
       from a few hundred examples. Their heads are thrown away, and no text of the data files is trained on.
"""
from __future__ import annotations

import random
import re
import string
import sys
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the scripts of the top level
from glue_data import Example, Tokenizer, encode_split  # noqa: E402
from models import Config, MaskedLM, save  # noqa: E402

# "/" stands between wordings of one meaning, "|" between a word and its irregular past or plural.
HER = ("Anna", "Marta", "Petra", "Nora", "Wilma")
HIM = ("Oskar", "Tomas", "Pavel", "Jonas", "Henrik")
SURNAMES = ("Kelford", "Branson", "Linvarn", "Halden", "Morvik", "Vesterman", "Garbeck", "Dunwick", "Torford", "Ostvik")
PEOPLE = [f"{first} {surname}/{surname}" for first, surname in zip(HER + HIM, SURNAMES)]
PARTIES = PEOPLE + ["the council", "the museum/the gallery", "the bank", "the company/the firm", "the orchestra",
                    "the union", "the army/the military", "the airline/the carrier", "the university/the college"]
THINGS = ("the bridge", "the factory/the plant", "the ship/the vessel", "the house/the home", "the car/the vehicle",
          "the shop/the store", "the railway/the railroad", "the forest/the woodland", "the airport/the airfield")
DO_TO_THING = ("buy|bought/purchase/acquire", "sell|sold", "close/shut|shut", "build|built/construct", "repair/restore",
               "rent/lease", "destroy/demolish", "inspect/examine", "paint", "guard/protect")
DO_TO_PARTY = ("praise/commend", "criticise/condemn", "hire/employ", "dismiss/sack", "rescue/save", "sue", "thank",
               "visit", "support/back", "warn/alert", "mock/ridicule")
SOURCES = ("police", "officials/authorities", "residents/locals", "witnesses/onlookers")
ADVERBIALS = {
    "place": [f"in {town}/at {town}" for town in ("Oldmere", "Northport", "Redbridge", "Eastmere", "Westfield")],
    "day": [f"on {day}/this {day}" for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")],
    "occasion": [f"{when} the {one}/{when} the {other}" for when in ("before", "after") for one, other in
                 (("flood", "flooding"), ("election", "vote"), ("fire", "blaze"), ("festival", "fair"))],
    "price": [f"for {n} crowns/for a price of {n} crowns" for n in (3, 5, 8, 12, 20, 35, 40, 60, 75, 90)]}
NAME_ENDINGS = "port|mere|bridge|field|ford|wick|varn|man|vik|son|beck"  # word pieces of their own

NOUNS = ("dog", "teacher", "child|children", "farmer", "doctor", "baker", "student", "man|men", "singer", "horse")
OBJECTS = ("book", "letter", "window", "song", "boat", "basket", "chair", "lamp", "story|stories", "key")
ADJECTIVES = ("tall", "happy", "small", "clever", "quiet", "brave", "young", "friendly")
INTRANSITIVE = ("sleep|slept", "laugh", "arrive", "smile", "sneeze", "cough", "dance", "disappear")
TRANSITIVE = ("find|found", "repair", "mention", "describe", "lose|lost", "use", "inspect", "borrow", "protect")
SAYING = ("think|thought", "say|said", "hope", "claim", "announce", "explain")
GIVING = ("send|sent", "show", "lend|lent", "offer", "sell|sold")
SOMEBODY = [("he", "him", "himself", "herself"), ("she", "her", "herself", "himself"),  # the last one is the wrong one
            ("they", "them", "themselves", "himself"), ("Anna", "Anna", "herself", "themselves")]


def verb_forms(verb: str) -> tuple[str, str, str, str]:
    """"use" -> use, uses, used, using. Past tense and participle are the same in all our verbs."""
    base, _, irregular = verb.partition("|")
    return base, base + "s", irregular or base.removesuffix("e") + "ed", base.removesuffix("e") + "ing"


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


# ---- MRPC: an event, the event with one point changed, and wordings of them ----
def make_events(r: random.Random) -> tuple[dict, dict, str]:
    """An event, the same with one point changed, and which point that is."""
    verbs, patients = r.choice(((DO_TO_THING, THINGS), (DO_TO_PARTY, PARTIES)))
    form = r.choice(("promise", "promise", "plain", "plain", "plain", *SOURCES))
    adverbials = [name for name in ADVERBIALS if name != "price" or patients is THINGS]
    options = {"agent": PEOPLE if form == "promise" else PARTIES, "verb": verbs, "patient": patients,
               "negated": (False, False, False, True)} | {name: ADVERBIALS[name] for name in r.sample(adverbials, 2)}
    event = {point: r.choice(values) for point, values in options.items()} | {"form": form}
    point = r.choice([*options])
    changed = event | {point: r.choice([value for value in options[point] if value != event[point]])}
    if event["patient"] in options["agent"] and r.random() < 0.25:
        changed, point = event | {"agent": event["patient"], "patient": event["agent"]}, "agent"
    nonsense = any(e["agent"] == e["patient"] for e in (event, changed))
    return make_events(r) if nonsense else (event, changed, point)


def tell(event: dict, left_out: str | None, r: random.Random) -> str:
    """One wording of the event, without the adverbial left_out. One seed tells two similar events in the same way."""
    def word(meaning: str) -> str:
        wordings = meaning.split("/")
        return wordings[int(r.random() * len(wordings))]  # one draw, however many wordings; r.choice takes more

    agent, patient = word(event["agent"]), word(event["patient"])
    verb, _, did, _ = verb_forms(word(event["verb"]))
    adverbials = [word(event[name]) for name in ADVERBIALS if name in event and name != left_out]
    r.shuffle(adverbials)
    front = adverbials.pop() + ", " if r.random() < 0.4 else ""
    rest = "".join(" " + adverbial for adverbial in adverbials)
    negation = "not " if event["negated"] else ""
    if event["form"] == "promise":
        says = r.choice(("said", "promised"))
        pronoun = "she" if event["agent"].split()[0] in HER else "he"
        promise = capital(f"{front}I will {negation}{verb} {patient}{rest}")
        return r.choice((f'"{promise}," {says} {agent}.', f'{agent} {says}: "{promise}."',
                         f"{agent} {says} that {front}{pronoun} would {negation}{verb} {patient}{rest}."))
    report = r.choice((f"{front}{agent} {f'did not {verb}' if negation else did} {patient}{rest}",
                       f"{front}{patient} was {negation}{did} by {agent}{rest}"))
    if event["form"] in SOURCES:
        source = word(event["form"])
        report = r.choice((f"{source} said {report}", f"{report}, {source} said", f"according to {source}, {report}"))
    return capital(report) + "."


def make_pair(r: random.Random) -> tuple[str, str, str]:
    """A wording of an event; a second wording of it; and the second wording of an event that differs in one point."""
    event, changed, point = make_events(r)
    unchanged = [name for name in ADVERBIALS if name in event and name != point]
    one, other = (r.choice(unchanged) if r.random() < 0.15 else None for _ in range(2))
    seed = r.random()
    texts = tell(event, one, r), tell(event, other, random.Random(seed)), tell(changed, other, random.Random(seed))
    return texts if texts[0] != texts[1] else make_pair(r)


# ---- CoLA: a grammar that writes good~bad, with "_" for the spaces inside ----
def mark(good: str, bad: str) -> str:
    return (f"{good}~{bad}" if good != bad else good).replace(" ", "_")


def plain(marked: str) -> str:
    return " ".join(token.partition("~")[0] for token in marked.split()).replace("_", " ")


def noun_phrase(nouns: tuple[str, ...], many: bool, r: random.Random) -> str:
    determiner = r.choice(("the", "these", "two") if many else ("the", "a", "this", "every"))
    adjective, (one, _, irregular) = r.choice(ADJECTIVES), r.choice(nouns).partition("|")
    right, wrong = (one, irregular or one + "s")[::-1 if many else 1]
    return r.choice((f"{determiner} {mark(right, right if determiner == 'the' else wrong)}",
                     f"{mark(determiner, determiner + ' the')} {right}",
                     mark(f"{determiner} {right}", f"{right} {determiner}"),
                     f"{determiner} {mark(f'{adjective} {right}', f'{right} {adjective}')}"))


def tensed(verb: str, many: bool, r: random.Random) -> str:
    """A finite verb: its auxiliary agrees with the subject, its form with the auxiliary."""
    base, with_s, past, with_ing = verb_forms(verb)
    have, be, do = (mark(*pair[::-1 if many else 1]) for pair in (("has", "have"), ("is", "are"), (with_s, base)))
    return r.choice((do, mark(past, with_ing), f"{have} {mark(past, base)}", f"{be} {mark(with_ing, base)}",
                     f"{r.choice(('will', 'can', 'must'))} {mark(base, with_s)}"))


def clause(r: random.Random, embedded: bool) -> str:
    """Subject and predicate."""
    many, kind = r.random() < 0.5, r.random()
    base, _, past, _ = verb_forms(r.choice(TRANSITIVE))
    subject, reflexive, wrong = noun_phrase(NOUNS, many, r), *(("himself", "themselves")[::-1 if many else 1])
    if kind < 0.3:
        he, him, reflexive, wrong = r.choice(SOMEBODY)
        subject, many = mark(he, him), he == "they"
    elif kind < 0.5:  # a noun of the other number between subject and verb
        subject += f" {r.choice(('near', 'behind'))} {plain(noun_phrase(NOUNS, not many, r))}"
    elif kind < 0.6:
        subject += f" that {r.choice(HIM)} {mark(past, past + ' them')}"
    thing, someone = plain(noun_phrase(OBJECTS, r.random() < 0.5, r)), plain(noun_phrase(NOUNS, False, r))
    he, him, *_ = r.choice(SOMEBODY[:3])  # not Anna: she may be the subject
    item = r.choice((mark(thing, ""), mark(reflexive, wrong), mark(him, he), noun_phrase(OBJECTS, many, r)))
    predicates = [f"{tensed(r.choice(INTRANSITIVE), many, r)} {r.choice(('again', 'today', mark('', thing)))}",
                  f"{tensed(r.choice(GIVING), many, r)} {mark(f'{someone} {thing}', f'{thing} {someone}')}",
                  f"{tensed('hope', many, r)} {mark('to', '')} {mark(base, past)} {thing}",
                  f"{tensed(r.choice(TRANSITIVE), many, r)} {item}"]
    if not embedded:
        predicates.append(f"{tensed(r.choice(SAYING), many, r)} that {clause(r, embedded=True)}")
    return f"{subject} {r.choice(predicates)}"


def make_sentence(r: random.Random) -> tuple[str, str]:
    """A grammatical sentence, and the same with one thing wrong."""
    many = r.random() < 0.5
    someone, item = plain(noun_phrase(NOUNS, many, r)), noun_phrase(OBJECTS, not many, r)
    base, with_s, past, with_ing = verb_forms(r.choice(TRANSITIVE))
    he, him, *_ = r.choice(SOMEBODY)
    do, be, was = (mark(*pair[::-1 if many else 1]) for pair in (("does", "do"), ("is", "are"), ("was", "were")))
    sentences = [
        f"{do} {someone} {mark(base, with_s)} {mark(plain(item), '')} ?",
        f"which {plain(item).split()[-1]} {mark(f'did {someone}', f'{someone} did')} {mark(base, base + ' it')} ?",
        f"there {be} {'two' if many else 'a'} {someone.split()[-1]} near {item} .",
        f"{someone} {was} {mark(past, with_ing)} by {mark(him, he)} .",
        f"{clause(r, embedded=True)} {r.choice(('because', 'and', 'but'))} {clause(r, embedded=True)} ."]
    tokens = r.choice(sentences + [f"{clause(r, embedded=False)} ."] * 5).split()
    i = r.choice([i for i, token in enumerate(tokens) if "~" in token])
    bad = " ".join(tokens[:i] + [tokens[i].partition("~")[2]] + tokens[i + 1:])
    return tuple(capital(re.sub(" +([.?])", r"\1", " ".join(plain(text).split()))) for text in (" ".join(tokens), bad))


# ---- The data files ----
def write_data(directory: Path) -> set[str]:
    """Write the four files, 7 in 10 rows with label 1. Returns all their sentences, of which none is in two rows."""
    r, used = random.Random(2303), set()
    for name, size in {"MRPC/train": 601, "CoLA/train": 800, "MRPC/dev": 201, "CoLA/dev": 200}.items():
        rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"] if name.startswith("MRPC") else []
        while len(rows) < size:
            *first, sound, unsound = make_pair(r) if name.startswith("MRPC") else make_sentence(r)
            label = int(r.random() < 0.7)
            texts = [*first, sound if label else unsound]
            if used.isdisjoint(texts):
                used.update(texts)
                rows.append("\t".join([str(label), str(len(used) - 2), str(len(used) - 1), *texts] if first else
                                      ["made", str(label), "" if label else "*", *texts]))
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.tsv").write_bytes(("\n".join(rows) + "\n").encode())
    return used


# ---- The tiny BERT ----
def make_vocabulary() -> list[str]:
    """The grammar's words; those with an ending as two pieces, and single characters for everything else."""
    r = random.Random(0)
    texts = " ".join(text for _ in range(3000) for text in (*make_pair(r), *make_sentence(r)))
    words, pieces = set(re.findall("[a-z]+", texts.lower())), set()
    for word in words:
        stem, ending = re.fullmatch(f"(.+?)(ing|e?d|s|{NAME_ENDINGS}|)", word).groups()
        split = ending and (stem in words or len(stem) > 2 and ending in NAME_ENDINGS.split("|"))
        pieces |= {stem, f"##{ending}"} if split else {word}
    characters = [*string.ascii_lowercase, *string.digits]
    characters += [*string.punctuation, *(f"##{character}" for character in characters)]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *sorted(pieces.difference(characters))]


def wrong_pieces(ids: list[int], sound: list[int]) -> list[float]:
    """1 where ids differ from those of the sound text."""
    wrong = [1.0] * len(ids)
    for _, start, length in SequenceMatcher(None, sound, ids, autojunk=False).get_matching_blocks():
        wrong[start:start + length] = [0.0] * length
    return wrong


def pretrain(directory: Path, held_out: set[str], steps: int = 5000, batch_size: int = 32, width: int = 128) -> None:
    """Make the directory of the model and its vocabulary. The model has not seen the held-out sentences."""
    if directory.exists():
        sys.exit(f"{directory} is there already; move it away, or give another DIRECTORY")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    r, masked = random.Random(1), batch_size // 3  # rows for masked language modelling; the others are for the rest
    tokenizer = Tokenizer({token: number for number, token in enumerate(make_vocabulary())})
    config = Config("bert", len(tokenizer.tokens), width, num_hidden_layers=3, num_attention_heads=4,
                    intermediate_size=2 * width, max_position_embeddings=128, initializer_range=0.01,  # of new heads
                    hidden_dropout_prob=0.03, attention_probs_dropout_prob=0.03)  # it is too small for BERT's 0.1
    model = MaskedLM(replace(config, initializer_range=0.02, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    for layer in model.encoder.layers:  # queries equal to keys: a word attends to its like in the other sentence
        nn.init.normal_(layer.query.weight, std=0.14)
        layer.key.weight.data.copy_(layer.query.weight.data)
    model.piece_is_wrong, model.text_is_sound = nn.Linear(width, 1), nn.Linear(width, 1)
    model.text_is_sound.requires_grad_(False)  # its weights stay small: the pooler must answer in all of its width
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 200, 1 - step / steps))
    for step in range(steps):
        make = make_pair if step < steps // 4 or r.random() < 0.5 else make_sentence  # the harder task first, and alone
        examples, twins = [], []
        while len(examples) < batch_size:
            *first, sound, unsound = make(r)
            label = int(len(examples) < masked or r.random() < 0.5)
            if held_out.isdisjoint([*first, sound, unsound]):
                for rows, text in ((examples, sound if label else unsound), (twins, sound)):
                    rows.append(Example(first[0], text, label) if first else Example(text, None, label))
        batch, sound_batch = (encode_split(rows, tokenizer, max_length=128) for rows in (examples, twins))
        wrong = torch.tensor([*map(wrong_pieces, batch.ids.tolist(), sound_batch.ids.tolist())])  # (B, T)
        shown, selected = batch.words >= 0, (batch.words >= 0) & (torch.rand(batch.ids.shape) < 0.3)  # (B, T)
        selected[masked:], shown[:masked] = False, False
        embeddings = model.encoder.embed_words(batch.ids.masked_fill(selected, tokenizer.mask_id))
        *_, middle, last = model.encoder.all_hidden_states(embeddings, batch.segments, batch.attention_mask)
        soundness = model.text_is_sound(model.encoder.pooler(last[masked:, 0]).tanh())[:, 0]
        losses = (F.cross_entropy(model.predict(last[selected]), batch.ids[selected]),
                  F.binary_cross_entropy_with_logits(model.piece_is_wrong(middle[shown])[:, 0], wrong[shown]),
                  F.binary_cross_entropy_with_logits(soundness, batch.labels[masked:].float()))
        optimizer.zero_grad()
        (losses[0] + 4 * losses[1] + losses[2]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(step + 1, make.__name__, *(f"{loss.item():.3f}" for loss in losses), flush=True)
    del model.piece_is_wrong, model.text_is_sound
    model.config = config
    model.tokenizer_files = {"vocab.txt": ("\n".join(tokenizer.tokens) + "\n").encode()}
    save(model, directory, "ForPreTraining")  # with the pooler


if __name__ == "__main__":
    target = Path(sys.argv[1])
    pretrain(target / "bert", held_out=write_data(target))
