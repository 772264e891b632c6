"""The flags of a launch, which are torchrun's, and their checks."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

from ._logs import chosen_streams
from ._stores.rendezvous import Nodes, Patience

__all__ = ["PORT", "parsed"]

PORT = 29500  # the default of torchrun for a world of several machines
_JOIN_SECONDS = 600.0  # the default of torchrun: the time within which all machines must arrive
_LAST_CALL_SECONDS = 30.0  # the default of torchrun: the time for which more than MIN are waited for
_GRACE_SECONDS = 10.0

# Flags of torchrun without effect, and why.
_IDLE = {
    "--start-method": "each process is a program of its own",
    "--event-log-handler": "a launch has no log of events: the daemon's metrics and log have them",
    "--logs-specs": "--log-dir, --redirects and --tee say where output goes",
    "--numa-binding": "the daemon computes, not the processes",
    "--virtual-local-rank": "the daemon's GPUs have the same numbers in all processes",
}


def parsed(
    arguments: list[str], prog: str, gpus: Callable[[argparse.Namespace], int]
) -> argparse.Namespace:
    """The parsed and checked flags. A flag that is not given has the value of the variable PET_<FLAG>, as
    for torchrun. gpus() returns the number of the daemon's GPUs. SystemExit if the flags are invalid."""
    parser = _parser(prog)
    args = parser.parse_args(arguments)
    if args.standalone:
        args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id = "static", "", "none"
    _check_nodes(parser, args)
    _check_rendezvous(parser, args)
    _check_size(parser, args, gpus)
    _check_logs(parser, args)
    _check_ends(parser, args)
    if args.master_port is not None and not 1 <= args.master_port <= 65535:
        parser.error(f"--master-port is a number from 1 to 65535, not {args.master_port}")
    if args.max_restarts < 0:
        parser.error(f"--max-restarts is 0 or more, not {args.max_restarts}")
    if args.run_path:
        args.no_python = args.module = False
    if args.module and args.no_python:
        parser.error("--module and --no-python exclude each other")
    if args.no_python and shutil.which(args.script) is None:
        parser.error(f"--no-python: {args.script!r} is no program that this user can execute")
    for name, why in _IDLE.items():
        if getattr(args, name[2:].replace("-", "_")):
            print(f"{prog}: {name} has no effect: {why}", file=sys.stderr, flush=True)
    return args


