"""The embedded sample: a small MRPC, a small CoLA and a tiny pretrained BERT, all from the grammar in this file.

    python tests/sample/make_sample.py [DIRECTORY]        (default: this folder; a few minutes, one CPU thread)

It lets every part of the project run where the real data and checkpoints cannot be had. Its figures say nothing
about MRPC, CoLA or English. The same Python, torch and machine give the same bytes.

MRPC/  A sentence reports an event: who did what to whom, where, when, on which occasion, for how much money. Two
       wordings of one event are a paraphrase (1): active or passive, direct or reported speech, synonyms, full name or
       surname, adverbials moved or one left out. Two wordings of events that differ in one point are not (0): the
       parties swapped, a negation, another verb, place, day, sum, occasion, object. Form says nothing about the label.
CoLA/  The grammar writes good~bad wherever English allows one thing and not the other. The left sides make a
       grammatical sentence (1); one right side in its place makes an ungrammatical one (0).
bert/  Pretrained on fresh text of the same two kinds with masked language modelling and, through the pooler, with one
       sentence-level question in the place of BERT's next-sentence prediction: is the text sound? A pair is sound when
       it tells one event, a single sentence when it is grammatical. That is the question of the two tasks: without it,
       a model of this size learns too little from the few hundred training examples. The head that answers it is
       thrown away; no sentence of the dev splits is in the pretraining text.
"""
from __future__ import annotations

import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = {"train": {"MRPC": 600, "CoLA": 800}, "dev": {"MRPC": 200, "CoLA": 200}}
SOUND = {"MRPC": 0.67, "CoLA": 0.7}  # share of label 1, about that of the real tasks

# "/" separates wordings that mean the same, "|" a base form from its irregular past or plural.
HER, HIM = ("Anna", "Marta", "Petra", "Nora", "Wilma", "Ines"), ("Oskar", "Tomas", "Pavel", "Jonas", "Henrik", "Viktor")
SURNAMES = ("Kelford", "Branwick", "Lindqvarn", "Haldman", "Morvik", "Vesterson", "Garbeck", "Dunwick", "Torford",
            "Belmarn", "Ostvik", "Rainerson")
PEOPLE = [f"{first} {surname}/{surname}" for first, surname in zip(HER + HIM, SURNAMES)]
BODIES = ("the council", "the museum/the gallery", "the bank", "the company/the firm", "the army/the military",
          "the union", "the airline/the carrier", "the university/the college", "the orchestra",
          "the ministry/the department")
THINGS = ("the bridge", "the factory/the plant", "the ship/the vessel", "the house/the home", "the lighthouse",
          "the shop/the store", "the railway/the railroad", "the forest/the woodland", "the car/the vehicle",
          "the painting/the picture", "the airport/the airfield", "the theatre")
DO_TO_THING = ("buy|bought/purchase/acquire", "sell|sold", "close/shut|shut", "build|built/construct", "repair/restore",
               "rent/lease", "destroy/demolish", "inspect/examine", "paint", "guard/protect")
DO_TO_PARTY = ("praise/commend", "criticise/condemn", "hire/employ", "dismiss/sack", "rescue/save", "sue", "defeat",
               "thank", "visit", "support/back", "warn/alert", "mock/ridicule")
