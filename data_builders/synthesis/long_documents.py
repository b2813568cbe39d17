"""Questions on many documents, of which several are needed, at lengths that a tokenizer measures.

Needles: values of several documents are listed. Multi-hop: a chain from document to document is
followed to its end. Aggregation: amounts of several documents are summed. The gold is computed from
the finished texts, and so is the proof that each needed document is needed: without it, the same
computation gives another answer, or none. Written: a model writes the question on texts of others,
and a solver has to come to the answer with all of them and to fail without any one.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from data_builders.keyed import key64
from data_builders.rows.inputs import Input
from data_builders.synthesis.seeds import row_inputs, row_texts
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
    ask,
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
from posttrain.runs import Parent
from reward.environments.long_context import LongContextEnvironment
from reward.graders.base import Attempt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ENVIRONMENT = LongContextEnvironment()
_END = "End with one line, Answer: and it alone."
_PIECE = 80  # words of a piece of a long text between the needed documents
_DISTRACTORS = 3  # documents of the same form for each needed one, as far as there is room
_NAMES = (
    "Ansel", "Birgit", "Cato", "Delia", "Egon", "Frida", "Gustav", "Hedda", "Ivo", "Jutta", "Klaas",
    "Lotte", "Milo", "Nele", "Otto", "Petra", "Quinn", "Runa", "Sven", "Tilda", "Ulf", "Vera",
    "Wim", "Xenia", "Yara", "Zeno",
)  # fmt: skip
_HEADS = ("Ar", "Bel", "Cor", "Dra", "El", "Fen", "Gor", "Hal", "Is", "Jor", "Kal", "Lor")
_TAILS = ("dale", "mark", "vik", "stead", "holm", "wick", "ford", "by", "ness", "thorp", "mere")
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
_LONGEST_ANSWER = 80  # characters: a longer one is not compared word for word
_CODE = re.compile(r"The access code of (\w+) is (\d+)\.")
_HANDED = re.compile(r"(\w+) handed the blue folder to (\w+)\.")
_CRATES = re.compile(r"The depot of (\w+) lies in ([a-z ]+) and holds (\d+) crates of rope\.")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a question needs, before it is hidden among other documents.

    Attributes:
        needed, others: documents; others have the form of the needed ones.
        solve: computes the answer from any documents; None: they do not give one.
    """

    needed: tuple[str, ...]
    others: tuple[str, ...]
    question: str
    solve: Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class LongQuestion:
    """A question behind its documents.

    Attributes:
        needed: positions of the needed documents, from 1.
        tokens: of all documents together.
    """

    text: str
    gold: str
    needed: tuple[int, ...]
    tokens: int


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

    def inputs(self) -> tuple[list[Input], list[Parent]]:
        return row_inputs(self.config.documents, self.setup.out)

    def seeds(self, work: Path) -> SeedSet:
        """Write the questions. They are tasks of the environment `long_context`, answered or not.

        Raises:
            ConfigError: a length that holds not even the needed documents.
        """
        self._pieces = []
        for source in self.config.documents:
            for text in row_texts(source, source.text):
                self._pieces += _pieces(text)
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
                    seed = self._texts_seed(seed_id, length, rng)
                else:
                    facts = FAMILIES[family](rng, self.config.needed)
                    question = self._hidden(facts, length=length, rng=rng)
                    refuse_unproven(question, facts)
                    seed = Seed(seed_id, question, _example(question.text, family))
                    result.tasks.append(_task(seed_id, question))
            except Discarded as problem:
                result.dropped[problem.reason] += 1
                continue
            result.seeds.append(seed)
        return result

    def most(self, seed: Seed) -> Mapping[str, int]:
        if isinstance(seed.content, SourceTexts):
            return {"writer": 1, "solver": 1 + self.config.needed, "generator": 1}
        return {"generator": 1}

    def make(self, seed: Seed) -> Making:
        """The question, if a model is to write it; then a generator's answer, if it is right."""
        tasks: tuple[Row, ...] = ()
        checks = ["gold by code", "each document is needed"]
        if isinstance(seed.content, SourceTexts):
            question = yield from self._written(seed, seed.content)
            tasks = (_task(seed.id, question),)
            checks = ["solver has the gold", "and fails without any document"]
        else:
            question = cast(LongQuestion, seed.content)
        if "generator" not in self.setup.models:
            return Keep(tasks=tasks, checks=tuple(checks))
        prompt = _prompt(seed, "answer", question.text, question.gold)
        [answered] = yield from ask_usable(Ask("generator", prompt))
        [completion] = answered.completions
        [score] = yield from grade(Attempt(prompt, completion))
        yield Note("right answers", seed.id.partition("-")[0] if score.value else "wrong")
        if score.value is None or score.value < _ENVIRONMENT.passes_at:
            raise Discarded("wrong_answer", score.explanation)
        row = chat_row(
            [*prompt.messages, *completion.messages],
            gold=question.gold,
            tokens=question.tokens,
            needed=list(question.needed),
        )
        return Keep((row,), tasks=tasks, checks=(*checks, _ENVIRONMENT.name))

    def _written(self, seed: Seed, content: SourceTexts) -> Generator[Any, Any, LongQuestion]:
        """A model's question on all texts, which a solver answers with them and not without one."""
        listed = _numbered(content.texts)
        text = self.text("question_of_documents", documents=listed, count=str(len(content.texts)))
        written = yield from ask_text(Ask("writer", prompt_of(seed, "question", text)))
        match = _WRITTEN.search(written)
        if match is None:
            raise Discarded("no_question", written[:200])
        question, gold = match[1], match[2].strip()
        if len(gold) > _LONGEST_ANSWER:
            raise Discarded("long_answer", gold)
        prompts = [_prompt(seed, "solve", f"{listed}\n\n{question} {_END}", gold)]
        for without in range(len(content.texts)):
            remaining = content.texts[:without] + content.texts[without + 1 :]
            request = f"{_numbered(remaining)}\n\n{question} {_END}"
            prompts.append(_prompt(seed, f"solve-without-{without}", request, gold))
        answers = yield from ask(*(Ask("solver", prompt) for prompt in prompts))
        scores = yield from grade(
            *(Attempt(each.ask.prompt, each.completions[0]) for each in answers)
        )
        solved = [(score.value or 0.0) >= _ENVIRONMENT.passes_at for score in scores]
        if not solved[0]:
            raise Discarded("not_answerable", f"{question} {gold}: {scores[0].explanation}")
        if any(solved[1:]):
            raise Discarded("not_needed", f"{question} {gold}: without {solved.index(True, 1)}")
        facts = Facts(content.texts, (), question, lambda _: gold)
        return self._hidden(facts, length=content.length, rng=self._rng(seed.id))

    def _texts_seed(self, seed_id: str, length: int, rng: random.Random) -> Seed:
        if len(self._pieces) < self.config.needed:
            raise Discarded("too_few_documents", f"{len(self._pieces)} pieces")
        texts = tuple(rng.sample(self._pieces, self.config.needed))
        return Seed(seed_id, SourceTexts(texts, length), _example("\n\n".join(texts), "written"))

    def _rng(self, seed_id: str) -> random.Random:
        return random.Random(key64(self.setup.seed, "long_documents", seed_id))

    def bad_answer(self, seed: Seed, answered: Answered) -> str:
        """A question that needs no document; or an answer of the form that no question has."""
        if answered.ask.role == "writer":
            return "Question: How many legs do two spiders have?\nAnswer: 16"
        return "Answer: -1"

    def _hidden(self, facts: Facts, *, length: int, rng: random.Random) -> LongQuestion:
        """The needed documents among so many others as the length has room for.

        Raises:
            ConfigError: it has not even room for those.
        """
        documents = list(facts.needed)
        total = sum(map(self._count, documents))
        if total > length:
            raise ConfigError(
                f"lengths: {length:,} tokens do not hold {len(documents)} needed documents of "
                f"{total:,} tokens"
            )
        unused = [piece for piece in self._pieces if piece not in facts.needed]
        rng.shuffle(unused)
        waiting = iter([*facts.others, *unused])
        while True:
            document = next(waiting, None) or _filler(rng)
            total += self._count(document)
            if total > length:
                break
            documents.append(document)
        order = rng.sample(range(len(documents)), len(documents))
        texts = [documents[index] for index in order]
        needed = [order.index(index) + 1 for index in range(len(facts.needed))]
        return self._fitted(texts, sorted(needed), facts, length=length)

    def _fitted(
        self, texts: list[str], needed: list[int], facts: Facts, *, length: int
    ) -> LongQuestion:
        """Documents with their numbers; the last that are not needed go until all fit."""
        while True:
            listed = _numbered(texts)
            tokens = len(self._ids(listed))
            if tokens <= length:
                break
            unneeded = next(k for k in range(len(texts), 0, -1) if k not in needed)
            del texts[unneeded - 1]
            needed = [k - (k > unneeded) for k in needed]
        gold = facts.solve(texts)
        text = f"{listed}\n\n{facts.question} {_END}"
        return LongQuestion(text, gold or "", tuple(needed), tokens)

    def _count(self, document: str) -> int:
        return len(self._ids(f"Document 100.\n{document}\n\n"))

    def _ids(self, text: str) -> list[int]:
        if self._tokenizer is None:
            # imported here: it loads transformers, which a dry help of another kind does not need
            from posttrain.tokens.tokenizer import load_any_tokenizer

            self._tokenizer = load_any_tokenizer(self.config.tokenizer)
        encoded: Any = self._tokenizer(text, add_special_tokens=False)
        return encoded["input_ids"]


