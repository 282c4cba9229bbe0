"""`tocsin up` prints the dashboard's address: with the token on a terminal, without it into a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tocsin.cli.processes import dashboard
from tocsin.runtime.stack.stack import Stack, StackSettings


@pytest.mark.parametrize("is_terminal", [True, False])
def test_token_is_shown_on_a_terminal_and_never_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    stack = Stack(StackSettings(tmp_path, brokers=0))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert dashboard(stack) == "http://127.0.0.1:8570/ (asks for a token)"
    stack.token_file.parent.mkdir(parents=True)
    stack.token_file.write_text("secret\n", encoding="utf-8")
    shown = dashboard(stack)
    assert ("#token=secret" in shown) is is_terminal
    assert (str(stack.token_file) in shown) is not is_terminal
