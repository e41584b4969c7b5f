"""Lines of containers and of Kubernetes: the log files of Docker and containerd, and the audit log of an API server.

Each reader makes one event of one line, so that files of them are followed like any other file of lines.
"""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import PurePath
from typing import Any

from ridgeline.audit.sources.lines import LONGEST, JoiningReader, LineReader, parse_stamp
from ridgeline.audit.sources.source import Event, shorten
from ridgeline.errors import InputError

_CRI = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (stdout|stderr) ([FP])(?::\S*)? (.*)", re.DOTALL)
_POD_FOLDER = re.compile(r"([^_]+)_([^_]+)_[^_]+")  # NAMESPACE_POD_UID/CONTAINER/0.log
_POD_FILE = re.compile(r"([^_]+)_([^_]+)_(.+)-[0-9a-f]{64}\.log.*")  # POD_NAMESPACE_CONTAINER-ID.log
_DOCKER_FILE = re.compile(r"([0-9a-f]{64})-json\.log.*")
_EXACT = 1 << 53
_DEEPEST = 60  # the log refuses more than 64 levels
_DECISION = "authorization.k8s.io/decision"
_SECRETS = ("secrets", "serviceaccounts/token", "tokenreviews")  # their bodies hold secrets


def make_container_reader(path: PurePath) -> LineReader:
    """Return a reader of a container's lines: JSON of Docker, or lines of containerd and CRI-O.

    Both runtimes cut a line of more than 16 KB into parts. They are joined, unless the last one does not come; then
    what there is has `_partial`.
    """
    place = _find_container(path)
    subject = "/".join(place[name] for name in ("namespace", "pod", "container") if name in place) or path.name

    def read(line: bytes, where: str, more: int = 0) -> Event:
        cut = len(line) - LONGEST + more if len(line) > LONGEST or more else 0
        text = line[:LONGEST].decode("utf-8", errors="backslashreplace")
        match = _CRI.fullmatch(text)
        if match is not None:
            stamp, stream, message, partial = match[1], match[2], match[4], match[3] == "P"
        else:
            record = _parse_object(text, where, "a line of a container")
            message, stream, stamp = record.get("log"), record.get("stream"), record.get("time")
            if not isinstance(message, str) or not isinstance(stamp, str):
                raise InputError(f"{where} is no line of a container: it has no `log` and `time`; use --lines.")
            partial = not message.endswith("\n")
            message = message.rstrip("\r\n")
        attributes: dict[str, Any] = {"message": message, **place, "_file": str(path)}
        if isinstance(stream, str):
            attributes["stream"] = stream
        if partial:
            attributes["_partial"] = True
        if cut:
            attributes["_cut_bytes"] = cut
        return {
            "time": parse_stamp(stamp),
            "source": "containers",
            "action": "container.line",
            "subject": shorten(subject),
            "attributes": attributes,
        }

    return JoiningReader(read)


def _find_container(path: PurePath) -> dict[str, str]:
    """Return what the path of a log file says: namespace, pod and container, or the first characters of Docker's id."""
    folder, file, docker = (
        _POD_FOLDER.fullmatch(path.parent.parent.name),
        _POD_FILE.fullmatch(path.name),
        _DOCKER_FILE.fullmatch(path.name),
    )
    if file is not None:
        return {"namespace": file[2], "pod": file[1], "container": file[3]}
    if folder is not None:
        return {"namespace": folder[1], "pod": folder[2], "container": path.parent.name}
    return {"container": docker[1][:12]} if docker is not None else {}


