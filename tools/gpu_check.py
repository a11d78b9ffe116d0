"""What tools/gpu_check.sh runs once the programs are there; see --help. Exit code 1 when anything failed."""

import argparse
import datetime
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = ("memcheck", "racecheck", "synccheck")
ENGINES = ("portable", "hopper", "hopper-pairs")  # -pairs: blocks take tasks in pairs, even for few rows
OF_ENGINES = ("cases_test", "fault_test", "graph_test", "large_test", "layer_test", "small_shapes_test")
PRESETS = ("qwen3-30b-a3b", "mixtral-8x7b", "llama4-scout", "deepseek-v3", "gpt-oss-120b", "thesis")
MEASURING = ("--warm-up", "20", "--repeats", "100", "--budget-ms", "250", "--rest-ms", "300")
BASELINES = ("--baselines", "flashinfer,torch_nccl", "--baseline-seconds", "150")
THESIS = ("--hidden", "1024", "--intermediate", "4096", "--top-k", "2", "--no-gate", "--activation", "relu")
SWEEPS = {  # what a record is called: what it goes over, beside the layers of --presets where it names none
    "sweep": ("--tokens", "16,128,1024,8192", "--replay", "graph,eager", *BASELINES),
    "experts": (*THESIS, "--experts", "8,16,32,64,128", "--tokens", "8192", "--name", "thesis-sizes"),
    "routing": ("--preset", "qwen3-30b-a3b", "--tokens", "128,1024", "--routing", "uniform,zipf:1.2,all-to-one"),
}
STAGES = ("tests", "random", "sanitizers", "python", "timing", "bench")
WHAT_IS_TIMED = ("events around calls back to back on one stream a rank, 100 calls after warm-up; a call takes as long as "
                 "on its slowest rank, latency_us is the median call; routing given; rel_l2 of rank 0 on sampled tokens; "
                 "torch_nccl measured in the same run")


def parse_arguments():
    parser = argparse.ArgumentParser(description="Proves the CUDA backend on the GPUs of this machine.")
    parser.add_argument("num_gpus", nargs="?", type=int, default=0, help="GPUs to use (default: all)")
    parser.add_argument("--programs", type=Path, default=ROOT / "build/cuda", help="build folder with tests/gpu/ in it")
    parser.add_argument("--output", type=Path, default=ROOT / "bench/results", help="where the records go")
    parser.add_argument("--logs", type=Path, help="where the programs' output goes (default: logs/ of --programs)")
    parser.add_argument("--name", help="middle part of the records' names (default: <gpus>x<card>)")
    parser.add_argument("--commit", help="what the programs were built from (default: git's HEAD)")
    parser.add_argument("--cases", type=int, default=2000, help="random layers")
    parser.add_argument("--only", default=",".join(STAGES), help="stages, of " + ", ".join(STAGES))
    parser.add_argument("--engines", default=",".join(ENGINES), help="of " + ", ".join(ENGINES))
    parser.add_argument("--presets", default=",".join(PRESETS), help="layers of stage bench")
    parser.add_argument("--sanitizers", default=",".join(SANITIZERS), help="of " + ", ".join(SANITIZERS))
    arguments = parser.parse_args()
    arguments.presets = arguments.presets.split(",")
    for name, known in (("only", STAGES), ("sanitizers", SANITIZERS), ("engines", ENGINES)):
        wanted = getattr(arguments, name).split(",")
        setattr(arguments, name, wanted)
        if unknown := set(wanted) - set(known):
            parser.error(f"--{name} ({', '.join(unknown)}) must be of {', '.join(known)}")
    return arguments


def query(fields, timeout=20):
    """Rows of nvidia-smi, one a GPU; none without it."""
    try:
        text = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=timeout, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


class Clocks:
    """Samples clocks, temperature and throttle reasons of the GPUs while it is open."""

    FIELDS = ("clocks.sm", "temperature.gpu", "power.draw", "clocks_event_reasons.active")

    def __init__(self, num_gpus):
        self.num_gpus, self.samples, self.done = num_gpus, [], threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def sample(self):
        while not self.done.wait(0.5):
            self.samples += query(self.FIELDS)[: self.num_gpus]

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def summary(self):
        def extent(index):
            values = [float(row[index]) for row in self.samples if re.fullmatch(r"[\d.]+", row[index])]
            return [min(values), max(values)] if values else None

        return {"samples": len(self.samples), "sm_clock_mhz": extent(0), "temperature_c": extent(1),
                "power_w": extent(2), "throttle_reasons": sorted({row[3] for row in self.samples})}


