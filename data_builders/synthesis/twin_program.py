"""Worked solutions of word problems → programs over the numbers of the question, and new numbers.

GSM8K's solutions hold their calculations: `He sold 48/2 = <<48/2=24>>24 clips`. Each number of a
calculation has to be explained: it is the result of an earlier one, stands in the question once, is
a percentage of it, or is named there in words. A solution with any other number (a difference that
was taken in the head, say) has no program: its gold could not be computed again with other numbers.
"""

from __future__ import annotations

import ast
import itertools
import operator
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from data_builders.synthesis.steps import Discarded

_CALCULATION = re.compile(r"<<([^<>=]+)=([^<>]+)>>")
_FINAL = re.compile(r"####\s*(-?[\d,.]+)")
# a result in the prose of a solution, outside its calculations: "100% - 40% - 20% = 40% are left"
_RESULT_IN_PROSE = re.compile(r"=\s*\$?\s*(\d[\d,]*(?:\.\d+)?|\.\d+)")
# a number that is a word of its own: no time, date, fraction, ordinal or part of a name
_IN_QUESTION = re.compile(
    r"(?<![\w.,:/-])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.\d+|\d+)(?![\w:/-]|\.\d|,\d)"
)
# any number but an ordinal, also of a time, a fraction or "a 10-pound bag": it may be what a
# calculation means
_DIGITS = re.compile(r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?![\d,]*(?:st|nd|rd|th)\b)")
_LITERAL = re.compile(r"\d*\.\d+|\d+\.?")
_OPERATOR = re.compile(r"\d\s*\)*\s*[-+*/]")
_EXPRESSION = re.compile(r"[\d.+\-*/() ]+")
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# values that words of a question stand for, without a digit
_WORDS: dict[int, str] = {
    1: r"one|an?|each|every|per|single|once|another",
    2: r"two|twice|double[sd]?|half|halves|pairs?|couples?|both|second|doubling",
    3: r"three|thrice|triple[sd]?|thirds?",
    4: r"four|fourth|quarters?|quadruple[sd]?",
    5: r"five|fifths?|weekdays?|nickels?",
    6: r"six|sixths?",
    7: r"seven|weeks?|weekly|days?|daily",
    8: r"eight|eighths?",
    9: r"nine|ninths?",
    10: r"ten|tenths?|decades?|dimes?",
    12: r"twelve|dozens?|years?|yearly|annual(?:ly)?|months?|monthly|foot|feet|inch(?:es)?",
    24: r"days?|hours?|daily",
    25: r"quarters?",
    30: r"months?|monthly|days?|thirty",
    52: r"years?|weeks?|yearly|weekly",
    60: r"minutes?|hours?|seconds?|hourly",
    100: r"hundred|percent(?:age)?|cents?|dollars?|met(?:er|re)s?|centimet(?:er|re)s?",
    365: r"years?|days?",
    1000: r"thousand|kilo\w*|grams?|liters?|met(?:er|re)s?|millilit\w*",
}
_YEARS = range(1900, 2101)
# with other numbers another option, or the other side of a limit, may give the answer, and the
# calculations of the solution would still be those of the old one
_CHOICE = re.compile(
    r"\b(?:greatest|largest|highest|lowest|smallest|maximum|minimum|most|least|fewest|cheap\w*|best"
    r"|exceed\w*|overtime|up to|no more than|whichever|either|otherwise|unless|until|nearest"
    r"|round(?:ed|s|ing)?|remainder|(?:over|above|below|under|first|after|beyond) \$?\d)\b",
    re.IGNORECASE,
)
# before a number that counts or names what the text names too, or says what a unit is: "those 3
# months", "Grade 4", "a pint equals 16 ounces"
_LISTED_OR_FIXED = re.compile(
    r"\b(?:(?:these|those|all) (?:of the )?"
    r"|(?:grade|room|level|chapter|number|no\.|section|table) "
    r"|(?:an?|one|1|each|every) \w+ (?:is equal to|equals|=) )\Z",
    re.IGNORECASE,
)
_OF_HUNDRED = re.compile(r"\b(?:tests?|exams?|quiz(?:zes)?)\b", re.IGNORECASE)
# behind a number that is a fact of the world: "128 ounces in a gallon", "each spider has 8 eyes",
# "a $20 bill", "2 point conversions"
_FACT = re.compile(
    r"\s+(?:(?:(?:ounces|(?:table|tea)spoons|cups|pints|quarts|inches|feet|yards|cards|hours|minutes"
    r"|seconds|days|weeks|months|pennies|nickels|dimes|cents) (?:in|to|make|makes|equals?) (?:an?"
    r"|one|each|every)|(?:table|tea)spoons|eyes|legs|wings|arms|fingers|toes|ears|hands|teeth|letters"
    r"|(?:dollar )?(?:bill|coin)s?|point (?=[a-z])|of (?:them|us))\b)"
)
# a part that the others leave of a whole: with other numbers they would leave another
_PART = re.compile(r"\b(?:remaining|the (?:rest|other)) \$?\d", re.IGNORECASE)
# unit → largest new number before it, if the old number is not larger: a day has 24 hours
_UNITS = (("day", 7), ("hour", 24), ("month", 12), ("minute", 60), ("week", 52), ("year", 100))
_MAX_DRAWS = 300  # of new numbers for one question, ours
_LARGEST_RESULT = 10**6  # of a step, ours