SOURCES = ("police", "officials/authorities", "residents/locals", "witnesses/onlookers")
ADVERBIALS = {
    "place": [f"in {town}/in the town of {town}" for town in
              ("Oldmere", "Northport", "Redbridge", "Eastmere", "Blackfield", "Westport", "Greyfield", "Highmoor")],
    "day": [f"on {day}/last {day}" for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")],
    "occasion": [f"{when} the {one}/{when} the {other}" for when in ("before", "after") for one, other in
                 (("flood", "flooding"), ("election", "vote"), ("fire", "blaze"), ("festival", "fair"))],
    "sum": [f"for {n} million crowns/at a price of {n} million crowns" for n in (3, 5, 8, 12, 20, 35, 40, 60, 75, 90)]}

NOUNS = ("dog", "teacher", "child|children", "farmer", "doctor", "pilot", "baker", "student", "writer", "neighbour",
         "man|men", "singer", "horse", "sailor")
OBJECTS = ("book", "letter", "window", "song", "boat", "basket", "chair", "lamp", "story|stories", "key")
ADJECTIVES = ("tall", "happy", "small", "clever", "quiet", "brave", "young", "friendly")
INTRANSITIVE = ("sleep|slept", "laugh", "arrive", "smile", "sneeze", "vanish", "dance", "disappear")
TRANSITIVE = ("find|found", "repair", "mention", "describe", "lose|lost", "use", "inspect", "borrow",
              "destroy", "protect")
SAYING = ("think|thought", "say|said", "hope", "claim", "announce", "explain")
GIVING = ("send|sent", "show", "lend|lent", "offer", "sell|sold")
PRONOUNS = {"he": ("him", "himself"), "she": ("her", "herself"), "they": ("them", "themselves")}


def base(word: str) -> str:
    return word.partition("|")[0]


def past(verb: str) -> str:
    """Past tense and participle of a verb; the two do not differ in our verbs."""
    return verb.partition("|")[2] or verb.removesuffix("e") + "ed"


def with_s(word: str) -> str:
    return base(word) + ("es" if base(word).endswith(("ch", "sh")) else "s")


def plural(noun: str) -> str:
    return noun.partition("|")[2] or with_s(noun)


def with_ing(verb: str) -> str:
    return base(verb).removesuffix("e") + "ing"


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


# ---- MRPC: an event, the event with one point changed, and ways to tell it ----

def make_event(r: random.Random) -> dict:
    """Who did what to whom: agent, verb, patient, negated, a source or a promise of the agent's, two adverbials."""
    parties = [*PEOPLE, *BODIES]
    event = {"agent": r.choice(parties), "negated": r.random() < 0.2, "source": None, "promise": False}
    if r.random() < 0.5:
        event |= {"verb": r.choice(DO_TO_THING), "patient": r.choice(THINGS)}
    else:
        event |= {"verb": r.choice(DO_TO_PARTY), "patient": r.choice([p for p in parties if p != event["agent"]])}
    if event["agent"] in PEOPLE and r.random() < 0.4:
        event["promise"] = True
    elif r.random() < 0.4:
        event["source"] = r.choice(SOURCES)
    points = [point for point in ADVERBIALS if point != "sum" or event["patient"] in THINGS]
    return event | {point: r.choice(ADVERBIALS[point]) for point in r.sample(points, 2)}


def change(event: dict, r: random.Random) -> tuple[dict, str]:
    """The event with one point changed, and which point: its verb, negation, patient, an adverbial, or who is who."""
    points = ["verb", "negated", "patient"] + [point for point in ADVERBIALS if point in event]
    if event["patient"] in PEOPLE or event["patient"] in BODIES and not event["promise"]:
        points += ["agent", "agent"]
    point, new = r.choice(points), dict(event)
    while new == event or new["agent"] == new["patient"]:
        if point == "agent":  # the parties change places
            new |= {"agent": event["patient"], "patient": event["agent"]}
        elif point == "negated":
            new[point] = not event[point]
        elif point == "verb":
            new[point] = r.choice(DO_TO_THING if event["verb"] in DO_TO_THING else DO_TO_PARTY)
        elif point == "patient":
            new[point] = r.choice(THINGS if event["patient"] in THINGS else [*PEOPLE, *BODIES])
        else:
            new[point] = r.choice(ADVERBIALS[point])
    return new, point


def tell(event: dict, r: random.Random, left_out: str | None) -> str:
    """One wording of the event, without the adverbial left_out."""
    def word(meaning: str) -> str:
        return r.choice(meaning.split("/"))

    agent, verb, patient = word(event["agent"]), word(event["verb"]), word(event["patient"])
    adverbials = [word(event[point]) for point in ADVERBIALS if point in event and point != left_out]
    r.shuffle(adverbials)
    front = adverbials.pop() + ", " if r.random() < 0.4 else ""
    rest = "".join(" " + adverbial for adverbial in adverbials)
    negation = "not " if event["negated"] else ""
    if event["promise"]:
        says = r.choice(("said", "promised"))
        if r.random() < 0.5:
            promise = capital(f"{front}I will {negation}{base(verb)} {patient}{rest}")
            return r.choice((f'"{promise}," {says} {agent}.', f'{agent} {says}: "{promise}."'))
        pronoun = "she" if event["agent"].split()[0] in HER else "he"
        return f"{agent} {says} that {front}{pronoun} would {negation}{base(verb)} {patient}{rest}."
    if r.random() < 0.5:
        report = f"{front}{agent} {'did not ' + base(verb) if negation else past(verb)} {patient}{rest}"
    else:
        report = f"{front}{patient} was {negation}{past(verb)} by {agent}{rest}"
    if event["source"]:
        source = word(event["source"])
        report = r.choice((f"{source} said that {report}", f"according to {source}, {report}",
                           f"{report}, {source} said"))
    return capital(report) + "."


def make_pair(r: random.Random, sound: bool) -> tuple[str, str]:
    """Two wordings of one event (sound), or of two events that differ in one point."""
    event = make_event(r)
    other, point = (event, "") if sound else change(event, r)
    unchanged = [name for name in ADVERBIALS if name in event and name != point]
    first, second = (tell(e, r, r.choice(unchanged) if r.random() < 0.15 else None) for e in (event, other))
    return (first, second) if first != second else make_pair(r, sound)


# ---- CoLA: a grammar that writes good~bad, with "_" for the spaces inside ----

def mark(good: str, bad: str) -> str:
    return good.replace(" ", "_") + "~" + bad.replace(" ", "_")


def good(marked: str) -> str:
    return " ".join(token.partition("~")[0] for token in marked.split()).replace("_", " ")


def noun_phrase(nouns: tuple[str, ...], many: bool, r: random.Random) -> str:
    noun, determiner = r.choice(nouns), r.choice(("the", "these", "two") if many else ("the", "a", "this", "every"))
    right, wrong = (plural(noun), base(noun)) if many else (base(noun), plural(noun))
    adjective = r.choice(ADJECTIVES)
    choices = [f"{mark(determiner, determiner + ' the')} {right}", mark(f"{determiner} {right}", f"{right} {determiner}"),
               f"{determiner} {mark(f'{adjective} {right}', f'{right} {adjective}')}"]
    return r.choice(choices if determiner == "the" else choices + [f"{determiner} {mark(right, wrong)}"])


def tensed(verb: str, many: bool, r: random.Random) -> str:
    """A finite verb; each tense asks for its own forms."""
    def agree(singular: str, plural: str) -> str:
        return mark(plural, singular) if many else mark(singular, plural)

    return r.choice((agree(with_s(verb), base(verb)), mark(past(verb), with_ing(verb)),
                     f"{agree('has', 'have')} {mark(past(verb), base(verb))}",
                     f"{agree('is', 'are')} {mark(with_ing(verb), base(verb))}",
                     f"{r.choice(('will', 'can', 'must'))} {mark(base(verb), with_s(verb))}"))


def clause(r: random.Random, embedded: bool = False) -> str:
    """Subject and predicate."""
    many, kind = r.random() < 0.5, r.random()
    reflexive, wrong_reflexive = ("themselves", "himself") if many else ("himself", "themselves")
    if kind < 0.3 and not many:
        subject, reflexive, wrong_reflexive = r.choice(HER), "herself", r.choice(("himself", "themselves"))
    elif kind < 0.3:
        pronoun = r.choice(list(PRONOUNS))
        many, subject, reflexive = pronoun == "they", mark(pronoun, PRONOUNS[pronoun][0]), PRONOUNS[pronoun][1]
        wrong_reflexive = PRONOUNS["she" if pronoun == "he" else "he"][1]
    else:
        subject = noun_phrase(NOUNS, many, r)
        if kind < 0.5:  # a noun of the other number between subject and verb
            subject += f" {r.choice(('near', 'behind'))} {good(noun_phrase(NOUNS, not many, r))}"
        elif kind < 0.6:
            verb = past(r.choice(TRANSITIVE))
            subject += f" that {r.choice(HIM)} {mark(verb, verb + ' them')}"

    thing, kind = good(noun_phrase(OBJECTS, r.random() < 0.5, r)), r.random()
    if kind < 0.25:
        return f"{subject} {tensed(r.choice(INTRANSITIVE), many, r)} {r.choice(('again', 'today', mark('', thing)))}"
    if kind < 0.35:
        receiver = good(noun_phrase(NOUNS, False, r))
        return f"{subject} {tensed(r.choice(GIVING), many, r)} {mark(f'{receiver} {thing}', f'{thing} {receiver}')}"
    if kind < 0.45:
        verb = r.choice(TRANSITIVE)
        return f"{subject} {tensed('hope', many, r)} {mark('to', '')} {mark(base(verb), past(verb))} {thing}"
    if kind < 0.55 and not embedded:
        return f"{subject} {tensed(r.choice(SAYING), many, r)} that {clause(r, embedded=True)}"
    she, (her, _) = r.choice(list(PRONOUNS.items()))
    objects = mark(thing, ""), mark(reflexive, wrong_reflexive), mark(her, she), noun_phrase(OBJECTS, many, r)
    return f"{subject} {tensed(r.choice(TRANSITIVE), many, r)} {r.choice(objects)}"


def make_sentence(r: random.Random, sound: bool) -> str:
    many, kind = r.random() < 0.5, r.random()
    someone, verb, thing = good(noun_phrase(NOUNS, many, r)), r.choice(TRANSITIVE), r.choice(OBJECTS)
    do, be = ("do~does", "are~is") if many else ("does~do", "is~are")
    if kind < 0.1:
        marked = f"{do} {someone} {mark(base(verb), with_s(verb))} {mark(good(noun_phrase(OBJECTS, many, r)), '')} ?"
    elif kind < 0.2:
        did, found = mark(f"did {someone}", f"{someone} did"), mark(base(verb), f"{base(verb)} it")
        marked = f"which {base(thing)} {did} {found} ?"
    elif kind < 0.3:
        marked = f"there {be} {'two' if many else 'a'} {someone.split()[-1]} near {noun_phrase(OBJECTS, not many, r)} ."
    elif kind < 0.4:
        was, wrong = ("were", "was") if many else ("was", "were")
        agent, (accusative, _) = r.choice(list(PRONOUNS.items()))
        marked = f"{someone} {mark(was, wrong)} {mark(past(verb), with_ing(verb))} by {mark(accusative, agent)} ."
    elif kind < 0.5:
        marked = f"{clause(r, True)} {r.choice(('because', 'and', 'but'))} {clause(r, True)} ."
    else:
        marked = clause(r) + " ."
    tokens = marked.split()
    wrong = r.choice([i for i, token in enumerate(tokens) if "~" in token]) if not sound else None
    words = [token.split("~")[-1 if i == wrong else 0].replace("_", " ") for i, token in enumerate(tokens)]
    return capital(" ".join(word for word in words if word).replace(" .", ".").replace(" ?", "?"))


# ---- the data files ----

def make_data() -> dict[str, list[tuple[int, str, str]]]:
    """"MRPC/train" and so on -> rows of (label, text, second text); no text of one file is in another."""
    r, rows, used = random.Random(2303), {}, set()
    for split, sizes in SIZES.items():
        for task, size in sizes.items():
            rows[f"{task}/{split}"] = file = []
            while len(file) < size:
                sound = r.random() < SOUND[task]
                texts = make_pair(r, sound) if task == "MRPC" else (make_sentence(r, sound), "")
                if not used.intersection(texts[:1 if task == "CoLA" else 2]):
                    file.append((int(sound), *texts))
                    used.update(texts[:1 if task == "CoLA" else 2])
    return rows


def write_data(directory: Path) -> None:
    for name, rows in make_data().items():
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"] if name.startswith("MRPC") else []
        for number, (label, text, second) in enumerate(rows):
            lines.append(f"{label}\t{2 * number}\t{2 * number + 1}\t{text}\t{second}" if second else
                         f"made\t{label}\t{'' if label else '*'}\t{text}")
        path = directory / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    write_data(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
