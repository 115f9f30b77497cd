"""Report of ``prefeed doctor`` and ``prefeed tune``, with a verdict, findings with their factors, and all trials. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from prefeed.diagnose.search import WORTHWHILE, Search, Settings, Trial
from prefeed.system.units import format_bytes

AS_IS: Final = "as it is"
COMPUTE: Final = "computing alone"
FIRST: Final = "cache, first epoch"
CACHE: Final = "cache"
WORKERS: Final = "workers"
STAGE_CACHE: Final = "stage cache"
"""Names of trials and findings; trials of other settings have the settings as their name."""

_LARGE_LISTS: Final = 32 << 20
_NEARLY_BEST: Final = 0.9
"""Bytes of lists that are worth a sentence. Share of the largest gain from which a cheaper finding is suggested."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that one thread needs for the parts of one batch, or None for a part that could not be measured.

    Attributes:
        opening: Opening its files.
        reading: Reading its files, or waiting for the shards of a stream.
        decoding: All other work of the dataset.
        collating: Combining the samples.
        transferring: Sending the batch from a worker to the main process; 0 without workers.
        to_device: Copying the batch to the device; None without a device.
        file_bytes: Bytes of the files of one batch, of which ``jpeg_share`` are JPEGs.
    """

    opening: float | None = None
    reading: float | None = None
    decoding: float
    collating: float
    transferring: float = 0.0
    to_device: float | None = None
    file_bytes: int = 0
    jpeg_share: float = 0.0


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the loader and the machine.

    Attributes:
        dataset: Name of the dataset's class.
        samples: Number of samples; None for a stream.
        batch_size: Samples per batch, on average.
        settings: Present settings.
        memory_bytes: Memory that a cache could have.
        list_bytes: Size of the Python objects in long lists of the dataset, which workers copy as they read them.
    """

    dataset: str
    samples: int | None
    batch_size: float
    settings: Settings
    memory_bytes: int
    list_bytes: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Change that makes the loop faster, with its factor.

    Attributes:
        what: Noun phrase for the change. ``how`` is the text to type.
        speedup: Factor by which the loop is faster with the change.
        low: Lower end of the 95 % confidence interval, of which ``high`` is the upper end; None after a single run.
        first_speedup: ``speedup`` of the first epoch, which fills a cache; None if it is the same.
        is_measured: Whether the loop ran with the change. Otherwise ``speedup`` is computed from the parts of a batch.
    """

    name: str
    what: str
    how: str
    speedup: float
    low: float | None = None
    high: float | None = None
    first_speedup: float | None = None
    is_measured: bool = True


class LoaderReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of ``prefeed.doctor`` and ``prefeed.tune``.

    Attributes:
        text: Verdict in words, the same as ``str(report)``.
        findings: Changes that were tried or computed, the cheapest first.
        best: Name of the suggested finding, or None to leave the loop unchanged.
        settings: Suggested settings of the loader, or the present ones if ``best`` changes none.
        waiting: Share of the time that the loop loses by waiting for batches, 0 to 1; None without a training step.
        shares: ``waiting`` by cause: ``origin``, ``decode``, ``collate``, ``transfer``; empty if unknown.
        perfect_speedup: Factor by which the loop would be faster if data loading took no time; None without a step.
        loader: Facts about the loader and the machine.
        trials: All trials, the failed ones with their reason.
        costs: Cost of one batch in one thread; None if it was not measured.
        ran_out: Whether the budget ended before all settings were tried.
    """

    text: str
    findings: list[Finding]
    best: str | None
    settings: Settings
    waiting: float | None
    shares: dict[str, float] = {}
    perfect_speedup: float | None
    loader: LoaderFacts
    trials: list[Trial]
    costs: Costs | None = None
    ran_out: bool = False

    @property
    def suggestion(self) -> Finding | None:
        """Finding to apply, or None to leave the loop unchanged."""
        return next((finding for finding in self.findings if finding.name == self.best), None)

    def to_json(self) -> str:
        """Return all values as one JSON object."""
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        return self.text


