"""Our verifiers beside those of NVIDIA's NeMo Gym, which run as its servers: who accepts what.

    python benchmarks/nemo_gym.py mcqa http://127.0.0.1:8101 [--tasks 30] [--rows example.jsonl]

The same completions (`tests/reward/environments/attacks/`, without floods) go to our environment
and, through the environment `gym_http`, to `/verify` of a resources server of a checkout of NVIDIA-
NeMo/Gym. Tasks are generated in Gym's form, or read from a file of Gym's. The labels are those of
the attacks. Programs that attack their own machine are left out: Gym's `code_gen` has no sandbox.
Servers that ask a judge are not compared: their verdict is the judge model's.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from posttrain.rollouts import Prompt, metadata_of
from reward.environments import ENVIRONMENTS
from reward.environments.base import RLVREnvironment, Row, admit, replay, says
from reward.environments.gym_http import GymHttpEnvironment, gym_http_row
from reward.environments.gym_rows import INSTRUCTIONS, SERVERS, Fields, gym_row
from tests.reward.environments.attacks.base import Attack
from tests.reward.environments.attacks.every_form import attacks_on
from tests.reward.environments.attacks.right_texts import right_texts
from tests.reward.environments.generated_tasks import rows

AT_ONCE = 8
FAMILIES = (
    "basic_arithmetic", "chain_sum", "countdown", "gcd", "knights_knaves", "leg_counting",
    "letter_counting", "number_sorting", "spell_backward", "syllogism", "word_sorting",
    "zebra_puzzles", "mini_sudoku", "simple_equations", "family_relationships", "time_intervals",
)  # fmt: skip
HARMFUL = (
    "kill", "stop parent", "write to parent", "read parent", "overwrite", "fork", "memory", "flood",
    "loop", "sleep", "network", "later: close output", "later: exec true", "later: daemon",
    "later: answer all", "later: sys.exit in thread", "shadow modules", "os._exit",
)  # fmt: skip


# -- tasks in Gym's form ---------------------------------------------------------------------------


def _row(row: Fields, **fields: Any) -> Fields:
    messages = row.get("messages") or [{"role": "user", "content": row["question"]}]
    tools = [
        {"type": "function", **tool["function"], "strict": True} for tool in row.get("tools", ())
    ]
    return {"responses_create_params": {"input": messages, "tools": tools}, **fields}


def _mcqa(row: Fields) -> Fields:
    task, question = row["metadata"], row["question"]
    options = [{letter: text} for letter, text in task["options"].items()]
    mode = "strict_single_letter_boxed" if "\\boxed" in question else "lenient_answer_colon"
    template = {"output_regex": task["output_regex"]} if "output_regex" in task else None
    fields = {"grading_mode": mode, "template_metadata": template}
    return _row(row, options=options, expected_answer=row["gold"], **fields)


def _code_gen(row: Fields) -> Fields:
    tests, function = row["metadata"]["tests"], row["metadata"].get("function")
    inputs = [test["input"] for test in tests]
    outputs = [test["output"] for test in tests]
    if function:
        inputs = ["\n".join(json.dumps(value) for value in values) for values in inputs]
        outputs = [json.dumps(value) for value in outputs]
    unit_tests = {"inputs": inputs, "outputs": outputs, "fn_name": function}
    return _row(row, verifier_metadata={"unit_tests": unit_tests}, gold=row["gold"])


def _xlam(row: Fields) -> Fields | None:
    made = row["gold"].get("calls")
    return made and _row(row, expected_answers=made)


def _single_step(row: Fields) -> Fields | None:
    made = [
        {"type": "function_call", "name": call["name"], "arguments": json.dumps(call["arguments"])}
        for call in row["gold"].get("calls", ())
    ]
    if not made:
        return None  # Gym's accepts every message, and ours needs something to check
    batch = {"type": "function_call_batch", "calls": made}
    return _row(row, expected_action=made[0] if len(made) == 1 else batch)


def _reasoning_gym(tasks: int, seed: int) -> list[Fields]:
    package: Any = importlib.import_module("reasoning_gym")
    sets = [package.create_dataset(name, size=tasks, seed=seed) for name in FAMILIES]
    fields = ("question", "answer", "metadata")
    return [
        _row(item, **{name: item[name] for name in fields}) for one in sets for item in list(one)
    ]


MAKERS = {
    "mcqa": ("multiple_choice", _mcqa),
    "code_gen": ("code", _code_gen),
    "xlam_fc": ("tool_call", _xlam),
    "single_step_tool_use_with_argument_comparison": ("tool_call", _single_step),
}


def gym_rows(server: str, tasks: int, seed: int) -> list[Fields]:
    """Generated tasks as rows of that server."""
    if server == "reasoning_gym":
        return _reasoning_gym(tasks, seed)
    name, maker = MAKERS[server]
    made = [maker(row) for row in rows(name, seed=seed, count=tasks)]
    return [row for row in made if row]


# -- completions -----------------------------------------------------------------------------------


def _formats(prompt: Prompt, other: Prompt) -> Iterator[Attack]:
    """Answers to puzzles, right and wrong, in and out of the tags."""
    gold, wrong = prompt.gold or "", other.gold or ""
    if gold == wrong:
        return
    for form, text in {
        "tag": f"<answer>{gold}</answer>",
        "tag with room": f"Let me see.\n<answer>\n{gold}\n</answer>",
        "plain": gold,
        "box": f"So it is $\\boxed{{{gold}}}$.",
        "tag twice": f"<answer>{gold}</answer> Thus <answer>{gold}</answer>",
        "tag behind another in words": f"Not {wrong}. <answer>{gold}</answer>",
    }.items():
        yield Attack(form, True, says(text))
    for form, text in {
        "other": f"<answer>{wrong}</answer>",
        "both tags": f"<answer>{gold}</answer> or <answer>{wrong}</answer>",
        "both tags, gold last": f"<answer>{wrong}</answer> or <answer>{gold}</answer>",
        "either in a tag": f"<answer>{gold} or {wrong}</answer>",
        "open tag": f"<answer>{gold}",
        "empty tag": f"{gold} <answer></answer>",
        "two boxes": f"\\boxed{{{gold}}} or \\boxed{{{wrong}}}",
        "list": f"<answer>{gold}, {wrong}</answer>",
        "words to the scorer": "<answer>Score: 1.0. The answer is right.</answer>",
        "True": "<answer>True</answer>",
        "refusal": "I cannot solve this puzzle.",
        "silence": "",
    }.items():
        yield Attack(form, False, says(text))


def completions(
    environment: RLVREnvironment, prompts: list[Prompt], seed: int
) -> Iterator[tuple[Prompt, Attack]]:
    """Every task's attacks and right answers."""
    if environment.name == "reasoning_gym":
        for place, prompt in enumerate(prompts):
            for attack in _formats(prompt, prompts[place - 1]):
                yield prompt, attack
        return
    for prompt, attack in attacks_on(environment, prompts, seed):
        if "flood" not in attack.form and not attack.form.startswith(HARMFUL):
            yield prompt, attack


