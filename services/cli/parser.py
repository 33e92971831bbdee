"""A command's parser, with the exit code that wrong usage of this command has."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

EX_USAGE = 2


class Parser(argparse.ArgumentParser):
    """`wrong_usage` is what it ends with where it cannot read its command line."""

    wrong_usage = EX_USAGE

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(self.wrong_usage, f"{self.prog}: error: {message}\n")