def doctor_report(
    loader: LoaderFacts, trials: Sequence[Trial], costs: Costs | None, *, staged_bytes: int = 0
) -> LoaderReport:
    """Build the report of the doctor from its trials and from the bytes of one sample in a stage cache."""
    timed = {trial.name: trial for trial in trials if trial.reason is None}
    as_is = timed[AS_IS]
    perfect = max(1.0, as_is.step_seconds / timed[COMPUTE].step_seconds)
    waiting = min(as_is.waited, 1 - 1 / perfect)
    shares = _shares(loader, timed, costs, waiting)
    others = [trial for trial in timed.values() if trial.settings != as_is.settings]
    workers = min(others, key=lambda trial: trial.step_seconds, default=None)
    findings = list(_measured(loader, timed, costs, workers, staged_bytes))
    findings += _estimated(loader, timed, costs, perfect)
    findings.sort(key=lambda finding: _CHEAPEST_FIRST.index(finding.name))
    least = max([WORTHWHILE, *(1 + _NEARLY_BEST * (finding.speedup - 1) for finding in findings)])
    worth = [finding for finding in findings if finding.speedup >= least and perfect >= WORTHWHILE]
    doubts = list(_doubts(loader, as_is, findings, perfect))
    lines = [_waiting_sentence(waiting, shares, costs)]
    if perfect < WORTHWHILE:
        lines.append(
            f"With perfect data loading it would be {_percent(perfect - 1)} faster: no cache can help; computing takes the time."
        )
    else:
        more = " That is more than its waiting time: making batches takes processors or memory from the computing."
        lines.append(
            f"With perfect data loading it would be {_times(perfect)} as fast.{more if 1 - 1 / perfect - waiting >= 0.1 else ''}"
        )
        if worth:
            how = "measured on a few batches" if worth[0].is_measured else "estimated"
            factor = f"{_times(worth[0].speedup)} as fast ({how})"
            lines.append(f"Cheapest remedy: {worth[0].what}. Predicted: {factor}. {worth[0].how}")
        else:
            lines.append(f"No remedy that was tried gains more than 5 %{'' if doubts else ': leave it'}.")
    return LoaderReport(
        text="\n".join([*lines, *_hints(loader, costs, shares), *doubts]),
        findings=findings, best=worth[0].name if worth else None,
        settings=workers.settings if workers and worth and worth[0].name == WORKERS else loader.settings,
        waiting=waiting, shares=shares, perfect_speedup=perfect, loader=loader, trials=list(trials), costs=costs,
    )  # fmt: skip


def _shares(loader: LoaderFacts, timed: dict[str, Trial], costs: Costs | None, waiting: float) -> dict[str, float]:
    """Divide the waiting in proportion to the times of the parts of a batch."""
    if costs is None:
        return {}
    workers = max(1, loader.settings.num_workers)
    origin = ((costs.opening or 0.0) + (costs.reading or 0.0)) / workers
    others = {
        "decode": costs.decoding / workers,
        "collate": costs.collating / workers,
        "transfer": costs.transferring + (costs.to_device or 0.0),
    }
    origin *= waiting / (origin + sum(others.values()) or 1.0)
    if costs.opening is None and CACHE in timed:  # files cannot be timed, but this much disappeared
        origin = min(waiting, max(0.0, 1 - timed[CACHE].step_seconds / timed[AS_IS].step_seconds))
    rest = (waiting - origin) / (sum(others.values()) or 1.0)
    return {"origin": origin, **{name: part * rest for name, part in others.items()}}


_CHEAPEST_FIRST: Final = (CACHE, WORKERS, "device prefetch", STAGE_CACHE, "packing")
"""Findings by effort: one line, an argument, a few lines, a conversion."""


def _measured(
    loader: LoaderFacts, timed: dict[str, Trial], costs: Costs | None, workers: Trial | None, staged_bytes: int
) -> Iterator[Finding]:
    step, samples = timed[AS_IS].step_seconds, loader.samples
    if CACHE in timed:
        size = costs.file_bytes / loader.batch_size * samples if costs and samples else 0
        share = min(1.0, loader.memory_bytes / size) if size else 1.0
        held = f"{format_bytes(size)}{'' if share == 1 else f'; {_percent(share)} of it fits'}"
        # Files that do not fit are fetched ahead in every epoch, as all are in the first.
        first, later = timed[FIRST].step_seconds, timed[CACHE].step_seconds
        yield Finding(
            name=CACHE, what=f"files read ahead and kept in memory ({held})",
            how="Start it with `prefeed run`, or write `import prefeed.auto`.",
            speedup=step / (share * later + (1 - share) * first), first_speedup=step / first,
        )  # fmt: skip
    if workers is not None:
        number = workers.settings.num_workers
        yield Finding(
            name=WORKERS, what=f"{number} workers instead of {loader.settings.num_workers}",
            how=f"DataLoader(..., num_workers={number}); `prefeed tune` tries more.", speedup=step / workers.step_seconds,
        )  # fmt: skip
    if STAGE_CACHE in timed:
        size = staged_bytes * (samples or 1)
        held = format_bytes(size) + ("" if samples else " per sample")
        if size > loader.memory_bytes:
            held += f"; with spilling, because {format_bytes(loader.memory_bytes)} of memory are free"
        yield Finding(
            name=STAGE_CACHE, what=f"samples kept as they are made ({held})",
            how="Wrap the dataset: prefeed.CachedDataset(dataset); random steps go above it, with prefeed.mapped.",
            speedup=step / timed[STAGE_CACHE].step_seconds,
        )  # fmt: skip


