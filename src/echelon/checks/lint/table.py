"""All rules, in the order of their codes. What lints, explains, documents and tests reads this."""

from echelon.checks.lint.rule import Rule
from echelon.checks.lint.rules import (
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
    "The #SBATCH lines": (*directive_lines.RULES, *amounts.RULES),
    "What is started": (*start.RULES, *commands.RULES, *syntax.RULES),
    "Where ranks meet": (*ports.RULES, *addresses.RULES, *world.RULES),
    "CPUs and variables": (*cpus.RULES, *environment.RULES),
    "Output and failures": output.RULES,
    "The Python script": (*data.RULES, *saving.RULES, *processes.RULES, *names.RULES),
}
RULES: tuple[Rule, ...] = tuple(rule for rules in THEMES.values() for rule in rules)


def find_rule(code: str) -> Rule | None:
    return next((rule for rule in RULES if rule.code == code.upper()), None)
