"""Hydra: from arguments to configurations, and from configurations to a launcher. The only module that imports Hydra.

    ridgeline run experiment=numa_study experiment.test.batch_size=4,8 --dry-run

A *job* is one choice out of every list; its configuration holds many points. Without a launcher this process runs all
jobs; `hydra/launcher=submitit_slurm` sends each to the cluster.

Hydra's submitit launchers wait for their jobs, and leave them running on an interrupt. `_cancel_on_interrupt` ends
them. Ctrl-C reaches every process in the terminal's foreground group, so local jobs ignore it: the process that
started them receives it, ends them and prints one sentence. Jobs on a cluster are cancelled there.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra, RidgelineError, unknown
from ridgeline.lab.experiment.overrides import RunArguments, check_key, expand_choices

CONFIG, GROUP, SCHEMA = "config", "experiment", "schema"
LAUNCHER = "hydra/launcher"


@dataclass(frozen=True)
class Job:
    """One choice out of every list: its overrides, and the resolved OmegaConf configuration."""

    overrides: tuple[str, ...]
    config: Any


@dataclass(frozen=True)
class ConfigSource:
    """Where configurations come from.

    package  a package of YAML files, "ridgeline.conf"
    schema   the dataclass that each configuration must match
    """

    package: str
    schema: type


def compose_jobs(arguments: RunArguments, source: ConfigSource) -> list[Job]:
    """Return all jobs of a command line, resolved and checked.

    Raises InputError with one sentence for an unknown key or experiment, a bad value, or a value that is missing, and
    MissingExtra where Hydra is not installed.
    """
    with _open_hydra(arguments, source) as hydra:
        search_path = _format_search_path(arguments)
        return [
            Job(tuple(job), _compose_config(hydra, [*search_path, *job]))
            for job in _expand_jobs(hydra, arguments, source)
        ]


def list_experiments(arguments: RunArguments, source: ConfigSource) -> list[str]:
    """Return the names of all experiments of the package."""
    with _open_hydra(arguments, source) as hydra:
        return _list_names(hydra)


def show_config(arguments: RunArguments, source: ConfigSource) -> None:
    """Let Hydra print what its flags request (`--cfg job`, `--info`); nothing is run."""
    if len(compose_jobs(arguments, source)) > 1:
        raise InputError(
            f"{arguments.flags[0].partition('=')[0]} shows one configuration; give one value for each setting."
        )
    import hydra

    folder = Path(sys.modules[source.package].__file__ or "").parent
    flags = [part for flag in arguments.flags for part in flag.split("=", 1)]
    argv, sys.argv = sys.argv, ["ridgeline run", *arguments.overrides, *flags]
    try:
        hydra.main(version_base="1.3", config_path=str(folder), config_name=CONFIG)(lambda _: None)()
    finally:
        sys.argv = argv


def get_launcher(arguments: RunArguments) -> str | None:
    """Return the launcher that receives the jobs; None: this process runs them."""
    names = [word.partition("=")[2] for word in arguments.overrides if word.partition("=")[0] == LAUNCHER]
    return names[-1] if names and names[-1] != "basic" else None


def launch_jobs(arguments: RunArguments, source: ConfigSource, task: Callable[[Any], Any], folder: Path) -> list[str]:
    """Send every job to Hydra's launcher and wait; return a sentence for each job that failed.

    The launcher calls `task` with a job's configuration, possibly on another machine, so `task` must be picklable.
    Raises RidgelineError where the launcher itself fails.
    """
    with _open_hydra(arguments, source) as hydra:
        from hydra._internal.callbacks import Callbacks
        from hydra.core.plugins import Plugins
        from hydra.types import HydraContext, RunMode

        jobs = _expand_jobs(hydra, arguments, source)
        hydra_overrides = [w for w in arguments.overrides if w.partition("=")[0].startswith(("hydra/", "hydra."))]
        sweep_dir = [f"hydra.sweep.dir={_quote(folder)}", "hydra.sweep.subdir=${hydra.job.num}"]
        with _translate_errors():
            overrides = [*sweep_dir, *hydra_overrides, *_format_search_path(arguments)]
            config = hydra.compose_config(CONFIG, overrides, RunMode.MULTIRUN, False)
            context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(config))
            launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
            tasks = [[w for w in job if w not in hydra_overrides] for job in jobs]
            try:
                with _cancel_on_interrupt():
                    results = launcher.launch(tasks, initial_job_idx=0)
            except Exception as error:  # the cluster's message: no account, no sbatch, a job that was cancelled
                message = " ".join(str(error).split())[:300]
                raise RidgelineError(f"{get_launcher(arguments)} failed: {type(error).__name__}: {message}.") from error
        failures = [(job, r._return_value) for job, r in zip(jobs, results, strict=True) if r.status.name == "FAILED"]
        return [f"{' '.join(job)}: {type(error).__name__}: {error}" for job, error in failures]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn errors of Hydra and OmegaConf into an InputError of one sentence."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except RidgelineError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(f"{_summarize_error(error)}.") from error


@contextmanager
def _open_hydra(arguments: RunArguments, source: ConfigSource) -> Iterator[Any]:
    try:
        from hydra import initialize_config_module
        from hydra.core.global_hydra import GlobalHydra
    except ImportError:
        raise MissingExtra("ridgeline run", "experiments") from None
    logging.getLogger("hydra").setLevel(logging.WARNING)
    _register_schema(source)
    for folder in arguments.config_folders:
        if not (folder / GROUP).is_dir():
            raise InputError(f"--config-dir '{folder}' holds no folder '{GROUP}'; put NAME.yaml into {GROUP}/ there.")
    with initialize_config_module(source.package, job_name="ridgeline", version_base="1.3"):
        yield GlobalHydra.instance().hydra


def _register_schema(source: ConfigSource) -> None:
    import importlib

    from hydra.core.config_store import ConfigStore

    importlib.import_module(source.package)
    ConfigStore.instance().store(group=SCHEMA, name=GROUP, node=source.schema)


def _expand_jobs(hydra: Any, arguments: RunArguments, source: ConfigSource) -> list[list[str]]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(config_loader=hydra.config_loader)
    choices: dict[str, list[str]] = {}
    for word in arguments.overrides:
        try:
            override = parser.parse_override(word)
        except HydraException:
            raise InputError(f"'{word}' cannot be read; write key=value, or key=a,b for several in turn.") from None
        key = override.get_key_element()
        check_key(key, source.schema, GROUP)
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise InputError(f"'{override.input_line}' is no list of choices; write {key}=a,b or {key}=range(1,5).")
            with _translate_errors():
                choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            choices[key] = [override.input_line]
    known = _list_names(hydra, arguments)
    for word in choices.get(GROUP, []):
        name = word.partition("=")[2]
        if name not in known:
            raise unknown("experiment", name, known)
    return expand_choices(choices, arguments.zips)


def _compose_config(hydra: Any, overrides: Sequence[str]) -> Any:
    from hydra.types import RunMode
    from omegaconf import OmegaConf, open_dict

    with _translate_errors():
        config = hydra.compose_config(CONFIG, list(overrides), RunMode.RUN, with_log_configuration=False)
        with open_dict(config):
            del config["hydra"]
        OmegaConf.resolve(config)
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise InputError(f"{missing[0]} has no value; give one: {missing[0]}=…")
    return config


def _list_names(hydra: Any, arguments: RunArguments | None = None) -> list[str]:
    folders = arguments.config_folders if arguments else []
    added = [p.stem for folder in folders for p in (folder / GROUP).glob("*.yaml")]
    return sorted({*hydra.config_loader.get_group_options(GROUP), *added})


def _format_search_path(arguments: RunArguments) -> list[str]:
    places = ",".join(_quote(f"file://{folder}") for folder in arguments.config_folders)
    return [f"hydra.searchpath=[{places}]"] if places else []


def _quote(value: object) -> str:
    """Return a value as Hydra reads it, with any characters in it."""
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _summarize_error(error: BaseException) -> str:
    """Return the first line of the error and of its causes: further lines describe Hydra's internals."""
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None:
        message = [line.strip() for line in str(current).splitlines() if line.strip()]
        lines += [line for line in message[:1] if line not in lines]
        lines += [line.replace("full_key: ", "at ") for line in message if line.startswith("full_key")]
        current = current.__cause__
    return ": ".join(dict.fromkeys(line.rstrip(".") for line in lines))


