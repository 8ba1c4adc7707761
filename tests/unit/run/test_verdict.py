"""What a rank's end means. The texts are those that torch, gloo, NCCL and Python really print."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from echelon.core.codec import decode
from echelon.launch.controller.failures import (
    NEVER_RETRIED,
    classify_exit,
    decide_retry,
    from_exit,
    last_traceback,
)
from echelon.launch.protocol.messages import RankExited
from echelon.run.verdict import (
    CAUSES,
    Failure,
    Verdict,
    advise,
    is_victim,
    judge,
    render,
)

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = (
    f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:32658. This is typically caused by "
    "a remote worker crashing. Check the logs of the remote worker before reporting an error."
)
NCCL = "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
WATCHDOG = (
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)


def classify(*, code=1, number=0, kind="", message="", tail="", bases=(), out_of_memory=False):
    error = {"type": kind, "message": message, "bases": list(bases)} if kind else {}
    return classify_exit(
        code=code, number=number, error=error, tail=tail, out_of_memory=out_of_memory
    )


def traceback_of(exception, label=""):
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 12, in <module>',
        "    main()",
        exception,
    ]
    return "".join(f"{label}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("cause", "kind", "message"),
    [
        ("exception", "ValueError", "boom"),
        ("exception", "AssertionError", ""),
        ("exception", "RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x3 and 4x3)"),
        ("exception", "DistBackendError", f"{NCCL}invalid usage, NCCL version 2.21.5"),
        ("exception", "FileNotFoundError", "[Errno 2] No such file or directory: 'data'"),
        ("import error", "ModuleNotFoundError", "No module named 'timm'"),
        ("import error", "ImportError", "cannot import name 'x' from 'os' (/usr/lib/os.py)"),
        ("import error", "SyntaxError", "invalid syntax (model.py, line 3)"),
        ("import error", "TabError", "inconsistent use of tabs and spaces in indentation"),
        (
            "cuda out of memory",
            "OutOfMemoryError",
            (
                "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of "
                "79.15 GiB of which 4.61 GiB is free."
            ),
        ),
        ("cuda out of memory", "AcceleratorError", "CUDA error: out of memory"),
        ("cuda out of memory", "RuntimeError", "CUDA error: out of memory"),
        (
            "gpu fault",
            "AcceleratorError",
            (
                "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be "
                "asynchronously reported at some other API call, so the stacktrace below might be "
                "incorrect."
            ),
        ),
        (
            "gpu fault",
            "RuntimeError",
            "CUDA error: uncorrectable NVLink error detected during the execution",
        ),
        (
            "gpu fault",
            "DistBackendError",
            (
                f"{NCCL}unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version "
                "2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
                "Cuda failure 'uncorrectable ECC error encountered'"
            ),
        ),
        (
            "gpu fault",
            "RuntimeError",
            (
                "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
                "before calling NumCudaDevices() that might have already set an error? Error 802: "
                "system not yet initialized"
            ),
        ),
        ("gpu fault", "RuntimeError", "cuda runtime error (802) : system not yet initialized"),
        ("gpu fault", "NVMLError_GpuIsLost", "GPU is lost"),
        (
            "exception",
            "AcceleratorError",
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        ),
        ("exception", "RuntimeError", "CUDA error: an illegal memory access was encountered"),
        ("exception", "RuntimeError", "CUDA error: unspecified launch failure"),
        ("exception", "RuntimeError", "CUDA error: device-side assert triggered"),
        (
            "out of memory",
            "RuntimeError",
            (
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 144115188075855872 bytes. Error code 12"
            ),
        ),
        ("out of memory", "MemoryError", ""),
        ("exception", "ValueError", "NCCL does not support monitoredBarrier"),
        ("exception", "RuntimeError", "nccl does not support monitoredBarrier"),
        ("out of memory", "OSError", "[Errno 12] Cannot allocate memory"),
        ("disk full", "OSError", "[Errno 28] No space left on device"),
        ("disk full", "OSError", "[Errno 122] Disk quota exceeded: 'ckpt.pt'"),
        (
            "disk full",
            "OSError",
            (
                "Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent "
                "call last):\nOSError: [Errno 28] No space left on device"
            ),
        ),
        ("port taken", "OSError", "[Errno 98] Address already in use"),
        (
            "port taken",
            "DistNetworkError",
            (
                "The server socket has failed to listen on any local network address. port: 29500, "
                "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            ),
        ),
        (
            "collective time-out",
            "RuntimeError",
            f"{GLOO}unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete",
        ),
        (
            "collective time-out",
            "RuntimeError",
            f"{GLOO}pair.cc:532] Application timeout caused pair closure",
        ),
        (
            "collective time-out",
            "RuntimeError",
            "Rank 2 failed to pass monitoredBarrier in 3000 ms",
        ),
        (
            "collective time-out",
            "DistStoreError",
            "wait timeout after 3000ms, keys: /default_pg/0//cpu//0/3",
        ),
        (
            "collective time-out",
            "DistStoreError",
            "Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        ),
        ("collective time-out", "DistBackendError", WATCHDOG),
        ("lost peer", "RuntimeError", CLOSED),
        (
            "lost peer",
            "ValueError",  # JAX
            (
                "UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:538] "
                "Read error [198.18.51.1]:47791: Connection reset by peer"
            ),
        ),
        (
            "lost peer",
            "RuntimeError",
            f"{GLOO}pair.cc:534] Read error [127.0.0.1]:1: Connection reset by peer",
        ),
        ("lost peer", "RuntimeError", f"{GLOO}pair.cc:443] writev [::1]:1: Broken pipe"),
        (
            "lost peer",
            "DistBackendError",
            (
                f"{NCCL}remote process exited or there was a network error, NCCL version 2.21.5\n"
                "ncclRemoteError: A call failed possibly due to a network error or a remote "
                "process exiting prematurely.\nLast error:\n"
            ),
        ),
        (
            "lost peer",
            "DistBackendError",
            (
                f"{NCCL}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL "
                "version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) failed."
            ),
        ),
        (
            "lost peer",
            "DistNetworkError",
            (
                "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
                "shutdown or crash?"
            ),
        ),
    ],
)
def test_what_a_rank_says_of_itself_decides(cause, kind, message):
    found, told = classify(kind=kind, message=message)
    assert (found, told) == (cause, f"{kind}: {message}".rstrip(": "))
    assert found in CAUSES


@pytest.mark.parametrize("kind", ["ConnectionResetError", "BrokenPipeError", "ConnectionError"])
def test_a_broken_connection_of_the_scripts_own_is_no_lost_peer(kind):
    """Only torch's errors are of the ranks' connections: a data base's are the script's matter."""
    message = "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"
    assert classify(kind=kind, message=message)[0] == "exception"


def test_an_error_of_a_librarys_own_that_is_built_on_torchs_counts_as_torchs():
    found, _ = classify(
        kind="TrainingError", message=CLOSED, bases=["TrainingError", "RuntimeError"]
    )
    assert found == "lost peer"


# --- exits and signals --------------------------------------------------------------------------


def test_an_exit_code_is_told_with_the_last_line_of_the_log():
    told = classify(code=3, kind="SystemExit", message="3", tail="loading\ngiving up\n\n")
    assert told == ("exit", "exit code 3; the last output was: giving up")
    assert classify(code=4) == ("exit", "exit code 4")


def test_arguments_that_argparse_refuses():
    message = "train.py: error: the following arguments are required: --lr"
    tail = f"usage: train.py [-h] --lr LR\n{message}\n"
    assert classify(code=2, kind="SystemExit", message="2", tail=tail) == ("bad arguments", message)
    assert classify(code=2, tail=tail) == ("bad arguments", message)
    assert classify(code=2, tail="no such file\n")[0] == "exit"


@pytest.mark.parametrize("label", ["", "[rank3]: "])
def test_without_a_record_the_log_tells_the_exception(label):
    """A Python that somebody else started leaves none; torch labels the lines once ranks met."""
    tail = f"epoch 1\n{traceback_of('my.package.Broken: no', label)}"
    assert classify(tail=tail) == ("exception", "Broken: no")
    assert last_traceback(tail) == traceback_of("my.package.Broken: no")


def test_of_several_tracebacks_the_last_one_counts():
    tail = traceback_of("KeyError: 'a'") + "\nDuring handling of…\n\n" + traceback_of("ValueError")
    assert classify(tail=tail) == ("exception", "ValueError")


def test_a_script_that_cannot_be_parsed_leaves_no_traceback():
    tail = '  File "/x/inner.py", line 1\n    def (:\n        ^\nSyntaxError: invalid syntax\n'
    assert classify(tail=tail) == ("import error", "SyntaxError: invalid syntax")


def test_an_exception_that_was_dealt_with_is_not_why_a_rank_exits():
    """Python itself ends with 1 after an exception that nobody caught, and never otherwise."""
    tail = traceback_of("ZeroDivisionError: division by zero")
    assert classify(code=9, tail=tail)[0] == "exit"
    assert classify(code=1, kind="SystemExit", tail=tail)[0] == "exit"


def test_a_rank_killed_by_a_signal_is_classified_with_its_name():
    assert classify(number=9) == ("signal", "killed by SIGKILL")
    assert classify(number=11) == ("signal", "killed by SIGSEGV")
    refused = (
        "E1119 17:52:58.035833 12857 add_port.cc:83] Failed to add port to server: "
        "No address added out of total 1 resolved for '[::]:37171'"
    )
    crashed = f"{refused}\nFatal Python error: Segmentation fault\n"
    assert classify(number=11, tail=crashed) == ("port taken", refused)
    assert classify(number=63) == ("signal", "killed by signal 63")


def test_a_kill_for_memory_is_told_from_any_other():
    assert classify(number=9, out_of_memory=True)[0] == "out of memory"
    assert classify(number=11, out_of_memory=True)[0] == "signal"
    killed = "DataLoader worker (pid 8212) is killed by signal: Killed. "
    gone = "DataLoader worker (pid(s) 8212) exited unexpectedly"
    for message in (killed, gone):
        worker = {"kind": "RuntimeError", "message": message}
        assert classify(**worker, out_of_memory=True)[0] == "out of memory"
        assert classify(**worker)[0] == "exception"
    assert classify(kind="ValueError", message="x", out_of_memory=True)[0] == "exception"


def test_an_abort_by_nccls_watchdog_may_be_the_gpus_fault():
    said = "CUDA error: uncorrectable ECC error encountered"
    tail = (
        "[rank1]:[E516 09:02:17.1 ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread "
        f"terminated with exception: {said}\nCUDA kernel errors might be asynchronously reported\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    )
    cause, message = classify(number=6, tail=tail)
    assert cause == "gpu fault"
    assert message.endswith(said)


def test_an_abort_by_nccls_watchdog_is_a_collective_that_timed_out():
    tail = (
        f"[rank1]:[E516 09:02:17.1 ProcessGroupNCCL.cpp:632] {WATCHDOG}\n"
        "[rank1]:[E516 09:02:17.1 ProcessGroupNCCL.cpp:684] [Rank 1] To avoid data inconsistency, "
        "we are taking the entire process down.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread "
        f"terminated with exception: {WATCHDOG}\n"
        "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:635 (most recent call first):\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)\n"
        "Fatal Python error: Aborted\n"
    )
    cause, message = classify(number=6, tail=tail)
    assert cause == "collective time-out"
    assert "ALLREDUCE" in message
    assert classify(number=6, tail="double free or corruption (out)\n") == (
        "signal",
        "killed by SIGABRT",
    )


def test_an_abort_of_one_that_was_about_to_leave_is_not_why_it_left():
    """Python takes torch apart, and a thread of torch's is not ready for that."""
    abort = "terminate called without an active exception\n"
    for label in ("", "[rank1]: "):
        tail = traceback_of("ValueError: boom", label) + abort
        assert classify(number=6, tail=tail) == ("exception", "ValueError: boom")
    assert classify(number=6, kind="KeyError", tail=abort) == ("exception", "KeyError")
    for tail in (abort, traceback_of("ValueError: dealt with") + "epoch 2\n" + abort):
        assert classify(number=6, tail=tail) == ("signal", "killed by SIGABRT")
    # Any other signal is its own cause, whatever came before.
    assert classify(number=11, tail=traceback_of("ValueError: boom") + abort)[0] == "signal"
    assert classify(number=11, kind="ValueError")[0] == "signal"


