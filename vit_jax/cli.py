"""The command line: vit-jax VERB. Each verb imports what it needs, when it is called."""

import argparse
import csv
import dataclasses
import json
import logging
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from vit_jax.errors import EXIT_DONE, EXIT_FAILED, UsageError, told
from vit_jax.startup import keep_compiled, use_huge_pages
from vit_jax.weights.serving import LINES

_MODEL = "a run folder, an npz, a folder of transformers or timm, or a name (docs/weights.md)"


def main() -> int:
    """The console script."""
    keep_compiled()
    if sys.argv[1:2] in (["train"], ["demo"], ["vtab"]):
        use_huge_pages()
    return run_verb(dispatch, sys.argv[1:])


def run_verb(verb: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Runs a verb; what ends it is told in one line and becomes an exit code (errors.py)."""
    try:
        return verb(argv)
    except (Exception, KeyboardInterrupt) as error:
        return told(error)


def dispatch(argv: Sequence[str]) -> int:
    """Finds the verb in argv[0] and hands it the rest."""
    if argv and argv[0] == "train":  # its flags are those of the config, not argparse's
        return train(argv[1:])
    if argv and argv[0] == "launch":  # its flags are the launcher's
        from vit_jax.home import launch

        return launch(argv[1:])
    parser = _parser()
    arguments, config_flags = parser.parse_known_args(argv)
    if config_flags and arguments.verb not in (_plan, _preflight, _inspect, _vtab):
        parser.error(f"unknown argument {config_flags[0]}")
    arguments.config_flags = config_flags
    return arguments.verb(arguments)


def train(argv: Sequence[str]) -> int:
    """The training verb. `argv` is what follows its name."""
    from vit_jax.train.flags import USAGE, parse_flags

    if {"-h", "--help"} & set(argv):
        print(f"usage: {USAGE}\n\nKeys and their meanings: vit_jax/train/config.py")
        return EXIT_DONE
    flags = parse_flags(argv)

    from vit_jax.train import cluster, loop
    from vit_jax.train.config import run_config
    from vit_jax.train.sweep import sweep, sweep_text

    # Orbax tells of one file that it cannot write in a thousand lines, the trainer in one.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    cluster.join()
    with cluster.failing_at_once():
        if not flags.sweep:
            loop.train(run_config(flags.config), flags.workdir)
            return EXIT_DONE
        result = sweep(run_config(flags.config), flags.workdir)
    if cluster.is_lead():
        print(sweep_text(result))
    return EXIT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("vit-jax", description="Vision Transformers in JAX")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    verbs.add_parser("train", help="train, or resume: --config=FILE --workdir=DIR")

    verb = _add(verbs, "eval", _evaluate, "accuracy of a model on a test split, and more")
    _add_model_and_data(verb)
    verb.add_argument("--crop", choices=("resize", "centre"), default="resize")
    verb.add_argument("--real", type=pathlib.Path, help="real.json: ImageNet's ReaL labels")
    verb.add_argument("--per-class", type=pathlib.Path, metavar="CSV", help="write a table")
    verb.add_argument("--confusion", type=pathlib.Path, metavar="CSV", help="write the matrix")

    verb = _add(verbs, "fewshot", _fewshot, "few-shot linear evaluation of frozen features")
    _add_model_and_data(verb)
    verb.add_argument("--shots", type=_counts, default=(1, 5, 10, 25), help="as in 1,5,10,25")
    verb.add_argument("--seeds", type=_count, default=3, help="draws to average over")
    verb.add_argument(
        "--l2", type=_positives, default=(1024.0,), help="or several, as in 64,1024: all are shown"
    )
    _add_features(verb)

    verb = _add(verbs, "probe", _probe, "a linear probe, and neighbours, on frozen features")
    _add_model_and_data(verb)
    verb.add_argument("--k", type=_count, default=20, help="neighbours that vote")
    _add_features(verb)

    verb = _add(verbs, "vtab", _vtab, "VTAB-1k: fine-tune on 19 tasks; takes --config.key=value")
    verb.add_argument("--model", required=True, help=_MODEL)
    verb.add_argument("--workdir", required=True, help="one run folder per task; again: resume")
    verb.add_argument("--tasks", help="as in caltech101,svhn; default: all")
    verb.add_argument("--json", action="store_true", help="print JSON")

    verb = _add(verbs, "predict", _predict, "the likeliest classes of images")
    _add_model_and_images(verb)
    verb.add_argument("--top", type=_count, default=5, help="classes of each image")
    verb.add_argument("--out", type=pathlib.Path, help="*.csv or *.json; default: the terminal")
    verb.add_argument("--json", action="store_true", help="print JSON")

    verb = _add(verbs, "embed", _embed, "features of images, for a search or a plot of your own")
    _add_model_and_images(verb)
    verb.add_argument("--out", type=pathlib.Path, required=True, help="*.npz or *.parquet")

    verb = _add(verbs, "plan", _plan, "compile the train step of --config=FILE for a TPU slice")
    _add_topology(verb, required=True)
    verb.add_argument("--price", type=_positive, help="dollars per chip-hour")
    verb.add_argument(
        "--search",
        type=_count,
        nargs="?",
        const=12,
        metavar="N",
        help="compile N (12) other meshes, remat policies, microbatches; rank those that fit",
    )
    verb.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write a page")
    verb.add_argument("--workdir", help="of the run: keep it for its report")
    verb.add_argument("--json", action="store_true", help="print JSON")

    verb = _add(
        verbs, "preflight", _preflight, "what would end a job (--config=FILE --workdir=DIR) early"
    )
    _add_topology(verb, required=False)
    verb.add_argument("--skip", default="", help="as in data,plan")
    verb.add_argument("--json", action="store_true", help="print JSON")

    verbs.add_parser("launch", help="run it on a pod: tpu_vm, gke or local; FLAGS -- vit-jax ...")

    verb = _add(verbs, "prepare", _prepare, "write a data set as shards that read fast")
    verb.add_argument(
        "places",
        nargs="+",
        metavar="[IN] OUT",
        help="a folder, list or tfds:NAME; a new folder",
    )
    verb.add_argument("--splits", help="as in train,test; default: all there are")
    verb.add_argument("--shard-size", type=_count, default=2048, help="images in a file")
    verb.add_argument("--workers", type=_count, help="processes; default: one per core")
    verb.add_argument("--on-bad-image", choices=("skip", "raise"), default="skip")
    verb.add_argument(
        "--synthetic", type=_count, metavar="N", help="no IN: N images of visual_atoms_multi"
    )
    verb.add_argument("--image-size", type=_size, default=(224, 224), help="of synthetic images")
    verb.add_argument("--json", action="store_true", help="print the manifest")

    verb = _add(verbs, "doctor", _doctor, "what is wrong with this machine, or with a data set")
    verb.add_argument("--data", help="read all of this data set as training would")
    verb.add_argument("--splits", help="as in train,test; default: all there are")
    verb.add_argument("--json", action="store_true", help="print JSON")

    verb = _add(verbs, "inspect", _inspect, "pictures of a network, or of what it will see")
    what = verb.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help=f"{_MODEL}: filters, attention, ...")
    what.add_argument("--batch", action="store_true", help="a batch, augmented, of a --config")
    verb.add_argument("--data", help="its test images; of a batch, in place of the config's")
    verb.add_argument("--images", nargs="+", help="image files, folders, patterns in quotes")
    verb.add_argument("--image-size", type=_size, help="as in 224 or 160x256; default: its own")
    verb.add_argument("--step", type=_count, default=1, help="of which step is the batch, from 1")
    verb.add_argument("--out", type=pathlib.Path, help="a folder; of a batch, a file")

    verb = _add(verbs, "report", _report, "write report.html for run folders, one for all of them")
    verb.add_argument("runs", nargs="+", metavar="RUN")
    verb.add_argument("--out", help="default: report.html in the first RUN")
    verb.add_argument("--serve", action="store_true", help="show it here while the runs go on")
    verb.add_argument("--port", type=int, default=8000, help="to serve on; 0: any that is free")

    verb = _add(verbs, "results", _results, "a table of runs beside the paper's figures")
    verb.add_argument("folders", nargs="+", metavar="DIR", help="a run, or a folder of runs")
    verb.add_argument("--json", action="store_true", help="print JSON")

    verb = _add(verbs, "demo", _demo, "pre-train, fine-tune, few-shot, report, on built-in data")
    verb.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/demo"))
    verb.add_argument("--fresh", action="store_true", help="delete an earlier demo first")

    verb = _add(verbs, "convert", _convert, "weights from one form into another, verified")
    verb.add_argument("source", metavar="IN", help=_MODEL)
    verb.add_argument("target", metavar="OUT", help="*.npz, or a new folder")
    verb.add_argument(
        "--to", default="", help="npz, run, hf (transformers) or timm; default: by the name of OUT"
    )
    verb.add_argument(
        "--dialect", default="published", help="published, big_vision or big_vision_stacked"
    )
    verb.add_argument("--dtype", default="float32", help="float32 or bfloat16")
    verb.add_argument(
        "--image-size", type=_size, help="of IN, where the file does not tell, as in 224 or 160x256"
    )
    verb.add_argument(
        "--push-to-hub", metavar="OWNER/NAME", help="upload OUT (hf, timm) as a private model"
    )
    verb.add_argument("--json", action="store_true", help="print JSON")

    verb = _add(
        verbs,
        "export",
        _export,
        "a network as a file that serves without this package: uint8 in, probabilities out",
    )
    verb.add_argument("source", metavar="RUN", help=_MODEL)
    verb.add_argument("target", metavar="OUT", help="a new folder")
    verb.add_argument(
        "--format",
        default="stablehlo",
        help="stablehlo: jax.export, for cpu and tpu; or onnx (pip install 'vit_jax[onnx]')",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.epilog = "\n\n".join(f"{name}:\n{lines}" for name, lines in LINES.items())

    verb = _add(verbs, "models", _models, "list the models: parameters, GFLOPs, tokens")
    verb.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    function: Callable[[argparse.Namespace], int],
    help_text: str,
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=help_text, description=help_text)
    parser.set_defaults(verb=function)
    return parser


def _add_model_and_data(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--model", required=True, help=_MODEL)
    verb.add_argument("--data", required=True, help="a built-in data set or a folder")
    verb.add_argument("--split", default="test")
    verb.add_argument("--image-size", type=_size, help="as in 224 or 160x256; default: its own")
    verb.add_argument("--batch-size", type=_count, default=256)
    verb.add_argument("--json", action="store_true", help="print JSON")


def _add_topology(verb: argparse.ArgumentParser, *, required: bool) -> None:
    verb.add_argument("--topology", required=required, help="as in v5litepod-16 or v5p-128")
    verb.add_argument("--slices", type=_count, default=1, help="of it, over the data centre's net")


def _add_features(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--train-split", default="train", help="to fit on, as in train[:90%%]")
    verb.add_argument(
        "--no-cache", action="store_true", help="compute features even if $VIT_JAX_CACHE has them"
    )


def _add_model_and_images(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("images", nargs="+", help="image files, folders, patterns in quotes")
    verb.add_argument("--model", required=True, help=_MODEL)
    verb.add_argument("--image-size", type=_size, help="as in 224 or 160x256; default: its own")
    verb.add_argument("--batch-size", type=_count, default=64)


def _predict(arguments: argparse.Namespace) -> int:
    from vit_jax.evaluate.predict import as_csv, as_json, find_images, predict

    if arguments.out and arguments.out.suffix not in (".csv", ".json"):
        raise UsageError(f"--out={arguments.out}: expected a file that ends in .csv or .json")
    images = find_images(arguments.images)
    loaded = _load_all(arguments)
    model, names = loaded.model, loaded.class_names
    top = min(arguments.top, model.config.num_classes)
    predictions = list(predict(model, images, names, top=top, batch_size=arguments.batch_size))
    is_json = arguments.json or (arguments.out and arguments.out.suffix == ".json")
    text = as_json(predictions) if is_json else as_csv(predictions, top)
    if arguments.out:
        arguments.out.write_text(text)
        print(f"{arguments.out}: {len(predictions)} images")
    else:
        print(text, end="")
    return EXIT_DONE


def _embed(arguments: argparse.Namespace) -> int:
    from vit_jax.evaluate.predict import embed, find_images, write_features

    if arguments.out.suffix not in (".npz", ".parquet"):
        raise UsageError(f"--out={arguments.out}: expected a file that ends in .npz or .parquet")
    images = find_images(arguments.images)
    found, features = embed(_load(arguments), images, batch_size=arguments.batch_size)
    write_features(arguments.out, found, features)
    print(f"{arguments.out}: {features.shape[1]} features of {len(found)} images")
    return EXIT_DONE


def _evaluate(arguments: argparse.Namespace) -> int:
    from vit_jax.data.sources import open_source
    from vit_jax.evaluate.classification import Classification, check_classes

    loaded = _load_all(arguments)
    model = loaded.model
    source = open_source(arguments.data, arguments.split, model.config.image_size)
    check_classes(source, model.config.num_classes, loaded.class_names)
    if arguments.real:
        from vit_jax.data.real import RealLabels, read_real_labels

        source = RealLabels(source, read_real_labels(arguments.real))
    measure = Classification(source, arguments.batch_size, crop=arguments.crop)
    scores = measure.scores(model, _counter("eval"))
    if arguments.per_class or arguments.confusion:
        _write_tables(arguments, scores, source.class_names)
    _print_results({**scores.results(), "examples": scores.examples}, arguments.json)
    return EXIT_DONE


def _write_tables(arguments: argparse.Namespace, scores, class_names: tuple[str, ...]) -> None:
    if scores.confusion() is None:
        raise UsageError("--per-class and --confusion need one label per image and 2000 classes")
    tables = {
        arguments.per_class: [list(row.values()) for row in scores.per_class(class_names)],
        arguments.confusion: [
            [name, *row] for name, row in zip(class_names, scores.confusion().tolist(), strict=True)
        ],
    }
    headers = {
        arguments.per_class: ["class", "images", "recall", "precision"],
        arguments.confusion: ["true \\ predicted", *class_names],
    }
    for path, rows in tables.items():
        if path:
            with path.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([headers[path], *rows])


def _fewshot(arguments: argparse.Namespace) -> int:
    from vit_jax.evaluate.fewshot import FewShot

    model = _load(arguments)
    options = _on_features(arguments, model.config.image_size)
    evaluator = FewShot(**options, shots=arguments.shots, seeds=arguments.seeds, l2s=arguments.l2)
    _print_results(evaluator(model), arguments.json)
    return EXIT_DONE


def _probe(arguments: argparse.Namespace) -> int:
    from vit_jax.evaluate.features import OnFeatures
    from vit_jax.evaluate.probes import both_probes

    model = _load(arguments)
    data = OnFeatures(**_on_features(arguments, model.config.image_size))
    _print_results(both_probes(model, data, arguments.k), arguments.json)
    return EXIT_DONE


def _vtab(arguments: argparse.Namespace) -> int:
    from vit_jax.data.vtab import TASKS
    from vit_jax.train import cluster
    from vit_jax.vtab import vtab

    cluster.join()
    tasks = arguments.tasks.split(",") if arguments.tasks else tuple(TASKS)
    results = vtab(arguments.model, arguments.workdir, tasks, arguments.config_flags)
    if cluster.is_lead():
        print(json.dumps(results.as_dict(), indent=2) if arguments.json else results.text())
    return EXIT_FAILED if results.problems else EXIT_DONE


def _on_features(arguments: argparse.Namespace, image_size: tuple[int, int]) -> dict[str, Any]:
    """What all verbs need that fit something on frozen features."""
    from vit_jax.data.sources import open_source
    from vit_jax.evaluate.feature_cache import default_cache

    return {
        "train": open_source(arguments.data, arguments.train_split, image_size),
        "test": open_source(arguments.data, arguments.split, image_size),
        "batch_size": arguments.batch_size,
        "cache": None if arguments.no_cache else default_cache(),
        "report": _counter("features"),
    }


def _plan(arguments: argparse.Namespace) -> int:
    from vit_jax.train.flags import parse_config

    config = parse_config(arguments.config_flags)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # a plan touches no accelerator

    from vit_jax.insight.plan_page import plan_page
    from vit_jax.tpu import text
    from vit_jax.tpu.advice import advice
    from vit_jax.tpu.plan import Site, make_plan
    from vit_jax.tpu.search import search
    from vit_jax.tpu.topologies import topology
    from vit_jax.train.config import run_config
    from vit_jax.train.progress import Progress
    from vit_jax.weights.paths import as_path
    from vit_jax.weights.run_folder import RunFolder, write_json

    run = run_config(config)
    slice_ = topology(arguments.topology, arguments.slices)
    site = Site.of(slice_, Progress("plan", 1).note)
    if arguments.search:
        choices = search(run, site, arguments.search)
        if arguments.json:
            print(json.dumps([_choice(choice) for choice in choices], indent=2))
        else:
            print(text.choices_text(choices))
        return EXIT_DONE if choices else EXIT_FAILED
    plan = make_plan(run, site)
    trials = advice(run, plan, site) if plan.is_compiled and not plan.fits else []
    if arguments.html:
        arguments.html.write_text(plan_page(plan, trials, arguments.price))
    tried = [{"knob": trial.knob, **_choice(trial)} for trial in trials]
    found = plan.as_dict() | {"advice": tried}
    if arguments.workdir:
        write_json(RunFolder(as_path(arguments.workdir)).plan, found)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(text.plan_text(plan, arguments.price))
        if trials:
            print(f"\n{text.trials_text(trials)}")
    return EXIT_DONE if plan.fits else EXIT_FAILED


def _preflight(arguments: argparse.Namespace) -> int:
    from vit_jax.train.flags import parse_flags

    flags = parse_flags(arguments.config_flags)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    from vit_jax.preflight import Job, preflight
    from vit_jax.tpu.topologies import topology
    from vit_jax.train.config import run_config
    from vit_jax.train.progress import Progress

    slice_ = topology(arguments.topology, arguments.slices) if arguments.topology else None
    job = Job(run_config(flags.config), flags.workdir, slice_)
    skip = tuple(filter(None, arguments.skip.split(",")))
    checks = []
    for check in preflight(job, skip, Progress("preflight", 1).note):
        checks.append(check)
        if not arguments.json:
            print(f"{'ok ' if check.is_good else 'BAD'}  {check.name:8} {check.found}", flush=True)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    return EXIT_DONE if all(check.is_good for check in checks) else EXIT_FAILED


def _choice(choice: Any) -> dict[str, Any]:
    """Flags and what comes of them."""
    return {"flags": choice.flags, **choice.plan.as_dict()}


def _prepare(arguments: argparse.Namespace) -> int:
    from vit_jax.data.compose import sliced
    from vit_jax.data.prepare import prepare
    from vit_jax.data.sources import open_source

    *source, out = arguments.places
    if len(source) != (0 if arguments.synthetic else 1):
        raise UsageError(
            "expected vit-jax prepare IN OUT, or vit-jax prepare OUT --synthetic=N; found "
            + " ".join(arguments.places)
        )
    if arguments.synthetic:
        atoms = open_source("visual_atoms_multi", "train", arguments.image_size)
        wanted = min(arguments.synthetic, len(atoms))
        sources = {"train": sliced(atoms, f":{wanted}", f"train[:{wanted}]")}
    else:
        sources = _splits(source[0], arguments.splits)
    manifest = prepare(
        sources,
        out,
        shard_size=arguments.shard_size,
        workers=arguments.workers or 0,
        on_bad_image=arguments.on_bad_image,
        report=_counter("prepare"),
    )
    if arguments.json:
        print(json.dumps(manifest, indent=2))
        return EXIT_DONE
    for name, split in manifest["splits"].items():
        bad = f", {len(split['bad_images'])} bad ones left out" if split["bad_images"] else ""
        print(f"{out} {name}: {split['count']:,} images in {len(split['shards'])} files{bad}")
    return EXIT_DONE


def _doctor(arguments: argparse.Namespace) -> int:
    if not arguments.data:
        from vit_jax.doctor import examine_machine, machine_text

        machine = examine_machine()
        print(json.dumps(machine, indent=2) if arguments.json else machine_text(machine))
        return EXIT_FAILED if machine["problems"] else EXIT_DONE

    from vit_jax.data.doctor import examine

    found = examine(_splits(arguments.data, arguments.splits), _counter("doctor"))
    print(json.dumps(found.as_dict(), indent=2) if arguments.json else found.text())
    damaged = _verify(arguments.data)
    for file, problem in damaged.items():
        print(f"damaged shard {file}: {problem}", file=sys.stderr)
    return EXIT_DONE if found.is_healthy and not damaged else EXIT_FAILED


def _verify(data: str) -> dict[str, str]:
    """Shards that are not as they were written, where there are any."""
    folder = pathlib.Path(data).expanduser()
    if not (folder / "manifest.json").is_file():
        return {}

    from vit_jax.data.prepare import verify

    return verify(folder)


def _splits(name: str, chosen: str | None):
    from vit_jax.data.sources import open_source, open_splits

    if chosen:
        return {split: open_source(name, split, 224) for split in chosen.split(",")}
    return open_splits(name, 224)


def _counter(label: str) -> Callable[[int, int], None]:
    """A progress line for work on a known number of images, or several, one after the other."""
    from vit_jax.train.progress import Progress

    began, first, progress = 0.0, 0, None

    def report(done: int, total: int) -> None:
        nonlocal began, first, progress
        if progress is None:
            began, first = time.monotonic(), done
            progress = Progress(label, total, unit="image")
        elif done > first:
            rate = (done - first) / max(time.monotonic() - began, 1e-9)
            progress.update(done, {}, rate, (total - done) / rate)
        if done == total:
            progress.close()
            progress = None

    return report


_FINETUNE = "configs/finetune.py"


def _inspect(arguments: argparse.Namespace) -> int:
    if arguments.batch:
        return _inspect_batch(arguments)
    if arguments.config_flags:
        raise UsageError(
            f"{arguments.config_flags[0]} is for --batch: a --model has its own config"
        )

    from vit_jax.insight.studies import inspect_model

    model = _load(arguments)
    for path in inspect_model(
        model, arguments.model, arguments.data, arguments.images, arguments.out
    ):
        print(path)
    return EXIT_DONE


def _inspect_batch(arguments: argparse.Namespace) -> int:
    from vit_jax.train.flags import parse_config

    flags = arguments.config_flags
    has_config = any(re.match(r"--config\b(?!\.)", flag) for flag in flags)
    kind = "digits" if arguments.data in (None, "digits", "glyphs") else "any"  # for its crop
    config = parse_config(flags if has_config else [f"--config={_FINETUNE}:data={kind}", *flags])
    config.data.name = arguments.data or config.data.name

    from vit_jax.insight.batch_picture import batch_picture
    from vit_jax.train.config import run_config

    out = arguments.out or pathlib.Path("batch.png")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(batch_picture(run_config(config), step=arguments.step - 1))
    print(out)
    return EXIT_DONE


def _report(arguments: argparse.Namespace) -> int:
    from vit_jax.weights.paths import as_path

    runs = [as_path(run) for run in arguments.runs]
    if arguments.serve:
        from vit_jax.insight.serve import serve

        serve(runs, arguments.port, lambda url: print(f"{url} (Ctrl-C ends)", flush=True))
        return EXIT_DONE

    from vit_jax.insight.report import write_report

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    out = as_path(arguments.out) if arguments.out else None
    print(write_report(runs, out, note=note))
    return EXIT_DONE


def _results(arguments: argparse.Namespace) -> int:
    from vit_jax.insight.results import find_runs, results_dict, results_text
    from vit_jax.weights.paths import as_path

    runs = find_runs([as_path(folder) for folder in arguments.folders])
    print(json.dumps(results_dict(runs), indent=2) if arguments.json else results_text(runs))
    return EXIT_DONE


def _demo(arguments: argparse.Namespace) -> int:
    from vit_jax.demo import demo

    demo(arguments.workdir, fresh=arguments.fresh)
    return EXIT_DONE


def _convert(arguments: argparse.Namespace) -> int:
    from vit_jax.weights import hub
    from vit_jax.weights.adapt import grouped
    from vit_jax.weights.convert import convert
    from vit_jax.weights.locate import locate
    from vit_jax.weights.paths import as_path

    repository = arguments.push_to_hub
    if repository:
        if arguments.to not in ("hf", "timm"):
            raise UsageError(f"--push-to-hub={repository}: needs --to=hf or --to=timm")
        hub.check_pushable(repository)
    target = as_path(arguments.target)
    done = convert(
        locate(arguments.source),
        target,
        arguments.to,
        arguments.dialect,
        arguments.dtype,
        arguments.image_size,
    )
    pushed = hub.push(target, repository) if repository else None
    if arguments.json:
        network = {"name": done.network.name, "parameters": done.parameters}
        difference = {"largest_difference": done.largest_difference, "unused": done.unused}
        print(json.dumps(network | difference | {"pushed": pushed}, indent=2))
        return EXIT_DONE
    height, width = done.network.image_size
    print(
        f"{target}: {done.network.name} for {height}x{width} pixels, {done.parameters:,} parameters"
    )
    if done.unused:
        print(f"left out, as no part of the network: {', '.join(grouped(done.unused))}")
    print(
        f"verified on random images: features and logits up to {done.largest_output:.3g} differ by "
        f"{done.largest_difference:.2g} at most"
    )
    if pushed:
        print(f"pushed: {pushed}")
    return EXIT_DONE


def _export(arguments: argparse.Namespace) -> int:
    from vit_jax.weights.export import export
    from vit_jax.weights.paths import as_path

    target = as_path(arguments.target)
    done = export(arguments.source, target, arguments.format)
    if arguments.json:
        found = {"file": str(done.file), "name": done.network.name, "bytes": done.bytes}
        found |= {"largest_difference": done.largest_difference}
        print(json.dumps(found, indent=2))
        return EXIT_DONE
    print(f"{done.file}: {done.network.name}, {done.bytes:,} bytes")
    print(f"verified on random images: probabilities differ by {done.largest_difference:.2g}")
    print(f"\n{LINES[arguments.format].replace('OUT', str(target))}")
    return EXIT_DONE


def _models(arguments: argparse.Namespace) -> int:
    from vit_jax.models.flops import multiply_adds
    from vit_jax.models.network import parameter_count
    from vit_jax.models.variants import list_models, listed_image_size, model_config

    zoo = []
    if not arguments.json:
        print(f"{'name':14} {'parameters':>14} {'GFLOPs':>9} {'pixels':>7} {'tokens':>7}")
    for name in list_models():
        config = model_config(name, image_size=listed_image_size(name))
        row = {
            "name": name,
            "parameters": parameter_count(config),
            "gflops": 2 * multiply_adds(config) / 1e9,
            "pixels": config.image_size[0],
            "tokens": getattr(config, "tokens", None),
        }
        zoo.append(row)
        if not arguments.json:
            print(
                f"{name:14} {row['parameters']:14,} {row['gflops']:9,.2f} {row['pixels']:7} "
                f"{row['tokens'] or '-':>7}",
                flush=True,
            )
    if arguments.json:
        print(json.dumps(zoo, indent=2))
    else:
        print(
            "\nwith 1000 classes; a FLOP is a multiplication or an addition of the forward pass on "
            "one image.\nAny other patch size works as well, as in B/24, and any hybrid or axial "
            "ViT, as in R26+L/32 or Axial-S/16."
        )
    return EXIT_DONE


def _load(arguments: argparse.Namespace):
    return _load_all(arguments).model


def _load_all(arguments: argparse.Namespace):
    """The model, its table, which is shown, and the names of its classes."""
    from vit_jax.weights.load import load_with_table
    from vit_jax.weights.table import table_text

    logging.basicConfig(format="%(message)s", force=True)  # whatever libraries set up
    logging.getLogger("vit_jax").setLevel(logging.INFO)
    changes = {"image_size": arguments.image_size} if arguments.image_size else {}
    loaded = load_with_table(arguments.model, **changes)
    if any(row.was for row in loaded.table):  # else it is a fresh one, as was asked for
        print(table_text(loaded.table), file=sys.stderr, flush=True)
    return loaded


def _print_results(results: dict[str, float | int], as_json: bool) -> None:
    if as_json:
        print(json.dumps(results, indent=2))
        return
    for key, value in results.items():
        print(f"{key:24} {value:.4f}" if isinstance(value, float) else f"{key:24} {value:,}")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"{text!r} is no count: expected a whole number of 1 or more")
    return int(text)


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return _count(height), _count(width or height)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _positive(text: str) -> float:
    try:
        [value] = _positives(text)
    except ValueError as error:
        raise UsageError(f"{text!r}: expected one number above 0, as in 1.2") from error
    return value


def _positives(text: str) -> tuple[float, ...]:
    """Numbers above 0, each once."""
    try:
        values = tuple(dict.fromkeys(map(float, text.split(","))))
    except ValueError as error:
        raise UsageError(f"{text!r}: expected numbers above 0, as in 64,1024") from error
    if not all(0 < value < float("inf") for value in values):
        raise UsageError(f"{text!r}: expected numbers above 0, as in 64,1024")
    return values


if __name__ == "__main__":
    sys.exit(main())
