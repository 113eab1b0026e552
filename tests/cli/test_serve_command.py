"""What ``octavo serve`` hands to the server."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import octavo.cli.serve
from octavo.cli.main import octavo as command
from octavo.core.sampling_params import SamplingLimits
from octavo.engine_args import EngineArgs
from octavo.server.limits import ServerLimits
from octavo.server.settings import ServerSettings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineArgs, ServerSettings]]:
    for name in ("OCTAVO_KV_SANITIZER", "OCTAVO_THREADS"):
        monkeypatch.delenv(name, raising=False)  # settings of the test run itself
    calls: list[tuple[EngineArgs, ServerSettings]] = []
    monkeypatch.setattr(octavo.cli.serve, "run_server", lambda args, settings, _: calls.append((args, settings)))
    return calls


def test_without_flags_it_serves_the_built_in_model(served: list[tuple[EngineArgs, ServerSettings]]) -> None:
    result = CliRunner().invoke(command, ["serve"])
    assert result.exit_code == 0, result.output
    assert served == [(EngineArgs(), ServerSettings(served_model_name="smollm2-135m"))]


def test_every_setting_has_a_flag(served: list[tuple[EngineArgs, ServerSettings]]) -> None:
    flags = (
        "serve m.gguf --served-model-name name --host 0.0.0.0 --port 9 --api-key k --open-metrics --shutdown-timeout 5 "
        "--max-num-queued-reqs 2 --max-num-queued-tokens 3 --disable-log-stats --enable-log-requests --block-size 32 "
        "--limit-n 128 --admin-key a --pin-key p --pin-key q --allow-pins --tenant-key t=u=v "
        "--tenant-header X-Tenant-Id --max-queue-seconds 6 --max-request-seconds 7 "
        "--no-enable-auto-tool-choice --tool-call-parser json --reasoning-parser none --api-key-file keys.yaml "
        "--allowed-origins https://a --ssl-certfile c.pem --ssl-keyfile k.pem --restart-engine 2 --pooling last "
        "--dashboard-text --enable-tokenizer-info-endpoint --record log --log-request-text --log-format json "
        "--otlp-traces-endpoint http://c --record-max-size 1MiB --record-max-files 2"
    )
    result = CliRunner().invoke(command, flags.split())
    assert result.exit_code == 0, result.output
    ((engine_args, settings),) = served
    assert engine_args == EngineArgs(model="m.gguf", block_size=32)
    limits = ServerLimits(SamplingLimits(n=128))
    keys: Any = {"admin_key": "a", "pin_keys": ("p", "q"), "allow_pins": True}
    keys |= {"enable_auto_tool_choice": False, "tool_call_parser": "json", "reasoning_parser": "none"}
    keys |= {"tenant_keys": (("t", "u=v"),), "tenant_header": "X-Tenant-Id", "api_key_file": Path("keys.yaml")}
    keys |= {"allowed_origins": ("https://a",), "ssl_certfile": Path("c.pem"), "ssl_keyfile": Path("k.pem")}
    keys |= {"restart_engine": 2, "pooling": "last", "dashboard_text": True, "record": Path("log")}
    keys |= {"enable_tokenizer_info_endpoint": True}
    keys |= {"log_request_text": True, "log_format": "json", "otlp_traces_endpoint": "http://c"}
    keys |= {"record_max_size": 2**20, "record_max_files": 2}
    assert settings == ServerSettings(
        "name", "0.0.0.0", 9, ("k",), True, 5.0, 2, 3, 6.0, 7.0, False, True, limits, **keys
    )
    changed = {f.name for f in dataclasses.fields(settings) if getattr(settings, f.name) != f.default}
    assert {f.name for f in dataclasses.fields(settings)} - changed == set()


def test_the_port_and_the_key_may_come_from_variables(served: list[tuple[EngineArgs, ServerSettings]]) -> None:
    result = CliRunner().invoke(command, ["serve"], env={"OCTAVO_PORT": "9", "OCTAVO_API_KEY": "k"})
    assert result.exit_code == 0, result.output
    assert (served[0][1].port, served[0][1].api_keys) == (9, ("k",))


def test_every_limit_has_a_flag_a_variable_and_a_place_in_the_file(
    served: list[tuple[EngineArgs, ServerSettings]], tmp_path: Path
) -> None:
    """D14: one table, each entry of which can be set."""
    names = [field.name for kind in (SamplingLimits, ServerLimits) for field in dataclasses.fields(kind)]
    names.remove("sampling")
    flags = [f"limit-{name.replace('_', '-')}" for name in names]
    (tmp_path / "config.yaml").write_text("".join(f"{flag}: 7\n" for flag in flags))
    runs: list[tuple[list[str], dict[str, str]]] = [
        ([word for flag in flags for word in (f"--{flag}", "7")], {}),
        ([], {f"OCTAVO_{flag.replace('-', '_').upper()}": "7" for flag in flags}),
        (["--config", str(tmp_path / "config.yaml")], {}),
    ]
    for words, variables in runs:
        result = CliRunner().invoke(command, ["serve", *words], env=variables)
        assert result.exit_code == 0, result.output
        limits = served.pop()[1].limits
        assert {getattr(limits.sampling, name, None) or getattr(limits, name) for name in names} == {7}


def test_a_size_may_have_a_unit(served: list[tuple[EngineArgs, ServerSettings]]) -> None:
    result = CliRunner().invoke(command, ["serve", "--limit-body-bytes", "64MiB"])
    assert result.exit_code == 0, result.output
    assert served[0][1].limits == ServerLimits(body_bytes=64 * 2**20)


def test_the_docs_name_every_flag() -> None:
    serve = command.get_command(None, "serve")  # type: ignore[arg-type]
    assert serve is not None
    flags = [flag for param in serve.params for flag in param.opts + param.secondary_opts if flag.startswith("--")]
    assert len(flags) > 20
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("settings.md", "keys.md"))
    assert [flag for flag in flags if f"`{flag}`" not in text] == []


@pytest.mark.parametrize("given", ["secret", "=secret", "secret="])
def test_a_tenants_key_that_has_no_name_is_not_shown(given: str) -> None:
    result = CliRunner().invoke(command, ["serve", "m.gguf", "--tenant-key", given])
    assert result.exit_code == 2
    assert "number 1 is not NAME=KEY" in result.output
    assert "secret" not in result.output


def test_origins_may_come_as_a_json_list(served: list[tuple[EngineArgs, ServerSettings]]) -> None:
    words = ["serve", "--allowed-origins", '["https://a", "https://b"]', "--allowed-origins", "http://c:9"]
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    assert served[0][1].allowed_origins == ("https://a", "https://b", "http://c:9")
    assert CliRunner().invoke(command, ["serve", "--allowed-origins", "[https://a]"]).exit_code == 2