# --- judging ------------------------------------------------------------------------------------


def failure(cause, rank=0, message="", **more):
    return Failure(cause=cause, rank=rank, node="node0", message=message or cause, **more)


def test_the_first_that_is_no_victim_is_the_cause():
    failures = [
        failure("lost peer", 0),
        failure("collective time-out", 1),
        failure("exception", 2),
        failure("exception", 3),
    ]
    verdict = judge(failures)
    assert verdict.failure is failures[2]
    assert [victim.rank for victim in verdict.victims] == [0, 1, 3]


def test_victims_are_those_whom_another_ranks_death_kills():
    assert {cause for cause in CAUSES if is_victim(failure(cause))} == {
        "lost peer",
        "collective time-out",
        "ended",
    }


@pytest.mark.parametrize("cause", ["collective time-out", "lost peer"])
def test_the_one_that_went_on_when_all_others_gave_up_kept_them_waiting(cause):
    failures = [
        failure(cause, 1, "Timed out waiting 3000ms", exit_code=1),
        failure("lost peer", 0),
        failure("ended", 3, exit_code=137, log="logs/rank-3"),
    ]
    verdict = judge(failures)
    assert (verdict.failure.rank, verdict.failure.cause) == (3, cause)
    assert "rank 1 had given up: Timed out waiting 3000ms" in verdict.failure.message
    assert verdict.failure.exit_code == 1  # not 137: that was us
    assert verdict.failure.log == "logs/rank-3"
    assert [victim.rank for victim in verdict.victims] == [1, 0]


