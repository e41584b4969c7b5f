"""Words in, resolved configurations out, by Hydra: the one place that imports it, when it is needed.

    ridgeline run experiment=numa_study experiment.test.batch_size=4,8 --dry-run

A *job* is one choice out of every list; its configuration holds many points. Without a launcher all jobs are run by
this process; `hydra/launcher=submitit_slurm` sends each to the cluster.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra, RidgelineError, unknown
from ridgeline.lab.experiment.jobs import ended_with_us
from ridgeline.lab.experiment.words import Words, expanded, refuse_unknown

CONFIG, GROUP, SCHEMA = "config", "experiment", "schema"
LAUNCHER = "hydra/launcher"


@dataclass(frozen=True)
class Job:
    """One choice out of every list that was given, and the configuration it makes."""

    overrides: tuple[str, ...]
    config: Any  # omegaconf's, resolved


@dataclass(frozen=True)
class Source:
    """Where configurations come from: a package of YAML files, and the dataclass each must fit."""

    package: str  # "ridgeline.conf"
    schema: type


def composed(words: Words, source: Source) -> list[Job]:
    """All jobs of a command line, each resolved and checked; what is wrong is told in a sentence."""
    with _hydra(words, source) as hydra:
        return [Job(tuple(job), _one(hydra, [*_searched(words), *job])) for job in _jobs(hydra, words, source)]


def experiments(words: Words, source: Source) -> list[str]:
    with _hydra(words, source) as hydra:
        return _known(hydra)


def show(words: Words, source: Source) -> None:
    """Hand over to Hydra where it is asked to show something (`--cfg job`, `--info`); nothing is run."""
    if len(composed(words, source)) > 1:
        raise InputError(
            f"{words.flags[0].partition('=')[0]} shows one configuration; give one value for each setting."
        )
    import hydra

    folder = Path(sys.modules[source.package].__file__ or "").parent
    argv, sys.argv = sys.argv, ["ridgeline run", *words.overrides, *_apart(words.flags)]
    try:
        hydra.main(version_base="1.3", config_path=str(folder), config_name=CONFIG)(lambda _: None)()
    finally:
        sys.argv = argv


def launcher_of(words: Words) -> str | None:
    """The launcher that was asked for: where jobs go instead of this process."""
    asked = [word.partition("=")[2] for word in words.overrides if word.partition("=")[0] == LAUNCHER]
    return asked[-1] if asked and asked[-1] != "basic" else None


def launch(words: Words, source: Source, task: Callable[[Any], Any], folder: Path) -> list[str]:
    """Send every job to Hydra's launcher and wait; what went wrong with a job, in sentences.

    `task` is called with a job's configuration wherever the launcher runs it, so it must survive a pickle.
    """
    with _hydra(words, source) as hydra:
        from hydra._internal.callbacks import Callbacks
        from hydra.core.plugins import Plugins
        from hydra.types import HydraContext, RunMode

        jobs = _jobs(hydra, words, source)
        own = [w for w in words.overrides if w.partition("=")[0].startswith(("hydra/", "hydra."))]
        where = [f"hydra.sweep.dir={_quoted(folder)}", "hydra.sweep.subdir=${hydra.job.num}"]
        with told():
            config = hydra.compose_config(CONFIG, [*where, *own, *_searched(words)], RunMode.MULTIRUN, False)
            context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(config))
            launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
            tasks = [[w for w in job if w not in own] for job in jobs]
            try:
                with ended_with_us():
                    done = launcher.launch(tasks, initial_job_idx=0)
            except Exception as error:  # a cluster's own words: no account, no sbatch, a job that was cancelled
                said = " ".join(str(error).split())[:300]
                raise RidgelineError(f"{launcher_of(words)} failed: {type(error).__name__}: {said}.") from error
        failed = [(job, one._return_value) for job, one in zip(jobs, done, strict=True) if one.status.name == "FAILED"]
        return [f"{' '.join(job)}: {type(error).__name__}: {error}" for job, error in failed]


@contextmanager
def told() -> Iterator[None]:
    """Hydra's and OmegaConf's complaints as one sentence each."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except RidgelineError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(f"{_sentence(error)}.") from error


@contextmanager
def _hydra(words: Words, source: Source) -> Iterator[Any]:
    try:
        from hydra import initialize_config_module
        from hydra.core.global_hydra import GlobalHydra
    except ImportError:
        raise MissingExtra("ridgeline run", "experiments") from None
    logging.getLogger("hydra").setLevel(logging.WARNING)
    _store(source)
    for folder in words.folders:
        if not (folder / GROUP).is_dir():
            raise InputError(f"--config-dir '{folder}' holds no folder '{GROUP}'; put NAME.yaml into {GROUP}/ there.")
    with initialize_config_module(source.package, job_name="ridgeline", version_base="1.3"):
        yield GlobalHydra.instance().hydra


def _store(source: Source) -> None:
    import importlib

    from hydra.core.config_store import ConfigStore

    importlib.import_module(source.package)
    ConfigStore.instance().store(group=SCHEMA, name=GROUP, node=source.schema)


def _jobs(hydra: Any, words: Words, source: Source) -> list[list[str]]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create(config_loader=hydra.config_loader)
    choices: dict[str, list[str]] = {}
    for word in words.overrides:
        try:
            override = parser.parse_override(word)
        except HydraException:
            raise InputError(f"'{word}' cannot be read; write key=value, or key=a,b for several in turn.") from None
        key = override.get_key_element()
        refuse_unknown(key, source.schema, GROUP)
        if override.is_sweep_override():
            if not override.is_discrete_sweep():
                raise InputError(f"'{override.input_line}' is no list of choices; write {key}=a,b or {key}=range(1,5).")
            with told():
                choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            choices[key] = [override.input_line]
    known = _known(hydra, words)
    for word in choices.get(GROUP, []):
        name = word.partition("=")[2]
        if name not in known:
            raise unknown("experiment", name, known)
    return expanded(choices, words.zips)


def _one(hydra: Any, overrides: Sequence[str]) -> Any:
    from hydra.types import RunMode
    from omegaconf import OmegaConf, open_dict

    with told():
        config = hydra.compose_config(CONFIG, list(overrides), RunMode.RUN, with_log_configuration=False)
        with open_dict(config):
            del config["hydra"]
        OmegaConf.resolve(config)
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise InputError(f"{missing[0]} has no value; give one: {missing[0]}=…")
    return config


def _known(hydra: Any, words: Words | None = None) -> list[str]:
    own = [p.stem for folder in (words.folders if words else []) for p in (folder / GROUP).glob("*.yaml")]
    return sorted({*hydra.config_loader.get_group_options(GROUP), *own})


def _searched(words: Words) -> list[str]:
    places = ",".join(_quoted(f"file://{folder}") for folder in words.folders)
    return [f"hydra.searchpath=[{places}]"] if places else []


def _quoted(value: object) -> str:
    """A value as Hydra reads it, whatever stands in it."""
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _apart(flags: Sequence[str]) -> list[str]:
    return [part for flag in flags for part in flag.split("=", 1)]


def _sentence(error: BaseException) -> str:
    """The first line of what was said, and of what lies behind it: the lines below are about Hydra's own insides."""
    lines: list[str] = []
    seen: BaseException | None = error
    while seen is not None:
        said = [line.strip() for line in str(seen).splitlines() if line.strip()]
        lines += [line for line in said[:1] if line not in lines]
        lines += [line.replace("full_key: ", "at ") for line in said if line.startswith("full_key")]
        seen = seen.__cause__
    return ": ".join(dict.fromkeys(line.rstrip(".") for line in lines))
