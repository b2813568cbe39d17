"""Our verifiers beside those of NVIDIA's NeMo Gym, which run as its servers: who accepts what.

    python -m benchmarks nemo_gym mcqa http://127.0.0.1:8101 [--tasks 30] [--rows example.jsonl]

The same completions (`tests/reward/environments/attacks/`, without floods) go to our environment
and, through the environment `gym_http`, to `/verify` of a resources server of a checkout of NVIDIA-
NeMo/Gym. Tasks are generated in Gym's form, or read from a file of Gym's. The labels are those of
the attacks. Programs that attack their own machine are left out: Gym's `code_gen` has no sandbox.
Servers that ask a judge are not compared: their verdict is the judge model's.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
from argparse import ArgumentParser, Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
Verdicts = tuple[bool, bool, bool]  # label, verdict of NeMo Gym, verdict of ours
ACCEPTED = {
    (True, True): "both accept",
    (True, False): "theirs alone accepts",
    (False, True): "ours alone accepts",
    (False, False): "both refuse",
}
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


def _in_gym_form(row: Fields, **fields: Any) -> Fields:
    """Row with its messages and tools as parameters of OpenAI's responses, and these fields."""
    messages = row.get("messages") or [{"role": "user", "content": row["question"]}]
    tools = [
        {"type": "function", **tool["function"], "strict": True} for tool in row.get("tools", ())
    ]
    return {"responses_create_params": {"input": messages, "tools": tools}, **fields}


def _mcqa(row: Fields) -> Fields:
    task = row["metadata"]
    options = [{letter: text} for letter, text in task["options"].items()]
    mode = "lenient_answer_colon"
    if "\\boxed" in row["question"]:
        mode = "strict_single_letter_boxed"
    template = None
    if "output_regex" in task:
        template = {"output_regex": task["output_regex"]}
    return _in_gym_form(
        row,
        options=options,
        expected_answer=row["gold"],
        grading_mode=mode,
        template_metadata=template,
    )


def _code_gen(row: Fields) -> Fields:
    tests = row["metadata"]["tests"]
    function = row["metadata"].get("function")
    inputs = [test["input"] for test in tests]
    outputs = [test["output"] for test in tests]
    if function:
        inputs = ["\n".join(json.dumps(value) for value in values) for values in inputs]
        outputs = [json.dumps(value) for value in outputs]
    unit_tests = {"inputs": inputs, "outputs": outputs, "fn_name": function}
    return _in_gym_form(row, verifier_metadata={"unit_tests": unit_tests}, gold=row["gold"])


def _xlam(row: Fields) -> Fields | None:
    calls = row["gold"].get("calls")
    return calls and _in_gym_form(row, expected_answers=calls)


def _single_step(row: Fields) -> Fields | None:
    calls = [
        {"type": "function_call", "name": call["name"], "arguments": json.dumps(call["arguments"])}
        for call in row["gold"].get("calls", ())
    ]
    if not calls:
        return None  # Gym's accepts every message, and ours needs something to check
    action: Fields = {"type": "function_call_batch", "calls": calls}
    if len(calls) == 1:
        action = calls[0]
    return _in_gym_form(row, expected_action=action)


def _reasoning_gym(tasks: int, seed: int) -> list[Fields]:
    package: Any = importlib.import_module("reasoning_gym")
    gym_form_rows: list[Fields] = []
    for family in FAMILIES:
        for item in package.create_dataset(family, size=tasks, seed=seed):
            fields = {name: item[name] for name in ("question", "answer", "metadata")}
            gym_form_rows.append(_in_gym_form(item, **fields))
    return gym_form_rows


MAKERS = {
    "mcqa": ("multiple_choice", _mcqa),
    "code_gen": ("code", _code_gen),
    "xlam_fc": ("tool_call", _xlam),
    "single_step_tool_use_with_argument_comparison": ("tool_call", _single_step),
}


