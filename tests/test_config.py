"""Settings: where values come from, which are refused, and that every option dataclass gets them."""

import dataclasses
import re
from pathlib import Path

import pytest

import inference_server
from inference_server.config import Settings, as_text
from inference_server.core.options import (
    ApiOptions,
    CacheOptions,
    EngineOptions,
    ModelOptions,
    PolicyName,
    PrefillMode,
    SchedulerOptions,
    SinkOptions,
)

COMPILE = ("--backend", "custom-cuda", "--custom-backend-compile", "1")
OPTIONS = (ModelOptions, CacheOptions, SchedulerOptions, EngineOptions, SinkOptions, ApiOptions)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep out settings from the shell and from a `.env` of the checkout."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line with which `argv` is refused."""
    with pytest.raises(SystemExit) as exit_info:
        Settings.from_cli(argv)
    assert exit_info.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_defaults_serve_the_embedded_model() -> None:
    settings = Settings()
    assert settings.model_name == "embedded"
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.api_options().served_model_name == "embedded"


def test_flag_beats_environment_beats_dotenv(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("PORT=1\nMAX_BATCH_SIZE=2\nMAX_QUEUE_SIZE=3\nUNRELATED=x\n")
    monkeypatch.setenv("PORT", "4")
    monkeypatch.setenv("MAX_BATCH_SIZE", "5")
    settings = Settings.from_cli(["--port", "6"])
    assert (settings.port, settings.max_batch_size, settings.max_queue_size) == (6, 5, 3)


def test_the_program_s_own_arguments_play_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["uvicorn", "inference_server.server:app", "--port", "9"])
    assert Settings().port == Settings.from_cli().port == 8000


def test_empty_value_means_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_MODEL_LEN", "")
    monkeypatch.setenv("PORT", "")
    assert (Settings().max_model_len, Settings().port) == (None, 8000)


def test_env_example_is_a_valid_dotenv_of_the_defaults() -> None:
    Path(".env").write_text((Path(__file__).parents[1] / ".env.example").read_text())
    assert Settings() == Settings(_env_file=None)


def test_comma_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.from_cli(["--cors-origins", "http://a, http://b,"]).cors_origins == ("http://a", "http://b")
    monkeypatch.setenv("CORS_ORIGINS", "http://c")
    assert Settings().cors_origins == ("http://c",)


@pytest.mark.parametrize(("text", "value"), [("false", False), ("0", False), ("true", True), ("1", True)])
def test_booleans(text: str, value: bool) -> None:
    assert Settings.from_cli(["--enable-prefix-cache", text]).enable_prefix_cache is value


def test_log_level_takes_any_case() -> None:
    assert Settings.from_cli(["--log-level", "INFO"]).log_level == "info"


@pytest.mark.parametrize(
    ("argv", "mentions"),
    [
        (["--no-such-flag", "1"], "--no-such-flag"),
        (["stray"], "stray"),
        (["--port"], "--port"),
        (["--port", "65536"], "PORT"),
        (["--port", "http"], "PORT"),
        (["--max-batch-size", "0"], "MAX_BATCH_SIZE"),
        (["--max-batched-tokens", "8"], "MAX_BATCHED_TOKENS"),
        (["--max-batched-tokens", "2000000000"], "MAX_BATCHED_TOKENS"),
        (["--admission-deadline-s", "-1"], "ADMISSION_DEADLINE_S"),
        (["--kv-cache-block-size", "24"], "KV_CACHE_BLOCK_SIZE"),
        (["--kv-cache-memory-fraction", "1.5"], "KV_CACHE_MEMORY_FRACTION"),
        (["--device", "gpu"], "DEVICE"),
        (["--backend", "vllm"], "BACKEND"),
        (["--chat-template", "missing.jinja"], "CHAT_TEMPLATE"),
        (["--cuda-graph-sizes", "1,x"], "CUDA_GRAPH_SIZES"),
        (["--prefill-mode", "eager"], "PREFILL_MODE"),
        (["--otlp-endpoint", "collector:4318"], "OTLP_ENDPOINT"),
        (["--rate-limit-tpm", "100"], "RATE_LIMIT_TPM needs API_KEYS"),
        (["--custom-backend-compile", "1"], "CUSTOM_BACKEND_COMPILE needs BACKEND=custom-cuda"),
        ([*COMPILE, "--quantization", "int8"], "CUSTOM_BACKEND_COMPILE fuses lookups, which QUANTIZATION=int8"),
        ([*COMPILE, "--ple-offload", "1"], "and PLE_OFFLOAD leave to kernels of their own"),
    ],
)
def test_bad_values_get_one_line_that_names_them(capsys: pytest.CaptureFixture[str], argv: list[str], mentions: str) -> None:
    assert mentions in refusal(capsys, *argv)


@pytest.mark.parametrize("name", [name for name, field in Settings.model_fields.items() if field.annotation is float])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400", "-1"])
def test_numbers_are_finite_and_none_is_negative(capsys: pytest.CaptureFixture[str], name: str, value: str) -> None:
    assert f"{name.upper()}: Input should be" in refusal(capsys, f"--{name.replace('_', '-')}={value}")


def test_the_forward_on_cuda_may_be_compiled() -> None:
    assert Settings.from_cli(COMPILE).model_options().torch_compile and not Settings().model_options().torch_compile