@contextmanager
def _cancel_on_interrupt() -> Iterator[None]:
    """End the jobs that submitit starts inside if an interrupt ends the block."""
    try:
        import submitit
    except ImportError:  # another launcher
        yield
        return
    jobs: list[Any] = []

    class TrackingExecutor(submitit.AutoExecutor):
        def map_array(self, *args: Any, **kwargs: Any) -> list[Any]:
            with _ignore_interrupts() if self.cluster == "local" else nullcontext():
                jobs.extend(super().map_array(*args, **kwargs))
            return jobs

    original = submitit.AutoExecutor
    submitit.AutoExecutor = TrackingExecutor  # type: ignore[misc]  # the launcher looks it up by this name
    try:
        yield
    except Exception:
        raise  # the launcher's own message; jobs beside a failed one continue
    except BaseException:
        for job in jobs:
            _end_job(job)
        raise
    finally:
        submitit.AutoExecutor = original  # type: ignore[misc]


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C in processes that start inside, and in this process meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _end_job(job: Any) -> None:
    process = getattr(job, "_process", None)
    if process is None:
        with suppress(Exception):  # an unreachable cluster must not hide the reason of the interrupt
            job.cancel(check=False)
        return
    # First the parent, which would restart its children; what a point runs dies with its job.
    for pid in [process.pid, *_list_descendants(process.pid)] if process.poll() is None else []:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _list_descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    descendants, waiting = [], [pid]
    while waiting:
        next_pids = children.get(waiting.pop(), [])
        descendants += next_pids
        waiting += next_pids
    return descendants