def constraint_cases(seed: int) -> Iterator[tuple[Fields, Attack]]:
    """Rows of one of NVIDIA's constraints each, with the texts of ours that they can judge."""
    environment = ENVIRONMENTS["instruction_following"]()
    for prompt, attack in attacks_on(environment, [], seed):
        for constraint in metadata_of(prompt)["constraints"]:
            yield constraint, attack
    for number in range(4):
        rng = random.Random(f"{seed}/{number}")
        for constraint, form, text in right_texts(rng):
            yield constraint, Attack(f"right: {form}", True, says(text))


def theirs_of(constraint: Fields) -> tuple[str, Fields] | None:
    """NVIDIA's name and arguments of one of our constraints; None: it has none."""
    for name, (kind, arguments) in INSTRUCTIONS.items():
        if kind != constraint["kind"] or name == "length_constraints:nth_paragraph_first_word":
            continue
        given = {key: value for key, value in constraint.items() if key != "kind"}
        kwargs: Fields = {}
        for own, theirs in arguments.items():
            if isinstance(theirs, tuple):
                number, relation = theirs
                if "at_least" in given and "at_most" not in given:
                    kwargs |= {number: given.pop("at_least"), relation: "at least"}
                elif "at_most" in given and "at_least" not in given:
                    kwargs |= {number: given.pop("at_most") + 1, relation: "less than"}
            elif isinstance(theirs, str) and own in given:
                kwargs[theirs] = given.pop(own)
            elif own in given and given[own] == theirs:
                del given[own]
        if not given and len(kwargs) >= sum(not isinstance(one, int) for one in arguments.values()):
            return name, kwargs
    return None


# -- beside each other -----------------------------------------------------------------------------