def refuse_unproven(question: LongQuestion, facts: Facts) -> None:
    """Raise Discarded unless the texts give the gold, and without any needed one do not.

    Texts of others between the documents may contradict them, or say the same again.
    """
    documents = question.text.split("\n\n")[:-1]
    wanted = facts.solve(facts.needed)
    if wanted != question.gold or facts.solve(documents) != question.gold:
        raise Discarded("contradicted", question.gold)
    for position in question.needed:
        remaining = documents[: position - 1] + documents[position:]
        if facts.solve(remaining) == question.gold:
            raise Discarded("not_needed", f"document {position}")


def _numbered(texts: Sequence[str]) -> str:
    return "\n\n".join(f"Document {k}.\n{text}" for k, text in enumerate(texts, 1))


def _prompt(seed: Seed, name: str, text: str, gold: str) -> Prompt:
    return prompt_of(
        seed, name, text, environment=_ENVIRONMENT.name, grader="environment", gold=gold
    )


def _example(text: str, family: str) -> Example:
    return make_example([Message("user", text)], source=family, dialect="plain")


def _task(seed_id: str, question: LongQuestion) -> Row:
    family = seed_id.partition("-")[0]
    metadata = {"needed": list(question.needed), "tokens": question.tokens, "family": family}
    return {
        "environment": _ENVIRONMENT.name,
        "id": seed_id,
        "question": question.text,
        "gold": question.gold,
        "metadata": metadata,
    }