@dataclass(frozen=True, slots=True)
class Variable:
    """Number of the question that may be replaced.

    Attributes:
        name: name in the program.
        start, end: span of characters in the question.
        highest: largest new value.
    """

    name: str
    start: int
    end: int
    value: Fraction
    is_percent: bool
    highest: int


@dataclass(frozen=True, slots=True)
class Program:
    """Calculation over the variables of a question, step by step; `s0` is the first result.

    Attributes:
        variables: numbers that may change.
        steps: expressions over names and numbers; the last one gives the gold.
    """

    question: str
    variables: tuple[Variable, ...]
    steps: tuple[str, ...]

    def run(self, values: Mapping[str, Fraction]) -> list[Fraction]:
        """Compute the results of all steps. Raises ZeroDivisionError."""
        return [operations[-1] for operations in self.operations(values)]

    def operations(self, values: Mapping[str, Fraction]) -> list[list[Fraction]]:
        """Compute the results of all operations of each step. Raises ZeroDivisionError."""
        names = dict(values)
        results: list[list[Fraction]] = []
        for number, step in enumerate(self.steps):
            operations: list[Fraction] = []
            names[f"s{number}"] = evaluate(step, names, operations)
            results.append(operations)
        return results

    def original(self) -> dict[str, Fraction]:
        """Values as the question states them."""
        return {variable.name: variable.value for variable in self.variables}

    def question_with(self, values: Mapping[str, Fraction]) -> str:
        """Write the question with other numbers, in the form of the old ones."""
        text = self.question
        # from the end, so that the spans before stay right
        for variable in sorted(self.variables, key=lambda variable: -variable.start):
            number = shown(values[variable.name])
            if "," in text[variable.start : variable.end]:
                number = f"{int(values[variable.name]):,}"
            elif "." in number and text[: variable.start].endswith("$"):
                number = f"{float(number):.2f}"
            text = text[: variable.start] + number + text[variable.end :]
        return text


