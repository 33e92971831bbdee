"""What router and connector tell each other in `kv_transfer_params`, which vLLM carries with a request and its answer unread."""

from __future__ import annotations

from typing import Final

KV_PARAMS: Final = "kv_transfer_params"
EXPECTED: Final = "pegaflow_expected"
"""To D, true: the pages of this prompt are on their way, so a lookup may wait for keys that nobody knows yet."""
ASK_SAVED: Final = "pegaflow_ask_saved"
"""To P, true: say with your answer whether the whole prompt was offered to the tier."""
SAVED: Final = "pegaflow_saved"
"""P's answer to that, true or false."""
