"""Writes the manual pages of docs/man from the declarations that --help prints.

    python docs/generate_man.py              writes all pages
    python docs/generate_man.py PAGE --print prints one page, such as teletensor-kill.1

The pages of the Python commands come from their argparse parsers, those of the daemon and its health
check from what the built programs print.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/man"
BINARIES = ROOT / "build/release/bin"
# The name and the section of each program that prints its own help.
PROGRAMS = {"teletensord.8": "teletensord", "teletensor-health.1": "teletensor-health"}


def escaped(text):
    """Text for roff: no character of it is a request or an escape."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def bold(text):
    return f"\\fB{escaped(text)}\\fR"


def entry(term, text):
    """An option or an argument, and what it does."""
    return [".TP", term, escaped(text) or "\\&"]


def metavar(action):
    if action.nargs == 0:
        return ""
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.metavar or action.dest.upper()


def options_of(parser):
    """Entries of the arguments and options of a parser, without its subcommands."""
    lines = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        words = [bold(each) for each in action.option_strings] or [bold(metavar(action))]
        value = f" {escaped(metavar(action))}" if action.option_strings and metavar(action) else ""
        text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        lines += entry(", ".join(f"{word}{value}" for word in words), text)
    return lines


def synopsis(title, parser):
    words = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words.append(escaped("COMMAND ..."))
            continue
        value = metavar(action)
        if action.option_strings:
            word = bold(action.option_strings[-1]) + (f" {escaped(value)}" if value else "")
            words.append(word if action.required else f"[{word}]")
        else:
            value = escaped(value)
            more = {"*": f"[{value} ...]", "+": f"{value} ...", "?": f"[{value}]"}
            words.append(more.get(action.nargs, value))
    return [bold(title), *words]


def subcommands(parser):
    """(name, what it does, parser) of each subcommand."""
    found = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return [(choice.dest, choice.help, each.choices[choice.dest])
            for each in found for choice in each._choices_actions]


def page(name, what, title, parser, described=True):
    """A page from a parser."""
    lines = [".SH NAME", f"{escaped(name)} \\- {escaped(what)}", ".SH SYNOPSIS", *synopsis(title, parser)]
    if described and parser.description:
        lines += [".SH DESCRIPTION", escaped(parser.description)]
    lines += [".SH OPTIONS", *options_of(parser)]
    below = subcommands(parser)
    if below and title == "teletensor":
        lines.append(".SH COMMANDS")
        for each, text, _ in below:
            name, section = ("teletensord", 8) if each == "serve" else (f"teletensor-{each}", 1)
            lines += entry(f"{bold(name)}({section})", text)
    else:
        for each, text, sub in below:
            lines += [f".SH COMMAND {escaped(each).upper()}", escaped(text) + ".", ".PP",
                      *synopsis(f"{title} {each}", sub), *options_of(sub)]
    lines += [".SH EXIT STATUS", escaped(parser.epilog.removeprefix("Exit status: "))]
    see = "teletensord(8)" if title == "teletensor" else "teletensor(1), teletensord(8)"
    return [*lines, ".SH SEE ALSO", escaped(see)]


def program_page(program):
    """A page from the help of a built program."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TELETENSOR_")}
    text = subprocess.run([BINARIES / program, "--help"], capture_output=True, text=True, check=True,
                          timeout=60, env=environment).stdout.replace(str(BINARIES) + "/", "")
    head, _, rest = text.partition("Usage:")
    usage, _, rest = rest.partition("\n")
    body, _, footer = rest.partition("Exit status: ")
    first, _, more = head.strip().removeprefix(f"{program}: ").partition("\n")
    lines = [".SH NAME", f"{escaped(program)} \\- {escaped(first.rstrip('.'))}",
             ".SH SYNOPSIS", escaped(usage)]
    if more.strip():
        lines += [".SH DESCRIPTION", escaped(more)]
    options = []
    for line in body.splitlines():
        if match := re.match(r"  (-\S.*?)(?: {2,}(\S.*))?$", line):
            options.append([match[1], match[2] or ""])
        elif line.startswith("      ") and options:
            options[-1][1] += " " + line.strip()
    if options:
        lines.append(".SH OPTIONS")
    for term, text in options:
        lines += entry(bold(term), text)
    lines += [".SH EXIT STATUS", escaped(footer)]
    return [*lines, ".SH SEE ALSO", escaped("teletensor(1)")]


def pages():
    """A function that makes the lines of each page, by the page's name."""
    for key in [key for key in os.environ if key.startswith("PET_")]:
        del os.environ[key]  # they are defaults of `launch`
    from teletensor.cli import command_parser
    from teletensor.distributed._flags import _parser

    parser, _ = command_parser()
    found = {"teletensor.1": lambda: page("teletensor", "commands of clients and operators of teletensord",
                                          "teletensor", parser, described=False)}
    for name, what, each in subcommands(parser):
        title = f"teletensor {name}"
        if name == "launch":
            each = _parser(title)
        elif name == "serve":
            continue  # it becomes teletensord
        elif name == "health":
            continue  # beside the program teletensor-health, on whose page it is
        found[f"teletensor-{name}.1"] = lambda each=each, what=what, title=title: page(
            title.replace(" ", "-"), what, title, each)
    health = next(each for name, _, each in subcommands(parser) if name == "health")
    found |= {key: lambda program=program: program_page(program) for key, program in PROGRAMS.items()}
    found["teletensor-health.1"] = lambda: [
        *program_page("teletensor-health"), ".SH THE COMMAND OF THE PYTHON CLIENT",
        *synopsis("teletensor health", health), *options_of(health), ".PP", escaped(health.epilog)]
    return found


def text_of(name, lines):
    title, section = name.rsplit(".", 1)
    return "\n".join([f'.\\" Generated by `python docs/generate_man.py {name}`',
                      f'.TH {escaped(title).upper()} {section} "" teletensor', *lines]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?")
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    found = pages()
    if options.print:
        print(text_of(options.page, found[options.page]()), end="")
        return
    FOLDER.mkdir(exist_ok=True)
    for name in [options.page] if options.page else found:
        (FOLDER / name).write_text(text_of(name, found[name]()), encoding="utf-8")
    if not options.page:
        for path in FOLDER.iterdir():
            if path.name not in found and path.suffix in (".1", ".8"):
                path.unlink()


if __name__ == "__main__":
    sys.exit(main())