def parse_kubernetes_line(line: bytes, where: str, more: int = 0) -> Event:
    """Make an event of a line of an API server's audit log: the user, the request, its address and its outcome.

    Every stage of a request is an event. The object of a request is kept, unless it holds a secret.
    """
    if len(line) + more > LONGEST:
        raise InputError(f"{where} has {len(line) + more} bytes, more than {LONGEST}")
    record = _parse_object(line.decode("utf-8", errors="backslashreplace"), where, "an audit event of Kubernetes")
    if record.get("kind") != "Event" or not str(record.get("apiVersion", "")).startswith("audit.k8s.io/"):
        raise InputError(f"{where} is no audit event of Kubernetes: its kind is {str(record.get('kind'))[:40]!r}.")
    reference, user = _get_object(record, "objectRef"), _get_object(record, "user")
    status, annotations = _get_object(record, "responseStatus"), _get_object(record, "annotations")
    addresses = record.get("sourceIPs")
    resource = "/".join(str(reference[name]) for name in ("resource", "subresource") if reference.get(name))
    named = [reference.get("namespace"), resource, reference.get("name")]
    request, managed = _split_request(record.get("requestObject"))
    words = {
        "verb": record.get("verb"),
        "resource": resource or None,
        "namespace": reference.get("namespace"),
        "name": reference.get("name"),
        "group": reference.get("apiGroup"),
        "code": status.get("code"),
        "reason": status.get("reason"),
        "decision": annotations.get(_DECISION),
        "impersonated": _get_object(record, "impersonatedUser").get("username"),
        "address": addresses[0] if isinstance(addresses, list) and addresses else None,
        "agent": record.get("userAgent"),
        "groups": user.get("groups"),
        "stage": record.get("stage"),
        "_id": record.get("auditID"),
        "_path": record.get("requestURI"),
        "_level": record.get("level"),
        "_addresses": addresses if isinstance(addresses, list) and len(addresses) > 1 else None,  # with its proxies
        "_user": user.get("extra") or None,  # such as the pod of a service account
        "_annotations": {k: v for k, v in annotations.items() if k != _DECISION},  # such as the role that allowed it
        "request": None if resource in _SECRETS else request,
        "_managed_fields": None if resource in _SECRETS else managed,
    }
    stamp = record.get("stageTimestamp") or record.get("requestReceivedTimestamp")
    return {
        "time": parse_stamp(stamp) if isinstance(stamp, str) else time.time_ns(),
        "source": "kubernetes",
        "actor": shorten(str(user["username"])) if user.get("username") else None,
        "action": f"kubernetes.{re.sub(r'[^a-z0-9]+', '_', str(record.get('verb', 'unknown')).lower()) or 'unknown'}",
        "subject": shorten("/".join(str(part) for part in named if part) or str(record.get("requestURI") or ""))
        or None,
        "attributes": {name: _flatten(value) for name, value in words.items() if value not in (None, "", [], {})},
    }


def _split_request(request: Any) -> tuple[Any, Any]:
    """Return an object without `metadata.managedFields`, and those: the owner of each field adds nothing to a score."""
    metadata = request.get("metadata") if isinstance(request, dict) else None
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return request, None
    rest = {name: value for name, value in metadata.items() if name != "managedFields"}
    return {**request, "metadata": rest}, metadata["managedFields"]


def _parse_object(text: str, where: str, what: str) -> dict[str, Any]:
    try:
        record = json.loads(text, parse_int=_parse_number, parse_float=_parse_number, parse_constant=str)
    except (ValueError, RecursionError):
        raise InputError(f"{where} is not {what}: it is no JSON.") from None
    if not isinstance(record, dict):
        raise InputError(f"{where} is not {what}: it is no object.")
    return record


def _parse_number(digits: str) -> Any:
    """Return a number that the log can hold, else its text."""
    number = float(digits)
    exact = digits.lstrip("-").isdigit()
    if not math.isfinite(number) or (exact and abs(number) >= _EXACT):
        return digits
    return int(digits) if exact else number


def _flatten(value: Any) -> Any:
    """Return a value, as JSON text if it is nested deeper than the log takes."""
    level, depth = [value], 0
    while level and depth <= _DEEPEST:
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        depth += 1
    return json.dumps(value) if level else value


def _get_object(record: dict[str, Any], name: str) -> dict[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}