def program_of(question: str, solution: str) -> Program:
    """Read the program of a worked solution.

    Raises:
        Discarded: there are no calculations, one is wrong or rounded, or a number of one is not
            explained by the question.
    """
    calculations = _CALCULATION.findall(solution)
    final_match = _FINAL.search(solution)
    if not calculations or final_match is None:
        raise Discarded("no_program", "no calculation in << >>, or no ####")
    choice_match = _CHOICE.search(question)
    if choice_match is not None:
        raise Discarded("depends_on_a_choice", choice_match[0])
    part_match = _PART.search(question)
    if part_match is not None:
        raise Discarded("depends_on_a_part", part_match[0])
    variables = _find_variables(question)
    in_prose = _results_in_prose(solution)
    used_names: set[str] = set()
    results: list[Fraction] = []
    steps: list[str] = []
    for expression, stated in calculations:
        expression = expression.replace(",", "")
        if not _EXPRESSION.fullmatch(expression) or not _OPERATOR.search(expression):
            raise Discarded("no_program", f"{expression} is no arithmetic")
        step = _LITERAL.sub(
            lambda literal: _explain(
                literal[0], question, variables, results, used_names, in_prose
            ),
            expression,
        )
        try:
            value = evaluate(expression, {})
            is_right = value == Fraction(stated.strip().replace(",", ""))
        except (ValueError, ZeroDivisionError, SyntaxError) as error:
            raise Discarded("no_program", f"{expression} = {stated}") from error
        if not is_right:
            raise Discarded("rounded_calculation", f"{expression} = {stated}")
        steps.append(step)
        results.append(value)
    if results[-1] != Fraction(final_match[1].rstrip(".").replace(",", "")):
        raise Discarded("no_program", "the last calculation is not the answer")
    changeable = tuple(variable for variable in variables if variable.name in used_names)
    if not changeable:
        raise Discarded("nothing_to_change", "no number of the question is calculated with")
    if len(changeable) < len(variables):
        for variable in changeable:
            # what the solution took in the head from an unused number may have the same value
            if len(re.findall(rf"\b{variable.name}\b", " ".join(steps))) > 1:
                raise Discarded("ambiguous_number", f"{shown(variable.value)} counts twice")
    program = Program(question, changeable, tuple(steps))
    assert program.run(program.original())[-1] == results[-1], "the program gives the gold"
    return program


def _find_variables(question: str) -> list[Variable]:
    """Find the numbers that stand in a question once, and that no word of it may stand for."""
    values = _numbers(question)
    variables: list[Variable] = []
    for number, match in enumerate(_IN_QUESTION.finditer(question)):
        value = Fraction(match[1].replace(",", ""))
        if values.count(value) > 1 or value in (0, 1) or value in _YEARS:
            continue
        following = question[match.end() :]
        if _is_named(value, question) or _FACT.match(following):
            continue
        if _LISTED_OR_FIXED.search(question[: match.start()]):
            continue
        is_percent = re.match(r"\s*(?:%|percent\b)", following) is not None
        if is_percent and value == 50:  # what is left is 50 % too: a solution may take either
            continue
        highest = _highest_value(value, following, is_percent=is_percent)
        if value <= 100 and _OF_HUNDRED.search(question):  # it may be a score
            highest = min(highest, 100)
        variables.append(
            Variable(f"q{number}", match.start(), match.end(), value, is_percent, highest)
        )
    return variables


def _numbers(question: str) -> list[Fraction]:
    """Find all numbers of a question, in any form."""
    return [Fraction(match[0].replace(",", "")) for match in _DIGITS.finditer(question)]


def _results_in_prose(solution: str) -> set[Fraction]:
    """Find the results that a solution states outside its calculations, which cannot be redone."""
    prose = _CALCULATION.sub("<>", solution)
    return {Fraction(match[1].replace(",", "")) for match in _RESULT_IN_PROSE.finditer(prose)}


def _is_named(value: Fraction, question: str) -> bool:
    """True if a word of the question may stand for a value."""
    words = _WORDS.get(int(value)) if value.denominator == 1 else None
    if words is None:
        return False
    if value == 100 and "%" in question:
        return True
    return re.search(rf"\b(?:{words})\b", question, re.IGNORECASE) is not None


