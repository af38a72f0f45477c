"""A line on the terminal: what is read, and that Ctrl-C is heard at any moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli import output
from tests.cli.terminals import CTRL_C, CTRL_D, Terminal, on_terminal

ASK = """
from holdfast.cli.forms import prompt

while True:
    try:
        print("read", repr(prompt("line: ")))
    except (EOFError, KeyboardInterrupt) as left:
        print(type(left).__name__)
"""

# Another thread takes the signals, so that no call of the main thread is interrupted: as it is for a signal that came a
# moment before the call.
DEAF = """
import signal, threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
"""


@contextmanager
def asking(directory: Path, code: str = ASK) -> Iterator[Terminal]:
    with on_terminal([sys.executable, "-c", code], directory) as terminal:
        terminal.see("line: ")
        yield terminal


def test_a_line_is_read_without_its_end_and_lines_typed_ahead_come_one_by_one(tmp_path: Path) -> None:
    with asking(tmp_path) as terminal:
        terminal.type(" gold \nsilver\n\n")
        for text in (" gold ", "silver", ""):
            terminal.see(f"read {text!r}\n")


def test_ctrl_d_leaves_and_behind_some_text_ends_the_line(tmp_path: Path) -> None:
    with asking(tmp_path) as terminal:
        terminal.type(CTRL_D)
        terminal.see("EOFError")
        terminal.type(f"gold{CTRL_D}{CTRL_D}")
        terminal.see("read 'gold'")


def test_bytes_that_are_no_text_are_kept_for_the_form_to_refuse(tmp_path: Path) -> None:
    with asking(tmp_path) as terminal:
        terminal.type("gr\udcfcn\n")
        terminal.see("read 'gr\\udcfcn'")


def test_ctrl_c_leaves_as_often_as_it_is_typed(tmp_path: Path) -> None:
    with asking(tmp_path) as terminal:
        for _ in range(100):
            terminal.type(CTRL_C)
            terminal.see("KeyboardInterrupt\nline: ")


def test_ctrl_c_is_noticed_also_when_it_comes_before_anything_waits_for_a_key(tmp_path: Path) -> None:
    with asking(tmp_path, DEAF + ASK) as terminal:
        for _ in range(3):
            terminal.type(CTRL_C)
            terminal.see("KeyboardInterrupt\nline: ")
        terminal.type("gold\n")
        terminal.see("read 'gold'")


# --- the command line around it ----------------------------------------------------------------------------------

INTERRUPTED_WHILE_LOADING = """
import sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from holdfast.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_while_the_command_line_is_being_loaded_ends_it_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING, "list"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (output.INTERRUPTED, "", "")