def test_the_last_rank_that_gave_up_is_named():
    """Before it gave up, it was still running too."""
    late = [failure("collective time-out", rank, f"Timed out on rank {rank}") for rank in (2, 1)]
    verdict = judge([*late, failure("ended", 3)])
    assert "rank 1 had given up: Timed out on rank 1" in verdict.failure.message


def test_a_time_out_is_the_cause_although_another_rank_lost_its_peer_first():
    failures = [
        failure("lost peer", 0, "Connection closed by peer"),
        failure("collective time-out", 1, "Timed out waiting 3000ms"),
        failure("ended", 3),
    ]
    verdict = judge(failures)
    assert (verdict.failure.rank, verdict.failure.cause) == (3, "collective time-out")
    assert "rank 1 had given up: Timed out waiting 3000ms" in verdict.failure.message
    assert [victim.rank for victim in verdict.victims] == [0, 1]


def test_nobody_is_accused_when_several_went_on():
    failures = [failure("lost peer", 1), failure("ended", 0), failure("ended", 2)]
    assert judge(failures).failure is failures[0]


def test_several_failures_of_no_rank_are_kept_apart():
    failures = [Failure(cause="lost node", message=name, node=name) for name in ("a", "b")]
    verdict = judge(failures)
    assert verdict.failure is failures[0]
    assert verdict.victims == (failures[1],)


