"""The project's promises about itself: a lock without addresses, documented settings, layers, sizes, and light imports."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; .+)?")


def script(name: str) -> ModuleType:
    """The module of `scripts/<name>.py`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run(*command: str) -> str:
    """Standard output of a command in the checkout, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def loaded_by(package: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after importing every module of `package`."""
    code = f"""
import importlib, pkgutil, sys
package = importlib.import_module("{package}")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(*sys.modules, sep="\\n")
"""
    return set(run(sys.executable, "-c", code).split())


def write_tree(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / "src" / "package" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_lock_holds_pins_and_nothing_else() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if not PINNED.fullmatch(line)] == []
    assert "torch==2.13.0" in lines


def test_the_lock_pins_every_dependency() -> None:
    locked = {line.split("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [re.split(r"[\[<>=;]", line)[0] for line in (*project["dependencies"], *extras["embedded"], *extras["dev"])]
    assert len(wanted) > 20
    assert [name for name in wanted if name.lower().replace("_", "-") not in locked] == []
    assert all("==" in line for line in (*extras["clients"], *extras["fleet"])), "the lock leaves these out"


def test_every_setting_is_documented() -> None:
    assert script("check_settings").stale(ROOT) == {}


def test_undocumented_settings_are_found(tmp_path: Path) -> None:
    check = script("check_settings")
    (tmp_path / "README.md").write_text(f"before\n{check.BEGIN}| old |\n{check.END}after\n")
    stale = check.stale(tmp_path)
    assert {path.name for path in stale} == {".env.example", "README.md"}
    assert stale[tmp_path / "README.md"].startswith("before\n")
    assert "`MAX_BATCH_SIZE` | `64`" in stale[tmp_path / "README.md"]


def test_licences_are_those_of_the_lock(capsys: pytest.CaptureFixture[str]) -> None:
    check = script("check_licences")
    assert check.main([]) == 0, capsys.readouterr().out
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert "| `pytest` | 1.2, 1.3 | MIT | dev |\n" in check.page("pytest==1.2\npytest==1.3 ; sys_platform == 'win32'\n", pyproject)
    with pytest.raises(ImportError):
        check.page("no-such-package==1.0\n", pyproject)


def test_layers_hold() -> None:
    run(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")


def test_sizes_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert script("check_style").main(ROOT) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x = 1\n", "no module docstring"),
        ('"""Doc."""\n' + "x = 1\n" * 500, "501 lines, at most 499"),
        ('"""Doc."""\n' + "import os\n" * 21, "21 imports"),
        ('"""Doc."""\ndef f():\n' + "    x = 1\n" * 80, "f has 81 lines"),
        ('"""Doc."""\n' + "x = 1\n" * 200, "median file has 201 lines"),
        ('"""Doc."""\n' + ("def f():\n" + "    x = 1\n" * 39) * 3, "90th percentile of functions is 40 lines"),
    ],
)
def test_the_size_gate_fails_on_a_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str) -> None:
    write_tree(tmp_path, module=text)
    assert script("check_style").main(tmp_path) == 1
    assert complaint in capsys.readouterr().out


def test_the_size_gate_passes_a_small_tree_and_warns_of_a_long_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path, one='"""Doc."""\n', two='"""Doc."""\n', long='"""Doc."""\n' + "x = 1\n" * 300)
    assert script("check_style").main(tmp_path) == 0
    assert "warning" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["core", "scheduler", "kv_cache", "engine", "api"])
def test_the_engine_and_all_it_stands_on_load_no_torch(package: str) -> None:
    loaded = loaded_by(f"inference_server.{package}")
    assert loaded & {"torch", "transformers"} == set()
    if package != "api":
        assert loaded & {"fastapi", "pydantic"} == set()


def test_no_module_but_config_reads_the_environment() -> None:
    sources = [path for path in (ROOT / "src").rglob("*.py") if path.name != "config.py"]
    assert [str(path) for path in sources if re.search(r"os\.(environ|getenv)", path.read_text())] == []


def test_every_script_is_listed() -> None:
    listed = (ROOT / "scripts" / "README.md").read_text()
    names = [f"{path.parent.name}/" if path.name == "__init__.py" else path.name for path in (ROOT / "scripts").rglob("*.py")]
    assert [name for name in names if f"`{name}" not in listed and f"/{name}" not in listed] == []