class _PrintCompletion(argparse.Action):
    """Prints the completion script of a shell, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any,
                 option_string: str | None = None) -> None:
        try:
            shtab = importlib.import_module("shtab")
        except ImportError:
            parser.error("--print-completion needs the package shtab")
        print(shtab.complete(parser, values))
        parser.exit()


def _listed(text: str) -> list[str]:
    """The items of a list with commas, in which two commas stand for one in an item."""
    items = text.replace(",,", "\0").split(",")
    return [each.replace("\0", ",") for each in items if each]


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Starts the processes of a world on this machine, with torchrun's flags and variables.",
        epilog="Exit status: 0 if all processes have exited with 0, 1 if one has failed, 2 for a mistake "
               "on the command line, 128 + N if signal N has ended the launcher.")

    def flag(name: str, text: str, *short: str, **options: Any) -> None:
        plain = name[2:].replace("-", "_")
        given = os.environ.get(f"PET_{plain.upper()}")
        if given is not None:
            is_switch = options.get("action") == "store_true"
            options["default"] = given not in ("", "0") if is_switch else given
        parser.add_argument(*short, *dict.fromkeys((name, "--" + plain)), help=text, **options)

    flag("--nproc-per-node", "processes on this machine; cpu: one a CPU, gpu: one a GPU of the daemon, "
         "auto: gpu if it has one, else cpu [1]", default="1", metavar="N")
    flag("--nnodes", "machines, each of which runs this command; MIN:MAX with c10d [1]", default="1",
         metavar="N")
    flag("--node-rank", "which of the machines this is, from 0 [0]", type=int, default=0, metavar="N")
    flag("--master-addr", "with the port, the name of the world [127.0.0.1]", default="127.0.0.1",
         metavar="HOST")
    flag("--rdzv-backend", "c10d: machines get their numbers by a store [static: --node-rank]",
         choices=("static", "c10d"), default="static")
    flag("--rdzv-endpoint", "c10d: of the daemon with the store; static: of the master", default="",
         metavar="HOST[:PORT]")
    flag("--rdzv-id", "by which launchers of a job know each other [none]", default="none", metavar="ID")
    flag("--rdzv-conf", "c10d: join_timeout=SECONDS, for which machines are waited for [600]; "
         "last_call_timeout=SECONDS, for which more than MIN are waited for [30]", default="",
         metavar="KEY=VALUE,...")
    flag("--monitor-interval", "with MIN:MAX, seconds between two looks for new machines [0.1]", type=float,
         default=0.1, metavar="SECONDS")
    flag("--master-port", f"[this launch's own; with several machines {PORT}]", type=int, metavar="N")
    flag("--max-restarts", "restarts of all after a failure [0]", type=int, default=0, metavar="N")
    flag("--role", "the name of the processes in their variables and in copied output [default]",
         default="default", metavar="NAME")
    flag("--log-dir", "the folder for log files [a new one in the folder for temporary files]", default="",
         metavar="DIR")
    streams: dict[str, Any] = {"default": "0", "metavar": "N|RANK:N,..."}
    flag("--redirects", "streams that go to log files: 1 output, 2 errors, 3 both; or a number for each "
         "local rank [0]", "-r", **streams)
    flag("--tee", "streams that go to log files and to the terminal [0]", "-t", **streams)
    flag("--log-line-prefix-template", "before each line that --tee copies; with ${role_name}, "
         "${local_rank}, ${rank} and ${hostname} [[${role_name}${rank}]:]", metavar="TEXT",
         default=os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""))
    for which in ("stdout", "stderr"):
        flag(f"--duplicate-{which}-filters", f"lines of {which} with one of these texts, which --tee "
             f"copies, also go to filtered_{which}.log", type=_listed, default=[], metavar="TEXT,...")
    flag("--local-ranks-filter", "the local ranks whose output is shown [all]", default="",
         metavar="RANK,...")
    flag("--local-addr", "by which other machines know this one, with c10d [its name]", default="",
         metavar="HOST")
    flag("--signals-to-handle", "the signals that end the launch [SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
         default="SIGTERM,SIGINT,SIGHUP,SIGQUIT", metavar="NAME,...")
    flag("--shutdown-timeout", f"seconds between SIGTERM and SIGKILL [{_GRACE_SECONDS:.0f}]", type=float,
         default=os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_GRACE_SECONDS)), metavar="SECONDS")
    flag("--no-python", "the script is a program of its own, not Python's", action="store_true")
    flag("--run-path", "the script runs by runpy.run_path", action="store_true")
    flag("--standalone", "one machine: --rdzv-* have no effect", action="store_true")
    flag("--module", "the script is the name of a module", "-m", action="store_true")
    flag("--start-method", "no effect", choices=("spawn", "fork", "forkserver"))
    flag("--numa-binding", "no effect", choices=("node", "socket", "exclusive", "core-complex"))
    flag("--event-log-handler", "no effect", metavar="NAME")
    flag("--logs-specs", "no effect", metavar="NAME")
    flag("--virtual-local-rank", "no effect", action="store_true")
    flag("--print-completion", "prints a completion script for a shell", choices=("bash", "zsh", "tcsh"),
         action=_PrintCompletion)
    parser.add_argument("script", help="the program that each process runs")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def _check_size(parser: argparse.ArgumentParser, args: argparse.Namespace,
                gpus: Callable[[argparse.Namespace], int]) -> None:
    size = args.nproc_per_node
    found = gpus(args) if size in ("gpu", "auto") else 0
    if size == "gpu" and not found:
        parser.error("--nproc-per-node gpu: the daemon has no GPU")
    if size in ("gpu", "cpu", "auto"):
        size = str(found or os.cpu_count() or 1)
    if not size.isdecimal() or not 1 <= int(size) <= 4096:
        parser.error(f"--nproc-per-node is a number from 1 to 4096, or auto, cpu or gpu, not {size!r}")
    args.nproc_per_node = int(size)


def _check_ends(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    names = [each.strip() for each in args.signals_to_handle.split(",")]
    known = {each.name: each for each in signal.Signals} | {"": None}
    fixed = {"SIGKILL", "SIGSTOP", "SIGCHLD"}
    if unknown := [each for each in names if each not in known or each in fixed]:
        parser.error("--signals-to-handle has a name that is no signal or cannot end a launch: "
                     f"{unknown[0]}")
    args.signals_to_handle = [known[each] for each in names if each]
    if not 0 <= args.shutdown_timeout < float("inf"):
        parser.error(f"--shutdown-timeout is a number of seconds, not {args.shutdown_timeout}")


def _check_nodes(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    least, separator, most = args.nnodes.partition(":")
    if not separator:
        most = least
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most) <= 4096):
        parser.error(f"--nnodes is a number from 1 to 4096, or a range MIN:MAX of such numbers, not "
                     f"{args.nnodes!r}")
    args.nnodes = Nodes(int(least), int(most))
    if args.nnodes.least < args.nnodes.most and args.rdzv_backend == "static":
        parser.error(f"--nnodes {args.nnodes} needs --rdzv-backend c10d: with static the number of "
                     "machines is fixed")
    if not 0 <= args.node_rank < args.nnodes.most:
        parser.error(f"--node-rank {args.node_rank} is not one of --nnodes {args.nnodes} machines, "
                     "which count from 0")
    if not args.monitor_interval > 0:
        parser.error(f"--monitor-interval is more than 0, not {args.monitor_interval}")


def _check_logs(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    size = args.nproc_per_node
    try:
        args.redirects = chosen_streams(args.redirects, "--redirects", size)
        args.tee = chosen_streams(args.tee, "--tee", size)
    except ValueError as error:
        parser.error(str(error))
    shown = args.local_ranks_filter.split(",") if args.local_ranks_filter else map(str, range(size))
    args.shown = {int(each) for each in shown if each.isdecimal() and int(each) < size}
    if args.local_ranks_filter and len(args.shown) != args.local_ranks_filter.count(",") + 1:
        parser.error(f"--local-ranks-filter is a list of local ranks 0 to {size - 1}, not "
                     f"{args.local_ranks_filter!r}")


def _check_rendezvous(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    host, separator, port = args.rdzv_endpoint.rpartition(":")
    if not separator:
        host, port = args.rdzv_endpoint, str(PORT)
    if args.rdzv_endpoint and not (host and port.isdecimal() and 0 < int(port) < 65536):
        parser.error(f"--rdzv-endpoint is HOST or HOST:PORT, not {args.rdzv_endpoint!r}")
    args.rdzv_host, args.rdzv_port = host, int(port)
    patience = Patience(_JOIN_SECONDS, _LAST_CALL_SECONDS)
    if host and args.rdzv_backend == "static":
        args.master_addr, args.master_port = host, args.master_port or int(port)
    for each in filter(None, args.rdzv_conf.split(",")):
        name, _, value = each.partition("=")
        if name not in ("join_timeout", "timeout", "last_call_timeout"):
            parser.error(f"--rdzv-conf has join_timeout and last_call_timeout only, not {name!r}")
        field = "last_call" if name == "last_call_timeout" else "join"
        try:
            patience = patience._replace(**{field: float(value)})
        except ValueError:
            parser.error(f"--rdzv-conf {name} is a number of seconds, not {value!r}")
    args.patience = patience