@pytest.mark.parametrize(
    ("kind", "message", "advice"),
    [
        ("EOFError", "EOFError: EOF when reading a line", "no standard input"),
        ("EOFError", "EOFError: Ran out of input", ""),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'data/x.bin'", "--chdir"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/x.bin'", ""),
        ("PermissionError", "[Errno 13] Permission denied: '/runs/a-1/code/x'", "--no-snapshot"),
        ("PermissionError", "[Errno 13] Permission denied: '/data/x'", ""),
        ("ModuleNotFoundError", "No module named 'echelon'", "-m pip install PATH"),
    ],
)
def test_mistakes_that_come_of_how_ranks_are_started_are_explained(kind, message, advice):
    told = advise(failure("exception", message=message, error_type=kind))
    assert advice in told
    assert bool(told) == bool(advice)


def test_every_piece_of_advice_is_for_a_cause_that_exists():
    assert advise(failure("time limit")) == "request more time (--time)"
    assert advise(failure("exception")) == ""


# --- trying again -------------------------------------------------------------------------------


def retry(last, earlier=(), *, restarts=3, nodes=2, low=2, **more):
    return decide_retry(last, earlier, restarts=restarts, nodes=nodes, low=low, **more)


def test_a_failure_is_tried_again_within_the_budget():
    killed = failure("signal")
    assert retry(killed) == ""
    assert retry(killed, [killed, killed]) == ""
    assert retry(killed, [killed] * 3) == "all 3 restarts are used up"
    assert retry(killed, restarts=0) == "restarts are disabled"
    assert "does not use echelon" in retry(killed, restarts=None)
    assert "allow restarts: --restarts N" in retry(killed, restarts=None)


