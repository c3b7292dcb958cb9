#!/usr/bin/env python3
"""Every driver's --help says how it is called, what each option means, what holds without it, in which unit a number
is, the exit codes, and an example that its own options allow; and bash offers those options.

usage: test_help.py COMPLETION DRIVER..."""
import os
import re
import sys

from support import main, run

COMPLETION, DRIVERS = os.path.abspath(sys.argv[1]), sys.argv[2:]
OPTION = re.compile(r"^ {1,4}(?:-\w, *)?(--[a-z][a-z0-9-]*)")
# Types that hold a number of something, and what that may be.
NUMBERS = re.compile(r"^(?:N|X|K|P|S|SIZE|SPEED|SECONDS|U?INT\S*|FLOAT\S*)$")
UNITS = re.compile(r"\b(?:bytes|[GM]B|G?B/s|10\^9|seconds?|ms|tokens?|positions|threads?|layers?|experts?|panels|"
                   r"rounds|heads?|width|rank|pieces?|sequence|logits|share|seed|values?|ids?|files?|connections|"
                   r"times|tries|follows?|same)\b")
BUILT_IN = {"--help", "--version"}


class Help:
    def __init__(self, driver):
        self.name = os.path.basename(driver)
        self.code, out, self.err = run(driver, "--help")
        self.text = out.decode("utf-8")
        self.options = {}  # name -> (type or "", all its text, title of its group)
        group = current = ""
        for line in self.text.split("\n"):
            found = OPTION.match(line)
            if found:
                current = found.group(1)
                kind = re.match(r" ([A-Z]\S*)(?<!:)(?= |$)", line[found.end():])
                self.options[current] = [kind.group(1) if kind else "", line[found.end():], group]
            elif current and re.match(r" {8,}\S", line):
                self.options[current][1] += " " + line.strip()
            else:
                current = ""
                if re.match(r"[A-Z].*:$", line):
                    group = line[:-1]


HELPS = [Help(driver) for driver in DRIVERS]


def every(rule):
    """Runs rule(help) -> sentences for all drivers and tells of all of them at once."""
    problems = [f"{help.name}: {problem}" for help in HELPS for problem in rule(help)]
    assert not problems, "\n  " + "\n  ".join(problems)


def help_goes_to_stdout_and_says_how_it_is_called():
    def rule(help):
        lines = help.text.split("\n")
        if help.code != 0 or help.err:
            yield f"--help ends with {help.code} and {help.err!r} on stderr"
        if not re.match(r"[A-Z].*\.$", lines[0]):
            yield "the first line is not a sentence"
        if not re.search(rf"^Usage: {re.escape(help.name)} \[OPTIONS\]", help.text, re.M):
            yield "there is no synopsis"
        if not BUILT_IN <= set(help.options):
            yield "there is no --help or --version"
    every(rule)


def version_is_one_line():
    for driver in DRIVERS:
        code, out, err = run(driver, "--version")
        assert code == 0 and err == "", (driver, code, err)
        assert re.fullmatch(rf"{re.escape(os.path.basename(driver))} \d+\.\d+\.\d+\n", out.decode()), (driver, out)


def every_option_says_what_it_means():
    every(lambda help: [f"{name} has no description" for name, (kind, text, _) in help.options.items()
                        if not re.search(r"[a-z]{2,} [a-z]", text[len(kind):])])


def every_value_says_what_holds_without_it():
    """[8], [all], [none], =8 with its type, or "default: 8"; or the title of its group says how many must be given."""
    every(lambda help: [f"{name} {kind} does not say what holds without it: add [8], [all] or [none]"
                        for name, (kind, text, group) in help.options.items()
                        if kind and "one" not in group.split("(")[-1] and "REQUIRED" not in text
                        and not re.search(r"\[[^\]]+\]|=\w|\bdefault:? \w", re.sub(r"INT in \[.*?\]", "", text))])


def every_number_has_a_unit():
    every(lambda help: [f"{name} {kind} does not say of what" for name, (kind, text, _) in help.options.items()
                        if NUMBERS.match(kind) and not UNITS.search(text)])


def exit_codes_are_listed():
    def rule(help):
        codes = re.search(r"^Exit codes: (.*(?:\n(?!\w+:).+)*)", help.text, re.M)
        if not codes:
            yield "there is no line of exit codes"
            return
        listed = re.findall(r"(?:^|[,;]\s)(\d) \w", codes.group(1))
        if not {"0", "2"} <= set(listed) or listed != sorted(listed):
            yield f"exit codes are {listed}: 0 and 2 are in every driver, in order"
    every(rule)


def an_example_uses_options_that_exist():
    def rule(help):
        examples = re.findall(r"^Example: (.+)$", help.text, re.M)
        if not examples:
            yield "there is no example"
        for call in [call for example in examples for call in re.split(r"&&|\|", example)]:
            if call.split()[0] == help.name:
                yield from [f"the example has {word}, --help does not"
                            for word in re.findall(r" (--[a-z][a-z0-9-]*)", call) if word not in help.options]
        if not any(help.name in example.split() for example in examples):
            yield "the example does not call it"
    every(rule)


def complete(driver, *words):
    """What bash would offer for the last word; an empty list leaves it to file names."""
    script = ('source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _k3 "$1" "${@: -1}" "${@: -2:1}"; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    code, out, err = run("bash", "-euc", script, COMPLETION, driver, *words)
    assert code == 0 and err == "", err
    return out.decode().split()


def bash_offers_every_option():
    for driver, help in zip(DRIVERS, HELPS):
        offered = complete(driver, "--")
        assert sorted(offered) == sorted(help.options), (help.name, set(offered) ^ set(help.options))
        assert complete(driver, "folder", "--hel") == ["--help"], help.name


def bash_completes_file_names_elsewhere():
    for driver in DRIVERS:
        assert complete(driver, "") == [] and complete(driver, "--out", "fol") == []
    assert complete("no-such-program", "--") == []


def bash_knows_every_driver():
    names = [os.path.basename(driver) for driver in DRIVERS]
    code, out, err = run("bash", "-euc", 'source "$0"; complete -p "$@"', COMPLETION, *names)
    assert code == 0, err
    for line in out.decode().splitlines():
        assert "-o default" in line and "-F _k3" in line, line


main([help_goes_to_stdout_and_says_how_it_is_called, version_is_one_line, every_option_says_what_it_means,
      every_value_says_what_holds_without_it, every_number_has_a_unit, exit_codes_are_listed,
      an_example_uses_options_that_exist, bash_offers_every_option, bash_completes_file_names_elsewhere,
      bash_knows_every_driver])
