import marshal
import py_compile
from pathlib import Path

from echelon.client.submit import launcher


def test_a_launcher_takes_bytecode_from_pythons_cache_only_while_it_is_up_to_date(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("value = 1\n")
    cache = Path(py_compile.compile(module))
    assert launcher._compile(module)[16:] == cache.read_bytes()[16:]
    module.write_text("value = 1000\n")
    assert 1000 in marshal.loads(launcher._compile(module)[16:]).co_consts  # noqa: S302
