"""Files of a folder, on this machine or in an object store, with the same few calls.

    storage = open_storage("s3://bucket/titles")
    storage.write("part-000000.parquet", data)  # readers see the complete file or none
    storage.read("part-000000.parquet")

Local files are published (written, synced, renamed). An object appears when its upload ends. Requests that fail for a
reason that may pass (503, a slow or cut connection) are repeated.
"""

from __future__ import annotations

import configparser
import io
import os
import random
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ridgeline.errors import InputError, MissingExtra, StoreError
from ridgeline.store import explain_error, publish

TRIES = 10
FIRST_TRIES = 2  # of a bucket that has not answered yet
STORE_TRIES = 5  # of pyarrow itself, in each of ours
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 10, 60
BLOCK_BYTES = 4 << 20  # of one range request
ARROW_SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hdfs")  # that pyarrow reads itself; fsspec reads the others
ARROW_NAMES = {"az": "abfs", "gcs": "gs"}
# What file systems of fsspec call a mark of the content (HTTP, Hugging Face, GitHub, Google) or the time of a change.
CONTENT_MARKS = ("ETag", "blob_id", "sha", "md5Hash", "Content-MD5", "Digest", "Last-Modified", "modify", "created")

Result = TypeVar("Result")


@dataclass(frozen=True)
class FileState:
    """A file that a listing found."""

    name: str  # relative to the storage
    size: int
    version: str  # changes when the content changes


class Storage(ABC):
    """The files below one folder; `url` is how messages name the folder."""

    url: str
    local: Path | None = None  # the folder, if it is on this machine

    def label(self, name: str) -> str:
        """Return the full name of a file, for messages."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    @abstractmethod
    def list(self) -> list[FileState]:
        """Return all files below the folder, sorted by name; empty if there is no folder."""

    @abstractmethod
    def state(self, name: str = "") -> FileState | None:
        """Return the state of one file, None if it is not there; "" is the location itself."""

    @abstractmethod
    def open(self, name: str = "") -> Any:
        """Open a file for reading, seekable."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, None if it is not there."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file whole: readers see the old version or the new one."""

    @abstractmethod
    def upload(self, name: str, path: Path) -> None:
        """Write a file of this machine whole, without reading it into memory."""

    @abstractmethod
    def move(self, name: str, new: str) -> None:
        """Give a file another name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; it may be missing."""


def is_url(text: str) -> bool:
    """Whether a text names a place outside this machine.

    >>> is_url("s3://bucket/in"), is_url("/data/in")
    (True, False)
    """
    return "://" in text and not text.startswith("file://")


def make_absolute(text: str | os.PathLike[str]) -> str:
    """Return a URL as it is, and a path as an absolute one."""
    text = os.fspath(text)
    return text if is_url(text) else os.path.abspath(text.removeprefix("file://"))


def list_sources(sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return one source or several as absolute paths and URLs."""
    several = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    return [make_absolute(source) for source in several]


def open_storage(url: str) -> Storage:
    """Return the storage of a path or a URL."""
    if not is_url(url):
        return LocalStorage(Path(make_absolute(url)))
    scheme, _, rest = url.partition("://")
    if not rest.strip("/"):
        raise InputError(f"'{url}' names no bucket; give {scheme}://BUCKET/PATH.")
    return RemoteStorage(url)


class LocalStorage(Storage):
    """Files on this machine, or on a file system that it mounts."""

    def __init__(self, folder: Path) -> None:
        self.local, self.url = folder, str(folder)
        self._folder = folder

    def list(self) -> list[FileState]:
        if self._folder.is_file():
            state = self.state("")
            return [state] if state else []
        files = []
        for folder, folders, names in os.walk(self._folder, followlinks=True):
            folders[:] = [name for name in folders if not (name.startswith(".") and name.endswith(".tmp"))]
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):  # removed meanwhile
                    stat = path.stat()
                    files.append(FileState(str(path.relative_to(self._folder)), stat.st_size, str(stat.st_mtime_ns)))
        return sorted(files, key=lambda file: file.name)

    def state(self, name: str = "") -> FileState | None:
        path = self._folder / name if name else self._folder
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise explain_error(error, path) from error
        return FileState(name, stat.st_size, str(stat.st_mtime_ns)) if path.is_file() else None

    def open(self, name: str = "") -> Any:
        path = self._folder / name if name else self._folder
        try:
            return path.open("rb")
        except OSError as error:
            raise explain_error(error, path) from error

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise explain_error(error, self._folder / name) from error

    def write(self, name: str, data: bytes) -> None:
        with publish(self._make_parent(name)) as tmp:
            tmp.write_bytes(data)

    def upload(self, name: str, path: Path) -> None:
        with publish(self._make_parent(name)) as tmp:
            try:
                os.link(path, tmp)
            except OSError:  # another disk, or a file system without links
                shutil.copyfile(path, tmp)

    def _make_parent(self, name: str) -> Path:
        """Return the path of a file whose folder is there."""
        path = self._folder / name
        if not path.parent.is_dir():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise explain_error(error, path.parent) from error
        return path

    def move(self, name: str, new: str) -> None:
        try:
            (self._folder / new).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / name).replace(self._folder / new)
        except OSError as error:
            raise explain_error(error, self._folder / name) from error

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