def _estimated(loader: LoaderFacts, timed: dict[str, Trial], costs: Costs | None, perfect: float) -> Iterator[Finding]:
    """Yield findings that are computed from the parts of a batch, none better than a trial that includes it."""
    if costs is None:
        return
    step, waited = timed[AS_IS].step_seconds, timed[AS_IS].waited
    per_worker = 1 / max(1, loader.settings.num_workers)
    streamed = costs.reading if loader.samples is None else None
    for name, saved, bounds, what, how in (
        (CACHE, (streamed or 0.0) * per_worker, (), "shards read ahead and kept by the node",
         "Open them through prefeed: prefeed:URL in WebDataset, prefeed::URL in datasets and fsspec, or prefeed.shards(urls)."),
        ("device prefetch", costs.to_device or 0.0, (), "batches copied to the device while it computes",
         "Wrap the loader: prefeed.DevicePrefetcher(loader, device)."),
        ("packing", (costs.opening or 0.0) * per_worker, (CACHE, STAGE_CACHE), "many small files packed into few large ones",
         "prefeed pack SRC OUT, then prefeed.datasets.Packed(OUT)."),
    ):  # fmt: skip
        if saved > 0:
            left = step - min(saved, waited * step)  # a gain is limited by the waiting time
            limits = [step / timed[bound].step_seconds for bound in bounds if bound in timed]
            speedup = min([perfect, step / left if left > 0 else perfect, *limits])
            yield Finding(name=name, what=what, how=how, speedup=speedup, is_measured=False)


def _waiting_sentence(waiting: float, shares: dict[str, float], costs: Costs | None) -> str:
    decode = "making samples" if costs is not None and costs.opening is None else "decoding"
    words = {"origin": "the origin's latency", "decode": decode, "collate": "collating", "transfer": "transfer"}
    named = ", ".join(f"{_percent(share)} for {words[name]}" for name, share in shares.items() if share >= 0.005)
    parts = f": {named}" if named and waiting >= 0.01 else ""
    return f"This job waits for data {_percent(waiting)} of its time{parts}."


def _hints(loader: LoaderFacts, costs: Costs | None, shares: dict[str, float]) -> Iterator[str]:
    """Yield hints whose gain only a change of the program can show."""
    if costs is not None and costs.jpeg_share > 0.5 and shares.get("decode", 0.0) >= 0.1:
        yield "Its files are JPEGs: prefeed.vision.ResizeCropNormalize decodes and resizes them faster (`prefeed bench decode`)."
    number = loader.settings.num_workers
    if number and loader.list_bytes >= _LARGE_LISTS:
        yield (
            f"Its dataset, {loader.dataset}, keeps {format_bytes(loader.list_bytes)} of Python objects in long lists, with or without "
            f"prefeed. Each worker copies what it reads of them: up to {format_bytes(loader.list_bytes * number)} for {number}. "
            "A NumPy array is not copied: `self.paths = numpy.array(paths)`."
        )


def _doubts(loader: LoaderFacts, as_is: Trial, findings: list[Finding], perfect: float) -> Iterator[str]:
    """Yield sentences on doubts about the figures, which contradict each other or rest on short measurements."""
    wrong = [each for each in findings if each.is_measured and each.speedup > 1.15 * perfect]  # more than noise
    for each in wrong:
        yield f"These figures contradict each other: {each.name} made it {each.speedup:.1f} times as fast, and perfect loading {perfect:.1f} times."
    spread = as_is.spread or 0.0
    if wrong or as_is.seconds < 0.1 or spread > 0.25:
        num_batches = max(1, round(loader.samples / loader.batch_size)) if loader.samples else as_is.steps
        same = f", always the same {num_batches} batches" if num_batches < as_is.steps else ""
        yield (
            f"{as_is.steps} steps in {as_is.seconds:.2f} s were measured, give or take {_percent(spread)}{same}: that is too little "
            f"for a verdict. Examine more steps (--steps {max(100, 10 * as_is.steps)}), and more data if this is a part of it."
        )


