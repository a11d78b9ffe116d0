#!/usr/bin/env python3
"""Times builds of the program against each other, in one call: every case with every build, one after another, several times
over, as times of one call alone can be compared.

  tools/compare_builds.py before=PROGRAM after=PROGRAM --case qwen3-30b-a3b:16,128:2 narrow=4096/128/128/8:8:1

A case is LAYER:TOKENS[,TOKENS...]:RANKS, LAYER a preset or NAME=HIDDEN/INTERMEDIATE/EXPERTS/TOP_K. Prints a table of medians.
--output adds them, as the next run, to a record of schema "engines" (bench/results/engines-*.json)."""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys


def named(text):
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise argparse.ArgumentTypeError(f"'{text}' is no NAME=PROGRAM")
    return name, value


def case(text):
    parts = text.split(":")
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"'{text}' is no LAYER:TOKENS:RANKS")
    layer, tokens, ranks = parts
    name, separator, sizes = layer.partition("=")
    if not separator:
        return ["--preset", layer, "--tokens", tokens, "--ranks", ranks]
    sizes = sizes.split("/")
    if len(sizes) != 4:
        raise argparse.ArgumentTypeError(f"'{text}': wanted NAME=HIDDEN/INTERMEDIATE/EXPERTS/TOP_K")
    flags = zip(("--hidden", "--intermediate", "--experts", "--top-k"), sizes)
    return ["--name", name, *(word for flag in flags for word in flag), "--tokens", tokens, "--ranks", ranks]


def measure(program, words, options):
    """One bench of the program: the JSON object it prints."""
    command = [program, "bench", *words, "--backend", options.backend, "--warm-up", str(options.warm_up), "--repeats",
               str(options.repeats), "--budget-ms", str(options.budget_ms), "--rest-ms", str(options.rest_ms), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"compare_builds: {' '.join(command)} ended with {done.returncode}: {done.stderr.strip() or done.stdout[-500:]}")
    return json.loads(done.stdout)


def recorded_command():
    """The command line without where its record went."""
    words = sys.argv[1:]
    if "--output" in words:
        at = words.index("--output")
        del words[at:at + 2]
    return " ".join(["tools/compare_builds.py", *words])


def add_run(path, rows, head, options):
    record = json.loads(path.read_text()) if path.exists() else {
        "schema": "engines", "date": datetime.date.today().isoformat(), "card": head.get("card"), "gpus": 0,
        "driver": head.get("driver"), "commit": options.commit, "command": recorded_command(),
        "what": options.what, "rows": []}
    run = max((row["run"] for row in record["rows"]), default=0) + 1
    record["rows"] += [{"run": run, **row} for row in rows]
    record["gpus"] = max(row["gpus"] for row in record["rows"])
    path.write_text(json.dumps(record, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", type=named, nargs="+", metavar="NAME=PROGRAM")
    parser.add_argument("--case", type=case, nargs="+", required=True, dest="cases", metavar="LAYER:TOKENS:RANKS")
    parser.add_argument("--passes", type=int, default=2, help="times each build has its turn [%(default)s]")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--budget-ms", type=int, default=50)
    parser.add_argument("--rest-ms", type=int, default=30)
    parser.add_argument("--output", type=pathlib.Path, help="record to add a run to")
    parser.add_argument("--what", default="", help="of a new record: what was compared")
    parser.add_argument("--commit", default="unknown", help="of a new record: of the builds")
    options = parser.parse_args()
    names = [name for name, _ in options.builds]
    if len(set(names)) != len(names):
        parser.error("every build needs a name of its own")

    rows, head = [], {}
    for _ in range(options.passes):
        for name, program in options.builds:
            for words in options.cases:
                head = measure(program, words, options)
                rows += [{"build": name, "model": row["model"], "tokens_per_rank": row["tokens_per_rank"],
                          "num_ranks": row["num_ranks"], "gpus": row.get("gpus", 0), "latency_us": round(row["latency_us"], 1)}
                         for row in head["rows"]]
    keys = list(dict.fromkeys((row["model"], row["tokens_per_rank"], row["num_ranks"]) for row in rows))
    print(f"{'layer':24s} {'tokens':>7s} {'ranks':>5s}", *(f"{name:>20s}" for name in names))
    for key in keys:
        cells = []
        for name in names:
            mine = [row["latency_us"] for row in rows
                    if row["build"] == name and (row["model"], row["tokens_per_rank"], row["num_ranks"]) == key]
            cells.append(f"{' '.join(f'{us:.1f}' for us in mine):>20s}")
        print(f"{key[0]:24s} {key[1]:>7d} {key[2]:>5d}", *cells)
    if options.output is not None:
        add_run(options.output, rows, head, options)


if __name__ == "__main__":
    main()