@pytest.mark.parametrize("cause", sorted(NEVER_RETRIED))
def test_some_causes_do_not_mend_themselves(cause):
    failed = replace(failure(cause), node="")
    assert retry(failed) == f"a restart would not help: {CAUSES[cause]}"


@pytest.mark.parametrize("cause", ["exception", "exit", "cuda out of memory", "disk full"])
def test_the_same_error_at_the_same_step_is_not_tried_a_third_time(cause):
    last = failure(cause, 1, "boom", step=7)
    assert "same error" in retry(last, [failure(cause, 2, "boom", step=7)])
    assert retry(last, [failure(cause, 1, "boom", step=8)]) == ""
    assert retry(last, [failure(cause, 1, "other", step=7)]) == ""
    between = [failure(cause, 1, "boom", step=7), failure("signal")]
    assert retry(last, between) == ""


def test_restarts_that_the_user_asked_for_are_used():
    last = failure("exception", 1, "boom", step=7)
    assert retry(last, [last, last], insists=True) == ""
    assert retry(last, [last] * 3, insists=True) == "all 3 restarts are used up"
    assert retry(failure("import error"), insists=True).startswith("a restart would not help")


TRACE = """Traceback (most recent call last):
  File "/home/me/train.py", line 41, in save
    raise OSError("disk")
OSError: disk
"""


def test_the_same_message_from_another_place_is_another_error():
    first = failure("exception", 1, "boom", step=7, traceback=TRACE)
    assert "both times" in retry(first, [first])
    assert retry(replace(first, traceback=TRACE.replace("41", "42")), [first]) == ""


@pytest.mark.parametrize("sign", [{"saved": 300}, {"printed": "step 300"}])
def test_a_script_that_gets_further_by_itself_is_tried_again(sign):
    """It reports no steps, and fails in the same way each time that it writes, say."""
    first = failure("exception", 0, "boom", traceback=TRACE, saved=150, printed="step 150")
    assert retry(replace(first, **sign), [first]) == ""
    assert retry(first, [first]) == (
        "the same error occurred again at the same place, without progress: no step was reported, "
        "there is no new checkpoint, and the output before it was the same"
    )


def test_what_was_printed_before_the_error_is_kept():
    exited = RankExited(generation=0, rank=0, code=1, tail=f"a\nstep 1\nstep 2\nstep 3\n{TRACE}")
    told = from_exit(exited, node="n", log=Path("log"))
    assert told.printed == "step 1\nstep 2\nstep 3"
    assert from_exit(replace(exited, tail=TRACE), node="n", log=Path("log")).printed == ""


def test_a_signal_or_a_lost_node_may_come_twice():
    for cause in ("signal", "lost node", "out of memory", "lost peer"):
        assert retry(failure(cause), [failure(cause)]) == ""