@pytest.mark.parametrize("flag", ["--metrics-key", "--api-keys"])
def test_a_secret_is_printed_nowhere(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    refused = refusal(capsys, flag, "hunter2 ä")
    assert "Keys are printable ASCII without spaces" in refused
    assert "hunter2" not in refused
    settings = Settings.from_cli([flag, "hunter2"])
    assert "hunter2" not in f"{settings} {settings.api_options()}"


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        Settings.from_cli(["--help"])
    assert exit_info.value.code == 0
    output = capsys.readouterr().out
    assert [name for name in Settings.model_fields if f"--{name.replace('_', '-')} " not in output] == []
    assert output.startswith("usage: python -m inference_server ")
    assert "(default: unset)" in output and not re.search("null|pydantic", output)


def test_a_flag_may_unset_what_the_environment_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_REVISION", "main")
    assert Settings.from_cli([]).model_revision == "main"
    assert Settings.from_cli(["--model-revision", "unset"]).model_revision is None


def test_help_shows_choices_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Settings.from_cli(["--help"])
    output = capsys.readouterr().out
    for flag, choices in (("--prefill-mode", PrefillMode), ("--scheduling-policy", PolicyName)):
        (shown,) = set(re.findall(rf"{flag} {{(.+?)}}", output))
        assert set(shown.split(",")) == set(choices)
    assert {Settings(prefill_mode=mode.value).scheduler_options().prefill_mode for mode in PrefillMode} == set(PrefillMode)
    assert {Settings(scheduling_policy=name.value).scheduler_options().scheduling_policy for name in PolicyName} == set(PolicyName)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Settings().cache_dir == tmp_path / "inference-server"
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Settings().cache_dir == Path("/home/someone/.cache/inference-server")
    monkeypatch.setenv("MODEL_CACHE_DIR", "~/weights")
    assert Settings().cache_dir == Path("/home/someone/weights")


def test_option_dataclasses_have_the_same_defaults_as_the_settings() -> None:
    settings = Settings()
    assert settings.cache_options() == CacheOptions()
    assert settings.scheduler_options() == SchedulerOptions()
    assert settings.engine_options() == EngineOptions()
    assert settings.api_options() == ApiOptions(served_model_name="embedded")
    assert settings.model_options() == ModelOptions(model_name="embedded", model_revision=None, cache_dir=settings.cache_dir)


def test_every_value_reaches_its_option() -> None:
    argv = {
        "model-name": "org/model", "model-revision": "v1", "model-cache-dir": "/weights", "served-model-name": "m", "backend": "hf",
        "device": "cuda:1", "dtype": "float16", "max-batch-size": "7", "max-batched-tokens": "77", "kv-cache-block-size": "32",
        "kv-cache-num-blocks": "99", "kv-cache-memory-fraction": "0.5", "max-active-kv-tokens": "55", "load-format": "dummy",
        "prefill-mode": "chunked", "prefill-chunk-size": "11", "unnoticed-itl-ms": "2.5", "max-model-len": "1234", "max-queue-size": "12",
        "admission-deadline-s": "3", "request-deadline-s": "4", "default-max-tokens": "13", "stall-after-s": "5", "check-integrity": "true",
        "cors-origins": "http://a", "cuda-graph-sizes": "1,4", "ple-offload": "true", "quantization": "int8",
        "api-keys": "a,b", "metrics-key": "c", "rate-limit-rpm": "60", "rate-limit-tpm": "7000",
    }  # fmt: skip
    settings = Settings.from_cli([part for name, value in argv.items() for part in (f"--{name}", value)])
    assert settings.model_options() == ModelOptions(
        "org/model", "v1", Path("/weights"), "hf", "cuda:1", "float16", "int8", "dummy", 7, 77, 1234, (1, 4), True
    )
    assert settings.cache_options() == CacheOptions(32, 99, 0.5, 55)
    assert settings.scheduler_options() == SchedulerOptions(7, 77, PrefillMode.CHUNKED, 11, 2.5)
    assert settings.engine_options() == EngineOptions(12, 3.0, 4.0, 13, 5.0, check_integrity=True)
    assert settings.api_options() == ApiOptions("m", ("http://a",), ("a", "b"), "c", 60, 7000)


@pytest.mark.parametrize(("policy", "cached", "measured"), [("h2o", True, True), ("h2o", False, False), ("lru", True, False)])
def test_attention_is_measured_only_for_the_policy_that_reads_it(policy: str, cached: bool, measured: bool) -> None:
    settings = Settings(_env_file=None, eviction_policy=policy, enable_prefix_cache=cached)  # type: ignore[call-arg, arg-type]
    assert settings.model_options().block_mass is measured


def test_every_option_field_is_filled_or_a_known_constant() -> None:
    constants = {"max_header_bytes", "max_body_bytes", "body_deadline_s", "ping_interval_s", "journal"}
    renamed = {
        "block_size",
        "num_blocks",
        "memory_fraction",
        "max_active_tokens",
        "cache_dir",
        "block_mass",
        "profiler_ranges",
        "torch_compile",
    }
    names = {field.name for option in OPTIONS for field in dataclasses.fields(option)}
    assert names - set(Settings.model_fields) == constants | renamed


def test_every_option_field_is_read_by_some_part() -> None:
    source = Path(inference_server.__file__).parent
    text = "".join(path.read_text() for path in source.rglob("*.py") if path.name not in ("config.py", "options.py"))
    names = {field.name for option in OPTIONS for field in dataclasses.fields(option)}
    assert [name for name in names if not re.search(rf"\.{name}\b", text)] == []


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_is_read(name: str) -> None:
    source = Path(inference_server.__file__).parent
    text = "".join((source / file).read_text() for file in ("config.py", "server.py", "__main__.py"))
    assert re.search(rf"(self|settings)\.{name}\b", text)


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), ((), ""), (True, "true"), ((1, 2), "1,2"), (0.9, "0.9"), (PrefillMode.MIXED, "mixed")]
)
def test_as_text(value: object, text: str) -> None:
    assert as_text(value) == text