def _highest_value(value: Fraction, following: str, *, is_percent: bool) -> int:
    """Largest new value that makes sense before the words that follow a number."""
    if is_percent and value < 100:
        return 99
    for unit, limit in _UNITS:
        if value <= limit and re.match(rf"(?:\s|-)+(?:more )?{unit}", following):
            return limit
    return max(3, 2 * int(value))


def _explain(
    literal: str,
    question: str,
    variables: list[Variable],
    results: list[Fraction],
    used_names: set[str],
    in_prose: set[Fraction],
) -> str:
    """Name of a number of a calculation; the number itself if it may not change.

    Args:
        results: results of the steps before.
        used_names: variables of earlier numbers; one of this number is added.
        in_prose: results that the solution states without a calculation of theirs.

    Raises:
        Discarded: the number is not explained, or in more than one way.
    """
    value = Fraction(literal.rstrip("."))
    explanations = [f"s{number}" for number, result in enumerate(results) if result == value]
    for variable in variables:
        if variable.value == value:
            explanations.append(variable.name)
        if variable.is_percent and variable.value == value * 100:
            explanations.append(f"({variable.name}/100)")
    if value in in_prose and value not in results:
        raise Discarded("ambiguous_number", f"{literal} is a result in the solution's prose")
    if _is_named(value, question):
        if _computed_in_the_head(value, question):
            raise Discarded("ambiguous_number", f"{literal} may be a word, or computed")
        if explanations:  # 6 may be an earlier result, or the six oranges
            raise Discarded("ambiguous_number", f"{literal} may be {explanations[0]} or a word")
        return literal
    if len(explanations) > 1:
        raise Discarded("ambiguous_number", f"{literal} may be {' or '.join(explanations)}")
    if explanations:
        [explanation] = explanations
        if explanation.startswith("s") and value in _numbers(question):
            raise Discarded("ambiguous_number", f"{literal} may be {explanation} or a number")
        name = explanation.strip("()").partition("/")[0]
        if name.startswith("q"):
            # "every 10 bowls; half of the 20 customers": the solution may mean either 10
            if 2 * value in _numbers(question) and re.search(r"\bhal(?:f|ves)\b", question, re.I):
                raise Discarded("ambiguous_number", f"{literal} is half of another number too")
            if name in used_names and value in _WORDS:  # up and down is two as well
                raise Discarded("ambiguous_number", f"{literal} is calculated with twice")
            used_names.add(name)
        return explanation
    # it stands there more than once, beside a word for it, or as a fact: it stays
    if value in _numbers(question):
        return literal
    raise Discarded("unexplained_number", f"{literal} is neither in the question nor a result")


def _computed_in_the_head(value: Fraction, question: str) -> bool:
    """True if two numbers of the question, or one and a factor of a word, give a value above 4.

    24 may be the hours of a day, and three times the 8 of the question. For a smaller value there
    is a word that means nothing else.
    """
    if value <= 4:
        return False
    numbers = [number for number in _numbers(question) if number not in (0, 1)]
    if any(factor * number == value for factor in (2, 3, 4) for number in numbers):
        return True
    return any(
        value in (low + high, high - low, low * high)
        for low, high in itertools.combinations(sorted(numbers), 2)
    )


def evaluate(
    expression: str, names: Mapping[str, Fraction], operations: list[Fraction] | None = None
) -> Fraction:
    """Compute the exact value of an arithmetic expression.

    Args:
        operations: gets the result of each operation, that of the whole expression last.

    Raises:
        ValueError, SyntaxError: it is no arithmetic expression.
        ZeroDivisionError: it has no value.
    """
    body = ast.parse(expression.strip(), mode="eval").body
    return _evaluate_node(body, names, [] if operations is None else operations)


def _evaluate_node(
    node: ast.expr, names: Mapping[str, Fraction], operations: list[Fraction]
) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left = _evaluate_node(node.left, names, operations)
        right = _evaluate_node(node.right, names, operations)
        operations.append(_OPERATIONS[type(node.op)](left, right))
        return operations[-1]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operations.append(-_evaluate_node(node.operand, names, operations))
        return operations[-1]
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    raise ValueError(f"no arithmetic: {ast.dump(node)}")


