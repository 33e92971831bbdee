"""Everything an engine imports, loaded once into the fork server: an engine forked from there starts in seconds.

Nothing here computes or starts a thread, so a fork is as good as a new process: no engine has ever lived in it.
"""

import os

os.environ.update(
    OMP_NUM_THREADS="1",  # the models are tiny, and two ranks share two cores
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
)

import pegaflow.connector  # noqa: F401
import prometheus_client  # noqa: F401
import vllm
import vllm.distributed.kv_transfer.kv_connector.v1.multi_connector
import vllm.model_executor.models.deepseek_v2
import vllm.model_executor.models.llama
import vllm.v1.engine.async_llm
import vllm.v1.executor.multiproc_executor
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: F401
