"""The termination message: how an execution ended, as JSON of at most 4,096 bytes (Kubernetes' limit).

Readers treat it as untrusted: user code could have written it.
"""

import json
from dataclasses import asdict, dataclass, fields

from torchtpu_operator.contract.exits import Cause

MAX_BYTES = 4096
MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Termination:
    """Cause and evidence. Positions are those of the first failing rank; no text of the user's program is in it."""

    cause: Cause
    message: str
    rank: int | None = None
    slice_id: int | None = None
    host: int | None = None  # worker id within the slice
    node: str | None = None  # address of the host
    exit_code: int | None = None  # of the rank; negative: minus the signal's number
    error_type: str | None = None  # exception class from torch's error file
    secondary: int = 0  # ranks that failed after it

    def to_json(self) -> str:
        """At most MAX_BYTES; a long message is cut."""
        data = asdict(self)
        data["message"] = self.message[:MAX_MESSAGE]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        if len(text) > MAX_BYTES:  # every character of the message could have been escaped to six
            text = json.dumps(data | {"message": self.message[:128]}, sort_keys=True, separators=(",", ":"))
        return text

    @classmethod
    def from_json(cls, text: str) -> "Termination":
        """Raises ValueError on anything that `to_json` could not have written."""
        try:
            data = json.loads(text[: 2 * MAX_BYTES])
            known = {f.name for f in fields(cls)}
            return cls(**{k: v for k, v in data.items() if k in known} | {"cause": Cause(data["cause"])})
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a termination message: {error}") from error
