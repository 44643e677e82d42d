"""Names that appear in manifests, pods and processes."""

GROUP = "torchtpu.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TorchTPUJob"

# Labels on every object and pod that belongs to a job.
LABEL_JOB_NAME = f"{GROUP}/job-name"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_ATTEMPT = f"{GROUP}/attempt"

# Annotation on a TorchTPUJob: with device CPU keep selectors, chips and toleration (test beds).
ANNOTATION_KEEP_TPU_SCHEDULING = f"{GROUP}/keep-tpu-scheduling"

# KubeRay's labels on pods (ray-operator/controllers/ray/utils/constant.go).
LABEL_RAY_CLUSTER = "ray.io/cluster"
LABEL_RAY_GROUP = "ray.io/group"
LABEL_RAY_NODE_TYPE = "ray.io/node-type"
LABEL_REPLICA_INDEX = "ray.io/worker-group-replica-index"
LABEL_REPLICA_NAME = "ray.io/worker-group-replica-name"
LABEL_HOST_INDEX = "ray.io/replica-host-index"

# Ray's labels on nodes (ray/_private/accelerators/tpu.py).
RAY_LABEL_SLICE_NAME = "ray.io/tpu-slice-name"
RAY_LABEL_WORKER_ID = "ray.io/tpu-worker-id"
RAY_LABEL_TOPOLOGY = "ray.io/tpu-topology"

TPU_GROUP = "tpu"
HEAD_CONTAINER = "ray-head"
WORKER_CONTAINER = "ray-worker"
SUBMITTER_CONTAINER = "ray-job-submitter"
RESERVED_GROUPS = ("tpu", "head", "submitter")

# Where the init container puts the runtime, and what lies in it.
RUNTIME_VOLUME = "torchtpu-runtime"
RUNTIME_PATH = "/opt/torchtpu"
FILES_PATH = f"{RUNTIME_PATH}/files"
RUN_PATH = f"{RUNTIME_PATH}/run"

RUNTIME_MODULE = "torchtpu_operator.runtime"

# Environment of containers and rank processes. User variables may not start with the prefix.
ENV_PREFIX = "TTJ_"
ENV_JOB = "TTJ_JOB"  # JobSpec as JSON, on the head
ENV_FILES = "TTJ_FILES"  # {path: text} as JSON, on the init container
ENV_RUN_DIR = "TTJ_RUN_DIR"  # folder for logs, progress and the stop marker of this pod
ENV_SLICE_INDEX = "TTJ_SLICE_INDEX"  # KubeRay's replica index, on worker pods
ENV_POD_STDOUT = "TTJ_POD_STDOUT"  # file that is the pod's log
ENV_TERMINATION_LOG = "TTJ_TERMINATION_LOG"  # where the submitter leaves the termination message
ENV_RESULT_KEY = "TTJ_RESULT_KEY"  # marks the driver's result line; never given to a rank

# What a rank sees beside torchrun's variables.
ENV_JOB_NAME = "TTJ_JOB_NAME"
ENV_JOB_NAMESPACE = "TTJ_JOB_NAMESPACE"
ENV_ATTEMPT = "TTJ_ATTEMPT"
ENV_RESTART = "TTJ_RESTART"
ENV_RUN_ID = "TTJ_RUN_ID"  # the same over all attempts of a job
ENV_SLICE_ID = "TTJ_SLICE_ID"
ENV_NUM_SLICES = "TTJ_NUM_SLICES"
ENV_DEVICE = "TTJ_DEVICE"  # TPU or CPU
ENV_FRAMEWORK = "TTJ_FRAMEWORK"  # TorchTPU or TorchXLA
ENV_REPORT_FILE = "TTJ_REPORT_FILE"  # where ttj.report() leaves its latest record
