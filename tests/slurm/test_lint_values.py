"""Real sbatch agrees with lint about the directives that it rejects and accepts."""

import json
import sys

from unit.lint.test_values import directives, script

ASK_ALL = """\
import json, subprocess, sys
answers = []
for text in json.load(open(sys.argv[1])):
    asked = subprocess.run(["sbatch", "--test-only"], input=text, text=True, capture_output=True)
    answers.append((asked.returncode, asked.stderr))
print(json.dumps(answers))
"""


def test_sbatch_rejects_what_lint_calls_an_error(cluster, tmp_path):
    listed = directives()
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps([script(directive) for directive, _ in listed]))
    answers = json.loads(cluster.exec(sys.executable, "-c", ASK_ALL, str(texts)))
    assert len(answers) == len(listed)
    others = {
        directive: answer
        for (directive, accepted), (status, answer) in zip(listed, answers, strict=True)
        if (status == 0) != accepted
    }
    assert others == {}