def gym_rows(server: str, tasks: int, seed: int) -> list[Fields]:
    """Generate tasks as rows of a server."""
    if server == "reasoning_gym":
        return _reasoning_gym(tasks, seed)
    name, to_gym_form = MAKERS[server]
    gym_form_rows = [to_gym_form(row) for row in rows(name, seed=seed, count=tasks)]
    return [row for row in gym_form_rows if row]


# -- completions -----------------------------------------------------------------------------------


def _puzzle_answers(prompt: Prompt, next_prompt: Prompt) -> Iterator[Attack]:
    """Answers to a puzzle, in and out of the tags: its gold, and the next puzzle's as wrong."""
    gold = prompt.gold or ""
    wrong = next_prompt.gold or ""
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
    """Attacks on every task, and its right answers."""
    if environment.name == "reasoning_gym":
        for position, prompt in enumerate(prompts):
            for attack in _puzzle_answers(prompt, prompts[position - 1]):
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


def gym_constraint(constraint: Fields) -> tuple[str, Fields] | None:
    """NVIDIA's name and arguments of one of our constraints; None: it has none."""
    for name, (kind, arguments) in INSTRUCTIONS.items():
        if kind != constraint["kind"] or name == "length_constraints:nth_paragraph_first_word":
            continue
        untranslated = {key: value for key, value in constraint.items() if key != "kind"}
        kwargs: Fields = {}
        for our_key, their_key in arguments.items():
            if isinstance(their_key, tuple):
                number, relation = their_key
                if "at_least" in untranslated and "at_most" not in untranslated:
                    kwargs |= {number: untranslated.pop("at_least"), relation: "at least"}
                elif "at_most" in untranslated and "at_least" not in untranslated:
                    kwargs |= {number: untranslated.pop("at_most") + 1, relation: "less than"}
            elif isinstance(their_key, str) and our_key in untranslated:
                kwargs[their_key] = untranslated.pop(our_key)
            elif our_key in untranslated and untranslated[our_key] == their_key:
                # a constant of theirs, in place of a key
                del untranslated[our_key]
        required = [key for key in arguments.values() if not isinstance(key, int)]
        if not untranslated and len(kwargs) >= len(required):
            return name, kwargs
    return None


# -- beside each other -----------------------------------------------------------------------------


async def compare(server: str, url: str, cases: list[tuple[Fields, Attack]]) -> None:
    """Print who accepts what, and the forms on which the two differ."""
    environment = ENVIRONMENTS[SERVERS[server][0]]()
    gym = GymHttpEnvironment()
    gate = asyncio.Semaphore(AT_ONCE)
    # (right, accepted by theirs, accepted by ours) → completions
    counts = Counter[Verdicts]()
    problems = Counter[str]()
    differences = defaultdict[tuple[Verdicts, str], list[str]](list)

    async def verify_by_both(row: Fields, attack: Attack) -> None:
        prompt = environment.prompt(gym_row(row, server=server))
        gym_prompt = gym.prompt(gym_http_row(row, url=url))
        async with gate:
            completion = await replay(environment, prompt, attack.script)
            our_score = await environment.verify(prompt, completion)
            their_score = await gym.verify(gym_prompt, completion)
        if our_score.value is None or their_score.value is None:
            failures = f"ours {our_score.failure}, theirs {their_score.failure}"
            problems[f"{failures}: {their_score.explanation[:150]}"] += 1
            return
        verdicts = (attack.right, their_score.value >= 1, environment.passes(our_score))
        counts[verdicts] += 1
        if len(set(verdicts)) > 1:
            message = attack.script[0]
            content = f"{message.content or message.tool_calls!r:.110}"
            example = f"{content!r} gold {prompt.gold!r:.40}; {our_score.explanation:.70}"
            differences[verdicts, _form_of(row, attack)].append(example)

    await asyncio.gather(*(verify_by_both(*case) for case in cases))
    total = counts.total()
    same = sum(n for (_, by_theirs, by_ours), n in counts.items() if by_theirs == by_ours)
    wrong = sum(n for (right, *_), n in counts.items() if not right)
    print(f"{server}: {total} completions, {same} with the same verdict")
    print(f"  theirs accepts, ours refuses: {_counts_line(counts, True, False)}")
    print(f"  theirs refuses, ours accepts: {_counts_line(counts, False, True)}")
    for name, verdict in (("theirs", 1), ("ours", 2)):
        passed = sum(n for key, n in counts.items() if not key[0] and key[verdict])
        refused = sum(n for key, n in counts.items() if key[0] and not key[verdict])
        right_refused = f"{refused} of {total - wrong} right refused"
        print(f"  {name}: {passed} of {wrong} wrong accepted, {right_refused}")
    for (verdicts, form), examples in sorted(differences.items(), key=lambda item: -len(item[1])):
        label = "right" if verdicts[0] else "wrong"
        print(f"    {len(examples)} × {ACCEPTED[verdicts[1:]]}, {label}: {form}: {examples[0]}")
    for problem, number in problems.most_common(6):
        print(f"    {number} × unscored: {problem}")


