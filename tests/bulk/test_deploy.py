"""The files of deploy/ are valid, and the commands in them exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main
import yaml

from ridgeline.cli.bulk import bulk

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = "1.30"


def parse_bulk(words: list[str]) -> None:
    """Parse the words after `ridgeline bulk`; an unknown option raises."""
    command = typer.main.get_command(bulk).commands[words[0]]
    command.make_context(words[0], words[1:])


@pytest.mark.parametrize("name", ["Containerfile.cpu", "Containerfile.cuda"])
def test_a_container_runs_as_a_user_without_rights(name):
    text = (DEPLOY / name).read_text()
    assert re.findall(r"(?m)^USER\s+(\S+)", text) == ["10001:10001"]
    assert text.count("FROM docker.io/library/python:3.12-slim-bookworm") == 2, "the compiler stays in the first stage"
    extras = set(re.findall(r"'\.\[(.+?)\]'", text)[0].split(","))
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    assert all(re.search(rf"(?m)^{extra} = \[", project) for extra in extras)


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("slurm/*.sbatch")), ids=lambda file: file.name)
def test_a_slurm_script_is_valid_and_its_command_exists(file):
    subprocess.run(["bash", "-n", str(file)], check=True)
    text = file.read_text()
    assert text.startswith("#!/bin/bash\n")
    assert "#SBATCH --requeue" in text
    joined = text.replace("\\\n", " ")
    command = re.findall(r"(?m)ridgeline bulk (embed .*)$", joined)[-1]
    parse_bulk(shlex.split(command.replace('"$@"', "--column title")))


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("systemd/*.service")), ids=lambda file: file.name)
def test_a_unit_is_valid_and_runs_without_rights(file, tmp_path):
    text = file.read_text()
    assert "User=ridgeline" in text
    assert "NoNewPrivileges=yes" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / file.name
    unit.write_text(text.replace("/opt/ridgeline/bin/ridgeline", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    wrong = [line for line in done.stderr.splitlines() if file.name in line and "network-online" not in line]
    assert not wrong


def read_manifests() -> list[tuple[str, dict]]:
    files = sorted(DEPLOY.glob("kubernetes/*.yaml"))
    return [(file.name, document) for file in files for document in yaml.safe_load_all(file.read_text())]


def list_pods(manifest: dict) -> list[dict]:
    if manifest["kind"] == "CronJob":
        return [manifest["spec"]["jobTemplate"]["spec"]["template"]]
    cluster = manifest["spec"]["rayClusterSpec"]
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


@pytest.mark.parametrize(
    ("name", "manifest"), read_manifests(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_manifest_runs_existing_commands_without_rights(name, manifest):
    if manifest["kind"] == "RayJob":
        words = shlex.split(manifest["spec"]["entrypoint"])
        assert words[:2] == ["ridgeline", "bulk"]
        parse_bulk(words[2:])
    else:
        [container] = list_pods(manifest)[0]["spec"]["containers"]
        parse_bulk(container["args"][1:])
    for pod in list_pods(manifest):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert all(not c["securityContext"]["allowPrivilegeEscalation"] for c in pod["spec"]["containers"])


@pytest.mark.parametrize(
    ("name", "manifest"), read_manifests(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_kubernetes_accepts_a_manifest(name, manifest):
    validate = pytest.importorskip("kubernetes_validate").validate
    jsonschema = pytest.importorskip("jsonschema")
    if manifest["kind"] == "RayJob":
        schema = json.loads((DEPLOY / "kubernetes/rayjob.schema.json").read_text())
        jsonschema.validate(manifest, schema)
        misspelt = {**manifest, "spec": {**manifest["spec"], "entrypont": "x"}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(misspelt, schema)
    else:
        validate(manifest, KUBERNETES, strict=True)
    for pod in list_pods(manifest):
        metadata = {"name": "pod"}
        validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}, KUBERNETES, strict=True
        )
