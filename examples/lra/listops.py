"""ListOps: nested operations on digits, written as a long sequence. Their value is the class.

Reference: Tay et al. 2021, "Long Range Arena", section 2.2.1, with the settings of its code: depth
and arguments up to 10, and an operation with probability 1/4 in place of a digit. The code also
writes parentheses. They are left out here, as by its tokenizer.
"""

import numpy as np

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
TOKENS = ("<pad>", *map(str, range(10)), *OPERATORS, CLOSE)
"""Tokens by id. Padding is 0."""
IDS = {token: index for index, token in enumerate(TOKENS)}
MAX_DEPTH = MAX_ARGUMENTS = 10
OPERATION_SHARE = 0.25


def value_of(operator: str, arguments: list[int]) -> int:
    """Return the value of an operation on digits. The median of an even number is rounded down."""
    if operator == "[MIN":
        return min(arguments)
    if operator == "[MAX":
        return max(arguments)
    if operator == "[MED":
        return int(np.median(arguments))
    return sum(arguments) % 10


class _TooLong(Exception):
    """An error: an expression is longer than the limit."""


def _grow(generator: np.random.Generator, depth: int, tokens: list[str], longest: int) -> int:
    """Add a random expression to the tokens and return its value."""
    if depth >= MAX_DEPTH or generator.random() > OPERATION_SHARE:
        digit = int(generator.integers(10))
        tokens.append(str(digit))
        return digit
    operator = OPERATORS[generator.integers(len(OPERATORS))]
    tokens.append(operator)
    count = int(generator.integers(2, MAX_ARGUMENTS + 1))
    arguments = []
    for _ in range(count):
        arguments.append(_grow(generator, depth + 1, tokens, longest))
        if len(tokens) > longest:
            raise _TooLong
    tokens.append(CLOSE)
    return value_of(operator, arguments)


def make_expression(
    generator: np.random.Generator, shortest: int, longest: int
) -> tuple[np.ndarray, int]:
    """Return a random expression as ids, uint8, and its value.

    Args:
        generator: random numbers.
        shortest: the expression has more tokens.
        longest: the expression has fewer tokens.

    Example:
        >>> ids, value = make_expression(np.random.default_rng(1), 5, 20)
        >>> evaluate([TOKENS[i] for i in ids]) == value
        True
    """
    while True:
        tokens: list[str] = []
        try:
            value = _grow(generator, 1, tokens, longest)
        except _TooLong:
            continue
        if shortest < len(tokens) < longest:
            return np.array([IDS[token] for token in tokens], dtype=np.uint8), value


def evaluate(tokens: list[str]) -> int:
    """Return the value of a whole expression."""
    stack: list[list[str]] = [[]]
    for token in tokens:
        if token in OPERATORS:
            stack.append([token])
        elif token == CLOSE:
            operator, *digits = stack.pop()
            stack[-1].append(str(value_of(operator, [int(digit) for digit in digits])))
        else:
            stack[-1].append(token)
    return int(stack[0][0])