# -- families --------------------------------------------------------------------------------------


def _needles(rng: random.Random, needed: int) -> Facts:
    places = _places(rng, needed * (1 + _DISTRACTORS))
    codes = rng.sample(range(1000, 10_000), len(places))
    facts = [f"The access code of {p} is {c}." for p, c in zip(places, codes, strict=True)]
    wanted = places[:needed]

    def solve(documents: Sequence[str]) -> str | None:
        known = {match[1]: match[2] for text in documents for match in _CODE.finditer(text)}
        codes = [known.get(name) for name in wanted]
        return None if None in codes else json_text(codes)

    question = f"What are the access codes of {', '.join(wanted)}? Give them as a list: [1, 2]."
    return _facts(facts[:needed], facts[needed:], question, solve, rng)


def _chain(rng: random.Random, needed: int) -> Facts:
    """One folder goes from hand to hand; other people have handed theirs on as well."""
    people = rng.sample(_NAMES, min(len(_NAMES), 2 * needed + 2))
    chain = people[: needed + 1]
    others = people[needed + 1 :]
    facts = [f"{a} handed the blue folder to {b}." for a, b in itertools.pairwise(chain)]
    distractors = [f"{a} handed the blue folder to {b}." for a, b in itertools.pairwise(others)]

    def solve(documents: Sequence[str]) -> str | None:
        handed = {match[1]: match[2] for text in documents for match in _HANDED.finditer(text)}
        holder = chain[0]
        for _ in range(len(handed)):
            if holder not in handed:
                break
            holder = handed[holder]
        return None if holder == chain[0] else holder

    question = (
        f"{chain[0]} had the blue folder at first, and whoever gets it hands it on where a "
        "document says so. Who has it in the end? Give the name alone."
    )
    return _facts(facts, distractors, question, solve, rng)


def _sum(rng: random.Random, needed: int) -> Facts:
    places = _places(rng, needed * (1 + _DISTRACTORS))
    region = rng.choice(_REGIONS)
    facts: list[str] = []
    for number, place in enumerate(places):
        others = [name for name in _REGIONS if name != region]
        lies = region if number < needed else rng.choice(others)
        crates = rng.randint(11, 99)
        facts.append(f"The depot of {place} lies in {lies} and holds {crates} crates of rope.")

    def solve(documents: Sequence[str]) -> str | None:
        amounts = [
            int(match[3])
            for text in documents
            for match in _CRATES.finditer(text)
            if match[2] == region
        ]
        return str(sum(amounts)) if amounts else None

    question = f"How many crates of rope do all depots in {region} hold together?"
    return _facts(facts[:needed], facts[needed:], question, solve, rng)


FAMILIES: dict[str, Callable[[random.Random, int], Facts]] = {
    "needles": _needles,
    "multi_hop": _chain,
    "aggregation": _sum,
}


def _facts(
    needed: Sequence[str],
    others: Sequence[str],
    question: str,
    solve: Callable[[Sequence[str]], str | None],
    rng: random.Random,
) -> Facts:
    """Sentences as documents."""
    needed_documents = tuple(_padded(fact, rng) for fact in needed)
    return Facts(needed_documents, tuple(_padded(fact, rng) for fact in others), question, solve)


def _places(rng: random.Random, count: int) -> list[str]:
    return rng.sample([head + tail for head in _HEADS for tail in _TAILS], count)


def _padded(fact: str, rng: random.Random) -> str:
    """A document with a fact among sentences that say nothing about it."""
    sentences = [_sentence(rng) for _ in range(rng.randint(1, 3))]
    sentences.insert(rng.randint(0, len(sentences)), fact)
    return " ".join(sentences)


def _filler(rng: random.Random) -> str:
    return " ".join(_sentence(rng) for _ in range(rng.randint(2, 5)))


def _sentence(rng: random.Random) -> str:
    return rng.choice(_SENTENCES).replace("{n}", str(rng.randint(2, 900)))


def _pieces(text: str) -> list[str]:
    """A long text in pieces of one paragraph each, without empty lines."""
    words = text.split()
    return [" ".join(words[k : k + _PIECE]) for k in range(0, len(words), _PIECE)]
