"""Questions on many documents, of which several are needed, at lengths that a tokenizer measures.

    single_needle  the only code of all documents            (one document is needed)
    multi_key      the code of one town, others have codes   (one document is needed)
    multi_value    all codes of one town
    needles        the codes of several towns
    multi_hop      a chain from document to document is followed to its end
    variables      all variables with a value, which passes from one to the next
    aggregation    amounts of several documents are summed

The gold is computed from the finished texts, and so is the proof that each needed document is
needed: without it, the same computation gives another answer, or none. Written: a model writes the
question on texts of others, and a solver has to come to the answer with all of them and to fail
without any one.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from data_builders.keyed import key64
from data_builders.synthesis.seeds import row_texts
from data_builders.synthesis.steps import (
    Answered,
    Ask,
    Discarded,
    Keep,
    KindSetup,
    Making,
    Note,
    Row,
    Seed,
    SeedSet,
    SynthesisKind,
    ask_one,
    ask_text,
    ask_usable,
    chat_row,
    grade,
    prompt_of,
)
from posttrain.config.synthesize import LongDocuments
from posttrain.errors import ConfigError
from posttrain.records import Example, Message, json_text, make_example
from posttrain.rollouts import Prompt
from reward.environments.long_context import LongContextEnvironment
from reward.graders.base import Attempt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ENVIRONMENT = LongContextEnvironment()
_END = "End with one line, Answer: and it alone."
_PIECE_WORDS = 80  # words of a piece of a long text, which is one document, ours
_DISTRACTORS = 3  # documents of the same form for each needed one, if there is room
_NAMES = (
    "Ansel", "Birgit", "Cato", "Delia", "Egon", "Frida", "Gustav", "Hedda", "Ivo", "Jutta", "Klaas",
    "Lotte", "Milo", "Nele", "Otto", "Petra", "Quinn", "Runa", "Sven", "Tilda", "Ulf", "Vera",
    "Wim", "Xenia", "Yara", "Zeno",
)  # fmt: skip
_HEADS = ("Ar", "Bel", "Cor", "Dra", "El", "Fen", "Gor", "Hal", "Is", "Jor", "Kal", "Lor")
_TAILS = ("dale", "mark", "vik", "stead", "holm", "wick", "ford", "by", "ness", "thorp", "mere")
_VARIABLES = tuple(map("".join, itertools.product("BCDFGHJKLMNPQRSTVWXZ", repeat=3)))
_REGIONS = ("the north", "the coast", "the valley", "the highlands")
_SENTENCES = (
    "The clerk signed the book on day {n}.",
    "A year ago {n} lamps were replaced along the quay.",
    "Rain kept the yard closed for {n} hours.",
    "The scales were found to be {n} grams off and set right again.",
    "Visitors wrote {n} lines into the guest book, most of them kind.",
    "The old gate was painted green, which took {n} pots of paint.",
)
_WRITTEN = re.compile(r"Question:\s*(\S.*?)\s*\n\s*Answer:[ \t]*(\S.*)")
_LONGEST_ANSWER = 80  # characters; a longer one cannot be compared word for word
_CODE = re.compile(r"The access code of (\w+) is (\d+)\.")
_HANDED = re.compile(r"(\w+) handed the blue folder to (\w+)\.")
_ASSIGNED = re.compile(r"The variable ([A-Z]{3}) has the value (\d+)\.")
_COPIED = re.compile(r"The variable ([A-Z]{3}) has the same value as the variable ([A-Z]{3})\.")
_CRATES = re.compile(r"The depot of (\w+) lies in ([a-z ]+) and holds (\d+) crates of rope\.")


@dataclass(frozen=True, slots=True)
class Facts:
    """Question and its documents, before they are hidden among others.

    Attributes:
        needed: documents that the answer needs, at first of one sentence each.
        distractors: documents in the form of the needed ones.
        solve: computes the answer from any documents; None if they do not give one.
    """

    needed: tuple[str, ...]
    distractors: tuple[str, ...]
    question: str
    solve: Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class LongQuestion:
    """A question behind its documents.

    Attributes:
        needed: numbers of the needed documents, from 1.
        tokens: tokens of all documents together.
        length: tokens that they may have.
        positions: share of the tokens that stands before each needed document, in [0, 1).
        sentences: sentences that the answer rests on; none if a model wrote the question.
    """

    text: str
    gold: str
    needed: tuple[int, ...]
    tokens: int
    length: int
    positions: tuple[float, ...]
    sentences: tuple[str, ...] = ()

    def metadata(self) -> Row:
        """Metadata of the row, for an evaluation by length and position."""
        return {
            "needed": list(self.needed),
            "positions": list(self.positions),
            "tokens": self.tokens,
            "length": self.length,
        }


@dataclass(frozen=True, slots=True)
class SourceTexts:
    """Texts on which a model is to write a question, and the length that it is hidden in."""

    texts: tuple[str, ...]
    length: int


class LongDocumentQuestions(SynthesisKind):
    """The kind `long_documents`; the content of its seeds is a `LongQuestion` or `SourceTexts`.

    Raises:
        ConfigError: written questions without models that write and solve them.
    """

    config: LongDocuments
    spoiled_roles = ("writer", "generator")

    def __init__(self, config: LongDocuments, setup: KindSetup) -> None:
        super().__init__(config, setup)
        missing = [role for role in ("writer", "solver") if role not in setup.models]
        if "written" in config.families and missing:
            raise ConfigError(f"models: written questions need a model as {', '.join(missing)}")
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._pieces: list[str] = []
        # what the environment is told beside the defaults
        self._scoring: Row = {} if config.copy_penalty else {"copy_penalty": False}

    def seeds(self, work: Path) -> SeedSet:
        """Write the questions. They are tasks of the environment `long_context`, answered or not.

        Raises:
            ConfigError: a length that holds not even the needed documents.
        """
        self._pieces = []
        for source in self.config.documents:
            for text in row_texts(source, source.text):
                self._pieces += _split_text(text)
        result = SeedSet([])
        families = self.config.families
        lengths = self.config.lengths
        for number in range(self.config.count):
            family = families[number % len(families)]
            length = lengths[number // len(families) % len(lengths)]
            seed_id = f"{family}-{length}-{number}"
            rng = self._rng(seed_id)
            try:
                if family == "written":
                    seed = self._draw_texts_seed(seed_id, length, rng)
                else:
                    facts = FAMILIES[family](rng, self.config.needed)
                    padded = _pad_facts(facts, rng, self.config.filler)
                    hidden = self._hide(padded, length=length, rng=rng)
                    question = replace(hidden, sentences=facts.needed)
                    refuse_unproven(question, padded)
                    seed = Seed(seed_id, question, _chat_example(question.text, family, length))
                    result.tasks.append(self._task_row(seed_id, question))
            except Discarded as problem:
                result.dropped[problem.reason] += 1
                continue
            result.seeds.append(seed)
        return result

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        if isinstance(seed.content, SourceTexts):
            return {"writer": 1, "solver": 1 + self.config.needed, "generator": 1}
        return {"generator": 1}

    def make(self, seed: Seed) -> Making:
        """Have the question written, if a model is to write it; then keep a right answer to it.

        A right answer by code is kept as it is: the sentences that it rests on, then the gold.
        """
        tasks: tuple[Row, ...] = ()
        checks = ["gold by code", "each document is needed"]
        if isinstance(seed.content, SourceTexts):
            question = yield from self._write_question(seed, seed.content)
            tasks = (self._task_row(seed.id, question),)
            checks = ["solver has the gold", "and fails without any document"]
        else:
            question = cast(LongQuestion, seed.content)
        prompt = self._environment_prompt(seed, "answer", question.text, question.gold)
        if self.config.answers_by_code:
            text = "\n".join([*question.sentences, f"Answer: {question.gold}"])
            messages = [*prompt.messages, Message("assistant", text)]
            return Keep((_chat_row(seed, question, messages),), tasks=tasks, checks=tuple(checks))
        if "generator" not in self.setup.models:
            return Keep(tasks=tasks, checks=tuple(checks))
        completion = yield from ask_one(Ask("generator", prompt))
        [score] = yield from grade(Attempt(prompt, completion))
        yield Note("right answers", seed.id.partition("-")[0] if score.value else "wrong")
        if score.value is None or score.value < _ENVIRONMENT.passes_at:
            raise Discarded("wrong_answer", score.explanation)
        row = _chat_row(seed, question, [*prompt.messages, *completion.messages])
        return Keep((row,), tasks=tasks, checks=(*checks, _ENVIRONMENT.name))

    def _write_question(
        self, seed: Seed, content: SourceTexts
    ) -> Generator[Any, Any, LongQuestion]:
        """Have a question written that a solver answers with all texts, and not without any one."""
        documents = _number_documents(content.texts)
        count = str(len(content.texts))
        text = self.text("question_of_documents", documents=documents, count=count)
        written = yield from ask_text(Ask("writer", prompt_of(seed, "question", text)))
        match = _WRITTEN.search(written)
        if match is None:
            raise Discarded("no_question", written[:200])
        question = match[1]
        gold = match[2].strip()
        if len(gold) > _LONGEST_ANSWER:
            raise Discarded("long_answer", gold)
        prompts = [
            self._environment_prompt(seed, "solve", f"{documents}\n\n{question} {_END}", gold)
        ]
        for without in range(len(content.texts)):
            remaining = content.texts[:without] + content.texts[without + 1 :]
            request = f"{_number_documents(remaining)}\n\n{question} {_END}"
            prompts.append(
                self._environment_prompt(seed, f"solve-without-{without}", request, gold)
            )
        # an answer that is cut off or missing does not show that a document is needed
        answers = yield from ask_usable(*(Ask("solver", prompt) for prompt in prompts))
        scores = yield from grade(
            *(Attempt(answered.ask.prompt, answered.completions[0]) for answered in answers)
        )
        for score in scores:
            if score.value is None:
                raise Discarded("unscored", score.explanation)
        solved = [_ENVIRONMENT.passes(score) for score in scores]
        if not solved[0]:
            raise Discarded("not_answerable", f"{question} {gold}: {scores[0].explanation}")
        if any(solved[1:]):
            raise Discarded("not_needed", f"{question} {gold}: without {solved.index(True, 1)}")
        facts = Facts(content.texts, (), question, lambda _: gold)
        return self._hide(facts, length=content.length, rng=self._rng(seed.id))

    def _environment_prompt(self, seed: Seed, name: str, text: str, gold: str) -> Prompt:
        return prompt_of(
            seed,
            name,
            text,
            environment=_ENVIRONMENT.name,
            grader="environment",
            gold=gold,
            metadata=json_text(self._scoring),
        )

    def _task_row(self, seed_id: str, question: LongQuestion) -> Row:
        return {
            "environment": _ENVIRONMENT.name,
            "id": seed_id,
            "question": question.text,
            "gold": question.gold,
            "metadata": _metadata(seed_id, question) | self._scoring,
        }

    def _draw_texts_seed(self, seed_id: str, length: int, rng: random.Random) -> Seed:
        if len(self._pieces) < self.config.needed:
            raise Discarded("too_few_documents", f"{len(self._pieces)} pieces")
        texts = tuple(rng.sample(self._pieces, self.config.needed))
        example = _chat_example("\n\n".join(texts), "written", length)
        return Seed(seed_id, SourceTexts(texts, length), example)

    def _rng(self, seed_id: str) -> random.Random:
        return random.Random(key64(self.setup.seed, "long_documents", seed_id))

    def bad_answer(self, seed: Seed, answered: Answered) -> str:
        """Question that needs no document, or an answer that no question has."""
        if answered.ask.role == "writer":
            return "Question: How many legs do two spiders have?\nAnswer: 16"
        return "Answer: -1"

    def _hide(self, facts: Facts, *, length: int, rng: random.Random) -> LongQuestion:
        """Hide the needed documents among as many others as the length has room for.

        Raises:
            ConfigError: there is not even room for the needed ones.
        """
        documents = list(facts.needed)
        counts = [self._count_tokens(document) for document in documents]
        total = sum(counts)
        if total > length:
            raise ConfigError(
                f"lengths: {length:,} tokens do not hold {len(documents)} needed documents of "
                f"{total:,} tokens"
            )
        unused_pieces = [piece for piece in self._pieces if piece not in facts.needed]
        rng.shuffle(unused_pieces)
        available = iter([*facts.distractors, *unused_pieces])
        while True:
            document = next(available, None) or _write_filler(rng)
            count = self._count_tokens(document)
            total += count
            if total > length:
                break
            documents.append(document)
            counts.append(count)
        order = rng.sample(range(len(documents)), len(documents))
        while True:
            texts = [documents[index] for index in order]
            numbered = _number_documents(texts)
            tokens = len(self._token_ids(numbered))
            if tokens <= length:
                break
            # tokens of a number of four digits, say, were not counted
            excess = tokens - length
            while excess > 0:
                last = max(k for k, index in enumerate(order) if index >= len(facts.needed))
                excess -= counts[order.pop(last)]
        before = list(itertools.accumulate((counts[index] for index in order), initial=0))
        needed = [k for k, index in enumerate(order) if index < len(facts.needed)]
        return LongQuestion(
            f"{numbered}\n\n{facts.question} {_END}",
            facts.solve(texts) or "",
            needed=tuple(k + 1 for k in needed),
            tokens=tokens,
            length=length,
            positions=tuple(round(before[k] / before[-1], 6) for k in needed),
        )

    def _count_tokens(self, document: str) -> int:
        return len(self._token_ids(f"Document 100.\n{document}\n\n"))

    def _token_ids(self, text: str) -> list[int]:
        if self._tokenizer is None:
            # imported here, since it loads transformers, which other kinds do not need
            from posttrain.tokens.tokenizer import load_any_tokenizer

            self._tokenizer = load_any_tokenizer(self.config.tokenizer)
        # no warning of a text that is longer than the model of the tokenizer takes
        encoded: Any = self._tokenizer(text, add_special_tokens=False, verbose=False)
        return encoded["input_ids"]


def refuse_unproven(question: LongQuestion, facts: Facts) -> None:
    """Raise Discarded unless the texts give the gold, and without any needed one do not.

    Pieces of other texts between the documents may contradict them, or say the same again.
    """
    documents = question.text.split("\n\n")[:-1]
    gold_of_needed = facts.solve(facts.needed)
    if gold_of_needed != question.gold or facts.solve(documents) != question.gold:
        raise Discarded("contradicted", question.gold)
    for position in question.needed:
        remaining = documents[: position - 1] + documents[position:]
        if facts.solve(remaining) == question.gold:
            raise Discarded("not_needed", f"document {position}")


def _number_documents(texts: Sequence[str]) -> str:
    return "\n\n".join(f"Document {k}.\n{text}" for k, text in enumerate(texts, 1))


def _chat_example(text: str, family: str, length: int) -> Example:
    source = f"{family}, {length:,} tokens"
    return make_example([Message("user", text)], source=source, dialect="plain")


def _chat_row(seed: Seed, question: LongQuestion, messages: Sequence[Message]) -> Row:
    metadata = _metadata(seed.id, question)
    return chat_row(messages, gold=question.gold, **metadata)


def _metadata(seed_id: str, question: LongQuestion) -> Row:
    return {**question.metadata(), "family": seed_id.partition("-")[0]}


# -- families --------------------------------------------------------------------------------------


def _single_needle(rng: random.Random, _: int) -> Facts:
    """Access code of one town, the only one."""
    return _codes_of_towns(rng, requested=1, others=0)


def _multi_key(rng: random.Random, needed: int) -> Facts:
    """Access code of one town among those of others."""
    return _codes_of_towns(rng, requested=1, others=_DISTRACTORS * needed)


def _needles(rng: random.Random, needed: int) -> Facts:
    """Access codes of towns: the codes of several are asked for."""
    return _codes_of_towns(rng, requested=needed, others=_DISTRACTORS * needed)


def _codes_of_towns(rng: random.Random, *, requested: int, others: int) -> Facts:
    towns = _draw_towns(rng, requested + others)
    codes = rng.sample(range(1000, 10_000), len(towns))
    facts: list[str] = []
    for town, code in zip(towns, codes, strict=True):
        facts.append(f"The access code of {town} is {code}.")
    requested_towns = towns[:requested]

    def solve(documents: Sequence[str]) -> str | None:
        code_by_town: dict[str, str] = {}
        for text in documents:
            for match in _CODE.finditer(text):
                code_by_town[match[1]] = match[2]
        requested_codes = [code_by_town.get(town) for town in requested_towns]
        if None in requested_codes:
            return None
        return requested_codes[0] if requested == 1 else json_text(requested_codes)

    names = ", ".join(requested_towns)
    question = f"What are the access codes of {names}? Give them as a list: [1, 2]."
    if requested == 1:
        question = f"What is the access code of {names}? Give the number alone."
    return Facts(tuple(facts[:requested]), tuple(facts[requested:]), question, solve)


def _multi_value(rng: random.Random, needed: int) -> Facts:
    """Several access codes of one town, while other towns have as many."""
    towns = _draw_towns(rng, 1 + _DISTRACTORS)
    codes = rng.sample(range(1000, 10_000), needed * len(towns))
    facts: list[str] = []
    for number, code in enumerate(codes):
        facts.append(f"The access code of {towns[number // needed]} is {code}.")

    def solve(documents: Sequence[str]) -> str | None:
        requested_codes: set[str] = set()
        for text in documents:
            for match in _CODE.finditer(text):
                if match[1] == towns[0]:
                    requested_codes.add(match[2])
        return json_text(sorted(requested_codes)) if requested_codes else None

    question = (
        f"The documents name several access codes of {towns[0]}. Give all of them as a list: "
        "[1, 2]."
    )
    return Facts(tuple(facts[:needed]), tuple(facts[needed:]), question, solve)


def _variables(rng: random.Random, needed: int) -> Facts:
    """Variables of which each has the value of another, while other chains have other values."""
    names = rng.sample(_VARIABLES, needed * (1 + _DISTRACTORS))
    values = rng.sample(range(10_000, 100_000), 1 + _DISTRACTORS)
    facts: list[str] = []
    for number, name in enumerate(names):
        if number % needed:
            previous = names[number - 1]
            facts.append(f"The variable {name} has the same value as the variable {previous}.")
        else:
            facts.append(f"The variable {name} has the value {values[number // needed]}.")
    requested_value = str(values[0])

    def solve(documents: Sequence[str]) -> str | None:
        variables: list[str] = []
        copies: dict[str, list[str]] = {}
        for text in documents:
            variables += [
                match[1] for match in _ASSIGNED.finditer(text) if match[2] == requested_value
            ]
            for match in _COPIED.finditer(text):
                copies.setdefault(match[2], []).append(match[1])
        # the list grows while it is read
        for name in variables:
            variables += [copy for copy in copies.get(name, ()) if copy not in variables]
        return json_text(sorted(set(variables))) if variables else None

    question = (
        f"Which variables have the value {requested_value}? Give the names of all of them as a "
        "list: [AAA, BBB]."
    )
    return Facts(tuple(facts[:needed]), tuple(facts[needed:]), question, solve)


def _chain(rng: random.Random, needed: int) -> Facts:
    """Folder that goes from hand to hand, while other people hand theirs on as well."""
    people = rng.sample(_NAMES, min(len(_NAMES), 2 * needed + 2))
    chain = people[: needed + 1]
    facts = _handovers(chain)
    distractors = _handovers(people[needed + 1 :])

    def solve(documents: Sequence[str]) -> str | None:
        receiver_of: dict[str, str] = {}
        for text in documents:
            for match in _HANDED.finditer(text):
                receiver_of[match[1]] = match[2]
        holder = chain[0]
        # at most as many steps as handovers: texts of others may close a circle
        for _ in range(len(receiver_of)):
            if holder not in receiver_of:
                break
            holder = receiver_of[holder]
        return None if holder == chain[0] else holder

    question = (
        f"{chain[0]} had the blue folder at first, and whoever gets it hands it on where a "
        "document says so. Who has it in the end? Give the name alone."
    )
    return Facts(tuple(facts), tuple(distractors), question, solve)


def _handovers(people: Sequence[str]) -> list[str]:
    return [
        f"{giver} handed the blue folder to {receiver}."
        for giver, receiver in itertools.pairwise(people)
    ]


def _sum(rng: random.Random, needed: int) -> Facts:
    """Depots in several regions: the stock of one region is asked for."""
    towns = _draw_towns(rng, needed * (1 + _DISTRACTORS))
    region = rng.choice(_REGIONS)
    other_regions = [name for name in _REGIONS if name != region]
    facts: list[str] = []
    for number, town in enumerate(towns):
        town_region = region if number < needed else rng.choice(other_regions)
        crates = rng.randint(11, 99)
        facts.append(
            f"The depot of {town} lies in {town_region} and holds {crates} crates of rope."
        )

    def solve(documents: Sequence[str]) -> str | None:
        amounts: list[int] = []
        for text in documents:
            for match in _CRATES.finditer(text):
                if match[2] == region:
                    amounts.append(int(match[3]))
        return str(sum(amounts)) if amounts else None

    question = f"How many crates of rope do all depots in {region} hold together?"
    return Facts(tuple(facts[:needed]), tuple(facts[needed:]), question, solve)


FAMILIES: dict[str, Callable[[random.Random, int], Facts]] = {
    "single_needle": _single_needle,
    "multi_key": _multi_key,
    "multi_value": _multi_value,
    "needles": _needles,
    "multi_hop": _chain,
    "variables": _variables,
    "aggregation": _sum,
}


def _pad_facts(facts: Facts, rng: random.Random, most: int) -> Facts:
    """Make a document of each fact."""
    needed = tuple(_pad_fact(fact, rng, most) for fact in facts.needed)
    distractors = tuple(_pad_fact(fact, rng, most) for fact in facts.distractors)
    return replace(facts, needed=needed, distractors=distractors)


def _draw_towns(rng: random.Random, count: int) -> list[str]:
    return rng.sample([head + tail for head in _HEADS for tail in _TAILS], count)


def _pad_fact(fact: str, rng: random.Random, most: int) -> str:
    """Write a document with a fact among 1 to `most` sentences that say nothing about it."""
    if not most:
        return fact
    sentences = [_draw_sentence(rng) for _ in range(rng.randint(1, most))]
    sentences.insert(rng.randint(0, len(sentences)), fact)
    return " ".join(sentences)


def _write_filler(rng: random.Random) -> str:
    return " ".join(_draw_sentence(rng) for _ in range(rng.randint(2, 5)))


def _draw_sentence(rng: random.Random) -> str:
    return rng.choice(_SENTENCES).replace("{n}", str(rng.randint(2, 900)))


def _split_text(text: str) -> list[str]:
    """Split a long text into pieces of one paragraph each, without empty lines."""
    words = text.split()
    starts = range(0, len(words), _PIECE_WORDS)
    return [" ".join(words[start : start + _PIECE_WORDS]) for start in starts]