def tune_report(
    loader: LoaderFacts, search: Search, *, compute_seconds: float | None, budget: float, data: str
) -> LoaderReport:
    """Build the report of a search, with a sentence about its ``data``."""
    present, best, ratio = loader.settings, search.best, search.ratio
    trials = search.merged()
    now = trials[present] if present in trials and trials[present].steps else None
    perfect = max(1.0, now.step_seconds / compute_seconds) if now and compute_seconds else None
    findings = []
    if best != present and (ratio is not None or now is None):
        gain, low, high = (ratio.gain, ratio.low, ratio.high) if ratio else (1.0, None, None)
        what = f"{best} instead of {present}"
        findings = [Finding(name="settings", what=what, how=best.code(present), speedup=gain, low=low, high=high)]
    is_better = bool(findings) and (ratio is None or ratio.is_gain)
    lines = [_tune_verdict(present, search, trials, perfect, budget)]
    if any(trial.steps for trial in trials.values()) and not search.is_bound:
        lines.append(data)
    if compute_seconds is None and now is not None:
        lines.append("Only the loader was timed, because no training step was given.")
    if search.ran_out:
        lines.append("The budget ended before everything was tried. A larger one tries more.")
    return LoaderReport(
        text="\n".join([*lines, *(["", best.code(present)] if is_better else [])]),
        findings=findings, best="settings" if is_better else None, settings=best if is_better else present,
        waiting=now.waited if now and compute_seconds else None, perfect_speedup=perfect, loader=loader,
        trials=list(trials.values()), ran_out=search.ran_out,
    )  # fmt: skip


def _tune_verdict(
    present: Settings, search: Search, trials: dict[Settings, Trial], perfect: float | None, budget: float
) -> str:
    best, ratio = search.best, search.ratio
    speeds = {trial.settings: trial.samples_s for trial in trials.values() if trial.steps}
    fastest = max(speeds, key=speeds.__getitem__, default=present)
    if not speeds:
        return f"Nothing was measured in {budget:g} s: {trials[present].reason}."
    if ratio is not None:
        factor = f"{ratio.gain:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f})"
        if ratio.is_gain:
            return f"{factor} with {best} instead of {present}."
        return f"Leave it: {best}, the best that was tried, is {factor}, which is within the noise."
    if present not in speeds:
        other = f"{best} is the fastest that works" if best != present else "there was no time to try another one"
        return f"The present setting ({present}) fails; {other}."
    if search.is_bound:
        most = "" if perfect is None else f" No other setting can gain more than {_percent(perfect - 1)}."
        return f"Leave it: the training step takes the time, and the loader keeps up.{most}"
    if search.ran_out and speeds[fastest] >= WORTHWHILE * speeds[present]:
        factor = f"{speeds[fastest] / speeds[present]:.2f} times as fast"
        return f"Leave it: {fastest} was {factor} in a short trial, and there was no time to prove it."
    return "Leave it: no setting that was tried is faster than the present one."


_COLUMNS: Final = ("trial", "samples/s", "±", "ms/batch", "times as fast", "waited", "memory")


def table(report: LoaderReport) -> Iterator[str]:
    """Yield all trials, the parts of a batch and the findings as aligned lines."""
    loader, first = report.loader, next((trial for trial in report.trials if trial.steps), None)
    yield f"  {loader.dataset}, batches of {loader.batch_size:g}, {loader.settings}"
    rows = [
        (
            _name(trial, report), _number(trial.samples_s), "" if trial.spread is None else _percent(trial.spread),
            _number(1000 * trial.step_seconds), f"{first.step_seconds / trial.step_seconds:.2f}", _percent(trial.waited),
            format_bytes(trial.memory_bytes) if trial.memory_bytes else "-",
        )
        for trial in report.trials
        if trial.steps and first is not None
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for name, *cells in [_COLUMNS, *rows] if rows else []:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        yield "  ".join(["", name.ljust(widths[0]), *aligned])
    for trial in report.trials:
        if trial.reason is not None:
            yield f"  {_name(trial, report).ljust(widths[0])}  {trial.reason}"
    if (costs := report.costs) is not None:
        parts = {"opening": costs.opening, "reading": costs.reading, "decoding": costs.decoding, "collating": costs.collating,
                 "from the worker": costs.transferring, "to the device": costs.to_device}  # fmt: skip
        yield f"  one batch in one thread, ms: {', '.join(f'{name} {_number(1000 * s)}' for name, s in parts.items() if s)}"
    if report.costs is not None and report.findings:
        yield from ("", "  remedy           times as fast")
        for finding in report.findings:
            more = "" if finding.first_speedup is None else f", first epoch {finding.first_speedup:.2f}"
            more += "" if finding.is_measured else ", estimated"
            yield f"  {finding.name:<16} {finding.speedup:13.2f}  {finding.what}{more}"


def _name(trial: Trial, report: LoaderReport) -> str:
    marks = {str(report.loader.settings): " (present)"} | ({str(report.settings): " (best)"} if report.best else {})
    return trial.name + marks.get(trial.name, "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(speedup: float) -> str:
    return f"{speedup:.1f} times" if speedup < 100 else "more than 100 times"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
