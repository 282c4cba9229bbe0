"""A place in the tokens of an application file that remembers what it would have accepted there.

So a refusal can say all that was expected: `expected KEY, RETAIN or ';' but found 'KEYS'`. `declarations` drives it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from tocsin.cluster.sql.problems import Position, Problem, any_of, did_you_mean, one_line, shortened
from tocsin.cluster.sql.tokens import Token, TokenKind, scan

_STARTS = {
    "CREATE": {"OR", "STREAM", "KEYED", "STATIC", "REPETITIVE", "CONTINUOUS", "FEED"},
    "DROP": {"DATASET", "CHANNEL", "FEED"},
}
"""What follows the first word of a statement of ours: such a pair inside a statement means a `;` was forgotten."""


class Refused(Exception):
    """The statement cannot be read further; its problem has been noted."""


class Cursor:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.problems: list[Problem] = []
        scanned = scan(text)
        self._tokens = scanned.tokens
        self._unfinished = scanned.unfinished
        self._index = 0
        self._accepted: list[str] = []
        """What was asked for at this token and was not there."""
        if self._unfinished is not None:
            opening = self._unfinished
            self.note(opening.start, f"{opening.what} is opened here and never closed", "unfinished", opening.closing)

    # Reading

    @property
    def token(self) -> Token | None:
        return self._tokens[self._index] if self._index < len(self._tokens) else None

    @property
    def offset(self) -> int:
        """Of the token to come; past the last token, just behind it."""
        if self.token is not None:
            return self.token.start
        return self._tokens[-1].end if self._tokens else 0

    @property
    def position(self) -> Position:
        return Position.of(self.text, self.offset)

    def peek(self, ahead: int = 1) -> Token | None:
        index = self._index + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def advance(self) -> Token:
        token = self._tokens[self._index]
        self._index += 1
        self._accepted.clear()
        return token

    def accept(self, *words: str) -> bool:
        """Take these keywords or symbols if they come next, all or none of them."""
        for ahead, word in enumerate(words):
            token = self.peek(ahead)
            if token is None or not (token.upper == word or token.is_symbol(word)):
                # `IF NOT` without EXISTS is refused at the third word, not at IF.
                if ahead:
                    for _ in range(ahead):
                        self.advance()
                    self.fail(_shown(word))
                self._accepted.append(_shown(word))
                return False
        for _ in words:
            self.advance()
        return True

    def choose(self, words: Iterable[str]) -> str:
        """The keyword among `words` that comes next, or a refusal that names them all."""
        chosen = next((word for word in words if self.accept(word)), None)
        if chosen is None:
            self.fail()
        return chosen

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            self.fail()

    def take(self, kind: TokenKind, what: str) -> Token:
        token = self.token
        if token is None or token.kind is not kind:
            self.fail(what)
        return self.advance()

    def take_identifier(self, what: str) -> Token:
        token = self.token
        if token is None or not token.is_identifier:
            self.fail(what)
        return self.advance()

    # Statements

    def at_end(self) -> bool:
        return self.token is None

    def at_statement_end(self) -> bool:
        return self.token is None or self.token.is_symbol(";") or self.at_forgotten_semicolon()

    def at_forgotten_semicolon(self) -> bool:
        following = self.peek()
        return self.token is not None and following is not None and following.upper in _STARTS.get(self.token.upper, ())

    def resynchronise(self) -> None:
        """On to the next statement: past the next `;`, or to a CREATE or DROP that lacks one before it."""
        while not self.at_statement_end():
            self.advance()
        self.skip_semicolons()

    def skip_semicolons(self) -> None:
        while self.token is not None and self.token.is_symbol(";"):
            self.advance()
        self._accepted.clear()

    # Problems

    def fail(self, *expected: str) -> NoReturn:
        """Refuse the token to come, naming all that would have been right."""
        self._accepted += expected
        token = self.token
        wanted = any_of(self._accepted)
        if token is None and self._unfinished is not None:
            raise Refused  # what comes next is unreadable, which has been said
        found = "the end of the file" if token is None else f"'{shortened(self.text[token.start : token.end])}'"
        hint = did_you_mean(token.text, self._accepted) if token is not None and token.is_identifier else ""
        self.note(self.offset, f"expected {wanted} but found {found}{hint}", "syntax", wanted)
        raise Refused

    def note(self, offset: int, message: str, code: str, expected: str | None = None) -> None:
        place = Position.of(self.text, offset)
        self.problems.append(Problem(self.file, place.line, place.column, one_line(message), expected, code))


def _shown(word: str) -> str:
    return word if word[0].isalpha() else f"'{word}'"