class RemoteStorage(Storage):
    """Objects of a store; the file system is opened again in each process that uses it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def list(self) -> list[FileState]:
        from pyarrow import fs

        system, root = _open_filesystem(self.url)
        selector = fs.FileSelector(root, recursive=True, allow_not_found=True)

        def find() -> Any:
            try:
                return system.get_file_info(selector)
            except NotADirectoryError:  # fsspec, for a file; pyarrow's own systems find nothing below it
                return []

        infos = _repeat(self.url, find)
        if not infos and self.url.startswith(tuple(f"{scheme}://" for scheme in ARROW_SCHEMES)):
            bucket = root.partition("/")[0]
            if _repeat(self.url, lambda: system.get_file_info(bucket)).type == fs.FileType.NotFound:
                raise InputError(f"there is no bucket '{bucket}' for '{self.url}'; check the name and the region.")
        files = [info for info in infos if info.type == fs.FileType.File]
        states = [
            FileState(info.path[len(root) :].lstrip("/"), info.size, _get_version(self.url, system, info))
            for info in files
        ]
        return sorted((state for state in states if state.name), key=lambda state: state.name)

    def state(self, name: str = "") -> FileState | None:
        from pyarrow import fs

        system, path = self._find(name)
        info = _repeat(self.label(name), lambda: system.get_file_info(path))
        if info.type != fs.FileType.File:
            return None
        return FileState(name, info.size, _get_version(self.label(name), system, info))

    def open(self, name: str = "") -> Any:
        state = self.state(name)
        if state is None:
            raise StoreError(f"{self.label(name)} is not there; check the name.")
        return io.BufferedReader(_RangeReader(self, name, state.size), BLOCK_BYTES)

    def read(self, name: str) -> bytes | None:
        state = self.state(name)
        return None if state is None else self.read_range(name, 0, state.size)

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """Return a part of a file; an answer that was cut short is requested again."""
        if not length:
            return b""
        system, path = self._find(name)

        def read() -> bytes:
            with system.open_input_file(path) as file:
                data: bytes = file.read_at(length, offset)
            if len(data) != length:
                raise OSError(f"{len(data)} of {length} bytes came")
            return data

        return _repeat(self.label(name), read)

    def write(self, name: str, data: bytes) -> None:
        system, path = self._find(name)

        def write() -> None:
            with system.open_output_stream(path) as file:
                file.write(data)
            if (size := system.get_file_info(path).size) != len(data):
                raise OSError(f"{size} of {len(data)} bytes arrived")

        _repeat(self.label(name), write)

    def upload(self, name: str, path: Path) -> None:
        system, target = self._find(name)
        size = path.stat().st_size

        def upload() -> None:
            with path.open("rb") as source, system.open_output_stream(target) as file:
                shutil.copyfileobj(source, file, BLOCK_BYTES)
            if (arrived := system.get_file_info(target).size) != size:
                raise OSError(f"{arrived} of {size} bytes arrived")

        _repeat(self.label(name), upload)

    def move(self, name: str, new: str) -> None:
        data = self.read(name)
        if data is not None:
            self.write(new, data)
            self.delete(name)

    def delete(self, name: str) -> None:
        system, path = self._find(name)

        def delete() -> None:
            with suppress(FileNotFoundError):
                system.delete_file(path)

        _repeat(self.label(name), delete)

    def _find(self, name: str) -> tuple[Any, str]:
        system, root = _open_filesystem(self.url)
        return system, f"{root.rstrip('/')}/{name}" if name else root


class _RangeReader(io.RawIOBase):
    """A file of a remote storage as Python's file object."""

    def __init__(self, storage: RemoteStorage, name: str, size: int) -> None:
        self._storage, self._name, self._size, self._position = storage, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._position))
        buffer[:length] = self._storage.read_range(self._name, self._position, length)
        self._position += length
        return length


def _get_version(label: str, system: Any, info: Any) -> str:
    """Return what changes with the content: the time of the last change, or what else fsspec says about the file."""
    if info.mtime_ns is not None:
        return str(info.mtime_ns)
    files = getattr(getattr(system, "handler", None), "fs", None)
    details = _repeat(label, lambda: files.info(info.path)) if files is not None else {}
    return next((str(details[name]) for name in CONTENT_MARKS if details.get(name)), str(info.size))