class Check:
    def __init__(self, arguments):
        self.arguments = arguments
        cards = query(("name", "driver_version"))
        if not cards:
            sys.exit("gpu_check needs a GPU and nvidia-smi, this machine shows none")
        self.num_gpus = arguments.num_gpus or len(cards)
        if self.num_gpus > len(cards):
            sys.exit(f"gpu_check was asked for {self.num_gpus} GPUs, this machine has {len(cards)}: ask for fewer")
        self.card, self.driver = cards[0]
        self.logs = arguments.logs or arguments.programs / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.programs = arguments.programs.resolve()
        self.environment = dict(os.environ, FLASHMOE_BUILD_DIR=str(self.programs), OPENBLAS_NUM_THREADS="1",
                                CUDA_VISIBLE_DEVICES=",".join(str(i) for i in range(self.num_gpus)))
        is_hopper = re.search(r"\bG?H[12]00\b", self.card) is not None
        self.engines = [engine for engine in arguments.engines if not engine.startswith("hopper") or is_hopper]
        self.runs, self.rows, self.clocks = [], [], {}
        self.failed = False

    def program(self, name):
        return str(self.programs / "tests/gpu" / f"gpu_{name}")

    def execute(self, name, command, timeout, **environment):
        """Runs to the end or the time limit. Returns exit code (124: too long), output and seconds."""
        log = self.logs / f"{name}.log"
        everything = {**self.environment, **environment}
        begin = time.monotonic()
        with log.open("w") as out:
            try:
                code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=timeout, env=everything,
                                      cwd=ROOT / "tests").returncode
            except subprocess.TimeoutExpired:
                code = 124
        return code, log.read_text(errors="replace"), time.monotonic() - begin

    @staticmethod
    def environment_of(engine):
        """What tells the tests of an engine."""
        name, _, pairs = engine.partition("-")
        return {**({"FLASHMOE_ENGINE": name} if name else {}), **({"FLASHMOE_PAIRS": "1"} if pairs else {})}

    def note(self, run, code, ok):
        self.failed |= not ok
        run["exit_code"] = code
        self.runs.append(run)
        facts = ", ".join(f"{key} {value}" for key, value in run.items() if key != "command")
        print(f"{'ok  ' if ok else 'FAIL'} {run['command']}: {facts}", flush=True)

    def gtest(self, label, command, timeout, launcher=(), **environment):
        """Runs a gtest program: (exit code, its log, what gtest counted)."""
        report = (self.logs / f"{label}.json").resolve()
        report.unlink(missing_ok=True)
        whole = [*launcher, *command, f"--gtest_output=json:{report}"]
        code, text, seconds = self.execute(label, whole, timeout, **environment)
        shown = " ".join([*(f"{key}={value}" for key, value in environment.items()), *launcher,
                          Path(command[0]).name, *command[1:]])
        run = {"command": shown, "cases": 0, "failures": 0, "skipped": 0, "seconds": round(seconds, 1)}
        if report.exists():
            tests = [test for suite in json.loads(report.read_text())["testsuites"] for test in suite["testsuite"]]
            ran = [test for test in tests if test["status"] == "RUN"]
            skipped = [test for test in ran if test.get("result") == "SKIPPED"]
            failed = [f"{test['classname']}.{test['name']}" for test in ran if test.get("failures")]
            run.update(cases=len(ran) - len(skipped), failures=len(failed), skipped=len(skipped))
            if failed:
                run["failed_tests"] = failed
            launches = {test["kernel_launches"] for test in ran if "kernel_launches" in test}
            if launches:
                run["kernel_launches"] = max(int(value) for value in launches)  # of one call
        return code, text, run

    @staticmethod
    def add_record(run, text):
        """Programs print what gtest cannot count as lines of JSON."""
        for line in text.splitlines():
            if line.startswith('{"'):
                run.update(json.loads(line))

    def tests(self):
        for path in sorted((self.programs / "tests/gpu").glob("gpu_*_test")):
            name = path.name.removeprefix("gpu_")
            if name == "random_conformance_test":
                continue
            for engine in self.engines if name in OF_ENGINES else ("",):
                code, text, run = self.gtest(name + engine, [self.program(name)], timeout=240, **self.environment_of(engine))
                self.add_record(run, text)
                self.note(run, code, code in (0, 77))  # 77: all of it was skipped

    def random(self):
        for engine in self.engines:
            command = [self.program("random_conformance_test")]
            cases = str(self.arguments.cases)
            code, text, run = self.gtest("random_conformance" + engine, command, timeout=400, FLASHMOE_CASES=cases,
                                         **self.environment_of(engine))
            self.add_record(run, text)
            self.note(run, code, code == 0)

    def sanitizers(self):
        for engine, tool, ranks in itertools.product(self.engines, self.arguments.sanitizers, (1, 2)):
            launcher = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9")
            # racecheck takes half a minute a dozen; fp16 and fp64 run the code of bf16 and tf32.
            filters = f"*bf16_{ranks}:*tf32_{ranks}" if tool == "racecheck" else f"*_{ranks}"
            command = [self.program("small_shapes_test"), f"--gtest_filter={filters}", "--gtest_fail_fast"]
            code, text, run = self.gtest(f"{tool}-{ranks}{engine}", command, timeout=150, launcher=launcher,
                                         **self.environment_of(engine))
            self.note_findings(code, text, run)
        for tool in self.arguments.sanitizers:
            launcher = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9")
            command = [self.program("router_test"), "--gtest_filter=*counts*:*graph*:*unusual*"]
            code, text, run = self.gtest(f"{tool}-router", command, timeout=150, launcher=launcher)
            self.note_findings(code, text, run)

    def note_findings(self, code, text, run):
        # memcheck and synccheck: ERROR SUMMARY: 0 errors; racecheck: 0 hazards displayed (0 errors, 0 warnings)
        found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
        run["sanitizer_findings"] = int(found.group(1)) if found else None
        clean = code == 0 and run["sanitizer_findings"] == 0
        self.note(run, code, clean)
        if not clean:  # the first finding
            print("\n".join([line for line in text.splitlines() if line.startswith("=========")][:16]), flush=True)

    def python(self):
        """The package's tests on GPU tensors, by the python3 that runs this and its torch."""
        report = self.logs / "python.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
                   str(ROOT / "tests/python/gpu")]
        library = str(self.programs / "src/libflashmoe.so")
        code, _, seconds = self.execute("python", command, timeout=500, FLASHMOE_LIBRARY=library, HF_HUB_OFFLINE="1")
        run = {"command": "python3 -m pytest tests/python/gpu", "cases": 0, "failures": 0, "skipped": 0,
               "seconds": round(seconds, 1)}
        if report.exists():
            suite = next(ElementTree.parse(report).iter("testsuite"))
            count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
            run.update(cases=count["tests"] - count["skipped"], failures=count["failures"] + count["errors"],
                       skipped=count["skipped"])
            failed = [f"{case.get('classname')}.{case.get('name')}" for case in suite.iter("testcase")
                      if case.find("failure") is not None or case.find("error") is not None]
            if failed:
                run["failed_tests"] = failed
        self.note(run, code, code == 0 and run["cases"] > 0)

    def timing(self):
        baseline = [sys.executable, str(ROOT / "bench/baselines/torch_nccl.py"), str(self.num_gpus)]
        programs = [(f"layer_timing {engine}", [self.program("layer_timing")], engine)
                    for engine in self.engines if not engine.endswith("-pairs")]
        for name, command, engine in [*programs, ("torch_nccl", baseline, "")]:
            with Clocks(self.num_gpus) as clocks:
                code, text, seconds = self.execute(name.replace(" ", "_"), command, timeout=240, FLASHMOE_ENGINE=engine)
            self.clocks[name] = clocks.summary()
            rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            self.rows += rows
            # The baseline is a column that may be missing; ours is not.
            ok = code == 0 or name == "torch_nccl"
            self.note({"command": name, "rows": len(rows), "seconds": round(seconds, 1)}, code, ok)

    def bench(self):
        """The program's own sweeps, one with baselines, and timelines; it writes its records itself. A sweep that was
        stopped goes on."""
        self.arguments.output.mkdir(parents=True, exist_ok=True)
        program = str(self.programs / "cli/flashmoe")
        shared = ["--ranks", str(self.num_gpus), "--backend", "cuda", "--commit", self.commit()]
        commands = []
        for tokens in ("16", "128", "8192"):
            svg = ["--svg", str((self.logs / f"trace-{tokens}.svg").resolve())]
            command = [program, "trace", "--preset", "qwen3-30b-a3b", *shared, "--tokens", tokens, *svg]
            path = self.record_path("trace", f"{tokens}-")
            path.unlink(missing_ok=True)
            commands.append((f"flashmoe trace {tokens}", [*command, "--summary", str(path.resolve())], path, 60))
        for tokens in ("16", "8192") if self.num_gpus > 1 else ():
            late = ["--late-rank", str(self.num_gpus - 1), "--late-us", "1000"]
            command = [program, "trace", "--preset", "qwen3-30b-a3b", *shared, "--tokens", tokens, *late]
            path = self.record_path("trace", f"late-{tokens}-")
            path.unlink(missing_ok=True)
            commands.append((f"flashmoe trace late {tokens}", [*command, "--summary", str(path.resolve())], path, 60))
        for sweep, axes in reversed(SWEEPS.items()):  # the one that everybody reads is printed last
            layers = () if {"--preset", "--hidden"} & set(axes) else ("--preset", ",".join(self.arguments.presets))
            path = self.record_path("bench", f"{sweep}-")
            if path.exists() and json.loads(path.read_text()).get("commit") != self.commit():
                path.unlink()
            command = [program, "bench", *layers, *axes, *shared, *MEASURING, "--continue", "--output"]
            commands.append((f"flashmoe bench {sweep}", [*command, str(path.resolve())], path, 600))
        for name, command, path, timeout in commands:
            code, text, seconds = self.execute(name.replace(" ", "_"), command, timeout)
            self.note({"command": name, "seconds": round(seconds, 1)}, code, code == 0)
            if path.exists():
                print(f"wrote {path}")
            print(text)

    def table(self):
        """Our rows with the baseline of the same model and tokens beside them."""
        baselines = {(row["model"], row["tokens_per_rank"]): row for row in self.rows if "baseline" in row}
        ours = [row for row in self.rows if "baseline" not in row]
        for row in ours:
            other = baselines.get((row["model"], row["tokens_per_rank"]))
            row["baselines"] = {"torch_nccl": other["latency_us"]} if other else {}
        return ours

    def command(self):
        """How to repeat the run anywhere: without folders."""
        arguments = self.arguments
        lists = {"only": arguments.only, "engines": self.engines, "sanitizers": arguments.sanitizers}
        options = " ".join(f"--{name} {','.join(values)}" for name, values in lists.items())
        return f"tools/gpu_check.sh {self.num_gpus} {options} --cases {arguments.cases}"

    def record_path(self, schema, part=""):
        card = re.sub(r"[^a-z0-9]+", "-", self.card.lower().removeprefix("nvidia "))
        name = self.arguments.name or f"{self.num_gpus}x{card}"
        return self.arguments.output / f"{schema}-{part}{name}-{datetime.date.today().isoformat()}.json"

    def commit(self):
        """What the programs were built from."""
        git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        head = git("rev-parse", "HEAD")
        edited = git("status", "--porcelain", "--", "CMakeLists.txt", "cli", "cmake", "include", "src")
        return self.arguments.commit or (head + ("-dirty" if edited else "") if head else "unknown")

    def record(self, schema, **content):
        path = self.record_path(schema)
        record = {"schema": schema, "date": datetime.date.today().isoformat(), "card": self.card, "gpus": self.num_gpus,
                  "driver": self.driver, "commit": self.commit(), "command": self.command(), **content}
        self.arguments.output.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {path}")

    def run(self):
        for stage in STAGES:
            if stage in self.arguments.only:
                getattr(self, stage)()
        checks = [run for run in self.runs if "failures" in run]
        if checks:
            total = {key: sum(run[key] for run in checks) for key in ("cases", "failures", "skipped")}
            errors = {}
            for dtype, error in (item for run in checks for item in run.get("max_rel_l2", {}).items()):
                errors[dtype] = max(error, errors.get(dtype, 0))
            self.record("conformance", **total, max_rel_l2=errors,
                        kernel_launches=max((run.get("kernel_launches", 0) for run in checks), default=0),
                        sanitizer_findings=sum(run.get("sanitizer_findings") or 0 for run in checks), runs=checks)
        if self.rows:
            rows = self.table()
            baselines = [row for row in self.rows if "baseline" in row]
            self.record("bench", what=WHAT_IS_TIMED, backend="cuda", clocks=self.clocks, rows=rows,
                        baseline_cards={"torch_nccl": self.card} if baselines else {}, baseline_rows=baselines)
            columns = ("model", "tokens_per_rank", "engine", "wire_form", "latency_us", "p95_us", "bound_us", "rel_l2")
            print(" ".join(f"{name:>15}" for name in (*columns, "torch_nccl")))
            for row in rows:
                torch = row["baselines"].get("torch_nccl", "-")
                cells = (*(row[name] for name in columns), torch)
                print(" ".join(f"{f'{cell:.4g}' if isinstance(cell, float) else cell:>15}" for cell in cells))
        return 1 if self.failed else 0


if __name__ == "__main__":
    sys.exit(Check(parse_arguments()).run())