def other_values(program: Program, rng: random.Random) -> dict[str, Fraction]:
    """Draw new numbers with which the question still makes sense.

    They keep the order of all numbers, whole numbers stay whole, percentages stay below 100, and
    every result keeps its sign and its kind; the gold is another one. Where such numbers are drawn,
    all of them and all results have as many digits as before: longer numbers are harder.

    Raises:
        Discarded: no such numbers were drawn.
    """
    old_operations = program.operations(program.original())
    longer_or_shorter: dict[str, Fraction] | None = None
    for _ in range(_MAX_DRAWS):
        values = {variable.name: _draw_value(variable, rng) for variable in program.variables}
        if not _keeps_order(program, values):
            continue
        try:
            operations = program.operations(values)
        except ZeroDivisionError:
            continue
        steps = zip(old_operations, operations, strict=True)
        if not all(_same_kind(old, new) for old, new in steps):
            continue
        if operations[-1][-1] == old_operations[-1][-1]:
            continue
        if has_same_digits(program, values):
            return values
        longer_or_shorter = longer_or_shorter or values
    if longer_or_shorter is None:
        raise Discarded("no_other_numbers", f"{_MAX_DRAWS} draws")
    return longer_or_shorter


def has_same_digits(program: Program, values: Mapping[str, Fraction]) -> bool:
    """True if every number and every result is as long before its decimal point as before."""
    original = program.original()
    old_numbers = [*original.values(), *program.run(original)]
    numbers = [*(values[name] for name in original), *program.run(values)]
    return all(
        len(str(abs(int(number)))) == len(str(abs(int(old))))
        for number, old in zip(numbers, old_numbers, strict=True)
    )


def _draw_value(variable: Variable, rng: random.Random) -> Fraction:
    """Draw a value between half and twice the old one, as round as the old one."""
    old = variable.value
    if old.denominator > 1:
        scale = 10 if old.denominator in (2, 5, 10) else 100
        while True:
            drawn = Fraction(rng.randint(int(old * scale / 2) + 1, int(old * scale * 2)), scale)
            if drawn.denominator > 1:  # "1 times more" is not what "1.5 times more" was
                return drawn
    highest = min(variable.highest, max(3, 2 * int(old)))
    step = 1
    if old % 10 == 0 and old >= 50:
        step = 10
    elif old % 5 == 0 and old >= 10:
        step = 5
    number = rng.randint(max(2, int(old) // 2), highest)
    return Fraction(max(2, number // step * step))


def _keeps_order(program: Program, values: Mapping[str, Fraction]) -> bool:
    """True if new values are in the order of the old ones, and not all the same as these."""
    ascending = sorted(program.variables, key=lambda variable: variable.value)
    numbers = [values[variable.name] for variable in ascending]
    is_ascending = all(low < high for low, high in itertools.pairwise(numbers))
    return is_ascending and numbers != [variable.value for variable in ascending]


def _same_kind(old: list[Fraction], new: list[Fraction]) -> bool:
    """True if a step's new result has the sign of the old one, and is whole or of two digits too.

    Args:
        old, new: results of the step's operations; a whole one stays whole, for half of 35 pupils
            may be hidden in it.
    """
    if (old[-1] > 0) != (new[-1] > 0) or abs(new[-1]) > _LARGEST_RESULT:
        return False
    if old[-1].denominator > 1 and (new[-1] * 100).denominator > 1:
        return False
    pairs = zip(old, new, strict=True)
    return all(now.denominator == 1 for before, now in pairs if before.denominator == 1)


def shown(value: Fraction) -> str:
    """Write a number as a question does."""
    if value.denominator == 1:
        return str(value.numerator)
    text = f"{float(value):.2f}"
    assert Fraction(text) == value, "two digits behind the point say it"
    return text if value.denominator > 10 else text.rstrip("0")
