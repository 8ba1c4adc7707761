"""All rules, ordered by code. Linting, explanations, documentation and tests use this table."""

from echelon.lint.rule import Rule
from echelon.lint.rules import (
    addresses,
    amounts,
    commands,
    cpus,
    data,
    directive_lines,
    environment,
    names,
    output,
    ports,
    processes,
    saving,
    start,
    syntax,
    world,
)

THEMES = {
    "`#SBATCH` directives": (*directive_lines.RULES, *amounts.RULES),
    "Launching": (*start.RULES, *commands.RULES, *syntax.RULES),
    "Rendezvous": (*ports.RULES, *addresses.RULES, *world.RULES),
    "CPUs and environment variables": (*cpus.RULES, *environment.RULES),
    "Output and failures": output.RULES,
    "Python scripts": (*data.RULES, *saving.RULES, *processes.RULES, *names.RULES),
}
RULES: tuple[Rule, ...] = tuple(rule for rules in THEMES.values() for rule in rules)


def find_rule(code: str) -> Rule | None:
    return next((rule for rule in RULES if rule.code == code.upper()), None)