def _form_of(row: Fields, attack: Attack) -> str:
    """Form of an attack, behind the constraint that it is about."""
    names = row.get("verifier_metadata", {}).get("instruction_id_list") or ()
    return " ".join([*names, attack.form])


def _counts_line(counts: Counter[Verdicts], by_theirs: bool, by_ours: bool) -> str:
    return f"{counts[True, by_theirs, by_ours]} right, {counts[False, by_theirs, by_ours]} wrong"


def make_cases(
    server: str, task_rows: list[Fields], *, seed: int, without: Sequence[str]
) -> list[tuple[Fields, Attack]]:
    """Rows with completions."""
    if server == "instruction_following":
        cases: list[tuple[Fields, Attack]] = []
        for constraint, attack in constraint_cases(seed):
            translated = gym_constraint(constraint)
            if translated is None:
                continue
            name, kwargs = translated
            if name in without:
                continue
            task = {"instruction_id_list": [name], "prompt": "x", "kwargs": [kwargs]}
            row = _in_gym_form({"question": "x"}, id=0, verifier_metadata=task)
            cases.append((row, attack))
        return cases
    environment = ENVIRONMENTS[SERVERS[server][0]]()
    numbered_rows = [row | {"number": number} for number, row in enumerate(task_rows)]

    def converted(row: Row) -> Row:
        gold = {"gold": row["gold"]} if "gold" in row else {}
        return gym_row(row, server=server) | gold | {"id": row["number"]}

    admission = admit(iter(numbered_rows), {environment.name: environment}, convert=converted)
    admitted = asyncio.run(admission)
    reasons = Counter(reason for _, reason in admitted.dropped)
    for reason, number in reasons.most_common(8):
        print(f"  {number} not read: {reason}"[:150])
    print(f"  {len(admitted.prompts)} of {len(task_rows)} rows")
    return [
        (task_rows[int(prompt.id)], attack)
        for prompt, attack in completions(environment, admitted.prompts, seed)
    ]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("server", choices=[*MAKERS, "reasoning_gym", "instruction_following"])
    parser.add_argument("url")
    parser.add_argument("--tasks", type=int, default=30)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--without", nargs="*", default=[], help="constraints of NVIDIA's")
    parser.add_argument("--seed", type=int, default=5)


def main(options: Namespace) -> None:
    """Print one server's figures."""
    task_rows: list[Fields] = []
    if options.rows:
        task_rows = [json.loads(line) for line in options.rows.read_text("utf-8").splitlines()]
    elif options.server != "instruction_following":
        task_rows = gym_rows(options.server, options.tasks, options.seed)
    cases = make_cases(options.server, task_rows, seed=options.seed, without=options.without)
    asyncio.run(compare(options.server, options.url.rstrip("/"), cases))
