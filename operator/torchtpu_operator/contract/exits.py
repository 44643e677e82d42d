"""Exit codes of the driver and the submitter, and the closed list of causes they stand for."""

from enum import StrEnum


class Cause(StrEnum):
    """Why an execution ended; the value is what appears in messages and status."""

    SUCCEEDED = "Succeeded"
    RANK_FAILED = "RankFailed"  # a rank's process ended with a code other than 0, or by a signal
    STARTUP_DEADLINE = "StartupDeadline"  # the slices were not whole in time
    HOST_LOST = "HostLost"  # a host went away while its ranks ran
    CONFIGURATION = "Configuration"  # the job cannot run as written: entrypoint, versions, job record
    STOPPED = "Stopped"  # asked to stop: SIGTERM, preStop, cancel
    UNEVEN_EXIT = "UnevenExit"  # some ranks ended with 0, the others neither ended nor progressed
    SUBMISSION = "Submission"  # the Ray job could not be submitted, or Ray no longer knows it
    INTERNAL = "Internal"  # a fault of the runtime itself


EXIT_CODES = {
    Cause.SUCCEEDED: 0,
    Cause.RANK_FAILED: 81,
    Cause.STARTUP_DEADLINE: 82,
    Cause.HOST_LOST: 83,
    Cause.CONFIGURATION: 84,
    Cause.STOPPED: 85,
    Cause.UNEVEN_EXIT: 86,
    Cause.SUBMISSION: 87,
    Cause.INTERNAL: 88,
}
