"""Personas + constraints that code verifies → conversations of which every turn keeps them.

As in the paper, 3.1.2: a user model with a persona and constraints writes queries over one or more
turns, generators answer, all turns have to pass the constraints' verifiers, and a judge removes
answers that keep them only trivially. The constraints are written behind the query by code, so that
what is verified is what the prompt says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from data_builders.keyed import key64
from data_builders.synthesis.seeds import plain_seeds, text_field
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
    chat_message,
    chat_row,
    grade,
    prompt_of,
    transcript,
)
from posttrain.config.load import nearest
from posttrain.config.synthesize import Instructions, PersonaRows
from posttrain.errors import ConfigError
from posttrain.records import Message, json_text
from reward.environments.instruction_following import (
    CONSTRAINTS,
    InstructionFollowingEnvironment,
)
from reward.graders.base import Attempt

_ENVIRONMENT = InstructionFollowingEnvironment()
_MAX_CHARACTERS = 2_000  # of a query; ours
_MAX_DRAWS = 50  # rows of the environment, until one has a constraint that the recipe names


class ConstrainedConversations(SynthesisKind):
    """The kind `instructions`; the content of its seeds is the text of a persona.

    Raises:
        ConfigError: the recipe names a kind of constraint that there is not.
    """

    config: Instructions

    def __init__(self, config: Instructions, setup: KindSetup) -> None:
        super().__init__(config, setup)
        for name in config.only:
            if name not in CONSTRAINTS:
                raise ConfigError(f"only: no constraint {name!r}{nearest(name, [*CONSTRAINTS])}")

    def seeds(self, work: Path) -> SeedSet:
        def persona_of(row: Row, source: PersonaRows) -> tuple[str, str]:
            persona = text_field(row, source.persona)
            return persona, persona

        return plain_seeds(self.config.personas, persona_of)

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        turns = self._turn_count(seed)
        return {"user": turns, "generator": turns, "judge": 1}

    def make(self, seed: Seed) -> Making:
        """Write queries and answers in turn, verify each answer, then ask the judge."""
        messages: list[Message] = []
        task: Row = {}
        for turn in range(self._turn_count(seed)):
            constraints, _ = self.constraints(seed, turn)
            wording = " ".join(CONSTRAINTS[each["kind"]].wording(each) for each in constraints)
            text = self.text(
                "persona_query",
                persona=seed.content,
                conversation=transcript(messages) or "(it begins with this message)",
                constraints=wording,
            )
            query = yield from ask_text(Ask("user", prompt_of(seed, f"query-{turn}", text)))
            if len(query) > _MAX_CHARACTERS:
                raise Discarded("too_long", f"{len(query):,} characters")
            messages.append(Message("user", f"{query} {wording}"))
            metadata = {"constraints": constraints}
            task = {
                "environment": _ENVIRONMENT.name,
                "messages": [chat_message(message) for message in messages],
                "metadata": metadata,
            }
            prompt = prompt_of(
                seed,
                f"answer-{turn}",
                messages,
                environment=_ENVIRONMENT.name,
                grader="environment",
                metadata=json_text(metadata),
            )
            completion = yield from ask_one(Ask("generator", prompt))
            [score] = yield from grade(Attempt(prompt, completion))
            if score.value is None:
                raise Discarded("unscored", score.explanation)
            if score.value < 1:
                raise Discarded("constraints_broken", score.explanation)
            messages += completion.messages
        judge_checks = yield from self.agreed(
            seed,
            "substance",
            template="judge_substance",
            detail=messages[-1].content[:200],
            conversation=transcript(messages),
        )
        yield Note("turns", str(self._turn_count(seed)))
        checks = (_ENVIRONMENT.name, *judge_checks)
        return Keep((chat_row(messages),), tasks=(task,), checks=checks)

    def bad_answer(self, seed: Seed, answered: Answered) -> str:
        """Plant a text that keeps every constraint and has nothing to do with the query.

        It is for the judge; without one, plant a text that breaks the constraints.
        """
        turn = int(answered.ask.prompt.setting.rpartition("-")[2])
        _, trivial = self.constraints(seed, turn)
        return trivial if "judge" in self.setup.models else "Done!"

    def constraints(self, seed: Seed, turn: int) -> tuple[list[Row], str]:
        """Draw the constraints of a turn, and a text that keeps all of them.

        The text shows that they do not exclude each other.
        """
        for draw in range(_MAX_DRAWS):
            number = key64(self.setup.seed, "constraints", seed.id, turn, draw) % 2**31
            row = _ENVIRONMENT.row(self.setup.seed, number)
            constraints: list[Row] = row["metadata"]["constraints"]
            if self.config.only:
                constraints = [
                    constraint
                    for constraint in constraints
                    if constraint["kind"] in self.config.only
                ]
            if constraints:
                return constraints[: self.config.constraints], row["gold"]
        raise ConfigError(f"only: {', '.join(self.config.only)} are hardly ever drawn")

    def _turn_count(self, seed: Seed) -> int:
        return 1 + key64(self.setup.seed, "turns", seed.id) % self.config.turns
