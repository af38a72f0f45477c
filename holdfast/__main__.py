"""`holdfast` and `python -m holdfast`: the door to the command line, open before the command line is loaded."""

import sys

INTERRUPTED = 130
"""As in `holdfast.cli.output`, which may not have been loaded yet."""


def main() -> int:
    """Run one command; the exit code. Ctrl-C ends it without a traceback, also while it is still being loaded."""
    try:
        from holdfast.cli.main import main as command_line

        return command_line()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
