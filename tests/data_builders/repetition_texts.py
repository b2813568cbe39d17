"""Made-up texts for the repetition filter: honest step-by-step texts, and loops.

STEPS["seen"]["accumulation"](random.Random(0))   honest: the same sentence with other content
loop("a word changes", BASES[0], random.Random(0))  → an honest text that runs into a loop

Thresholds are chosen on what is named "seen" alone; "unseen" and "last" are for measuring.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator

Rng = random.Random
NAMES = (
    "Ada", "Bo", "Chen", "Dina", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Karl", "Lena",
    "Milo", "Nia", "Otto", "Pia", "Quin", "Rosa", "Sven", "Tara", "Uma", "Vito", "Wren", "Yuri",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def accumulation(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "step {k}: total = {old} + {x} = {new}",
        "Step {k}: add {x} to {old} and the total is now {new}.",
        "After adding {x}, the running total goes from {old} to {new}.",
        "In step {k} we take the next number of the list, which is {x}, and add it to the running "
        "total so far, which is {old}, so that the new running total of the list is {new}.",
        "Add the next one: {new}.",
    ])  # fmt: skip
    total, step = 0, rng.choice([None, 1, 5])
    for k in range(1, rng.randint(40, 90)):
        x = step or rng.randint(1, 99)
        yield form.format(k=k, x=x, old=total, new=total + x)
        total += x


def simulation_rounds(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Round {k}: {a} rolls a {x} and {b} rolls a {y}, so {w} wins and the score is {s} to {t}.",
        "In round {k}, {a} has {s} points and {b} has {t} points; {w} moves next with a {x}.",
        "Now we play round {k}. First {a} rolls the die and gets a {x}, then {b} rolls the die and "
        "gets a {y}. The higher roll wins the round, so {w} gets a point: the score is {s} to {t}.",
        "{a} rolls {x}. {b} rolls {y}. {w} wins the round.",
    ])  # fmt: skip
    a, b = rng.sample(NAMES, 2)
    score = {a: 0, b: 0}
    for k in range(1, rng.randint(40, 80)):
        x, y = rng.sample(range(1, 7), 2)
        w = a if x > y else b
        score[w] += 1
        yield form.format(k=k, a=a, b=b, x=x, y=y, w=w, s=score[a], t=score[b])


def patient_records(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Patient {k}: {name}, aged {age}, was admitted with a temperature of {t} degrees, a pulse "
        "of {p} and a {cough} cough.",
        "{name} ({age}) came in with a {cough} cough. The temperature was {t} degrees and the "
        "blood pressure was normal. There is no history of heart disease, no known allergy and no "
        "current medication. We let the patient go home and rest.",
        "- {name}: {cough} cough, pulse {p}, no fever, no allergies, discharged the same day",
    ])  # fmt: skip
    for k in range(1, rng.randint(30, 60)):
        yield form.format(
            k=k, name=rng.choice(NAMES), age=rng.randint(18, 90), t=rng.randint(360, 402) / 10,
            p=rng.randint(55, 120), cough=rng.choice(["mild", "severe", "dry", "chronic"]),
        )  # fmt: skip


def binary_search(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Step {k}: low is {low}, high is {high}, the middle is {mid}. The number is {side}, so we "
        "go {way}.",
        "mid = ({low} + {high}) // 2 = {mid}; the target is {side}, go {way}",
        "We look at the middle of the remaining range, which runs from {low} to {high}, and that "
        "is {mid}. The number that we are looking for is {side}, so we go {way} and look again.",
    ])  # fmt: skip
    for _ in range(rng.randint(5, 9)):
        wanted, low, high, k = rng.randrange(1024), 0, 1023, 1
        yield f"Search for {wanted}:"
        while low < high:
            mid = (low + high) // 2
            up = wanted > mid
            side, way = ("greater", "up") if up else ("at most that", "down")
            yield form.format(k=k, low=low, high=high, mid=mid, side=side, way=way)
            low, high, k = (mid + 1, high, k + 1) if up else (low, mid, k + 1)


def passed_coin(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Turn {k}: {a} passes the coin to {b}.",
        "{k}. {a} has the coin and passes it on to {b}, so now {b} has the coin.",
        "After turn {k} the coin is with {b}.",
        "In turn {k} it is {a} who holds the coin, and as the rule says it has to be passed on, so "
        "it is handed over to {b}, who holds it until the next turn begins.",
    ])  # fmt: skip
    players = rng.sample(NAMES, rng.choice([1, 2, 2, 3]) + 1)
    for k in range(1, rng.randint(50, 120)):
        yield form.format(k=k, a=players[k % len(players)], b=players[(k + 1) % len(players)])


def sieve(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "{k} is {what}.", "Is {k} prime? {k} is {what}.", "- {k}: {what}",
        "Now we look at {k}. It is {what}, since {why}.",
        "The next number on the list to look at is {k}, and we find that this number is {what}.",
    ])  # fmt: skip
    only = rng.random() < 0.4  # list the primes alone
    for k in range(2, rng.randint(150, 400) if only else rng.randint(60, 150)):
        divisor = next((d for d in range(2, k) if k % d == 0), None)
        if divisor and only:
            continue
        why = f"{divisor} divides it" if divisor else "nothing smaller divides it"
        yield form.format(k=k, what="not prime" if divisor else "prime", why=why)


def weekdays(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Day {k} is a {day}.", "{k} days later it is {day}.", "Day {k}: {day}, {what}",
        "If the first day is a {first}, then day {k} of the year has to be a {day}, so on that day "
        "the office {what}.",
    ])  # fmt: skip
    start, seven = rng.randrange(7), rng.random() < 0.4  # every seventh day: one name
    for k in range(1, rng.randint(60, 140)):
        at = 7 * k if seven else k
        day = DAYS[(start + at) % 7]
        what = "is closed" if day in DAYS[5:] else "is open"
        yield form.format(k=at, day=day, what=what, first=DAYS[start])


def brackets(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Character {k} is '{c}', so the depth goes {way} to {depth}.",
        "Read '{c}': depth {way} to {depth}.",
        "The next character is '{c}', which {what} a bracket, so the depth is now {depth}.",
        "position {k}: {c} -> depth {depth}",
    ])  # fmt: skip
    depth, flat = 0, rng.random() < 0.3
    for k in range(1, rng.randint(60, 120)):
        opens = depth == 0 or (rng.random() < 0.5 and depth < 9 and not flat)
        depth += 1 if opens else -1
        what, way, c = ("opens", "up", "(") if opens else ("closes", "down", ")")
        yield form.format(k=k, c=c, depth=depth, way=way, what=what)


def unit_tests(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "test_{a}_{b} ... ok",
        "Next is test_{a}_{b}. It calls {b} with {x} and wants {y}, and that is what we get. Passed.",
        "Now we run the test of {b} for {a} input. We set up the fixture, call the function with "
        "its arguments, compare the result with the value that is wanted, and it passes.",
        "{k}. `{b}({x})` returns {y}, as it should. The test passes.",
    ])  # fmt: skip
    kinds = [
        "empty", "negative", "large", "unicode", "nested", "sorted", "random", "single",
        "missing", "cyclic",
    ]  # fmt: skip
    calls = ["add", "sort", "parse", "merge", "split", "find", "insert", "delete", "render"]
    tests = [(a, b) for a in kinds for b in calls]
    rng.shuffle(tests)
    for k, (a, b) in enumerate(tests[: rng.randint(40, 90)], 1):
        yield form.format(k=k, a=a, b=b, x=rng.randint(1, 99), y=rng.randint(1, 99))


def table_cells(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "dp[{i}][{j}] = max(dp[{h}][{j}], dp[{h}][{r}] + {v}) = {x}",
        "Cell ({i}, {j}): the letters {same}, so the value is {x}.",
        "For row {i} and column {j} we take the larger one of the two cells before, which is {x}.",
    ])  # fmt: skip
    wide = rng.randint(6, 12)
    for i in range(1, rng.randint(8, 12)):
        v, x = rng.randint(1, 9), 0
        for j in range(1, wide):
            same = rng.random() < 0.3
            x += rng.randint(0, 2) if same else 0
            yield form.format(i=i, j=j, h=i - 1, r=max(j - 2, 0), v=v, x=x,
                              same="are equal" if same else "differ")  # fmt: skip


# the other half: nothing was run on these before the thresholds stood


def long_division(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Bring down {d}: {r} divided by {m} is {q} with remainder {s}.",
        "We bring down the next digit, {d}, and get {r}. Since {q} times {m} is {p}, we write {q} "
        "and the remainder is {s}.",
        "{r} / {m} -> {q} rest {s}",
    ])  # fmt: skip
    m, s = rng.choice([3, 7, 9, 11, 13, 17]), 0
    for _ in range(rng.randint(50, 90)):
        d = rng.randint(0, 9)
        r = 10 * s + d
        yield form.format(d=d, r=r, m=m, q=r // m, p=r // m * m, s=r % m)
        s = r % m


def greatest_divisor(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "gcd({a}, {b}): {a} = {q} * {b} + {r}",
        "We divide {a} by {b} and get {q} with a remainder of {r}, so we go on with {b} and {r}.",
        "Replace ({a}, {b}) by ({b}, {r}) because {a} mod {b} is {r}.",
    ])  # fmt: skip
    for _ in range(rng.randint(12, 18)):
        a, b = rng.randint(2000, 9999), rng.randint(500, 2000)
        yield f"The pair is {a} and {b}."
        while b:
            yield form.format(a=a, b=b, q=a // b, r=a % b)
            a, b = b, a % b


def state_machine(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "At time {k} the machine is in state {s}, reads {c} and goes to state {t}.",
        "{k}: {s} --{c}--> {t}",
        "Step {k}. The token is in place {s}; transition {c} fires and the token moves to place "
        "{t}. All the other places of the net stay empty.",
    ])  # fmt: skip
    states = rng.sample("ABCDEFG", rng.randint(2, 4))
    state, ring = 0, rng.random() < 0.4
    for k in range(1, rng.randint(60, 110)):
        c = 1 if ring else rng.randint(0, 1)
        after = (state + c) % len(states)
        yield form.format(k=k, s=states[state], c=c, t=states[after])
        state = after


def medication_plan(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Day {k}: {a} mg in the morning, {b} mg in the evening.",
        "On day {k} take one tablet of {a} mg after breakfast and one tablet of {b} mg before "
        "going to bed, drink enough water, and write down how you feel.",
        "Day {k} ({day}): take {a} mg, walk for {b} minutes, rest.",
    ])  # fmt: skip
    a, b, taper = rng.choice([10, 20, 50]), rng.choice([5, 10]), rng.random() < 0.5
    for k in range(1, rng.randint(45, 90)):
        a = max(a - 1, 1) if taper and k % 7 == 0 else a
        yield form.format(k=k, a=a, b=b, day=DAYS[k % 7])


def warehouse(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Entry {k}: a {kind} of {n} boxes, the balance is {total} boxes.",
        "{n} boxes {verb}, which leaves {total} boxes in the hall.",
        "At {h:02d}:{m:02d} a truck {verb} with {n} boxes, so there are {total} boxes left.",
    ])  # fmt: skip
    total = rng.randint(500, 2000)
    for k in range(1, rng.randint(45, 80)):
        n, comes = rng.randint(5, 60), rng.random() < 0.5
        total += n if comes else -n
        kind, verb = ("delivery", "arrives") if comes else ("pick-up", "leaves")
        yield form.format(k=k, kind=kind, verb=verb, n=n, total=total, h=6 + k // 6, m=k % 6 * 10)


def bubble_sort(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Compare {a} and {b}: {what}.",
        "We compare positions {i} and {j}, which hold {a} and {b}, and {what}.",
        "{a} > {b}? {what}. The list is now {list}.",
    ])  # fmt: skip
    numbers = [rng.randint(1, 99) for _ in range(rng.randint(10, 13))]
    for last in range(len(numbers) - 1, 0, -1):
        for i in range(last):
            a, b = numbers[i : i + 2]
            what = "they are in order" if a <= b else "we swap them"
            numbers[i : i + 2] = sorted((a, b))
            yield form.format(a=a, b=b, i=i, j=i + 1, what=what, list=numbers)


def caesar_letters(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "{a} becomes {b}.",
        "The letter {a} is number {i} of the alphabet; moved by {n} places it becomes {b}.",
        "Letter {k} is {a}, and if we move it on by {n} places in the alphabet we get {b}.",
    ])  # fmt: skip
    n = rng.randint(1, 25)
    for k in range(1, rng.randint(60, 100)):
        i = rng.randrange(26)
        yield form.format(k=k, i=i + 1, n=n, a=chr(65 + i), b=chr(65 + (i + n) % 26))


def elevator(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "The lift goes from floor {f} to floor {t}, {n} people get in.",
        "Second {k}: the lift is at floor {t}, the doors are {doors}, {n} people are inside.",
        "Stop {k}: floor {t}. The doors open, {n} people get out, nobody gets in, the doors close "
        "again and the lift goes on to the next floor on its list.",
    ])  # fmt: skip
    t = 0
    for k in range(1, rng.randint(50, 90)):
        f, t = t, rng.choice([x for x in range(10) if x != t])
        yield form.format(k=k, f=f, t=t, n=rng.randint(0, 4), doors=rng.choice(["open", "shut"]))


def multiples(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "{k} times {n} is {p}.", "{k}: {p} is {what}", "f({k}) = {n} * {k} = {p}",
        "The {k}th term of the sequence is {p}, which is {n} more than the term before it.",
        "Since {p} is {what}, case {k} of the claim holds as well, and we go on to the next case.",
    ])  # fmt: skip
    n = rng.randint(2, 19)
    for k in range(1, rng.randint(60, 120)):
        yield form.format(k=k, n=n, p=n * k, what="odd" if n * k % 2 else "even")


def queue_of_people(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "{a} leaves the queue and {b} joins it.",
        "Now {a} is served at desk {n}; behind {a} stands {b}, who has to wait.",
        "{a} comes to the desk, shows the passport, signs the form, pays the fee of {n} dollars "
        "and leaves. The next one in the queue is {b}.",
    ])  # fmt: skip
    b = rng.choice(NAMES)
    for _ in range(rng.randint(45, 80)):
        a, b = b, rng.choice([name for name in NAMES if name != b])
        yield form.format(a=a, b=b, n=rng.randint(1, 9))


# written after a loss among the unseen kinds (`queue_of_people`) had been looked at and repaired


def dice_game(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "{a} throws a {x} and moves {x} squares to square {s}.",
        "It is the turn of {a}, who shakes the cup, throws a {x} and a {y}, and moves the red piece "
        "around the board. {what}, so the turn goes on to the next player at the table.",
        "Throw of {a}: {x} and {y}. {what}.",
    ])  # fmt: skip
    players = rng.sample(NAMES, rng.randint(2, 4))
    for k in range(rng.randint(50, 90)):
        x, y = rng.randint(1, 6), rng.randint(1, 6)
        what = "That is a double" if x == y else "No double"
        yield form.format(a=players[k % len(players)], x=x, y=y, s=(7 * k) % 40, what=what)


def inspection(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "Part {k}: {what}.",
        "Part {k} is put on the scale, measured in all three directions, held against the light "
        "and compared with the drawing. The result of the inspection is that the part is {what}.",
        "The {colour} part from line {x} is {what}, so it goes to box {y}.",
    ])  # fmt: skip
    for k in range(rng.randint(100, 500), rng.randint(560, 600), rng.choice([1, 2, 3, 5])):
        what = rng.choice(["good", "good", "good", "too long", "scratched"])
        colour = rng.choice(["red", "green", "blue", "white"])
        yield form.format(k=k, what=what, colour=colour, x=rng.randint(1, 5), y=rng.randint(1, 9))


def water_jugs(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "{what}: now the jugs hold {x} and {y} litres.",
        "Next we {what}, after which there are {x} litres in the first jug and {y} litres in the "
        "second jug, and that is still not the amount of water that we want to have.",
        "({x}, {y}) after we {what}",
    ])  # fmt: skip
    big, small = rng.choice([(11, 7), (13, 8), (17, 5), (19, 12)])
    x = y = 0
    for _ in range(rng.randint(45, 80)):
        if x == 0:
            what, x = "fill the first jug", big
        elif y == small:
            what, y = "empty the second jug", 0
        else:
            what, poured = "pour from the first into the second", min(x, small - y)
            x, y = x - poured, y + poured
        yield form.format(what=what, x=x, y=y)


def timetable(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "{h:02d}:{m:02d} bus {x} to {a}",
        "At {h}:{m:02d} the bus of line {x} leaves the station from platform {y} and goes to {a} by "
        "way of the town hall, the hospital and the harbour, without any other stop.",
        "The next bus leaves at {h}:{m:02d} from platform {y}.",
    ])  # fmt: skip
    every = rng.choice([10, 15, 20])
    stops = rng.sample(NAMES, 3)
    for k in range(rng.randint(50, 70)):
        h, m = divmod(300 + every * k, 60)
        yield form.format(h=h, m=m, x=rng.randint(1, 4), y=1 + k % 3, a=f"{stops[k % 3]}ville")


def truth_table(rng: Rng) -> Iterator[str]:
    form = rng.choice([
        "p={p}, q={q}, r={r}, s={s}, t={t}: {what}",
        "If p is {p}, q is {q}, r is {r}, s is {s} and t is {t}, then the formula is {what}.",
        "Case {k}. Let p be {p}, q {q}, r {r}, s {s} and t {t}. Then the left side is {what}, "
        "and the right side has the same value, so the two sides agree in this case as well.",
    ])  # fmt: skip
    for k in range(32):
        p, q, r, s, t = (bool(k >> n & 1) for n in (4, 3, 2, 1, 0))
        yield form.format(k=k + 1, p=p, q=q, r=r, s=s, t=t, what=(p or q) and (r or s) != t)


Kinds = dict[str, Callable[[Rng], Iterator[str]]]


def _kinds(*kinds: Callable[[Rng], Iterator[str]]) -> Kinds:
    return {kind.__name__: kind for kind in kinds}


STEPS: dict[str, Kinds] = {
    "seen": _kinds(accumulation, simulation_rounds, patient_records, binary_search, passed_coin,
                   sieve, weekdays, brackets, unit_tests, table_cells),
    "unseen": _kinds(long_division, greatest_divisor, state_machine, medication_plan, warehouse,
                     bubble_sort, caesar_letters, elevator, multiples, queue_of_people),
    "last": _kinds(dice_game, inspection, water_jugs, timetable, truth_table),
}  # fmt: skip


def step_by_step(half: str, kind: str, count: int = 20) -> list[str]:
    """Honest texts of one kind; one in two has its steps in lines, the others in paragraphs."""
    texts = list[str]()
    for seed in range(count):
        rng = random.Random(f"{kind} {seed}")
        steps = list(STEPS[half][kind](rng))
        joint = " " if rng.random() < 0.3 else "\n"
        texts.append(f"Let us go through this.\n{joint.join(steps)}\nThat was the last one.")
    return texts


_SYLLABLES = [f"{a}{b}" for a in "bcdfghklmnprst" for b in ("an", "el", "ior", "uta", "ery", "os")]
_COMMON = [
    "the", "of", "a", "and", "to", "is", "in", "that", "it", "so", "we", "for", "with", "not",
    "this",
]  # fmt: skip
_IDEOGRAPHS = "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起还发成事只作当想看文无开手十用主行方又如前所本见经头面"


def sentences(count: int, rng: Rng) -> list[str]:
    """Sentences without sense, of common words and a large vocabulary."""
    pool = [a + b for a in _SYLLABLES for b in ("", "ta", "ric")]
    return [
        " ".join(
            rng.choice(_COMMON if rng.random() < 0.4 else pool) for _ in range(rng.randint(7, 18))
        ).capitalize()
        + "."
        for _ in range(count)
    ]


def chinese(count: int, rng: Rng) -> str:
    return "".join(rng.choices(_IDEOGRAPHS, k=count))


def _repeat(unit: str, characters: int, rng: Rng, rounds: int = 8) -> str:
    """Rounds of the unit, the last one cut off anywhere."""
    whole = unit * max(rounds, characters // len(unit) + 1)
    return whole[: len(whole) - rng.randrange(len(unit))]


def _drifting(words: list[str], rng: Rng, every: int, rounds: int) -> str:
    """Rounds of which each changes one word, or one in `every` rounds; changes stay."""
    pool, result = " ".join(sentences(30, rng)).split(), list[str]()
    for k in range(rounds):
        if k % every == 0:
            words = [*words]
            words[rng.randrange(len(words))] = rng.choice(pool)
        result += words
    return " ".join(result)


def _unit(length: int, rng: Rng) -> str:
    """A stretch of prose of so many characters."""
    if length < 4:
        return rng.choice([" !", "ha ", "0", "=", "no "])[:length] or "0"
    return " ".join(sentences(length // 30 + 2, rng))[: length - 1].rstrip() + " "


PERIODS = {"seen": (1, 2, 7, 16, 40, 120, 300, 1000, 3000),
           "unseen": (1, 3, 5, 11, 25, 75, 200, 600, 2000)}  # fmt: skip
COUNTERS = {
    "seen": ["Attempt {k}: {s} ", "{k}. {s}\n", "Wait, check {k}. {s} "],
    "unseen": ["Try number {k}: {s} ", "({k}) {s}\n", "{s} That was round {k}.\n"],
}
LOOPS = ("exact", "chinese", "a word changes", "a word changes in a third of the rounds",
         "sentences in changing order", "long rounds with a counter",
         "short rounds with a counter")  # fmt: skip


def loop(kind: str, half: str, base: str, rng: Rng, period: int = 0) -> str:
    """An honest text that runs into a loop, at its very end or with a closing line behind it."""
    if kind == "exact":
        text = _repeat(_unit(period, rng), 4500 if period < 16 else 2000, rng)
    elif kind == "chinese":
        text = _repeat(chinese(rng.choice([4, 9, 25, 60, 150]), rng) + "。", 600, rng)
    elif kind.startswith("a word changes"):
        words = " ".join(sentences(30, rng)).split()[: rng.choice([12, 25, 50, 100])]
        text = _drifting(words, rng, 3 if "third" in kind else 1, max(10, 400 // len(words)))
    elif kind == "sentences in changing order":
        few = sentences(rng.randint(4, 7), rng)
        text = " ".join(rng.choice(few) for _ in range(120))
    else:
        many = 4 if kind.startswith("short") else 80
        words = " ".join(sentences(20, rng)).split()[: many + rng.randint(0, many)]
        form = rng.choice(COUNTERS[half])
        text = "".join(form.format(k=k, s=" ".join(words)) for k in range(1, 600 // many + 10))
    return f"{base} {text}" if rng.random() < 0.5 else f"{base} {text}\nSo the answer is 7."


def loops(half: str, bases: list[str], count: int = 20) -> dict[str, list[str]]:
    """Loops by kind; exact ones by the length of a round in characters."""
    result = dict[str, list[str]]()
    for kind in LOOPS:
        for period in PERIODS[half] if kind == "exact" else (0,):
            name = f"exact, {period} characters" if period else kind
            rng = random.Random(f"{half} {name}")
            result[name] = [
                loop(kind, half, rng.choice(["", *bases]), rng, period) for _ in range(count)
            ]
    return result


def honest_kinds(rng: Rng) -> dict[str, str]:
    """Texts that repeat themselves as they should: tables, code, lists, poems, sums, data."""
    names = [f"{a}{b}{c}" for a in "bdfklmnprst" for b in "aeiou" for c in ("n", "ra", "los", "mi")]
    rng.shuffle(names)
    rows = range(40)
    refrain = "Sing it low, sing it high,\nthe river goes by, the river goes by.\n"
    return {
        "table": "| name | game | score |\n|---|---|---|\n" + "\n".join(
            f"| {names[k]} | Lions vs. {names[-k]} | {rng.randint(0, 40)}-10 |" for k in rows),
        "plain table": "\n".join(
            f"{names[k]:<40}{rng.choice(['yes', 'no']):<40}{rng.randint(0, 9):>40}" for k in rows),
        "sparse table": "\n".join(
            "| " + " | ".join("x" if rng.random() < 0.02 else " " for _ in range(20)) + " |"
            for _ in rows),
        "rulers": "\n".join(f"{'-' * 200}\n{names[k]}\n{'=' * 200}" for k in rows),
        "calls": "\n".join(
            f'crm.update_customer(customer_id="{rng.randrange(10**8):08d}", field="assigned_to", '
            f'new_value="nia@example.com")' for _ in range(12)),
        "tests": "def check(candidate):\n" + "\n".join(
            f"    assert candidate({rng.randint(1, 99)}, {k}) == {rng.random() < 0.5}, "
            f'"This prints if this assert fails (good for debugging!)"' for k in range(12)),
        "code": "\n".join(
            f"    elif kind == {name!r}:\n        return make_{name}(value, depth=depth + 1)"
            for name in names[:30]),
        "json": "[" + ",\n ".join(
            f'{{"id": {k}, "name": "{names[k]}", "tags": [], "active": true}}' for k in rows) + "]",
        "list": "\n".join(
            f"{k}. The {names[k]} of {names[-k]} must be {names[k + 50]}." for k in rows),
        "poem": "\n".join(
            f"{' '.join(rng.choices(names, k=6))},\n{' '.join(rng.choices(names, k=6))},\n{refrain}"
            for _ in range(8)),
        "sums": "\n".join(f"{k} + {k * 7 % 13} = {k + k * 7 % 13}" for k in range(1, 80)),
        "base64": base64.b64encode(bytes(600) + rng.randbytes(3000) + bytes(600)).decode(),
        "hex": "\n".join(rng.randbytes(16).hex(" ") for _ in rows),
        "long number": f"3^9000 = {3**4000}, 10^1000 = {10**1000}, 1/8 = 0.125{'0' * 400}",
        "grid": "[" + ",\n ".join(
            "[" + ",".join(str(int(rng.random() < 0.01)) for _ in range(50)) + "]"
            for _ in range(50)) + "]",
        "zeros": "\n".join(" ".join("0" * 40) for _ in range(40)),
        "listing": "\n".join(
            f"-rw-r--r-- 1 root root {rng.randint(100, 9999)} Jan {k % 28 + 1} 12:00 {names[k]}.txt"
            for k in rows),
        "chinese": "".join(f"第{k}步：{chinese(24, rng)}。" for k in rows),
    }  # fmt: skip
