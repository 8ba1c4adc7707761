"""The rules by theme, as `docs/lint.md` lists them. A rule that is not listed here is not run."""

from echelon.lint.rule import Rule
from echelon.lint.rules.addresses import wrong_host
from echelon.lint.rules.conda import not_activated
from echelon.lint.rules.continuations import broken_continuation
from echelon.lint.rules.contradicting import contradicting
from echelon.lint.rules.cpus import lost_cpus
from echelon.lint.rules.devices import chosen_devices
from echelon.lint.rules.early import early
from echelon.lint.rules.epochs import missing_set_epoch
from echelon.lint.rules.gpus import idle_gpus, too_few_gpus
from echelon.lint.rules.ignored import ignored
from echelon.lint.rules.literal import literal
from echelon.lint.rules.lost_status import lost_status
from echelon.lint.rules.missing import missing
from echelon.lint.rules.never_set import never_set
from echelon.lint.rules.no_srun import no_srun
from echelon.lint.rules.nodes import wrong_nodes
from echelon.lint.rules.not_a_script import not_a_script
from echelon.lint.rules.output import missing_folder, overwritten
from echelon.lint.rules.own_directory import own_directory
from echelon.lint.rules.placeholder import placeholder
from echelon.lint.rules.ports import port
from echelon.lint.rules.python_syntax import python_syntax
from echelon.lint.rules.read_status import read_status
from echelon.lint.rules.refused import refused
from echelon.lint.rules.rejected import rejected
from echelon.lint.rules.repeated import repeated
from echelon.lint.rules.secrets import secret
from echelon.lint.rules.settings import harmful_setting
from echelon.lint.rules.signals import late_handler
from echelon.lint.rules.spaces import blanks_around_equals
from echelon.lint.rules.stdin import shared_stdin
from echelon.lint.rules.step_environment import step_environment
from echelon.lint.rules.syntax import bash_syntax
from echelon.lint.rules.too_often import too_often
from echelon.lint.rules.undefined import undefined

THEMES: dict[str, tuple[Rule, ...]] = {
    "`#SBATCH` directives": (
        not_a_script,
        ignored,
        rejected,
        literal,
        repeated,
        contradicting,
        placeholder,
    ),
    "Launching": (
        no_srun,
        too_often,
        idle_gpus,
        too_few_gpus,
        wrong_nodes,
        refused,
        broken_continuation,
        blanks_around_equals,
        bash_syntax,
        own_directory,
        missing,
        shared_stdin,
    ),
    "Rendezvous and variables": (
        port,
        wrong_host,
        early,
        never_set,
        step_environment,
    ),
    "CPUs and environment": (
        lost_cpus,
        secret,
        not_activated,
        chosen_devices,
        harmful_setting,
    ),
    "Output and failures": (missing_folder, overwritten, lost_status, late_handler, read_status),
    "Python scripts": (missing_set_epoch, undefined, python_syntax),
}