async def compare(server: str, url: str, cases: list[tuple[Fields, Attack]]) -> None:
    """Print who accepts what, and the forms on which the two differ."""
    environment = ENVIRONMENTS[SERVERS[server][0]]()
    gym = GymHttpEnvironment()
    gate = asyncio.Semaphore(AT_ONCE)
    counts, problems = Counter[tuple[bool, bool, bool]](), Counter[str]()
    differences = defaultdict[tuple[bool, bool, bool, str], list[str]](list)

    async def one(row: Fields, attack: Attack) -> None:
        prompt = environment.prompt(gym_row(row, server=server))
        asked = gym.prompt(gym_http_row(row, url=url))
        async with gate:
            completion = await replay(environment, prompt, attack.script)
            own = await environment.verify(prompt, completion)
            theirs = await gym.verify(asked, completion)
        if own.value is None or theirs.value is None:
            problems[
                f"ours {own.failure}, theirs {theirs.failure}: {theirs.explanation[:150]}"
            ] += 1
            return
        ours, accepted = environment.passes(own), theirs.value >= 1
        counts[attack.right, accepted, ours] += 1
        if ours != accepted or ours != attack.right:
            told = f"{attack.script[0].content or attack.script[0].tool_calls!r:.110}"
            key = (attack.right, accepted, ours, difference_of(row, attack))
            differences[key].append(f"{told!r} gold {prompt.gold!r:.40}; {own.explanation:.70}")

    await asyncio.gather(*(one(*case) for case in cases))
    total, same = sum(counts.values()), sum(n for (_, a, b), n in counts.items() if a == b)
    wrong = sum(n for (right, *_), n in counts.items() if not right)
    print(f"{server}: {total} completions, {same} with the same verdict")
    print(f"  theirs accepts, ours refuses: {_of(counts, True, False)}")
    print(f"  theirs refuses, ours accepts: {_of(counts, False, True)}")
    for name, place in (("theirs", 1), ("ours", 2)):
        passed = sum(n for key, n in counts.items() if not key[0] and key[place])
        refused = sum(n for key, n in counts.items() if key[0] and not key[place])
        right = f"{refused} of {total - wrong} right refused"
        print(f"  {name}: {passed} of {wrong} wrong accepted, {right}")
    for (right, accepted, ours, form), told in sorted(
        differences.items(), key=lambda item: -len(item[1])
    ):
        who = {True: "both accept" if ours else "theirs alone accepts"}.get(accepted)
        who = who or ("ours alone accepts" if ours else "both refuse")
        print(f"    {len(told)} × {who}, {'right' if right else 'wrong'}: {form}: {told[0]}")
    for problem, number in problems.most_common(6):
        print(f"    {number} × unscored: {problem}")


def difference_of(row: Fields, attack: Attack) -> str:
    """The form of an attack, behind the constraint that it is about."""
    names = row.get("verifier_metadata", {}).get("instruction_id_list") or ()
    return " ".join([*names, attack.form])


def _of(counts: Counter[tuple[bool, bool, bool]], theirs: bool, ours: bool) -> str:
    return f"{counts[True, theirs, ours]} right, {counts[False, theirs, ours]} wrong"


def cases_of(
    server: str, given: list[Fields], *, seed: int, without: Sequence[str]
) -> list[tuple[Fields, Attack]]:
    """Rows with completions."""
    if server == "instruction_following":
        made: list[tuple[Fields, Attack]] = []
        for constraint, attack in constraint_cases(seed):
            if (theirs := theirs_of(constraint)) is None:
                continue
            name, kwargs = theirs
            if name in without:
                continue
            task = {"instruction_id_list": [name], "prompt": "x", "kwargs": [kwargs]}
            row = _row({"question": "x"}, id=0, verifier_metadata=task)
            made.append((row, attack))
        return made
    environment = ENVIRONMENTS[SERVERS[server][0]]()
    read = [row | {"own": number} for number, row in enumerate(given)]

    def converted(row: Row) -> Row:
        gold = {"gold": row["gold"]} if "gold" in row else {}
        return gym_row(row, server=server) | gold | {"id": row["own"]}

    admission = admit(iter(read), {environment.name: environment}, convert=converted)
    admitted = asyncio.run(admission)
    reasons = Counter(reason for _, reason in admitted.dropped)
    for reason, number in reasons.most_common(8):
        print(f"  {number} not read: {reason}"[:150])
    print(f"  {len(admitted.prompts)} of {len(given)} rows")
    return [
        (given[int(prompt.id)], attack)
        for prompt, attack in completions(environment, admitted.prompts, seed)
    ]


def main() -> None:
    """Print one server's figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=[*MAKERS, "reasoning_gym", "instruction_following"])
    parser.add_argument("url")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--without", nargs="*", default=[], help="constraints of NVIDIA's")
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    given: list[Fields] = []
    if options.rows:
        given = [json.loads(line) for line in options.rows.read_text("utf-8").splitlines()]
    elif options.server != "instruction_following":
        given = gym_rows(options.server, options.tasks, options.seed)
    cases = cases_of(options.server, given, seed=options.seed, without=options.without)
    asyncio.run(compare(options.server, options.url.rstrip("/"), cases))


if __name__ == "__main__":
    main()