def test_ranks_that_one_node_cannot_start_may_start_on_the_others():
    unfit = replace(failure("start"), node="node1")
    assert retry(unfit, nodes=1, low=1) == ""
    assert retry(unfit, nodes=1, low=2).startswith("a restart would not help")
    assert retry(replace(unfit, node=""), nodes=1, low=1).startswith("a restart would not help")


def test_too_few_nodes_are_left():
    assert retry(failure("lost node"), nodes=1, low=2) == "1 node is left; the run needs at least 2"
    assert retry(failure("lost node"), nodes=1, low=1) == ""


def test_a_hang_is_the_end_where_that_was_asked():
    assert retry(failure("hang"), stop_on_hang=True) == "hangs end the run (--on-hang stop)"
    assert retry(failure("hang")) == ""
    assert retry(failure("signal"), stop_on_hang=True) == ""


# --- telling ------------------------------------------------------------------------------------

TOLD = Verdict(
    failure=Failure(
        cause="exception",
        message="ValueError: boom",
        rank=3,
        node="node1",
        step=120,
        error_type="ValueError",
        traceback="\n".join(f"line {number}" for number in range(12)),
        log="logs/1.0/rank-00003.log",
    ),
    victims=tuple(failure("lost peer", rank) for rank in (2, 0, 1, 5)),
    not_retried="restarts are disabled",
    advice="sleep over it",
    stacks={"0": "in a loop"},
)


def test_a_verdict_for_people():
    assert render(TOLD, run=Path("/runs/x")) == "\n".join(
        [
            "rank 3 on node1 at step 120: ValueError: boom",
            "  cause: exception (a Python exception)",
            "  |   …",
            *(f"  | line {number}" for number in range(5, 12)),
            "  victims: ranks 0-2,5",
            "  not retried: restarts are disabled",
            "  hint: sleep over it",
            "  log: /runs/x/logs/1.0/rank-00003.log",
        ]
    )
    assert "  | line 0\n" in render(TOLD, whole=True)
    assert "  log: logs/1.0/" in render(TOLD)


def test_whom_a_verdict_is_about():
    def head(**who):
        verdict = judge([Failure(cause="signal", message="gone", **who)])
        return render(verdict).splitlines()[0]

    assert head(rank=0) == "rank 0: gone"
    assert head(node="node1") == "node1: gone"
    assert head() == "the run: gone"


def test_one_victim_and_victims_that_are_no_ranks():
    one = judge([failure("exception", 0), failure("lost peer", 7)])
    assert "\n  victims: rank 7\n" in render(one) + "\n"
    nodes = judge([Failure(cause="lost node", message=name, node=name) for name in ("a", "b")])
    assert "victims" not in render(nodes)


def test_a_verdict_survives_its_file():
    assert decode(Verdict, json.loads(json.dumps(asdict(TOLD)))) == TOLD


def frames(*files):
    lines = [line for file in files for line in (f'  File "{file}", line 7, in f', "    call()")]
    return "\n".join(["Traceback (most recent call last):", *lines, "ValueError: boom"])


TORCH = "/env/lib/python3.11/site-packages/torch/nn.py"


@pytest.mark.parametrize(
    ("files", "own"),
    [
        (["/home/me/train.py", "/home/me/model.py", *[TORCH] * 9], "/home/me/model.py"),
        (["/home/me/train.py", *[TORCH] * 2], "/home/me/train.py"),
        ([*[TORCH] * 9, "/home/me/loss.py"], "/home/me/loss.py"),
        ([*[TORCH] * 9], TORCH),
    ],
)
def test_an_excerpt_of_a_traceback_keeps_the_users_own_line(files, own):
    told = render(judge([failure("exception", traceback=frames(*files))]))
    shown = [line for line in told.splitlines() if line.startswith("  | ")]
    assert len(shown) <= 8
    assert any(own in line for line in shown)
    assert shown[-1] == "  | ValueError: boom"


def test_ranks_that_failed_by_themselves_are_no_victims():
    others = [failure("exception", 1), failure("lost peer", 2), failure("ended", 3)]
    told = render(judge([failure("exception", 0), *others]))
    assert "also failed: rank 1\n  victims: ranks 2-3" in told