@cache
def _open_filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it."""
    try:
        from pyarrow import fs
    except ImportError:
        raise MissingExtra(f"reading '{url}'", "parquet") from None
    scheme, _, rest = url.partition("://")
    try:
        if scheme == "s3":
            return _open_s3(url, fs), rest
        if scheme in ARROW_SCHEMES:
            system, path = fs.FileSystem.from_uri(f"{ARROW_NAMES.get(scheme, scheme)}://{rest}")
            return system, str(path)
        return _open_fsspec(url, scheme, rest, fs)
    except (OSError, ValueError, NotImplementedError) as error:
        raise InputError(f"'{url}' cannot be opened: {' '.join(str(error).split())}; check name and access.") from error


def _open_s3(url: str, fs: Any) -> Any:
    anonymous = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true")
    if not anonymous and not _find_aws_credentials():
        raise InputError(
            f"no credentials for '{url}': set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
            "for a public bucket set AWS_SKIP_SIGNATURE=true."
        )
    settings: dict[str, Any] = {
        "anonymous": anonymous,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "request_timeout": REQUEST_TIMEOUT_S,
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=STORE_TRIES),
        "background_writes": False,
    }
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        # Many stores that speak S3 do not understand the chunked bodies with which AWS sends checksums by default.
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        scheme, _, address = endpoint.partition("://")
        settings |= {"scheme": scheme, "endpoint_override": address, "region": region or "us-east-1"}
    elif region:
        settings["region"] = region
    else:
        with suppress(OSError):
            settings["region"] = fs.resolve_s3_region(url.removeprefix("s3://").partition("/")[0])
    return fs.S3FileSystem(**settings)


def _find_aws_credentials() -> bool:
    """Whether the usual places have credentials; on a cloud machine only the request itself shows it."""
    environment = os.environ
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return True
    if any(name.startswith(("AWS_CONTAINER_CREDENTIALS_", "AWS_WEB_IDENTITY_TOKEN_FILE")) for name in environment):
        return True
    for variable, name in (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")):
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        with suppress(configparser.Error, OSError):
            parser.read(environment.get(variable) or Path.home() / ".aws" / name)
            if any(parser[s].keys() & _CREDENTIAL_KEYS for s in parser.sections()):
                return True
    return environment.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true" and _is_ec2()


_CREDENTIAL_KEYS = {"aws_access_key_id", "credential_process", "sso_session", "sso_start_url", "role_arn"}


def _is_ec2() -> bool:
    """Whether this is a machine of EC2, whose metadata service gives credentials."""
    with suppress(OSError):
        return Path("/sys/class/dmi/id/sys_vendor").read_text().strip() == "Amazon EC2"
    return False


def _open_fsspec(url: str, scheme: str, rest: str, fs: Any) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise MissingExtra(f"reading '{scheme}://' paths", "bulk") from None
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise InputError(f"'{url}' needs another library: {error}.") from error
    except ValueError as error:
        raise InputError(f"'{url}' has an unknown scheme '{scheme}': {error}.") from error
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path or rest


_answered: set[str] = set()  # scheme and bucket of stores that have answered this process


def _repeat(label: str, request: Callable[[], Result]) -> Result:
    """Return the result of a request, which is repeated while the reason of its failure may pass."""
    bucket = "/".join(label.split("/")[:3])
    for attempt, pause in enumerate(_pauses(), 1):
        try:
            result = request()
        except OSError as error:
            reason = " ".join(str(error).split())
            _raise_if_final(label, error, reason)
            if bucket not in _answered and attempt >= FIRST_TRIES and _is_unreachable(error, reason):
                raise StoreError(f"nothing answers for '{label}': {reason}; check network and endpoint.") from error
            if pause is None:
                raise StoreError(f"{label} failed {TRIES} times, last: {reason}; run the command again.") from error
            time.sleep(pause)
        else:
            _answered.add(bucket)
            return result
    raise AssertionError


def _is_unreachable(error: OSError, reason: str) -> bool:
    """Whether no connection was made: a wrong host or port, or no network."""
    codes = ("curlcode: 6,", "curlcode: 7,")  # no such host; no connection
    return isinstance(error, ConnectionRefusedError) or any(code in reason.lower() for code in codes)


def _pauses() -> Iterator[float | None]:
    for attempt in range(TRIES - 1):
        yield min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
    yield None


def _raise_if_final(label: str, error: OSError, reason: str) -> None:
    """Raise an error that another attempt cannot change."""
    text = reason.lower().replace("_", "")
    if "nosuchbucket" in text or "bucket does not exist" in text:
        raise InputError(f"there is no bucket for '{label}'; check the name and the region.") from error
    if any(word in text for word in ("accessdenied", "invalidaccesskeyid", "signaturedoesnotmatch", "expiredtoken")):
        raise InputError(f"no access to '{label}' with these credentials: {reason}.") from error
    if "credential" in text:
        raise InputError(f"no credentials for '{label}': {reason}.") from error
    if isinstance(error, FileNotFoundError):
        raise StoreError(f"{label} is not there; check the name.") from error
    if isinstance(error, PermissionError):
        raise InputError(f"no permission for '{label}'; check the credentials.") from error
